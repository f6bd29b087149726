"""Arrays in the host's memory: none of the device's bytes, and the way between them takes time."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import neurenix as nx
from neurenix import chips
from neurenix.compiler.abstract_placement import abstract_mesh
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.calibration import WEIGHTS
from neurenix.compiler.compile import CompileOptions, compile_all
from neurenix.compiler.peak_memory import of_refused
from neurenix.compiler.program import Program, TraceOptions, spec, trace
from neurenix.compiler.target import Target
from program_helpers import signature

DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host
ON_HOST = NamedSharding(abstract_mesh({"data": 1}), PartitionSpec(), memory_kind="pinned_host")
SHAPE = (64, 1024, 1024)
NUM_BYTES = math.prod(SHAPE) * 4
GRADIENT = spec(SHAPE)
MOMENT = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=ON_HOST)


def fetched(moment: Any, gradient: Any) -> Any:
    return (jax.device_put(moment, DEVICE) * 0.9 + gradient).sum()


def updated(moment: Any, gradient: Any) -> Any:
    return jax.device_put(jax.device_put(moment, DEVICE) * 0.9 + gradient, HOST)


def doubled(gradient: Any) -> Any:
    return 2 * gradient


def on_one(function: Callable[..., Any], *args: Any) -> Program:
    return trace(function, args, axes={"data": 1}, options=TraceOptions(exported=True))


def on_host(program: Program) -> list[bool]:
    """Of each parameter and then of each result, whether it lies in the host's memory."""
    arrays = signature(program).split("tensor<")[1:]
    return ['mhlo.memory_kind = "pinned_host"' in array for array in arrays]


@pytest.mark.cpu8
class TestTraced:
    def test_an_argument_stays_on_the_host(self) -> None:
        program = on_one(fetched, MOMENT, GRADIENT)
        assert [leaf.host_memory for leaf in program.leaves] == ["pinned_host", ""]
        assert [leaf.host_bytes for leaf in program.leaves] == [NUM_BYTES, 0]
        assert [leaf.device_bytes for leaf in program.leaves] == [0, NUM_BYTES]
        assert on_host(program) == [True, False, False]

    def test_so_does_its_share_of_each_device(self) -> None:
        mesh = abstract_mesh({"data": 8})
        rows = NamedSharding(mesh, PartitionSpec("data"), memory_kind="pinned_host")
        moment = jax.ShapeDtypeStruct(SHAPE, jnp.float32, sharding=rows)
        program = trace(fetched, (moment, GRADIENT), axes={"data": 8})
        assert program.leaves[0].host_bytes == NUM_BYTES // 8

    def test_an_array_of_this_machine_is_where_it_says(self) -> None:
        here = jnp.ones((8, 8))
        there = jax.device_put(here, here.sharding.with_memory_kind("pinned_host"))
        programs = [on_one(jnp.sin, x) for x in (spec((8, 8)), here)]
        assert programs[0].fingerprint == programs[1].fingerprint
        assert on_one(lambda x: jax.device_put(x, DEVICE), there).leaves[0].host_memory

    def test_results_on_the_host_take_no_hbm(self) -> None:
        compiled_before = jax.jit(doubled, out_shardings=ON_HOST)
        for function in (lambda g: jax.device_put(doubled(g), HOST), compiled_before):
            program = on_one(function, GRADIENT)
            assert program.output_bytes == 0
            assert on_host(program) == [False, True]
        assert on_one(doubled, GRADIENT).output_bytes == NUM_BYTES

    def test_of_a_refused_program_too_they_lie_there(self) -> None:
        memory = of_refused(on_one(fetched, MOMENT, GRADIENT), None, None, limit_bytes=2**30)
        assert (memory.arguments_bytes, memory.host_bytes) == (NUM_BYTES, NUM_BYTES)
        assert [buffer.path for buffer in memory.buffers] == ["1"]


@pytest.mark.tpu_compile
class TestCompiled:
    @staticmethod
    def ask(cache: Path, *programs: Program) -> list[Analysis]:
        where = chips.resolve("v5e-1")
        options = CompileOptions(cache_directory=cache)
        found = compile_all([(program, Target.of(where)) for program in programs], options)
        return [analyse(p, where, answer) for p, answer in zip(programs, found, strict=True)]

    def test_what_lies_there_and_what_moves(self, tmp_path: Path) -> None:
        """A moment that is fetched; fetched and kept; kept in its own place; a result alone."""
        into, both, donated, out = self.ask(
            tmp_path,
            on_one(fetched, MOMENT, GRADIENT),
            on_one(updated, MOMENT, GRADIENT),
            on_one(jax.jit(updated, donate_argnums=0), MOMENT, GRADIENT),
            on_one(jax.jit(doubled, out_shardings=ON_HOST), GRADIENT),
        )
        held = [analysis.memory.host_bytes for analysis in (into, both, donated, out)]
        assert held == [NUM_BYTES, 2 * NUM_BYTES, NUM_BYTES, NUM_BYTES]
        one_way = WEIGHTS["host"] * NUM_BYTES / into.where.generation.pcie_bytes_per_second_per_chip
        for analysis, ways in ((into, 1), (both, 2), (donated, 2), (out, 1)):
            memory = analysis.memory
            assert analysis.fits and analysis.time is not None
            assert memory.roles == {"argument": NUM_BYTES}
            assert memory.arguments_bytes == sum(b.padded_bytes for b in memory.buffers)
            moving = sum(o.seconds for o in analysis.operations if o.kind == "host")
            assert moving == pytest.approx(ways * one_way, rel=0.01)
            assert analysis.time.bound == "host" and analysis.time.seconds > moving

    def test_layers_are_fetched_one_after_another(self, tmp_path: Path) -> None:
        """16 GiB of weights are no obstacle to 15.75 GiB of HBM."""

        def forward(weights: Any, x: Any) -> Any:
            def layer(h: Any, w: Any) -> Any:
                return jnp.tanh(h @ jax.device_put(w, DEVICE).astype(jnp.bfloat16)), None

            return jax.lax.scan(layer, x, weights)[0]

        weights = jax.ShapeDtypeStruct((64, 8192, 8192), jnp.float32, sharding=ON_HOST)
        (analysis,) = self.ask(tmp_path, on_one(forward, weights, spec((1024, 8192), "bfloat16")))
        assert analysis.fits and analysis.memory.host_bytes == 16 * 2**30
        assert analysis.memory.peak_bytes < 2**30
        assert analysis.memory.arguments_bytes == 1024 * 8192 * 2

    def test_a_file_tells_what_lies_there(self, tmp_path: Path) -> None:
        written = nx.compile_for(fetched, MOMENT, GRADIENT, on="v5e-1", path=tmp_path / "step.nxc")
        kinds = [argument["memory_kind"] for argument in written.manifest["arguments"]]
        assert kinds == ["pinned_host", "device"]

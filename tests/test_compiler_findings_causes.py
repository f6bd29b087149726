"""What findings say is the cause, and what remains of a program, on real programs compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import neurenix as nx
from neurenix import nn
from neurenix.compiler.findings import Finding
from neurenix.preflight import CompileOptions, PreflightOptions, Report

pytestmark = [pytest.mark.tpu_compile, pytest.mark.xdist_group("libtpu")]

SQUARE = nx.spec((1024, 1024), "bfloat16")


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = CompileOptions(cache_directory=tmp_path_factory.mktemp("cache"))

    def ask(function: Any, *args: Any, on: str = "v5e-1", **more: Any) -> Report:
        options = PreflightOptions(compiler=compiler, suggest=False)
        return nx.preflight(function, *args, on=on, options=options, **more)

    return ask


def of(report: Report, rule: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.rule == rule]


def test_what_only_a_callback_looks_at_is_computed(ask) -> None:
    def answered(x: Any, w: Any) -> Any:
        y = x @ w
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(y.shape, y.dtype), y)

    def told(x: Any, w: Any) -> Any:
        y = x @ w
        return jax.pure_callback(lambda a, b: a, jax.ShapeDtypeStruct((8,), "float32"), y, x > 0)

    for function in (answered, told):
        report = ask(function, SQUARE, SQUARE)
        assert any(operation.products for operation in report.operations)
        assert report.analysis.program.model_flops == 2 * 1024**3
        assert 0 < report.mfu <= 1


def test_a_mesh_of_the_functions_own_compiles(ask) -> None:
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))

    def summed(x: Any) -> Any:
        return jax.shard_map(
            lambda x: jax.lax.psum(x, "data"), mesh=mesh, in_specs=P("data"), out_specs=P()
        )(x)

    report = ask(summed, nx.spec((1024, 1024), partition=("data",)), on="v5e-8")
    assert "all-reduce" in {o.opcode.removesuffix("-start") for o in report.operations}


def test_what_a_loop_carries_is_not_to_be_donated(ask) -> None:
    def loop(unroll: int) -> Any:
        return lambda x, w: jax.lax.fori_loop(0, 10, lambda i, c: c @ w, x, unroll=unroll)

    (found,) = of(ask(loop(1), SQUARE, SQUARE), "copy")
    assert "what a loop carries from turn to turn" in found.message
    assert "unroll=2" in found.fix
    assert "Donation does not change it" in found.fix
    assert of(ask(loop(2), SQUARE, SQUARE), "copy") == []  # as it was told


def test_an_argument_that_a_loop_writes_over_is_to_be_donated(ask) -> None:
    def loop(x: Any, w: Any) -> Any:
        return jax.lax.while_loop(
            lambda c: jnp.abs(c[0]).max() < 1e9, lambda c: (c[0] @ w, c[1] + 1), (x, 0)
        )

    first = of(ask(loop, SQUARE, SQUARE), "copy")
    assert any("an argument that a loop writes over" in found.message for found in first)
    assert len({(found.source.file, found.source.line) for found in first if found.source}) == len(
        first
    )
    for found in of(ask(jax.jit(loop, donate_argnums=0), SQUARE, SQUARE), "copy"):
        assert "an argument that a loop" not in found.message
        assert "carries" in found.message


def test_products_that_nobody_wrote_are_not_judged(ask) -> None:
    x = nx.spec((256, 1024))
    report = ask(lambda x, w: jnp.fft.fft(x).real @ w, x, nx.spec((1024, 256)))
    fourier = [o for o in report.operations if o.products and "fft" in o.op_name]
    assert fourier
    assert of(report, "padded-matmul") == []


def test_the_depth_of_a_convolution_is_that_of_its_kernel(ask) -> None:
    def convolve(x: Any, w: Any) -> Any:
        return jax.lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    report = ask(convolve, nx.spec((64, 56, 56, 3), "bfloat16"), nx.spec((3, 3, 3, 64), "bfloat16"))
    (found,) = of(report, "padded-matmul")
    assert "(200704 × 27) · (27 × 64)" in found.message


def test_gradients_between_slices_are_named_as_what_they_are(ask) -> None:
    model = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 8))
    model.compile(optimizer="adam", loss="mse")
    found = of(ask(model, on="2x v5e-8", input_shape=(64, 512)), "exposed-collective")
    assert found
    for finding in found:
        assert "gradients are summed between slices" in finding.message
        assert "accumulation" in finding.fix
        assert '{"data": 2, "fsdp": 8}' in finding.fix
        assert "u32[]" not in finding.message
        assert "token[]" not in finding.message


def test_results_that_do_not_fit_are_named_and_no_optimizer_is_spoken_of(ask) -> None:
    report = ask(lambda x: x + 1, nx.spec((8 * 2**30,)))
    assert report.hbm.outputs_bytes == 32 * 2**30
    assert report.hbm.temporaries_bytes == 0
    assert "new results 32.00 GiB" in report.text(100)
    (found,) = report.findings
    assert "optimizer" not in found.fix
    assert "donate_argnums" in found.fix

"""Causes of findings, what remains of a program and how long it takes, on programs compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

import neurenix as nx
from neurenix import chips, nn
from neurenix.compiler.findings import Finding
from neurenix.preflight import CompileOptions, PreflightOptions, Report

pytestmark = pytest.mark.tpu_compile

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
    donated = of(ask(jax.jit(loop, donate_argnums=0), SQUARE, SQUARE), "copy")
    assert donated
    for found in donated:
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


@pytest.mark.parametrize(
    ("on", "mesh"),
    [("2x v5e-4", {"data": 2, "fsdp": 4}), ("2x v5e-1", {"data": 2})],
)
def test_exchanges_within_a_slice_and_between_slices_have_causes_of_their_own(
    ask, on: str, mesh: dict[str, int]
) -> None:
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    model.compile(optimizer="adam", loss="mse")
    found = of(ask(model, on=on, mesh=mesh, input_shape=(64, 1024)), "exposed-collective")
    between = [finding for finding in found if "network between slices" in finding.message]
    within = [finding for finding in found if finding not in between]
    assert len(between) == 1
    assert bool(within) == ("fsdp" in mesh)
    for finding in between:
        assert "gradients are summed between slices" in finding.message
    for finding in within:
        assert "gradients are summed between slices" not in finding.message
    for finding in found:  # a mesh that it has, or that divides nothing
        assert "fsdp" not in finding.fix
        assert "FSDP" not in finding.fix


def test_results_that_do_not_fit_are_named_and_no_optimizer_is_spoken_of(ask) -> None:
    report = ask(lambda x: x + 1, nx.spec((8 * 2**30,)))
    assert report.hbm.outputs_bytes == 32 * 2**30
    assert report.hbm.temporaries_bytes == 0
    assert "new results 32.00 GiB" in report.text(100)
    (found,) = report.findings
    assert "optimizer" not in found.fix
    assert "donate_argnums" in found.fix


def device_seconds(report: Report) -> float:
    time = report.step_time
    assert time is not None
    assert time.low <= time.seconds <= time.high
    return time.device_seconds


V5E = chips.generation("v5e")
LARGE = nx.spec((2048, 2048), "bfloat16")
TURN = 2 * 2048**3  # FLOPs


def test_a_switch_takes_as_long_as_one_of_its_branches(ask) -> None:
    def choose(i: Any, x: Any, w: Any) -> Any:
        return jax.lax.switch(i, [lambda k=k: x @ w[k] for k in range(4)])

    weights = nx.spec((4, 4096, 4096), "bfloat16")
    report = ask(choose, nx.spec((), "int32"), nx.spec((8, 4096), "bfloat16"), weights)
    least = 2 * 4096**2 / V5E.hbm_bandwidth_bytes_per_second_per_device
    assert least <= device_seconds(report) < 1.5 * least


def test_rows_are_written_into_a_table_that_is_donated_and_copied_into_one_that_is_not(ask) -> None:
    rows = 2**19, 128
    given = nx.spec(rows), nx.spec((1024,), "int32"), nx.spec((1024, 128))

    def write(table: Any, at: Any, new: Any) -> Any:
        return table.at[at].set(new)

    table = 4 * rows[0] * rows[1] / V5E.hbm_bandwidth_bytes_per_second_per_device
    donated = ask(jax.jit(write, donate_argnums=0), *given)
    assert device_seconds(donated) < table / 20
    assert device_seconds(ask(write, *given)) > 2 * table
    assert any("scatter" in note for note in donated.analysis.notes)

    def again(table: Any, at: Any, new: Any) -> Any:
        return table.at[at].set(new) * table

    assert device_seconds(ask(jax.jit(again, donate_argnums=0), *given)) > 3 * table


def blocks(a: Any, b: Any, out: Any, total: Any) -> None:
    @pallas.when(pallas.program_id(2) == 0)
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    total[...] += jnp.dot(a[...], b[...], preferred_element_type=jnp.float32)
    out[...] = total[...].astype(out.dtype)


def test_a_kernel_without_a_stated_cost_takes_what_its_products_and_blocks_take(ask) -> None:
    size, block = 2048, 256

    def own(a: Any, b: Any) -> Any:
        return pallas.pallas_call(
            blocks,
            grid=(size // block,) * 3,
            in_specs=[
                pallas.BlockSpec((block, block), lambda i, j, k: (i, k)),
                pallas.BlockSpec((block, block), lambda i, j, k: (k, j)),
            ],
            out_specs=pallas.BlockSpec((block, block), lambda i, j, k: (i, j)),
            out_shape=jax.ShapeDtypeStruct((size, size), jnp.bfloat16),
            scratch_shapes=[pltpu.VMEM((block, block), jnp.float32)],
        )(a, b)

    report = ask(own, LARGE, LARGE)
    (kernel,) = [o for o in report.operations if o.opcode == "custom-call"]
    assert kernel.flops == TURN
    fetched = 2 * (size // block) * 2 * size * size  # each operand once for each column of blocks
    assert kernel.bytes == fetched + 2 * size * size
    assert report.step_time.low >= TURN / V5E.peak_flops_per_second["bfloat16"]
    assert report.mfu <= 1
    assert any("Pallas kernel" in note for note in report.analysis.notes)


def test_ten_turns_are_ten_in_time_and_in_flops(ask) -> None:
    def turn(x: Any, w: Any) -> Any:
        def body(carry: Any) -> Any:
            return carry[0] * 2, jnp.tanh(carry[1] @ w)

        return jax.lax.while_loop(lambda carry: carry[0] < 1024, body, (1, x))[1]

    report = ask(turn, LARGE, LARGE)
    assert report.analysis.program.model_flops == 10 * TURN
    assert sum(operation.flops for operation in report.operations) == 10 * TURN
    assert 0.3 < report.mfu <= 1
    assert not report.analysis.notes


def test_turns_that_only_the_data_knows_are_counted_once_and_told(ask) -> None:
    def turn(x: Any, w: Any, count: Any) -> Any:
        return jax.lax.while_loop(
            lambda carry: carry[0] < count,
            lambda carry: (carry[0] + 1, jnp.tanh(carry[1] @ w)),
            (0, x),
        )[1]

    report = ask(turn, LARGE, LARGE, nx.spec((), "int32"))
    assert report.analysis.program.model_flops == TURN
    (note,) = report.analysis.notes
    assert "it counts once" in note


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: (x @ w).sum() + (x @ w).max(),
        lambda x, w: (x @ w)[0],
        lambda x, w: jnp.ones_like(x) @ w + x,
    ],
)
def test_work_that_the_compiler_leaves_out_is_no_utilization(ask, function) -> None:
    assert ask(function, LARGE, LARGE).mfu <= 1


def test_a_branch_that_is_seldom_taken_is_told(ask) -> None:
    def turn(x: Any, w: Any) -> Any:
        def body(x: Any, i: Any) -> Any:
            return jax.lax.cond(i % 4 == 0, lambda x: jnp.tanh(x @ w), lambda x: x, x), None

        return jax.lax.scan(body, x, jnp.arange(16))[0]

    (note,) = ask(turn, LARGE, LARGE).analysis.notes
    assert "The branch taken at" in note


def test_the_branch_that_keeps_weights_finite_is_not_told(ask) -> None:
    model = nx.nn.Linear(1024, 1024).compile(loss="mse")
    report = ask(model, nx.spec((64, 1024)))
    assert not [note for note in report.analysis.notes if "branch" in note]

"""Preflight with the real TPU compiler, small and few. One group: one test process compiles."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotCompiledError,
    ShapeError,
    UnknownNameError,
)
from neurenix._nnx import nnx
from neurenix.compiler.workers import Workers
from neurenix.preflight import CompileOptions, PreflightOptions, Report

pytestmark = [pytest.mark.tpu_compile, pytest.mark.newest]

BATCH = 200


def cnn() -> nn.Module:
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    return model.compile(optimizer=nx.optim.Adam(1e-3), loss=loss)


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    shape = (BATCH, 8, 8, 1)
    return nx.preflight(cnn(), on=["v5e-8", "v6e-8"], input_shape=shape)


def test_a_report_for_each_slice_in_order(reports: list[Report]) -> None:
    assert [report.slice.name for report in reports] == ["v5e-8", "v6e-8"]
    assert all(report.fits for report in reports)
    assert [report.hbm.limit_bytes / 2**30 for report in reports] == [15.75, 31.25]


@pytest.mark.parametrize(("suggest", "fits"), [(True, True), (True, False), (False, False)])
def test_the_compiler_ends_once_nothing_more_is_compiled(
    suggest: bool, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    dismissed: list[Workers] = []
    monkeypatch.setattr(Workers, "dismiss", lambda workers: dismissed.append(workers))
    size = 64 if fits else 1 << 17
    x = nx.spec((size, size), "bfloat16")
    options = PreflightOptions(suggest=suggest)
    report = nx.preflight(lambda x: (x @ x).sum(), x, on="v5e-1", options=options)
    assert report.fits is fits and len(dismissed) == (fits or not suggest)


def test_model_flops_are_those_of_the_model(reports: list[Report]) -> None:
    first = 2 * 6 * 6 * 32 * 9
    rest = 2 * (4 * 4 * 64 * 9 * 32 + 256 * 128 + 128 * 10)
    expected = BATCH * (2 * first + 3 * rest)  # the first layer needs no gradient of its input
    for report in reports:
        assert report.analysis.program.model_flops == expected
        assert report.step_time is not None
        peak = report.slice.generation.peak_flops_per_second["bfloat16"] * 8
        assert report.mfu == pytest.approx(expected / report.step_time.seconds / peak)


def test_memory_is_the_state_and_the_share_of_the_batch(reports: list[Report]) -> None:
    parameters = 4 * (3 * 3 * 32 + 32 + 3 * 3 * 32 * 64 + 64 + 256 * 128 + 128 + 128 * 10 + 10)
    for report in reports:
        memory = report.hbm
        by_role: dict[str, int] = {}
        for buffer in memory.buffers:
            by_role[buffer.role] = by_role.get(buffer.role, 0) + buffer.logical_bytes
        assert by_role["parameters"] == parameters
        assert by_role["optimizer"] - 2 * parameters < 100  # Adam's two moments and a counter
        assert by_role["batch"] == BATCH // 8 * (8 * 8 * 4 + 4)
        assert sum(memory.roles.values()) == pytest.approx(memory.arguments_bytes, rel=0.02)
        # Every byte of state is donated: a step needs no second copy.
        state = sum(b.padded_bytes for b in memory.buffers if b.role != "batch")
        assert memory.aliased_bytes == pytest.approx(state, rel=0.02)
        assert memory.peak_bytes < memory.limit_bytes
        assert memory.padding_bytes > 0


def test_time_is_an_interval_with_a_bound(reports: list[Report]) -> None:
    for report in reports:
        time = report.step_time
        assert time is not None
        assert 0 < time.low < time.seconds < time.high
        assert report.bound == time.bound
        assert sum(time.shares.values()) == pytest.approx(1)
        assert report.operations[0].seconds >= report.operations[-1].seconds


def test_the_gradients_are_reduced_over_the_slice(reports: list[Report]) -> None:
    assert any(operation.kind == "ici" for operation in reports[0].operations)


def test_text_says_that_times_are_estimates(reports: list[Report]) -> None:
    text = str(reports[0])
    assert re.search(r"step time +[\d.e+-]+ [mµ]s estimated \(", text)
    words = " ".join(text.split())  # lines are folded
    assert "nothing ran on a TPU" in words
    assert "fits         yes" in text
    for finding in reports[0].findings[:3]:
        assert " ".join(finding.fix.split()) in words


def test_cost_is_hours_times_chips_times_price(reports: list[Report]) -> None:
    report = reports[0]
    assert report.step_time is not None
    cost = report.cost(1_000_000)
    hours = 1_000_000 * report.step_time.seconds / 3600
    assert cost.usd == pytest.approx(hours * 8 * 1.20)
    assert cost.low is not None and cost.high is not None
    assert cost.low < cost.usd < cost.high
    assert report.cost(10, usd_per_chip_hour=2.0).usd == pytest.approx(
        2 * 10 * report.step_time.seconds * 8 / 3600
    )
    with pytest.raises(ArgumentError, match="steps"):
        report.cost(-1)


def test_json_is_of_a_versioned_schema(reports: list[Report], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    reports[0].to_json(path)
    data = json.loads(path.read_text())
    assert (data["schema"], data["schema_version"]) == ("neurenix.preflight", 1)
    assert data["fits"] is True
    assert data["estimated_step_time"]["seconds"] == reports[0].step_time.seconds
    assert data["hbm_per_device"]["peak_bytes"] == reports[0].hbm.peak_bytes
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_the_second_time_comes_from_the_cache_unless_it_is_damaged(tmp_path: Path) -> None:
    own = PreflightOptions(compiler=CompileOptions(cache_directory=tmp_path))

    def ask() -> Report:
        return nx.preflight(jnp.tanh, nx.spec((128, 128)), on="v5e-1", options=own)

    first, second = ask(), ask()
    assert (first.analysis.from_cache, second.analysis.from_cache) == (False, True)
    assert (second.hbm, second.step_time) == (first.hbm, first.step_time)
    (entry,) = tmp_path.iterdir()
    entry.write_bytes(entry.read_bytes()[:-9])
    third = ask()
    assert not third.analysis.from_cache
    assert "damaged; compiled again" in " ".join(str(third).split())
    assert third.hbm == first.hbm
    assert ask().analysis.from_cache


def test_any_function_has_its_products_counted() -> None:
    argument = nx.spec((512, 512), "bfloat16")
    report = nx.preflight(lambda x, w: jnp.tanh(x @ w), argument, argument, on="v6e-1")
    assert report.analysis.program.model_flops == 2 * 512**3


def test_functions_of_modules_have_roles_and_the_users_lines() -> None:
    model = nnx.Linear(64, 32, rngs=nnx.Rngs(0))

    def apply(model, x):
        return model(x).sum()

    x = nx.spec((64, 64), partition=("data",))
    report = nx.preflight(apply, model, x, on="v5e-8")
    assert set(report.hbm.roles) == {"parameters", "batch"}
    sources = {str(op.source) for op in report.operations if op.source}
    assert any("test_preflight.py" in source for source in sources)


def test_search_orders_candidates_and_says_why_others_lost() -> None:
    plan = nx.preflight.search(
        cnn(), on=["v6e-8", "v5e-8", "v5e-16"], input_shape=(BATCH, 8, 8, 1), objective="cost"
    )  # fmt: skip
    assert [c.slice.name for c in plan.candidates] == ["v5e-8", "v6e-8", "v5e-16"]
    assert plan.best.slice.name == "v5e-8"
    assert "× the best" in plan.candidates[1].reason
    assert "cannot be divided over the 16 replicas" in plan.candidates[2].reason
    table = plan.table()
    assert all(name in table for name in ("v5e-8", "v6e-8", "v5e-16", "best cost"))


def cast(x, dtype="float32"):
    return x.astype(dtype)


def test_bad_input_is_named_before_anything_is_compiled() -> None:
    model = cnn()
    with pytest.raises(UnknownNameError, match="Did you mean 'v5e-8'"):
        nx.preflight(model, on="v5e-9", input_shape=(BATCH, 8, 8, 1))
    with pytest.raises(ShapeError, match=r"batch of 100 .* 8 replicas of v5e-8; take 96 or 104"):
        nx.preflight(model, on="v5e-8", input_shape=(100, 8, 8, 1))
    with pytest.raises(ArgumentTypeError, match="shape of a batch is needed"):
        nx.preflight(model, on="v5e-8")
    with pytest.raises(ArgumentTypeError, match="names no slice"):
        nx.preflight(model, on=[], input_shape=(BATCH, 8, 8, 1))
    half = "bfloat16"
    with pytest.raises(ArgumentTypeError, match="dtype='bfloat16' is that of input_shape="):
        nx.preflight(model, nx.spec((BATCH, 8, 8, 1)), on="v5e-8", dtype=half)
    with pytest.raises(ArgumentTypeError, match="is that of input_shape="):
        nx.preflight.search(jnp.tanh, nx.spec((8,)), on="v5e-8", dtype=half)
    with pytest.raises(ArgumentTypeError, match="is that of input_shape="):
        nx.preflight.largest_batch(model, nx.spec((BATCH, 8, 8, 1)), on="v5e-8", dtype=half)
    with pytest.raises(ArgumentTypeError, match=r"for cast: .*partial\(cast, dtype=…\)"):
        nx.compile_for(cast, nx.spec((8,)), on="v5e-8", path="never.nxc", dtype=half)
    with pytest.raises(NotCompiledError, match="model.compile"):
        nx.preflight(nn.Sequential(nn.Linear(8, 8)), on="v5e-8", input_shape=(8, 8))
    with pytest.raises(ArgumentTypeError, match="got int"):
        nx.preflight(3, on="v5e-8")
    with pytest.raises(UnknownNameError, match="objective"):
        nx.preflight.search(model, on=["v5e-8"], input_shape=(BATCH, 8, 8, 1), objective="speed")
    with pytest.raises(ShapeError, match="has 4 devices, and v5e-8 has 8"):
        nx.preflight(jnp.tanh, nx.spec((8,)), on="v5e-8", mesh={"a": 4})


def of(function, *args, on: str = "v5e-8") -> Report:
    return nx.preflight(function, *args, on=on)


def test_a_jitted_function_keeps_its_donation() -> None:
    step = jax.jit(lambda state, gradient: state - gradient, donate_argnums=0)
    report = of(step, *[nx.spec((2048, 2048))] * 2, on="v5e-1")
    assert report.hbm.peak_bytes == 2 * 2048 * 2048 * 4


def test_a_program_without_arguments() -> None:
    report = of(lambda: jax.random.normal(jax.random.PRNGKey(0), (512, 512)))
    assert report.fits


def test_a_function_without_a_result() -> None:
    with pytest.raises(ArgumentError, match="returns no array"):
        of(lambda x: None, nx.spec((8, 8)))


def test_a_random_key_is_an_argument() -> None:
    report = of(lambda key: jax.random.normal(key, (8, 8)), jax.random.key(0))
    assert report.hbm.buffers[0].logical_bytes == 8


def test_partitions_may_name_axes_of_the_mesh_alone() -> None:
    def summed(x):
        return jax.lax.with_sharding_constraint(x, jax.sharding.PartitionSpec("data")).sum()

    report = of(summed, nx.spec((512, 128)))
    assert {operation.kind for operation in report.operations} >= {"ici"}


def test_a_function_may_bring_a_mesh_of_its_own() -> None:
    summed = jax.shard_map(
        lambda part: jax.lax.psum(part, "data"),
        mesh=jax.sharding.AbstractMesh((8,), ("data",), (jax.sharding.AxisType.Auto,)),
        in_specs=jax.sharding.PartitionSpec("data"),
        out_specs=jax.sharding.PartitionSpec(),
    )
    report = of(summed, nx.spec((512, 128)))
    assert {operation.kind for operation in report.operations} >= {"ici"}


def test_no_estimate_is_faster_than_the_chip() -> None:
    for dtype, peak in (("bfloat16", 197e12), ("int8", 394e12)):
        matrix = nx.spec((2048, 2048), dtype)
        report = of(
            lambda a, b: jax.lax.dot(a, b, preferred_element_type="float32"),
            matrix, matrix, on="v5e-1"
        )  # fmt: skip
        assert report.step_time is not None
        assert report.step_time.low >= 2 * 2048**3 / peak * 0.99
        assert 0.3 < (report.mfu or 0) <= 1


def test_what_has_no_cycles_may_take_much_longer() -> None:
    report = of(jnp.sort, nx.spec((2**17, 32)), on="v5e-1")
    assert report.step_time is not None
    assert report.step_time.high > 3 * report.step_time.seconds


def test_numbers_of_64_bits_are_compiled_as_they_are() -> None:
    table, ids, wide = ((128, 64), "float32"), ((16,), "int64"), ((512, 512), "float64")
    with jax.enable_x64(True):
        found = [
            nx.preflight(function, *(nx.spec(*one) for one in given), on="v5e-1")
            for function, given in ((lambda e, t: e[t], (table, ids)), (jnp.matmul, (wide, wide)))
        ]
    assert [report.refused for report in found] == [None, None]
    assert "unsupported-type" in {finding.rule for finding in found[1].findings}


def test_several_steps_in_one_call_cost_the_host_less() -> None:
    model = nn.Sequential(nn.Linear(64, 64)).compile("adam", "mse", steps_per_execution=50)
    report = nx.preflight(model, nx.spec((64, 64)), nx.spec((64, 64)), on="v5e-8")
    assert report.step_time is not None
    assert report.step_time.host_seconds < 5e-6


def test_the_batches_of_all_steps_of_a_call_lie_on_the_device() -> None:
    reports = []
    for steps in (1, 4, 64):
        model = nn.Sequential(nn.Linear(4096, 8)).compile("sgd", "mse", steps_per_execution=steps)
        batch = nx.spec((32768, 4096)), nx.spec((32768, 8))
        reports.append(nx.preflight(model, *batch, on="v5e-1"))
    one, four, many = reports
    batch_bytes = one.hbm.roles["batch"]
    assert batch_bytes >= 4 * 32768 * (4096 + 8)
    assert four.hbm.roles["batch"] == 4 * batch_bytes
    assert four.hbm.peak_bytes >= one.hbm.peak_bytes + 3 * batch_bytes  # and slices of them
    assert sum(b.padded_bytes for b in four.hbm.buffers if b.role == "batch") == 4 * batch_bytes
    assert [report.refused for report in reports] == [None, None, "hbm"]
    assert many.hbm.peak_bytes >= one.hbm.peak_bytes + 63 * batch_bytes
    assert four.hbm.outputs_bytes == one.hbm.outputs_bytes
    assert one.step_time is not None
    assert four.step_time is not None
    assert four.mfu is not None
    # Of one step each, with the copy of a batch out of four on top.
    assert one.step_time.seconds <= four.step_time.seconds < 4 * one.step_time.seconds
    assert (one.analysis.program.model_flops, four.analysis.program.model_flops) == (
        (many.analysis.program.model_flops,) * 2
    )
    assert "steps_per_execution=64 sends the batches of 64 steps" in many.findings[0].message
    (smaller,) = [s for s in many.suggestions if s.change.startswith("a global batch of")]
    assert smaller.fits
    assert smaller.analysis.memory.peak_bytes > 0.8 * many.hbm.limit_bytes

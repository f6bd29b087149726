"""Advice that holds: for the chip, the types and the devices of the program at hand."""

from __future__ import annotations

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

import neurenix as nx
from findings_helpers import GIB, evidence, operation, product, with_traits, written
from neurenix import chips, nn
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.calibration import calibration
from neurenix.compiler.compile import Refusal
from neurenix.compiler.coverage import unlike_the_runs
from neurenix.compiler.findings import find, of_refusal
from neurenix.compiler.findings.precision import is_narrow
from neurenix.compiler.jaxpr_facts import Traits
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.compiler.training import TRAINERS_STEP
from neurenix.preflight import Report
from neurenix.preflight.page import html

WIDE = ("float32", "float32")


class Attention(nn.Module):
    """Attention with a whole matrix of scores."""

    def __init__(self) -> None:
        self.project, self.out = nn.Linear(512, 1536), nn.Linear(512, 512)

    def __call__(self, x: jax.Array) -> jax.Array:
        split = (*x.shape[:2], 4, 384)
        q, k, v = jnp.split(self.project(x).reshape(split), 3, -1)
        weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 11.3)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape))


@pytest.mark.tpu_compile
@pytest.mark.parametrize("precision", ["bfloat16", None])
def test_attention_on_v3_is_not_sent_to_a_kernel_without_bfloat16(precision: str | None) -> None:
    model = Attention()
    model.compile("adam", "mse", **({"precision": precision} if precision else {}))
    batch = nx.spec((8, 1024, 512))
    report = nx.preflight(model, batch, batch, on="v3-8")
    (found,) = (f for f in report.findings if f.rule == "materialised-attention")
    assert "float32" in found.fix and "TPU v3" in found.fix
    assert found.fix.startswith("Use fused attention") == (precision is None)
    if precision:
        assert "float32-matmul" not in {f.rule for f in report.findings}
        assert "bfloat16 gradients" not in " ".join(f.fix for f in report.findings)


@pytest.mark.parametrize(("dtype", "told"), [("bf16", False), ("f32", True)])
def test_gradients_are_to_be_narrow_where_they_are_wide(dtype: str, told: bool) -> None:
    clean = operation(products=(product(),))
    summed = operation("ici", name="x", opcode="all-reduce", shape=f"({dtype}[8], {dtype}[8,8])")
    (finding,) = find(evidence(clean, summed))
    assert ("bfloat16" in finding.fix) is told


@pytest.mark.parametrize(
    ("name", "others", "fix"),
    [
        (TRAINERS_STEP, 0, 'precision="bfloat16"'),
        (TRAINERS_STEP, 9, "bfloat16 already"),
        ("step", 9, "bfloat16 already"),
    ],
)
def test_a_program_in_bfloat16_is_not_told_to_compute_in_it(name: str, others: int, fix) -> None:
    base = evidence(operation("hbm", products=(product(dtype="f32"),), bytes=10**10))
    found = with_traits(
        base,
        products=(written(512, 512, 512, dtypes=WIDE), *[written(512, 512, 512)] * others),
    )
    assert is_narrow(found.program) is (others > 0)
    (finding,) = find(replace(found, program=replace(found.program, name=name)))
    assert finding.rule == "float32-matmul"
    assert fix in finding.fix
    assert ("precision=" in finding.fix) is (others == 0 and name == TRAINERS_STEP)


@pytest.mark.parametrize(
    ("slice_name", "dtypes", "named", "silent"),
    [
        ("v5e-8", WIDE, ["bfloat16", "optimizer's state", "more memory"], []),
        ("v5e-8", ("bfloat16",) * 2, ["smaller batch", "more memory"], ["bfloat16"]),
        ("v5e-1", WIDE, ["over more devices"], ["optimizer's state"]),
        ("v5p-8", WIDE, ["bfloat16"], ["more memory"]),
    ],
)
def test_what_helps_a_step_that_does_not_fit(slice_name, dtypes, named, silent) -> None:
    where = chips.resolve(slice_name)
    state = Leaf("m", "optimizer", (8,), "float32", (), (8,))
    traits = Traits(products=(written(512, 512, 512, dtypes=dtypes),))
    program = replace(evidence(slice_name=slice_name).program, leaves=(state,), traits=traits)
    fix = of_refusal(program, where, Refusal(Target.of(where), "hbm", "no room", 99 * GIB)).fix
    assert all(words in fix for words in named)
    assert not any(words in fix for words in silent)


@pytest.mark.parametrize(("slice_name", "told"), [("v5e-1", False), ("v5e-8", True)])
def test_one_device_is_not_told_to_take_fewer(slice_name: str, told: bool) -> None:
    small = operation("overhead", seconds=1e-6, count=9)
    fixes = [f.fix for f in find(evidence(small, slice_name=slice_name))]
    assert [("fewer devices" in fix) for fix in fixes if "wider layers" in fix] == [told]


@pytest.mark.tpu_compile
def test_an_answer_that_never_came_shows_no_memory() -> None:
    report = nx.preflight(lambda x: jnp.tanh(x @ x) @ x, nx.spec((65536, 65536)), on="v5e-1")
    late = replace(report.findings[0], rule="refused-timeout", message="Slow.", effect_bytes=0)
    slow = Report(replace(report.analysis, findings=(late,)))
    page = html.page(slow)
    section = page.split("Memory of one device")[1]
    assert "left<" not in section and "<svg" not in section and "at the peak" not in section
    assert "The arguments alone take 16.00 GiB" in section
    assert "does not fit" not in page.split("<h2>Findings")[0]
    assert "GiB" not in slow.text().split("1. error")[0]
    assert slow.to_dict()["hbm_per_device"] is None


def language_model(**changes) -> Program:
    leaves = (
        Leaf("m", "optimizer", (8,), "float32", (), (8,)),
        Leaf("x", "batch", (16, 1024), "int32", (), (16, 1024)),
    )
    fields = {"leaves": leaves, "model_flops": 4.8e10 * 16 * 1024, **changes}
    return Program(TRAINERS_STEP, "", {"data": 1}, donated=(), output_bytes=0, **fields)


def test_what_no_published_run_is_like() -> None:
    assert unlike_the_runs(language_model()) == ""
    experts = Traits(products=(written(8, 8, 8, groups=4),))
    assert unlike_the_runs(language_model(traits=experts)) == "a mixture of experts"
    bert = language_model(model_flops=2e9 * 16 * 1024)
    assert unlike_the_runs(bert) == "no large language model"
    images = (language_model().leaves[0], Leaf("x", "batch", (8, 224, 224, 3), "float32", (), ()))
    assert unlike_the_runs(language_model(leaves=images)) == "no large language model"
    assert unlike_the_runs(replace(language_model(), name="f", leaves=())) == "no training step"


def test_the_interval_holds_what_was_measured_of_the_unseen_runs() -> None:
    for ratio, kind in (
        (1.38, {"unlike": True}),
        (1.19, {"unlike": True}),
        (0.8, {"num_slices": 32}),
    ):
        width = calibration("v5e").half_width(1.0, **kind)
        assert abs(math.log(ratio)) <= width
    assert calibration("v5e").half_width(1.0, num_slices=2) == 0.1

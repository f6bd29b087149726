"""Optimizer state that is less divided than its parameters: how much, of what, and where told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from findings_helpers import evidence, operation, product
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.compile import Refusal
from neurenix.compiler.findings import find, of_refusal
from neurenix.compiler.findings.whole_state import whole_state
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target

pytestmark = pytest.mark.pure

CLEAN = evidence(operation(products=(product(),)))
HBM = CLEAN.memory.limit_bytes


def leaf(path: str, role: str, shape: tuple[int, ...], *partition: str | None, **fields) -> Leaf:
    held = tuple(
        size // (8 if name else 1)
        for size, name in zip(shape, (*partition, *[None] * len(shape)), strict=False)
    )
    return replace(Leaf(path, role, shape, "float32", partition, held), **fields)


def program(*leaves: Leaf) -> Program:
    return replace(CLEAN.program, leaves=leaves)


W, V = leaf("0.w", "parameters", (64, 32), "data"), leaf("0.v", "parameters", (16, 16))


def test_what_lies_whole_beside_divided_parameters_is_counted() -> None:
    found = whole_state(
        program(
            W,
            V,
            leaf("1.mu.w", "optimizer", (64, 32)),
            leaf("1.nu.w", "optimizer", (64, 32), dtype="bfloat16"),
            leaf("1.mu.v", "optimizer", (16, 16)),  # as whole as its parameter
            leaf("1.trace.w", "optimizer", (64, 32), "data"),
            leaf("1.other", "optimizer", (128, 8)),  # of no parameter
            leaf("2", "batch", (64, 32)),
        )
    )
    assert found is not None
    assert found.held_bytes == 64 * 32 * (4 + 2)
    assert found.spare_bytes == 64 * 32 * (4 + 2) * 7 // 8
    assert found.text.endswith("1.mu.w float32[64,32] is whole, 0.w is divided over (data).")


@pytest.mark.parametrize(
    "leaves",
    [
        (),
        (W, leaf("1.mu.w", "optimizer", (64, 32), "data")),
        (W, leaf("1.mu.w", "optimizer", (64, 32), None, "data")),  # another way, as much
        (V, leaf("1.mu.v", "optimizer", (16, 16), "data")),  # more than its parameter
        (leaf("1.mu.w", "optimizer", (64, 32)),),
        (W, leaf("1.mu.w", "argument", (64, 32))),
        (W, leaf("0.u", "parameters", (64, 32)), leaf("1.mu.w", "optimizer", (64, 32))),
    ],
)
def test_what_is_divided_as_its_parameters_are_is_not_named(leaves: tuple[Leaf, ...]) -> None:
    assert whole_state(program(*leaves)) is None


def test_state_that_is_divided_too_little_says_over_what() -> None:
    parameter = leaf("0.w", "parameters", (64, 32), "data", "tensor")
    found = whole_state(program(parameter, leaf("1.w", "optimizer", (64, 32), None, "tensor")))
    assert found is not None
    assert (
        "1.w float32[64,32] is divided over (tensor), 0.w is divided over (data, ten" in found.text
    )


def test_what_the_compiler_divided_is_told_by_its_size() -> None:
    parameter = replace(leaf("0.w", "parameters", (64, 32)), device_shape=(8, 32), is_unplaced=True)
    found = whole_state(program(parameter, leaf("1.w", "optimizer", (64, 32))))
    assert found is not None
    assert found.text.endswith("1.w float32[64,32] is whole, 0.w is divided into [8,32].")


@pytest.mark.parametrize(("share", "expected"), [(0.021, ["undivided-state"]), (0.019, [])])
def test_it_is_told_from_a_fiftieth_of_the_memory_on(share: float, expected: list[str]) -> None:
    rows = int(share * HBM / 4 * 8 / 7) // 8 * 8
    leaves = (leaf("0.w", "parameters", (rows,), "data"), leaf("1.mu.w", "optimizer", (rows,)))
    found = find(replace(CLEAN, program=program(*leaves)))
    assert [finding.rule for finding in found] == expected
    for finding in found:
        assert finding.effect_bytes == rows * 4 * 7 // 8
        assert "out_shardings" in finding.fix


def test_a_step_that_does_not_fit_is_told_of_it() -> None:
    refused = Refusal(Target.of(CLEAN.where), "hbm", "Ran out of memory.", 17 * 2**30)
    whole = program(W, leaf("1.mu.w", "optimizer", (64, 32)))
    message = of_refusal(whole, CLEAN.where, refused).message
    assert message.startswith("It needs 17.00 GiB")
    assert message.endswith("0.w is divided over (data).")
    assert "optimizer state" not in of_refusal(program(W), CLEAN.where, refused).message
    crashed = replace(refused, kind="crash")
    assert "optimizer state" not in of_refusal(whole, CLEAN.where, crashed).message

"""Each rule with a program that triggers it and one that must not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neurenix import chips
from neurenix.compiler import findings
from neurenix.compiler.findings import Evidence, find
from neurenix.compiler.hlo import Instruction, SourceLine
from neurenix.compiler.memory import Buffer, Memory
from neurenix.compiler.operations import MatrixProduct
from neurenix.compiler.program import Leaf, Program
from neurenix.compiler.time import Operation, StepTime

pytestmark = pytest.mark.pure

LINE = SourceLine("/home/me/train.py", 7, "loss")
GIB = 2**30
NOTHING = Instruction("c", "convolution", (), (), "", "", False)


def product(depth: int = 512, columns: int = 512, dtype: str = "bf16", highest: bool = False):
    return MatrixProduct(1, 1024, depth, columns, (dtype, dtype), highest, NOTHING)


def operation(kind: str = "compute", seconds: float = 0.01, name: str = "fusion.1", **fields):
    base = Operation(
        name=name,
        opcode="fusion",
        kind=kind,
        seconds=seconds,
        floor_seconds=0,
        busy_seconds=seconds,
        count=1,
        flops=1e9,
        bytes=10**9,
        shape="f32[1024,512]",
        op_name="",
        source=LINE,
    )
    return replace(base, **fields)


def evidence(*operations: Operation, slice_name: str = "v5e-8", **memory) -> Evidence:
    where = chips.resolve(slice_name)
    leaf = Leaf("x", "batch", (64,), "float32", ("data",), (8,))
    program = Program("step", b"", "", {"data": where.num_devices}, (leaf,), (0,), 1e12, 0)
    limit = where.generation.hbm_bytes_per_device
    known = {"arguments_bytes": GIB, "outputs_bytes": GIB, "aliased_bytes": GIB, **memory}
    base = Memory(2 * GIB, limit, 0, 0, 0, 0, 0, 0, {}, ())
    raw = sum(o.seconds for o in operations) or 0.01
    time = StepTime(raw * 1.1, raw, raw * 2, raw * 1.1, 5e-5, "compute", {"compute": 1.0}, "")
    return Evidence(program, where, replace(base, **known), operations, time, raw)


def rules(found: Evidence) -> list[str]:
    return [finding.rule for finding in find(found)]


def test_a_clean_program_has_no_findings() -> None:
    assert rules(evidence(operation(products=(product(),)))) == []


@pytest.mark.parametrize(
    ("slice_name", "depth", "columns", "expected"),
    [
        ("v5e-8", 512, 64, ["padded-matmul"]),
        ("v5e-8", 128, 512, []),
        ("v6e-8", 128, 512, ["padded-matmul"]),
        ("v6e-8", 256, 512, []),
    ],
)
def test_products_that_do_not_fill_the_matrix_unit(slice_name, depth, columns, expected) -> None:
    found = evidence(operation(products=(product(depth, columns),)), slice_name=slice_name)
    assert rules(found) == expected
    for finding in find(found):
        assert finding.source == LINE
        assert finding.effect_seconds == pytest.approx(0.01 * 1.1 / 2)
        assert "fills 50%" in finding.message


def test_a_padded_product_that_takes_no_time_is_not_named() -> None:
    small = operation(seconds=1e-6, name="small", products=(product(columns=64),))
    assert rules(evidence(operation(products=(product(),)), small)) == []


def test_float32_products() -> None:
    assert rules(evidence(operation(products=(product(dtype="f32"),)))) == ["float32-matmul"]
    assert rules(evidence(operation(products=(product(dtype="bf16"),)))) == []


def test_products_at_highest_precision() -> None:
    found = find(evidence(operation(products=(product(dtype="f32", highest=True),))))
    assert [f.rule for f in found] == ["exact-float32-matmul"]
    assert found[0].severity == "warning"


def test_copies() -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, operation("hbm", opcode="copy", name="copy.3"))) == ["copy"]
    assert rules(evidence(work, operation("hbm", opcode="copy", name="copy.3", seconds=1e-6))) == []
    assert rules(evidence(work, operation("hbm", name="add.3"))) == []


@pytest.mark.parametrize("kind", ["ici", "dcn"])
def test_exposed_exchanges(kind: str) -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, operation(kind, name="all-reduce.1"))) == ["exposed-collective"]
    assert rules(evidence(work, operation(kind, name="all-reduce.1", seconds=0.0))) == []


def test_steps_that_the_host_cannot_follow() -> None:
    found = evidence(operation(products=(product(),)))
    bound = replace(found, time=replace(found.time, bound="host", host_seconds=0.1))
    assert rules(bound) == ["host-bound"]


def test_operations_with_little_to_do() -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, operation("overhead", name="b"))) == ["small-operations"]
    assert rules(evidence(work, operation("overhead", name="b", seconds=1e-3))) == []


def test_work_that_is_not_divided() -> None:
    found = evidence(operation(products=(product(),)))
    leaf = replace(found.program.leaves[0], partition=())
    assert rules(replace(found, program=replace(found.program, leaves=(leaf,)))) == ["undivided"]
    alone = replace(found.program, leaves=(leaf,), axes={"data": 1})
    assert rules(replace(found, program=alone)) == []


def test_donation_missing() -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, aliased_bytes=0)) == ["donation"]
    assert rules(evidence(work, aliased_bytes=0, outputs_bytes=1000)) == []


def test_padding_of_arguments() -> None:
    work = operation(products=(product(),))
    buffers = (Buffer("x", "batch", "float32[1000,1]", 4000, GIB),)
    found = find(evidence(work, padding_bytes=GIB, buffers=buffers))
    assert [f.rule for f in found] == ["padded-arguments"]
    assert found[0].effect_bytes == GIB


def test_findings_come_gravest_first() -> None:
    grave = operation("ici", seconds=0.02, name="all-reduce.1")
    light = operation("hbm", opcode="copy", name="copy.3", seconds=0.002)
    found = find(evidence(operation(products=(product(),)), light, grave))
    assert [f.severity for f in found] == ["warning", "note"]


def test_every_rule_says_what_it_is_for() -> None:
    assert all(rule.__doc__ for rule in findings.RULES)

"""From which size on a finding is told, how severe it is and what it says of its effect."""

from __future__ import annotations

from dataclasses import replace

import pytest

from findings_helpers import (
    GIB,
    LINE,
    evidence,
    operation,
    product,
    reduces,
    rules,
    undonated,
    waiting,
    with_traits,
    written,
)
from neurenix import chips
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.calibration import DISPATCH_SECONDS
from neurenix.compiler.captured_arrays import Captured
from neurenix.compiler.findings import Evidence, Finding, find
from neurenix.compiler.jaxpr_facts import Callback
from neurenix.compiler.peak_memory import Buffer
from neurenix.compiler.training import TRAINERS_STEP

pytestmark = pytest.mark.pure

V5E = chips.generation("v5e")
HBM = V5E.hbm_bytes_per_device
CLEAN = operation(products=(product(),))  # 10 ms


def of(found: Evidence, rule: str) -> list[Finding]:
    return [finding for finding in find(found) if finding.rule == rule]


@pytest.mark.parametrize(
    ("seconds", "severities"),
    [(1.9e-4, []), (2.1e-4, ["note"]), (9.9e-4, ["note"]), (1.1e-3, ["warning"])],
)
def test_two_percent_are_told_and_ten_are_a_warning(seconds: float, severities: list[str]) -> None:
    copy = operation("hbm", seconds, "copy.3", opcode="copy")
    found = find(evidence(replace(CLEAN, seconds=0.01 - seconds), copy))
    assert [finding.severity for finding in found] == severities


@pytest.mark.parametrize(("exchange", "order"), [(4e-3, [2, 1, 0]), (1.8e-3, [1, 2, 0])])
def test_the_gravest_come_first_and_then_those_of_the_largest_effect(exchange, order) -> None:
    parts = ("hbm", "copy", 5e-4), ("hbm", "copy", 2.5e-3), ("ici", "all-to-all", exchange)
    told = [
        operation(kind, seconds, f"o.{line}", opcode=opcode, source=replace(LINE, line=line))
        for line, (kind, opcode, seconds) in enumerate(parts)
    ]
    found = find(evidence(CLEAN, *told))
    assert [f.source.line for f in found if f.source] == order
    assert [f.severity for f in found] == ["warning", "warning", "note"]


@pytest.mark.parametrize(("columns", "expected"), [(104, []), (102, ["padded-matmul"])])
def test_a_product_that_fills_four_fifths_is_not_named(columns: int, expected: list[str]) -> None:
    assert rules(evidence(operation(products=(product(columns=columns),)))) == expected


@pytest.mark.parametrize(
    ("arguments", "outputs", "aliased", "expected"),
    [
        (0.051, 1, 0, ["donation"]),
        (0.049, 1, 0, []),
        (1, 0.051, 0, ["donation"]),
        (1, 0.049, 0, []),
        (1, 1, 1, []),  # something is donated
    ],
)
def test_donation_is_worth_a_twentieth_of_the_memory(arguments, outputs, aliased, expected) -> None:
    sizes = {"arguments_bytes": int(arguments * HBM), "outputs_bytes": int(outputs * HBM)}
    found = evidence(CLEAN, aliased_bytes=aliased, **sizes)
    assert rules(undonated(found, HBM)) == expected
    assert rules(undonated(found, int(0.049 * HBM))) == []


@pytest.mark.parametrize(("share", "expected"), [(0.021, ["padded-arguments"]), (0.019, [])])
def test_padding_is_told_from_a_fiftieth_of_the_memory_on(share, expected) -> None:
    padding = int(share * HBM)
    buffers = (
        Buffer("large", "batch", "f", 9 * padding, 9 * padding),
        Buffer("worst", "batch", "f", 1, padding),
    )
    found = find(evidence(CLEAN, padding_bytes=padding, buffers=buffers))
    assert [finding.rule for finding in found] == expected
    assert all("most for worst" in finding.message for finding in found)


def capturing(size: int, held: int) -> Finding:
    base = evidence(CLEAN, roles={"constants": held})
    captured = (Captured("f", size, LINE),)
    (finding,) = find(replace(base, program=replace(base.program, captured=captured)))
    return finding


def test_a_captured_array_is_a_warning_from_a_hundredth_of_the_memory_on() -> None:
    severities = [capturing(size, size).severity for size in (int(0.011 * HBM), int(0.009 * HBM))]
    assert severities == ["warning", "note"]


@pytest.mark.parametrize(("part", "verb"), [(15, "holds"), (17, "was written with")])
def test_a_captured_array_that_the_compiler_left_out_is_not_held(part: int, verb: str) -> None:
    assert f"The program {verb}" in capturing(GIB, GIB // part).message


@pytest.mark.parametrize(("seconds", "expected"), [(2.9e-3, []), (3.1e-3, ["small-operations"])])
def test_three_tenths_of_a_step_in_small_operations_are_told(seconds, expected) -> None:
    small = operation("overhead", seconds, "b")
    assert rules(evidence(replace(CLEAN, seconds=0.01 - seconds), small)) == expected


def test_five_of_six_passes_are_the_effect_of_highest_precision() -> None:
    (finding,) = find(evidence(operation(products=(product(dtype="f32", highest=True),))))
    assert finding.effect_share == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("forward", "backward", "told"), [(2, 2, True), (2, 1, False), (2, 4, True), (1, 3, False)]
)
def test_how_many_sums_of_channels_are_statistics(forward: int, backward: int, told: bool) -> None:
    sums = [reduces(f"f{i}", "f32[64]", "jit(f)/jvp()/reduce_sum") for i in range(forward)]
    sums += [
        reduces(f"b{i}", "f32[64]", "jit(f)/transpose(jvp())/reduce_sum") for i in range(backward)
    ]
    assert ("sync-batchnorm" in rules(evidence(CLEAN, *sums))) is told


def test_statistics_of_a_loop_count_each_turn_and_single_numbers_are_none() -> None:
    looped = replace(reduces("f", "f32[64]", "jvp()/reduce_sum"), count=4)
    assert "sync-batchnorm" in rules(evidence(CLEAN, looped))
    single = [reduces(f"l{i}", "f32[1]", "jvp()/reduce_sum") for i in range(4)]
    assert rules(evidence(CLEAN, *single)) == ["exposed-collective"]


def test_work_that_is_not_divided_costs_all_but_one_devices_part() -> None:
    found = evidence(CLEAN)
    leaf = replace(found.program.leaves[0], partition=())
    (finding,) = find(replace(found, program=replace(found.program, leaves=(leaf,))))
    assert finding.effect_share == pytest.approx(7 / 8)
    of_one = replace(found.program, axes={"data": 8, "x": 1})
    assert rules(replace(found, program=of_one)) == []


def test_sums_of_several_arrays_were_merged() -> None:
    merged = operation("ici", name="x", opcode="all-reduce", shape="f32[8], f32[8,8]")
    (finding,) = find(evidence(CLEAN, merged))
    assert "merged into one exchange" in finding.message


@pytest.mark.parametrize(("dtype", "told"), [("bf16", False), ("f32", True)])
def test_wide_parameters_are_to_be_gathered_narrow(dtype: str, told: bool) -> None:
    gathered = operation("ici", name="x", opcode="all-gather", shape=f"{dtype}[8]")
    (finding,) = find(evidence(CLEAN, gathered))
    assert ("gather them in bfloat16" in finding.fix) is told


@pytest.mark.parametrize(
    ("layers", "each", "told"), [(6, 4, True), (5, 5, False), (7, 3, False), (6, 5, True)]
)
def test_how_many_equal_layers_are_worth_a_scan(layers: int, each: int, told: bool) -> None:
    ones = tuple(written(64, 64, 64, batch=1, written=i) for i in range(each)) * layers
    found = find(with_traits(evidence(CLEAN, code_bytes=6000), products=ones))
    assert bool(found) is told
    assert all(finding.effect_bytes == 5000 for finding in found)
    inside = tuple(replace(one, in_kernel=True) for one in ones)
    assert find(with_traits(evidence(CLEAN), products=inside)) == ()


@pytest.mark.parametrize(
    ("primitive", "size", "severity"),
    [
        ("debug_print", 0, "note"),
        ("debug_print", 2**25, "warning"),
        ("io_callback", 0, "warning"),
        ("pure_callback", 0, "warning"),
    ],
)
def test_a_callback_costs_its_calls_and_its_bytes(primitive: str, size: int, severity: str) -> None:
    called = (Callback(primitive, size, 2, LINE),)
    base = with_traits(evidence(CLEAN), callbacks=called)
    (finding,) = find(base)
    seconds = 2 * (DISPATCH_SECONDS + size / V5E.pcie_bytes_per_second_per_chip)
    assert finding.severity == severity
    assert finding.effect_seconds == pytest.approx(seconds)
    assert base.time is not None
    assert finding.effect_share == pytest.approx(seconds / (seconds + base.time.device_seconds))


def test_callbacks_of_one_line_are_one_finding() -> None:
    called = [Callback("pure_callback", size, 2, LINE) for size in (0, 2**25)]
    called.append(Callback("pure_callback", 0, 1, replace(LINE, line=LINE.line + 1)))
    one, other = find(with_traits(evidence(CLEAN), callbacks=tuple(called)))
    assert "on the host 4× a step" in one.message and "on the host 1× a step" in other.message
    seconds = 4 * DISPATCH_SECONDS + 2 * 2**25 / V5E.pcie_bytes_per_second_per_chip
    assert one.effect_seconds == pytest.approx(seconds)


def test_the_device_waits_for_the_dispatch_or_for_the_batch() -> None:
    dispatched = waiting(TRAINERS_STEP, 1e-6, DISPATCH_SECONDS / 10, steps=10)
    assert dispatched.effect_share == pytest.approx(0.8)
    assert "send the batch" not in dispatched.message
    sent = waiting(TRAINERS_STEP, 1e-6, 2 * DISPATCH_SECONDS / 10, steps=10)
    assert "send the batch" in sent.message


@pytest.mark.parametrize(
    ("rows", "depth", "batch", "share", "told"),
    [
        (119, 4096, 1, 1.0, True),
        (121, 4096, 1, 1.0, False),  # half of what keeps the matrix unit busy
        (64, 256, 1, 1.0, True),
        (64, 250, 1, 1.0, False),  # no weights worth a name
        (8, 4096, 2, 1.0, False),  # weights of each example
        (8, 4096, 1, 0.09, False),  # of little time
    ],
)
def test_how_few_rows_a_small_batch_has(rows, depth, batch, share, told: bool) -> None:
    one = replace(product(depth, 4096), rows=rows, batch=batch)
    slow = operation("hbm", 0.01 * share, products=(one,), floor_seconds=0.01 * share)
    rest = [operation("compute", 0.01 * (1 - share), "rest", products=(product(),))]
    base = evidence(slow, *(rest if share < 1 else []))
    examples = Leaf("x", "batch", (rows * 8, depth), "bfloat16", ("data",), (rows, depth))
    tokens = Leaf("x", "batch", (8, rows), "int32", ("data",), (1, rows))
    for leaf in (examples, tokens):
        program = replace(base.program, leaves=(leaf,))
        found = of(replace(base, program=program), "small-batch")
        assert bool(found) is told
        for finding in found:
            assert finding.effect_share == pytest.approx(1 - rows / (197e12 / 819e9))


@pytest.mark.parametrize(("slice_name", "devices"), [("v5e-1", 1), ("v5e-8", 8)])
def test_narrow_heads_cost_half_of_their_products(slice_name: str, devices: int) -> None:
    flops = 2 * 2 * 4096 * 2048 * 2048 * 64
    base = evidence(replace(CLEAN, seconds=0.1), slice_name=slice_name)
    pair = written(64, 2048, 2048, batch=4096), written(2048, 2048, 64, batch=4096)
    (finding,) = of(with_traits(base, products=pair), "head-dimension")
    assert finding.effect_share == pytest.approx(flops / devices / 197e12 / 0.1)

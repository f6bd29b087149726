"""From cycles to seconds of hardware: weights, factors, the floor and the interval."""

from __future__ import annotations

import math

import pytest

from neurenix import chips
from neurenix.compiler.calibration import WEIGHTS, calibration
from neurenix.compiler.hlo import Instruction, parse
from neurenix.compiler.operations import MatrixProduct, Operation
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.step_time import StepTime, step_time
from schedule_helpers import (
    CLOCK,
    DONE,
    FETCH_SECONDS,
    GROUPS,
    MIB,
    PRODUCT,
    START,
    V5E,
    busy,
    exchange_seconds,
    fetch,
    module,
)

pytestmark = pytest.mark.pure


def walked(*body: str, where: chips.Slice = V5E, calibrated: bool = True) -> tuple[Schedule, float]:
    text = module(f"%p = {MIB} parameter(0)", *body)
    made = Schedule(parse(text), where, calibrated=calibrated)
    return made, made.run()


@pytest.mark.parametrize(
    ("name", "microseconds", "doubt"),
    [
        ("v2", 6837, 1.35),
        ("v3", 2557, 1.35),
        ("v4", 675.3, 2.096),
        ("v5e", 759.7, 1.105),
        ("v5p", 397.9, 2.096),
        ("v6e", 434.2, 1.989),
        ("tpu7x", 317.8, 2.096),
    ],
)
def test_the_estimate_of_a_product(name: str, microseconds: float, doubt: float) -> None:
    """Pinned: these numbers move with the calibration, and with nothing else."""
    made = Schedule(parse(PRODUCT), chips.resolve(f"{name}-8"))
    time = step_time(made, made.run(), 0)
    assert time.device_seconds * 1e6 == pytest.approx(microseconds, rel=1e-3)
    assert time.high / time.seconds == pytest.approx(doubt, rel=1e-3)


@pytest.mark.parametrize(
    ("cycles", "calibrated", "seconds"),
    [
        (1.1e6, True, 1.11 * 2 * 4096**3 / 197e12),  # more than no run of v5e has beaten
        (1.1e6, False, 1.1e6 / CLOCK),
        (1e5, False, 2 * 4096**3 / 197e12),  # the peak, where the compiler says less
    ],
)
def test_a_product_takes_its_cycles_or_its_least(
    cycles: float, calibrated: bool, seconds: float
) -> None:
    text = PRODUCT.replace("1100000", f"{cycles:.0f}")
    made = Schedule(parse(text), V5E, calibrated=calibrated)
    assert made.run() == pytest.approx(seconds)
    assert made.operations["c"].cycles_seconds == pytest.approx(
        max(cycles / CLOCK, 2 * 4096**3 / 197e12)
    )


def test_element_wise_work_is_weighed_and_never_below_its_bytes() -> None:
    assert walked(busy("w", 1e6))[1] == pytest.approx(WEIGHTS["vector"] * 1e6 / CLOCK)
    floor = 2 * FETCH_SECONDS
    assert walked(busy("w", 1.2 * floor * CLOCK))[1] == pytest.approx(floor)


def test_an_attention_kernel_is_weighed_as_published_runs_have_it() -> None:
    heads = "bf16[1,8,1024,128]{3,2,1,0}"
    made, _ = walked(
        *(f"%{name} = {heads} parameter({place})" for place, name in enumerate("qkv")),
        f'%splash_mha_fwd = {heads} custom-call(%q, %k, %v), custom_call_target="tpu_custom_call"',
    )
    kernel = made.operations["splash_mha_fwd"]
    assert kernel.attention and kernel.well_used_product
    assert kernel.flops == 4 * 8 * 1024 * 1024 * 128
    assert kernel.seconds == pytest.approx(WEIGHTS["kernel"] * kernel.flops / 197e12)


def test_exchanges_are_weighed_and_copies_of_memory_are_not() -> None:
    made, _ = walked(START, DONE)
    assert made.operations["r"].busy_seconds == pytest.approx(WEIGHTS["ici"] * exchange_seconds())
    (carried, *_) = made.links.values()
    assert sum(carried.values()) == pytest.approx(exchange_seconds() - 4e-6)  # without the way
    assert walked(*fetch("a"))[1] == pytest.approx(FETCH_SECONDS)


def test_several_slices_have_a_factor_of_their_own() -> None:
    one, two = (walked(busy("w", 1), where=chips.resolve(n))[0] for n in ("v5e-8", "2x v5e-8"))
    assert one.factor == calibration("v5e").factor
    assert two.factor == pytest.approx(1.055 * one.factor)


def test_what_the_links_take_beyond_the_schedule_is_divided_by_the_factor() -> None:
    big = "f32[16384,1024]{1,0:T(8,128)}"
    sums = [f"%{n} = {big} all-reduce(%q), channel_id={i}, {GROUPS}" for i, n in enumerate("rs")]
    made, raw = walked(f"%q = {big} parameter(1)", busy("work", 1e6), *sums)
    assert raw * made.factor == pytest.approx(4 * 2**26 * 7 / 8 / (2 * 45e9))
    assert made.operations["r"].floor_seconds == pytest.approx(made.operations["r"].seconds)


NOTHING = Instruction("c", "convolution", (), (), "", "", False)
SMALL = MatrixProduct(1, 8, 8, 8, ("bf16", "bf16"), False, NOTHING, 1.0)


def operation(kind: str, seconds: float, floor: float, name: str = "o", **more) -> Operation:
    shown = {"flops": 0.0, "bytes": 0, "shape": "", "op_name": "", "source": None, **more}
    return Operation(name, "fusion", kind, seconds, floor, seconds, 1, **shown)


def timed(*operations: Operation, where: chips.Slice = V5E, sent: int = 0) -> StepTime:
    made = Schedule(parse(module(f"%p = {MIB} parameter(0)")), where)
    made.operations = {one.name: one for one in operations}
    return step_time(made, sum(one.seconds for one in operations), sent)


def multiplies(kind: str, floor: float, cycles: float, name: str = "o") -> Operation:
    return operation(kind, 1.0, floor, name, products=(SMALL,), cycles_seconds=cycles)


LIKE_ATTENTION = math.sqrt(WEIGHTS["kernel"] / calibration("v5e").least)
SURE = multiplies("compute", 0.5, 0.9, "sure")


@pytest.mark.parametrize(
    ("operations", "low", "high", "width"),
    [
        ((SURE,), 1.0, 1.0, 0.1),
        ((multiplies("compute", 0.3, 3.0),), 1.0, 3.0, 0.3),  # the compiler says more
        ((multiplies("hbm", 0.3, 1.0),), 1.0, 1.0, 0.3),  # no product that the unit bounds
        # Of what is no product the cycles may be wrong: from its floor to twice the time.
        ((SURE, operation("vector", 1.0, 0.3)), 1.3, 2.0, 0.2),
        ((SURE, operation("hbm", 1.0, 0.3)), 1.3, 2.0, 0.2),
        # A kernel: from its floor to what attention takes of the peak, unless it is attention.
        ((SURE, operation("compute", 1.0, 0.3)), 1.3, 1 + LIKE_ATTENTION, 0.2),
        ((SURE, operation("compute", 1.0, 0.3, unstated=True)), 1.3, 1 + LIKE_ATTENTION, 0.2),
        ((SURE, operation("hbm", 1.0, 0.3, unstated=True)), 1.3, 2.0, 0.2),
        ((SURE, operation("compute", 1.0, 0.3, attention=True)), 2.0, 2.0, 0.1),
        ((SURE, operation("overhead", 1.0, 0.3, uncounted=True)), 2.0, 11.0, 0.2),
    ],
)
def test_how_wide_the_interval_is(operations, low: float, high: float, width: float) -> None:
    time, factor = timed(*operations), calibration("v5e").factor
    assert time.low == pytest.approx(low * factor / math.exp(width))
    assert time.high == pytest.approx(high * factor * math.exp(width))


def test_the_interval_ends_at_the_floor_and_the_bound_is_what_takes_longest() -> None:
    assert timed(operation("vector", 1.0, 0.99)).low == pytest.approx(0.99)
    both = operation("hbm", 1.0, 0.9, "a"), operation("vector", 2.0, 1.9, "b")
    assert timed(*both).bound == "vector"


def test_two_devices_of_a_chip_share_its_pcie() -> None:
    alone = timed(operation("hbm", 1e-9, 1e-9), where=chips.resolve("tpu7x-8"), sent=2**30)
    assert alone.host_seconds == pytest.approx(2**30 / 16e9)

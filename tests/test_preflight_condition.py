"""Conditions of ``--fail-if``: what they mean, and that a gate which cannot fail is refused."""

from __future__ import annotations

from typing import Any

import pytest

from neurenix._core.errors import ArgumentError, UnknownNameError
from neurenix.preflight.condition import NAMES, parse

pytestmark = pytest.mark.pure

VALUES: dict[str, Any] = {
    "fits": True, "step_time": 0.25, "step_time_low": 0.2, "step_time_high": 0.3,
    "hbm_peak_bytes": 12 * 2**30, "hbm_headroom": 4 * 2**30, "mfu": 0.35,
    "cost_per_step": 0.002, "findings": 2, "errors": 0, "warnings": 1,
}  # fmt: skip


def test_every_name_has_a_value() -> None:
    assert set(NAMES) == set(VALUES)


@pytest.mark.parametrize(
    "text",
    [
        "step_time > 200 ms and step_time < 0.3 s",
        "step_time > 240000 µs",
        "step_time > 240000 \u03bcs",  # the Greek letter, which a keyboard has
        "step_time < 0.01 min and 0.001 h > step_time",
        "0.2 < step_time < 0.3",
        "hbm_headroom == 4 GiB",
        "hbm_headroom < 4.3e9",
        "hbm_headroom < 50 % * (hbm_headroom + hbm_peak_bytes)",
        "hbm_headroom / hbm_peak_bytes < 40 %",
        "hbm_peak_bytes / hbm_headroom > 2",
        "mfu < 40 % and mfu < 0.4 and mfu * 100 < 40",
        "-mfu > -40 %",
        "1 / step_time < 5",
        "cost_per_step > 0.001 USD and cost_per_step * 1000 > 1 USD",
        "cost_per_step / step_time > 0.001 USD / 1 s",
        "findings - errors == 2 and warnings < findings",
        "(fits == True) and not (errors > 0)",
    ],
)
def test_what_is_true(text: str) -> None:
    assert parse(text).holds(VALUES)
    assert not parse(f"not ({text})").holds(VALUES)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hbm_headroom < 99 %", "hbm_headroom is bytes, and 99 % is a share.*KiB, MiB, GiB"),
        ("step_time > 5 GiB", "step_time is a time, and 5 GiB is bytes.*: s, ms, us, µs, min, h"),
        ("5 GiB < step_time", "step_time is a time, and 5 GiB is bytes"),
        ("0 < hbm_headroom < 1 s", "hbm_headroom is bytes, and 1 s is a time"),
        ("cost_per_step > 1 %", "cost_per_step is money, and 1 % is a share.*: USD"),
        ("findings > 3 %", "findings is a count.*compared with a plain number"),
        ("step_time > hbm_headroom", "step_time is a time, and hbm_headroom is bytes"),
        ("step_time + 1 GiB > 3", "step_time is a time, and 1 GiB is bytes"),
        ("step_time * step_time > 1 s", r"in seconds\^2, and 1 s is a time"),
        ("hbm_headroom / step_time > 1 GiB", r"in bytes × seconds\^-1, and 1 GiB is bytes"),
        ("mfu < 1 s", "mfu is a share, and 1 s is a time.*Units of mfu: %"),
        ("mfu < 40", "mfu is a share, 0 to 1, and cannot reach 40. Write 40 % or 0.4"),
        ("fits and 40 > mfu", "Write 40 % or 0.4"),
    ],
)
def test_a_gate_in_another_unit_is_refused(text: str, says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        parse(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("step_time > 5 days", "unit named 'days'"),
        ("step_tim > 5", "Did you mean 'step_time'"),
        ("step_time", "is a number, neither true nor false"),
        ("5 ms", "is a number, neither true nor false"),
        ("fits > 1", "fits has no order"),
        ("fits == 1", "1 is not true or false"),
        ("not step_time", "step_time is not true or false"),
        ("fits + 1 > 2", "fits is not a number"),
        ("step_time > 'ms'", "is not understood"),
        ("step_time > open('x')", "is not understood"),
        ("step_time > '5 ms", "is not a condition"),
    ],
)
def test_what_is_no_condition(text: str, says: str) -> None:
    with pytest.raises((ArgumentError, UnknownNameError), match=says):
        parse(text)


def test_what_is_not_known_has_not_passed() -> None:
    unknown = VALUES | {"step_time": None, "mfu": None}
    assert parse("step_time > 1 h").holds(unknown)
    assert parse("step_time > 1 h or errors == 0").holds(unknown)
    assert not parse("step_time > 1 h and errors > 0").holds(unknown)

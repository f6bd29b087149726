"""Conditions of ``--fail-if``: what they mean, and that a gate which cannot fail is refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from neurenix._core.errors import ArgumentError, UnknownNameError
from neurenix.preflight.fail_if import NAMES, parse

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
        "not fits or step_time > 0.2",
        "200 ms < step_time <= 250000 us",
        "step_time > 0.2s and step_time > 1e-9 and not (step_time >= 1 min)",
        "step_time < 2.5e-1s or step_time <= .25E+0 s",
        "step_time > 2e-9 min and hbm_headroom > 1e-2GiB",
        "step_time > 240000 µs",
        "step_time > 240000 \u03bcs",  # the Greek letter, which a keyboard has
        "step_time < 0.01 min and 0.001 h > step_time",
        "0.2 < step_time < 0.3",
        "hbm_headroom == 4 GiB",
        "hbm_headroom < 4.3e9 and not (hbm_headroom < 4.0 GiB)",
        "not (hbm_headroom > 1E3 GiB)",
        "hbm_headroom < 50 % * (hbm_headroom + hbm_peak_bytes)",
        "hbm_headroom / hbm_peak_bytes < 40 %",
        "hbm_peak_bytes / hbm_headroom > 2",
        "mfu < 40 % and mfu < 0.4 and mfu * 100 < 40",
        "-mfu > -40 % and mfu < 42%",
        "mfu < 1",
        "1 / step_time < 5",
        "cost_per_step > 0.001 USD and cost_per_step * 1000 > 1 USD",
        "cost_per_step / step_time > 0.001 USD / 1 s",
        "findings - errors == 2 and warnings < findings",
        "errors + warnings != 2 and -errors == 0",
        "step_time_high / step_time_low > 1.4",
        "(errors > 0 or warnings >= 1) and not (mfu > 0.5)",
        "not " * 240 + "fits",
    ],
)
def test_what_is_true(text: str) -> None:
    assert parse(text).holds(VALUES)
    assert not parse(f"not ({text})").holds(VALUES)


@pytest.mark.parametrize(
    ("name", "unit", "size"),
    [
        ("hbm_headroom", "B", 1), ("hbm_headroom", "kB", 10**3), ("hbm_headroom", "MB", 10**6),
        ("hbm_headroom", "GB", 10**9), ("hbm_headroom", "KiB", 2**10),
        ("hbm_headroom", "MiB", 2**20), ("hbm_headroom", "GiB", 2**30),
        ("hbm_headroom", "TiB", 2**40), ("step_time", "h", 3600), ("step_time", "min", 60),
        ("step_time", "s", 1),
    ],
)  # fmt: skip
def test_a_unit_is_its_size(name: str, unit: str, size: int) -> None:
    condition = parse(f"{name} == 3 {unit}")
    assert condition.holds({name: 3 * size})
    assert not condition.holds({name: 3 * size + 1})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hbm_headroom < 99 %", r"hbm_headroom \(bytes\) and 99 % \(share\) cannot be compared"),
        ("step_time > 5 GiB", r"step_time \(time\) and 5 GiB \(bytes\)"),
        ("5 GiB < step_time", r"5 GiB \(bytes\)"),
        ("0 < hbm_headroom < 1 s", r"hbm_headroom \(bytes\) and 1 s \(time\)"),
        ("fits and cost_per_step > 1 %", r"cost_per_step \(money\) and 1 % \(share\)"),
        ("findings > 3 %", r"findings \(count\) and 3 % \(share\)"),
        ("step_time > hbm_headroom", r"step_time \(time\) and hbm_headroom \(bytes\)"),
        ("step_time + 1 GiB > 3", r"step_time \(time\).*1 GiB \(bytes\)|1 GiB .* step_time"),
        ("mfu < 1 s", r"mfu \(share\) and 1 s \(time\)"),
        ("mfu < 40", "mfu is a share, from 0 to 1, and cannot reach 40. Write 40 % or 0.4"),
        ("fits and 40 > mfu", "Write 40 % or 0.4"),
        ("1 - mfu > 40", "Write 40 % or 0.4"),
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
        ("step_time", "step_time is not true or false"),
        ("5 ms", "'5 ms' is not true or false"),
        ("True", "True is not true or false. A condition has"),
        ("fits > 1", "fits is not a number"),
        ("fits == True", "fits is not a number"),
        ("not step_time", "step_time is not true or false"),
        ("fits + 1 > 2", "fits is not a number"),
        ("step_time > True", "True is not a number"),
        ("step_time > 'ms'", "'ms' is not a number"),
        ("step_time > open('x')", "open('x') is not a number"),
        ("step_time > '5 ms", "is not a condition"),
        ("step_time > 5 mss", "no unit named 'mss'. Did you mean 'ms'"),
        ("step_time > 5 e", "no unit named 'e'"),
        ("step_time > 1e-9 mss", "no unit named 'mss'"),
        ("step_time >", "is not a condition"),
        ("", "is not a condition"),
        ("2 + 2", "2 + 2 is not true or false"),
        ("step_time == fits", "fits is not a number"),
        ("fits.__class__ == 1", "fits.__class__ is not a number"),
        ("(lambda: 1)() > 0", "is not a number"),
        ("[x for x in (1,)] == 1", "is not a number"),
        ("step_time if fits else 0", "is not true or false"),
        ("step_time in (1, 2)", "is not true or false"),
        ("9 ** 9 ** 9 > 1", "is not a number"),
        ("fits == 'yes'", "is not a number"),
        ("(x := 1) > 0", "is not a number"),
        ("1" * 200 + " > 1", "is not a number"),
        ("step_time > 1e999", "is not a number"),
        ("fits\nfits", "is not a condition"),
        ("-" * 990 + "1 > 0", "is not a condition"),
    ],
)
def test_what_is_no_condition(text: str, says: str) -> None:
    with pytest.raises((ArgumentError, UnknownNameError), match=re.escape(says)):
        parse(text)


REFUSED = VALUES | {
    "fits": False, "step_time": None, "step_time_low": None, "step_time_high": None,
    "hbm_headroom": -(2**30), "mfu": None, "cost_per_step": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("step_time > 1 h", True),
        ("not (step_time > 1 h)", True),
        ("not fits or step_time > 0.2", True),
        ("fits and step_time > 0.2", False),
        ("0.1 < step_time < 0.2", True),
        ("0 < hbm_headroom < mfu * 1 GiB", False),  # false, whatever is not known
        ("hbm_headroom < 0 and step_time > 1", True),
        ("hbm_headroom > 0 and step_time > 1", False),
        ("hbm_headroom / errors > 1", True),
        ("fits and hbm_headroom / errors > 1", False),
    ],
)
def test_what_is_not_known_has_not_passed(text: str, holds: bool) -> None:
    assert parse(text).holds(REFUSED) is holds


def test_a_condition_shows_what_it_looked_at() -> None:
    condition = parse("not fits or step_time > 0.2 or step_time > 1")
    assert condition.names == ("fits", "step_time")
    assert condition.values(VALUES) == "fits = true, step_time = 0.25"
    assert condition.values(REFUSED) == "fits = false, step_time = not known"

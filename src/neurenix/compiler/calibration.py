"""From the compiler's cycles to seconds on hardware: one factor a generation, and its doubt.

Owns the factors, the interval and where both come from. They come from very little: one published
run for v5e and one for v6e, both large language models (predicted ÷ published 0.95 and 0.77, with
nothing but cycles counted); for the other generations there is no run yet, and the middle of the
two is used.

The interval says so. Tuned models of one generation differ by up to 28 % around their median MFU
(26 published runs), which no factor can remove; element-wise work has cycles up to four times what
HBM would need and no published run to judge by; so the low end also takes element-wise work at the
speed of HBM. It is a judgement, not a percentile.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Seconds = cycles ÷ clock × ``factor``, between ``low`` and ``high`` times that."""

    factor: float
    low: float
    high: float
    basis: str


_RUNS = {
    "v5e": Calibration(1 / 0.95, 0.75, 1.4, "one published run: MaxText 16B on v5e-256, 10.3 s"),
    "v6e": Calibration(1 / 0.77, 0.75, 1.4, "one published run: GPT-3 175B on v6e-256, 17.2 s"),
}
_NONE = Calibration(1 / 0.86, 0.65, 1.6, "no run of this generation yet; the middle of v5e and v6e")

KERNEL_SHARE_OF_PEAK = 0.5
"""Of peak FLOP/s that a Pallas kernel is taken to reach: a guess, since it has no cycles."""

DISPATCH_SECONDS = 50e-6
"""Host time for one dispatched step: what ``fit`` is held to; not measured on a TPU host."""


def calibration(generation: str) -> Calibration:
    """Return the factor and the interval of a generation.

    Example:
        >>> round(calibration("v6e").factor, 2)
        1.3
    """
    return _RUNS.get(generation, _NONE)

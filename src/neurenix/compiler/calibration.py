"""From the compiler's cycles to seconds on hardware: weights, a factor a generation, and doubt.

Owns these numbers and where they come from: ``benchmarks/preflight_accuracy.py`` fitted them to 17
published training runs of 13 configurations (large language models of 8 to 512 billion parameters,
v4 to tpu7x), whose steps it rebuilds and compiles. With all runs of a configuration left out of the
fit, estimates of it were off by 9 % on average and by 20 % at most.

Interval: 80 % of a normal distribution as wide as those errors, for the share of a step that is
matrix products and attention, nearly all of those runs; for the rest of it, and for generations
without a run, three times that, a judgement. Beyond it what nobody has measured: the low end takes
element-wise work at the speed of HBM, the high end takes all kinds of work as the compiler's cycles
and the model of transfers have them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Seconds = weighted seconds of the schedule × ``factor``.

    ``deviation`` is half of the interval's width in natural logarithms, for matrix products.
    """

    factor: float
    deviation: float
    basis: str

    def half_width(self, share_of_products: float) -> float:
        """Return half of the interval's width for a step of which such a share is products.

        Example:
            >>> calibration("v5e").half_width(1.0), calibration("v5e").half_width(0.0)
            (0.14, 0.42)
        """
        other = 1 - min(max(share_of_products, 0.0), 1.0)
        return round(self.deviation * (1 + (_OTHER_WORK - 1) * other), 6)


WEIGHTS = {"vector": 0.602, "hbm": 0.849, "ici": 0.95, "host": 0.517}
"""What seconds of each kind of operation are multiplied with; matrix products and others, 1."""

_DEVIATION = 0.14
_OTHER_WORK = 3.0
_RUNS = {
    "v4": (1.034, "2 published runs of one model"),
    "v5e": (0.913, "5 published runs of 3 models"),
    "v5p": (0.870, "4 published runs of 4 models"),
    "v6e": (1.033, "3 published runs of 3 models"),
    "tpu7x": (0.878, "3 published runs of 2 models"),
}
_NONE = Calibration(0.945, 0.42, "no published run of this generation; the middle of others")

KERNEL_SHARE_OF_PEAK = 0.5
"""Of peak FLOP/s that a Pallas kernel is taken to reach: a guess, since it has no cycles."""

DISPATCH_SECONDS = 50e-6
"""Host time for one dispatched step: what ``fit`` is held to; not measured on a TPU host."""


def calibration(generation: str) -> Calibration:
    """Return the factor and the interval of a generation.

    Example:
        >>> calibration("v6e").factor
        1.033
    """
    if generation not in _RUNS:
        return _NONE
    factor, basis = _RUNS[generation]
    return Calibration(factor, _DEVIATION, basis)

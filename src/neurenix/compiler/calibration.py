"""Convert the compiler's cycles to seconds: weights, a factor per generation, and an interval.

``benchmarks/preflight_accuracy.py`` fitted the numbers to 21 published training runs of 13
configurations (language models of 8 to 512 billion parameters, v4 to tpu7x). With all runs of a
configuration left out of the fit, its estimates were off by 4.6 % on average and 10 % at most. This
holds for tuned dense language models on one or two slices; the form of the model was chosen on
these rows. ``docs/preflight-accuracy.md`` compares it with ten unseen runs.

The interval, called the 80 % interval, is ±10 % for the share of a step that is well-used matrix
products and attention: somewhat wider than 80 % of a normal distribution with those errors (7.3 %),
because the runs are few and similar. For the rest of the step, and for generations without a run,
it is three times as wide. For a program unlike those runs (``coverage``) it is at least ±42 %, and
each doubling beyond two slices adds 6 %. The last three are judgements.

Two assumptions have no measurements. The low end runs element-wise work at HBM bandwidth; the high
end runs everything but those products at the compiler's cycles. Pallas kernels other than attention
occur in no run: their estimate is the geometric mean of products and attention, their low end the
peak, and their high end attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Seconds = weighted seconds of the schedule × ``factor``.

    ``least`` is the minimum time of a matrix product relative to its floor: no program reaches the
    documented peak. ``deviation`` is half of the interval's width for matrix products, in natural
    logarithms.
    """

    factor: float
    least: float
    deviation: float
    basis: str

    @property
    def other_kernel(self) -> float:
        """Time of a kernel other than attention relative to its floor: a judgement."""
        return math.sqrt(self.least * WEIGHTS["kernel"])

    @property
    def kernel_doubt(self) -> float:
        """Factor from that time to the high end."""
        return math.sqrt(WEIGHTS["kernel"] / self.least)

    def half_width(
        self, share_of_products: float, *, unlike: bool = False, num_slices: int = 1
    ) -> float:
        """Return half of the interval's width for a step with this share of products.

        Args:
            share_of_products: from 0 to 1.
            unlike: whether the program is unlike the published runs.
            num_slices: number of slices.

        Example:
            >>> calibration("v5e").half_width(1.0), calibration("v5e").half_width(0.0)
            (0.1, 0.3)
            >>> calibration("v5e").half_width(1.0, unlike=True)
            0.35
            >>> calibration("v5e").half_width(1.0, num_slices=32)
            0.34
        """
        other = 1 - min(max(share_of_products, 0.0), 1.0)
        width = self.deviation * (1 + (_OTHER_WORK - 1) * other)
        width = max(width, _UNLIKE) if unlike else width
        return round(width + _DOUBLING * math.log2(max(num_slices, 2) / 2), 6)


WEIGHTS = {"kernel": 2.468, "vector": 0.522, "hbm": 0.718, "ici": 0.688, "host": 0.703}
"""Weight of each kind of operation's seconds.

Attention kernels count at the device's peak; element-wise work and copies by the compiler's cycles,
but at least at HBM bandwidth; the others by the model of transfers.
"""

PRODUCT_EXPONENT = 0.365
"""Exponent of a matrix product's cycles relative to its floor."""

COMPILERS = ("0.0.42.1", "0.0.50.1")
"""Versions of libtpu for these numbers and those of ``chips``: fitted with the first, checked with
both."""

WELL_USED = 2.0
"""Largest ratio of cycles to floor in the published runs."""

MULTI_SLICE = 1.055
"""Factor of a step on several slices, for the time that they wait for each other."""

_DEVIATION = 0.10
_OTHER_WORK = 3.0
_UNLIKE = 0.35
"""The largest error, ResNet-50, was 38 %: 0.32 in logarithms."""
_DOUBLING = 0.06
"""32 slices, four doublings of two, were 20 % too fast: 0.22 in logarithms."""
_RUNS = {
    "v4": (1.001, 1.212, "2 published runs of one model"),
    "v5e": (0.981, 1.11, "5 published runs of 3 models"),
    "v5p": (0.983, 1.077, "4 published runs of 4 models"),
    "v6e": (1.018, 1.357, "7 published runs of 3 models"),
    "tpu7x": (0.987, 1.126, "3 published runs of 2 models"),
}
_NONE = Calibration(0.994, 1.151, 0.30, "no published run of this generation; median of the others")

DISPATCH_SECONDS = 50e-6
"""Host time to dispatch one step: the target of ``fit``, not measured on a TPU host."""


def other_compiler(version: str) -> str:
    """Return a warning if the calibration is not for this libtpu, else an empty string.

    The last part of a version, that of bug-fix releases, is ignored.

    Args:
        version: of the package; ``"absent"`` if unknown.

    Example:
        >>> other_compiler("0.0.42.2"), other_compiler("0.0.51")[:32]
        ('', 'The compiler here is libtpu 0.0.')
    """
    if version.split(".")[:3] in [known.split(".")[:3] for known in COMPILERS]:
        return ""
    here = "a libtpu of an unknown version" if version == "absent" else f"libtpu {version}"
    return (
        f"The compiler here is {here}; chip data and calibration are for libtpu "
        f"{' and '.join(COMPILERS)}. Memory is exact for this compiler; times may be outside their "
        "interval."
    )


def product_well_used(cycles_seconds: float, floor_seconds: float) -> bool:
    """Return whether a matrix product's cycles are below twice its floor."""
    return cycles_seconds <= WELL_USED * floor_seconds


def product_seconds(
    cycles_seconds: float,
    floor_seconds: float,
    least: float = 1.0,
    exponent: float = PRODUCT_EXPONENT,
) -> float:
    """Return the expected time of a matrix product, before the factor of its generation.

    In tuned models products run faster than their cycles, the more so the further the cycles are
    above the floor: ``floor × (cycles / floor) ** exponent``, and at least ``floor × least``.
    Beyond ``WELL_USED``, where there is no run, the ratio to the cycles stays constant.

    Example:
        >>> product_seconds(1.5, 1.0, exponent=0.5)
        1.224744871391589
        >>> product_seconds(1.5, 1.0, least=1.3, exponent=0.5)
        1.3
        >>> product_seconds(20.0, 1.0) / 20.0 == product_seconds(2.0, 1.0) / 2.0
        True
    """
    if floor_seconds <= 0:
        return cycles_seconds
    over = max(cycles_seconds / floor_seconds, 1.0)
    near = min(over, WELL_USED)
    return float(floor_seconds * max(near**exponent, least) * (over / near))


def calibration(generation: str) -> Calibration:
    """Return the factor and the interval of a generation.

    Example:
        >>> calibration("v6e").factor
        1.018
    """
    if generation not in _RUNS:
        return _NONE
    factor, least, basis = _RUNS[generation]
    return Calibration(factor, least, _DEVIATION, basis)

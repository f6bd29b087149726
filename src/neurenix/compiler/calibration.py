"""From the compiler's cycles to seconds on hardware: weights, a factor a generation, and doubt.

Owns these numbers and where they come from: ``benchmarks/preflight_accuracy.py`` fitted them to 21
published training runs of 13 configurations (large language models of 8 to 512 billion parameters,
v4 to tpu7x), whose steps it rebuilds and compiles. With all runs of a configuration left out of the
fit, estimates of it were off by 4.6 % on average and by 10 % at most. That is a figure for tuned
dense language models on one or two slices, of the rows that the form of the model was chosen on
(three rows of 4 and 8 slices among them say nothing of the network alone). Of ten runs that nobody
had seen, six of dense models on one slice were off by 5.7 % on average and by 11 % at most; 32
slices were estimated 20 % too fast, a mixture of experts 17 %, ResNet-50 38 % and BERT-large 19 %
too slow. One MFU for each generation was nearer on the six (2.5 %).

Interval, called the 80 % one: 10 % either way, somewhat wider than 80 % of a normal distribution as
wide as those errors (7.3 %), since the runs are few and their models alike, for the share of a step
that is well used matrix products and attention; for the rest of it, and for generations without a
run, three times that, a judgement. For a program that is unlike those runs (``coverage``) it is 42
% either way at least, and for each doubling of more than two slices 6 % more: judgements from the
ten runs. Beyond it what nobody has measured: the low end takes element-wise work at the speed of
HBM, the high end takes all but those products as long as the compiler's cycles say. Pallas kernels
other than attention are in none of these runs: they are taken to be as far from products outside of
kernels as from attention, at the low end at the peak, at the high end like attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Calibration:
    """Seconds = weighted seconds of the schedule × ``factor``.

    ``least`` is how long a matrix product takes at least, over its floor: no program reaches the
    documented peak. ``deviation`` is half of the interval's width in natural logarithms, for matrix
    products.
    """

    factor: float
    least: float
    deviation: float
    basis: str

    @property
    def other_kernel(self) -> float:
        """What a kernel that is no attention takes over its floor: a judgement, see above."""
        return math.sqrt(self.least * WEIGHTS["kernel"])

    @property
    def kernel_doubt(self) -> float:
        """What it takes over that at the high end."""
        return math.sqrt(WEIGHTS["kernel"] / self.least)

    def half_width(
        self, share_of_products: float, *, unlike: bool = False, num_slices: int = 1
    ) -> float:
        """Return half of the interval's width for a step of which such a share is products.

        Args:
            share_of_products: from 0 to 1.
            unlike: whether the program is unlike the published runs.
            num_slices: that it is divided over.

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
"""What seconds of each kind of operation are multiplied with: of attention kernels those at the
peak of the device, of element-wise work and of copies those by the compiler's cycles, down to what
their bytes take at the rate of HBM, of others those by the model of transfers."""

PRODUCT_EXPONENT = 0.365
"""How much of what the compiler's cycles say of a matrix product beyond its floor is believed."""

COMPILERS = ("0.0.42.1", "0.0.50.1")
"""Versions of libtpu that these numbers and those of ``chips`` are for: fitted with and read from
the first, and checked with both, as the tests are."""

WELL_USED = 2.0
"""Cycles over floor up to which a product is like those of the published runs."""

MULTI_SLICE = 1.055
"""Of a step on several slices, for what waiting for each other costs them beside the transfers."""

_DEVIATION = 0.10
_OTHER_WORK = 3.0
_UNLIKE = 0.35
"""ResNet-50, the furthest off of its kind, was estimated 38 % too slow: 0.32 in logarithms."""
_DOUBLING = 0.06
"""32 slices, four doublings of two, were estimated 20 % too fast: 0.22 in logarithms."""
_RUNS = {
    "v4": (1.001, 1.212, "2 published runs of one model"),
    "v5e": (0.981, 1.11, "5 published runs of 3 models"),
    "v5p": (0.983, 1.077, "4 published runs of 4 models"),
    "v6e": (1.018, 1.357, "7 published runs of 3 models"),
    "tpu7x": (0.987, 1.126, "3 published runs of 2 models"),
}
_NONE = Calibration(0.994, 1.151, 0.30, "no published run of this generation; the middle of others")

DISPATCH_SECONDS = 50e-6
"""Host time for one dispatched step: what ``fit`` is held to; not measured on a TPU host."""


def other_compiler(version: str) -> str:
    """Return what to say of a libtpu that the numbers are not for, or nothing.

    The last part of a version is that of a repaired release.

    Args:
        version: of the package, ``"absent"`` where it is not known.

    Example:
        >>> other_compiler("0.0.42.2"), other_compiler("0.0.51")[:32]
        ('', 'The compiler here is libtpu 0.0.')
    """
    if version.split(".")[:3] in [known.split(".")[:3] for known in COMPILERS]:
        return ""
    here = "a libtpu of an unknown version" if version == "absent" else f"libtpu {version}"
    return (
        f"The compiler here is {here}; the numbers of chips and the calibration of times are for "
        f"libtpu {' and '.join(COMPILERS)}. Memory is as this compiler says; times may be further "
        "off than their interval."
    )


def product_well_used(cycles_seconds: float, floor_seconds: float) -> bool:
    """Return whether a matrix product takes less than twice its floor by the compiler's cycles."""
    return cycles_seconds <= WELL_USED * floor_seconds


def product_seconds(
    cycles_seconds: float,
    floor_seconds: float,
    least: float = 1.0,
    exponent: float = PRODUCT_EXPONENT,
) -> float:
    """Return how long a matrix product is expected to take, before the factor of its generation.

    In tuned models products are nearer to the peak than their cycles say, and the more so the
    further the cycles are from it: ``floor × (cycles / floor) ** exponent``, and at least ``floor
    × least``. Beyond ``WELL_USED``, where no run shows it, the cycles keep the discount that they
    have there.

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

"""The data of a search: every candidate, the best first, and why each of the others lost.

Does not own the judgement (``search.py``); text, JSON and page are written from this data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix._core.number_checks import check_number
from neurenix.preflight.cost import Pricing
from neurenix.preflight.report.report import Report
from neurenix.preflight.search.workload import Choice

OUT_OF_TIME = "not compiled: the time for the search was up"
"""The reason of candidates that were left out when the budget ended."""


@dataclass(frozen=True)
class Candidate:
    """One choice of a search.

    Attributes:
        report: ``None`` if it was not compiled.
        value: seconds or USD per example, or per call of a function without known examples; None
            if the candidate cannot be used.
        reason: why it lost; empty for the winner.
    """

    slice: chips.Slice
    mesh: str
    batch: int | None
    remat: str
    report: Report | None
    value: float | None
    reason: str
    compiler_options: str = ""
    choice: Choice | None = None


@dataclass(frozen=True)
class Deadline:
    """A limit for the whole run: ``examples`` trained on within ``hours``."""

    examples: float
    hours: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(f"Deadline: {name}", value)
            if not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"Deadline: {name} must be positive; got {value:g}.")

    def misses(self, step_seconds: float, batch: int) -> str:
        """Return why a candidate is too slow, or an empty string.

        A last partial batch counts as a step, since ``fit`` pads it.

        Example:
            >>> nx.preflight.Deadline(examples=1001, hours=1).misses(step_seconds=1800, batch=500)
            'takes 1.5 h (est.), and the deadline is 1 h'
        """
        needed = math.ceil(self.examples / batch) * step_seconds / 3600
        if needed <= self.hours:
            return ""
        return f"takes {needed:.3g} h (est.), and the deadline is {self.hours:.3g} h"


@dataclass(frozen=True)
class PlanData:
    """All candidates, the best first; ``pricing`` applies to their costs."""

    objective: str
    candidates: tuple[Candidate, ...]
    pricing: Pricing = Pricing()
    deadline: Deadline | None = None

    @property
    def winner(self) -> Candidate | None:
        """The best candidate; ``None`` if none can run the program in time and at a known price."""
        first = self.candidates[0] if self.candidates else None
        return first if first is not None and first.value is not None else None

    @property
    def num_not_compiled(self) -> int:
        """Number of candidates left out when the budget ended; any of them may be better."""
        return sum(candidate.reason == OUT_OF_TIME for candidate in self.candidates)

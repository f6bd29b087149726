"""What a search answers: every candidate, the best first, and why each of the others lost.

Owns the answer and the deadline it was held against. How it is shown is ``plan_text``'s,
``plan_document``'s and ``html``'s; who wins is ``planning``'s to say.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix._core.files import write_whole
from neurenix._core.number_checks import check_number
from neurenix.preflight.cost import Pricing
from neurenix.preflight.page import html
from neurenix.preflight.report import report_text
from neurenix.preflight.report.report import Report
from neurenix.preflight.search import search_json, search_text
from neurenix.preflight.search.workload import Choice

OUT_OF_TIME = "not compiled: the time for the search was up"
"""The reason of candidates that nothing speaks against but the end of the budget."""


@dataclass(frozen=True)
class Candidate:
    """One choice that was looked at. ``reason`` says why it lost, and is empty for the winner.

    ``value`` is what it was judged by: seconds or USD per example (per call of a function that is
    not known to take examples).
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
    """Everything must be done in time: ``examples`` trained on within ``hours``."""

    examples: float
    hours: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(f"Deadline: {name}", value)
            if not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"Deadline: {name} must be positive; got {value:g}.")

    def misses(self, step_seconds: float, batch: int) -> str:
        """Return why a candidate is too slow, or an empty string.

        A last batch that is not full is a step too: ``fit`` pads it.

        Example:
            >>> nx.preflight.Deadline(examples=1001, hours=1).misses(step_seconds=1800, batch=500)
            'takes 1.5 h (est.), and the deadline is 1 h'
        """
        needed = math.ceil(self.examples / batch) * step_seconds / 3600
        if needed <= self.hours:
            return ""
        return f"takes {needed:.3g} h (est.), and the deadline is {self.hours:.3g} h"


@dataclass(frozen=True)
class Plan:
    """All candidates, the best first; ``pricing`` is that of their costs."""

    objective: str
    candidates: tuple[Candidate, ...]
    pricing: Pricing = Pricing()
    deadline: Deadline | None = None

    @property
    def winner(self) -> Candidate | None:
        """The best candidate; ``None`` when none can run the program (in time, at a price)."""
        first = self.candidates[0] if self.candidates else None
        return first if first is not None and first.value is not None else None

    @property
    def num_not_compiled(self) -> int:
        """How many candidates the end of the budget left out, any of which may be better."""
        return sum(candidate.reason == OUT_OF_TIME for candidate in self.candidates)

    @property
    def best(self) -> Report:
        """The report of the winner.

        Raises:
            ArgumentError: no candidate can run the program.
        """
        if self.winner is None or self.winner.report is None:
            raise ArgumentError(f"No candidate can run this program:\n{self.table()}")
        return self.winner.report

    def table(self) -> str:
        """Return every candidate as a table of text, a line for each. Times are estimates."""
        return search_text.table(self)

    def text(self, width: int | None = None) -> str:
        """Return what ``neurenix plan`` prints: the table folded to ``width``, then the winner.

        Args:
            width: in columns; the terminal's if left out.
        """
        return search_text.text_of(self, width or report_text.width_here())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the frontier of cost and time, every candidate, and the winner."""
        write_whole(path, html.plan_page(self, self.pricing))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of the schema that ``preflight.plan_document`` describes."""
        return search_json.document(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict(), indent=1))

    def __str__(self) -> str:
        return self.table()

"""``Plan``: the answer of a search, as values, text and files."""

from __future__ import annotations

import json
import os
from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._core.files import write_whole
from neurenix.preflight.page.plan_page import plan_page
from neurenix.preflight.report.report import Report
from neurenix.preflight.report.report_text import width_here
from neurenix.preflight.search import plan_json, plan_text
from neurenix.preflight.search.plan_data import PlanData


class Plan(PlanData):
    """The answer of ``search``: all candidates, the best first. ``print(plan)`` shows them."""

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
        """Return a table with one line for each candidate. Times are estimates."""
        return plan_text.table(self)

    def text(self, width: int | None = None) -> str:
        """Return what ``neurenix plan`` prints: the table folded to ``width``, then the winner.

        Args:
            width: in columns; the terminal's by default.
        """
        return plan_text.text_of(self, width or width_here())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a self-contained HTML page, atomically."""
        write_whole(path, plan_page(self, self.pricing))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of the schema that ``plan_json`` describes."""
        return plan_json.document(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, atomically."""
        write_whole(path, json.dumps(self.to_dict(), indent=1))

    def __str__(self) -> str:
        return self.table()

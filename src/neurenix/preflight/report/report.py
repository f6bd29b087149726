"""``Report``: the answer of one preflight, as values, text and files."""

from __future__ import annotations

import json
import os
from typing import Any

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.files import write_whole
from neurenix.preflight.cost import Pricing
from neurenix.preflight.page import html
from neurenix.preflight.report import report_text
from neurenix.preflight.report.compare import Comparison, compare, matching
from neurenix.preflight.report.report_data import ReportData
from neurenix.preflight.report.report_json import Record, document, load_report, load_reports


class Report(ReportData):
    """What the compiler and the time model say about one program on one slice.

    The values are those of ``ReportData``; ``print(report)`` shows them. Every time is an estimate.
    """

    def record(self, pricing: Pricing | None = None) -> Record:
        """Return the report as the data of its JSON file."""
        return Record(self.to_dict(pricing), f"{self.name} on {self.slice.name}")

    def compare(
        self, before: Report | Record | str | os.PathLike[str], pricing: Pricing | None = None
    ) -> Comparison:
        """Return what changed since an earlier report.

        Args:
            before: a report, a record, or the path of a JSON file.
            pricing: of this report's cost, and of ``before`` if that is a report.

        Raises:
            ArgumentError: the file has no report that this one can be compared with.
            ArgumentTypeError: ``before`` is of another type.
        """
        now = self.record(pricing)
        if isinstance(before, Report):
            return compare(before.record(pricing), now)
        if isinstance(before, Record):
            return compare(before, now)
        if not isinstance(before, (str, os.PathLike)):
            raise ArgumentTypeError(
                "compare takes a report, what from_json read, or the path of a JSON file; got "
                f"{type(before).__name__}."
            )
        records = load_reports(before)
        found = matching(records, now)
        if found is None:
            raise ArgumentError(
                f"{os.fspath(before)} holds no report for {self.slice.name}; it has "
                f"{', '.join(record.slice_name for record in records)}."
            )
        return compare(found, now)

    @staticmethod
    def from_json(path: str | os.PathLike[str]) -> Record:
        """Read a report that ``to_json`` wrote, as a ``Record`` that can be compared.

        Raises:
            ArgumentError: the file is missing, has no report or several, or has another version.
        """
        return load_report(path)

    def to_dict(self, pricing: Pricing | None = None) -> dict[str, Any]:
        """Return plain data of the schema that ``report_json`` describes.

        All times are estimates. ``pricing`` applies to ``estimated_cost``.
        """
        return document(self, pricing or Pricing())

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, atomically.

        Raises:
            ArgumentError: the file cannot be written.
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1))

    def to_html(self, path: str | os.PathLike[str], pricing: Pricing | None = None) -> None:
        """Write a self-contained HTML page, atomically.

        ``pricing`` applies to its costs.

        Raises:
            ArgumentError: the file cannot be written.
        """
        write_whole(path, html.page(self, pricing))

    def text(self, width: int | None = None, pricing: Pricing | None = None) -> str:
        """Return the terminal report.

        Args:
            width: in columns; the terminal's by default.
            pricing: of the cost.
        """
        return report_text.text_of(self, width or report_text.width_here(), pricing or Pricing())

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        return report_text.styled(self.text())

"""A report on a model of another framework before it is converted: what is supported and what not.

Owns the report and its text. Does not own how problems are found (``torch``, ``onnx``).
"""

from __future__ import annotations

import os
import textwrap
from dataclasses import dataclass, replace

from neurenix._core.source_files import SourceLine

__all__ = ["CheckReport", "OperatorUse", "Place", "Problem"]

Place = SourceLine | str
"""Where something is: a line of the user's code, or the name of a node of a file."""


@dataclass(frozen=True)
class Problem:
    """One reason why a model cannot be converted.

    Attributes:
        what: what was found.
        fix: what to do.
        line: where, if it is known.
    """

    what: str
    fix: str
    line: Place | None = None

    def __str__(self) -> str:
        at = f" at {self.line}" if self.line else ""
        return f"{self.what}{at}. {self.fix}"


@dataclass(frozen=True)
class OperatorUse:
    """One operator of a model.

    Attributes:
        name: ``"aten::linear.default"``.
        count: how often it is called.
        line: the first place that calls it.
        is_supported: whether it has a function here.
    """

    name: str
    count: int
    line: Place | None
    is_supported: bool


@dataclass(frozen=True)
class CheckReport:
    """What ``check`` found.

    Attributes:
        name: of the model.
        operators: every operator, by name.
        problems: why it cannot be converted; none where it can.
        notes: what is computed otherwise than there, and how.
    """

    name: str
    operators: tuple[OperatorUse, ...]
    problems: tuple[Problem, ...]
    notes: tuple[Problem, ...]

    @property
    def is_convertible(self) -> bool:
        """Whether nothing was found that forbids the conversion."""
        return not self.problems

    def text(self, width: int = 100) -> str:
        """Return the report as text of ``width`` columns."""
        kinds, calls = len(self.operators), sum(use.count for use in self.operators)
        unknown = sum(not use.is_supported for use in self.operators)
        verdict = "can be converted" if self.is_convertible else "cannot be converted"
        lines = _folded("", f"Check of {self.name}: it {verdict}", width)
        if self.operators:
            lines += _folded(
                "  ", f"{kinds} operators in {calls} calls, {unknown} not supported", width
            )
        for number, problem in enumerate(self.problems, 1):
            at = f" at {_shown(problem.line)}" if problem.line else ""
            lines += _folded(f"  {number}. ", f"{problem.what}{at}", width)
            lines += _folded("     → ", problem.fix, width) if problem.fix else []
        for note in self.notes:
            at = f" at {_shown(note.line)}" if note.line else ""
            lines += _folded("  note: ", f"{note.what}{at}. {note.fix}", width)
        for use in self.operators:
            at = f", first at {_shown(use.line)}" if use.line else ""
            mark = "" if use.is_supported else "NOT SUPPORTED, "
            lines += _folded("  ", f"{use.name}: {mark}{_times(use.count)}{at}", width)
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()


def _times(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _shown(line: Place) -> str:
    """Return a line by its path from here, where that is shorter."""
    if isinstance(line, str):
        return line
    path = os.path.relpath(line.file)
    return str(replace(line, file=path if len(path) < len(line.file) else line.file))


def _folded(label: str, text: str, width: int) -> list[str]:
    found = []
    for number, part in enumerate(text.splitlines() or [""]):
        first = label if number == 0 else " " * len(label)
        found += textwrap.wrap(
            part, width, initial_indent=first, subsequent_indent=" " * len(label),
            break_on_hyphens=False,
        ) or [first.rstrip()]  # fmt: skip
    return found

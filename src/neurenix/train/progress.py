"""Progress of ``fit``, ``evaluate`` and ``predict`` on a terminal.

Numbers are read from the device only when they are ready, so showing them never delays training.
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._core.output_encoding import shown as as_shown

_VERBOSE = ("auto", False, True, 2)  # 0, 1, 2 are Keras's numbers
_SECONDS_BETWEEN_LOOKS = 0.1


class Progress:
    """Shows nothing; the base class of the others."""

    def begin(self, title: str, steps: int | None) -> None:
        """Start a pass over data of ``steps`` steps."""

    def advance(self, steps: int, logs: Any, names: tuple[str, ...]) -> None:
        """Record dispatched steps; ``logs`` is the (pending) result of the last one."""

    def end(self, logs: Mapping[str, float], seconds: float) -> None:
        """Show the numbers of the pass."""

    def close(self) -> None:
        """Restore the terminal."""


class LineProgress(Progress):
    """One line for each pass, of plain text, for output that is not a terminal.

    If the output cannot be written (a closed pipe, a full disk), a warning is given once, and
    training continues without output.
    """

    def __init__(self) -> None:
        self._head, self._out = "", sys.stdout

    def begin(self, title: str, steps: int | None) -> None:
        """Remember the title."""
        self._head = title

    def end(self, logs: Mapping[str, float], seconds: float) -> None:
        """Print the line."""
        if self._out is None:
            return
        line = " ".join(f"{self._head}  {seconds:.1f} s  {in_words(logs)}".splitlines()).rstrip()
        try:
            self._out.write(f"{as_shown(line)}\n")
            self._out.flush()
        except (OSError, ValueError) as error:  # the second for a file that was closed
            self._out = None
            warnings.warn(
                f"Progress is shown no more: the output cannot be written ({error}).",
                RuntimeWarning,
                stacklevel=2,
            )


class BarProgress(Progress):
    """A bar for the current pass, drawn with rich, and a line for each finished one.

    A finished pass is printed once and not redrawn, so the cost does not grow with their number.
    """

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        console = Console()
        width = min(24, max(4, console.width // 2 - 16))
        # The numbers of a line that is too long continue on the next line.
        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=width, table_column=Column(no_wrap=True)),
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", table_column=Column(overflow="fold")),
            console=console,
            transient=True,
        )
        self._bar.start()
        self._task: Any = None
        self._looked = 0.0
        self._pending: Any = None

    def begin(self, title: str, steps: int | None) -> None:
        """Begin a bar."""
        self._task = self._bar.add_task(title, total=steps, numbers="")
        self._pending = None

    def advance(self, steps: int, logs: Any, names: tuple[str, ...]) -> None:
        """Move the bar, and show numbers when some are ready."""
        self._bar.advance(self._task, steps)
        if self._pending is not None and self._pending.is_ready():
            values = dict(zip(names, map(float, self._pending[1:]), strict=True))
            self._bar.update(self._task, numbers=as_shown(in_words(values)))
            self._pending = None
        now = time.monotonic()
        if self._pending is None and now - self._looked > _SECONDS_BETWEEN_LOOKS:
            self._looked, self._pending = now, logs

    def end(self, logs: Mapping[str, float], seconds: float) -> None:
        """Leave a line with the numbers of the pass in place of its bar."""
        done = int(self._bar.tasks[-1].completed)
        self._leave(f"{done}/{done}  {seconds:.1f} s  {in_words(logs)}")

    def close(self) -> None:
        """Stop drawing; print the position of an unfinished pass."""
        if self._task is not None:
            task = self._bar.tasks[-1]
            steps = "?" if task.total is None else int(task.total)
            self._leave(f"{int(task.completed)}/{steps}  {task.fields['numbers']}")
        self._bar.stop()

    def _leave(self, text: str) -> None:
        line = as_shown(f"{self._bar.tasks[-1].description}  {text}").rstrip()
        self._bar.console.print(line, markup=False, highlight=False)
        self._bar.remove_task(self._task)
        self._task = None


def check_verbose(verbose: Any) -> None:
    """Raise ArgumentError if ``verbose`` is not a known value."""
    if verbose not in _VERBOSE:
        raise ArgumentError(f'verbose is "auto", True or False, got {verbose!r}.')


@contextmanager
def shown(verbose: bool | str, title: str, steps: int | None) -> Iterator[Progress]:
    """Show one pass over data while the block runs; the block calls ``advance`` and ``end``.

    The caller returns the numbers, so ``"auto"`` shows them on a terminal only.

    Raises:
        ArgumentError: ``verbose`` is not a known value.
    """
    check_verbose(verbose)
    progress = make_progress(_takes_bars() if verbose == "auto" else verbose)
    try:
        progress.begin(title, steps)
        yield progress
    finally:
        progress.close()


def make_progress(verbose: bool | str) -> Progress:
    """Return the progress for a checked ``verbose``: a bar on a terminal, lines elsewhere.

    A terminal that takes no control characters (``TERM=dumb``), and one of a CI service (``CI`` is
    set), get lines.
    """
    if verbose is False or verbose == 0 or sys.stdout is None:
        return Progress()
    return BarProgress() if _takes_bars() else LineProgress()


def _takes_bars() -> bool:
    if sys.stdout is None or not sys.stdout.isatty():
        return False
    return os.environ.get("TERM") != "dumb" and not os.environ.get("CI")


def in_words(logs: Mapping[str, float]) -> str:
    """Return ``"loss 0.1234  accuracy 0.9876"``.

    Example:
        >>> in_words({"loss": 0.12344})
        'loss 0.1234'
    """
    return "  ".join(f"{name} {value:.4f}" for name, value in logs.items())

"""Progress of ``fit`` on a terminal.

Owns what is printed and how often. Numbers are read from the device only when they are ready, so
that showing them never makes training wait.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

_SECONDS_BETWEEN_LOOKS = 0.1


class Progress:
    """Shows nothing; the base of the others, and what is used when output is no terminal."""

    def begin_epoch(self, epoch: int, epochs: int, steps: int | None) -> None:
        """Announce an epoch, counted from 0."""

    def advance(self, steps: int, logs: Any, names: tuple[str, ...]) -> None:
        """Note steps dispatched; ``logs`` is the vector that the last of them will return."""

    def end_epoch(self, logs: Mapping[str, float], seconds: float) -> None:
        """Show the numbers of the epoch."""

    def close(self) -> None:
        """Leave the terminal as it was."""


class LineProgress(Progress):
    """One line for each epoch, for output that is not a terminal."""

    def __init__(self) -> None:
        self._head = ""

    def begin_epoch(self, epoch: int, epochs: int, steps: int | None) -> None:
        """Remember the epoch."""
        self._head = f"Epoch {epoch + 1}/{epochs}"

    def end_epoch(self, logs: Mapping[str, float], seconds: float) -> None:
        """Print the line."""
        sys.stdout.write(f"{self._head}  {seconds:.1f} s  {in_words(logs)}\n")
        sys.stdout.flush()


class BarProgress(Progress):
    """A bar for each epoch, drawn with rich."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
        )
        self._bar.start()
        self._task: Any = None
        self._looked = 0.0
        self._pending: Any = None

    def begin_epoch(self, epoch: int, epochs: int, steps: int | None) -> None:
        """Begin a bar."""
        title = f"Epoch {epoch + 1}/{epochs}"
        self._task = self._bar.add_task(title, total=steps, numbers="")
        self._pending = None

    def advance(self, steps: int, logs: Any, names: tuple[str, ...]) -> None:
        """Move the bar, and show numbers when some are ready."""
        self._bar.advance(self._task, steps)
        if self._pending is not None and self._pending.is_ready():
            values = dict(zip(names, map(float, self._pending[1:]), strict=True))
            self._bar.update(self._task, numbers=in_words(values))
            self._pending = None
        now = time.monotonic()
        if self._pending is None and now - self._looked > _SECONDS_BETWEEN_LOOKS:
            self._looked, self._pending = now, logs

    def end_epoch(self, logs: Mapping[str, float], seconds: float) -> None:
        """Fill the bar and leave it with the numbers of the epoch."""
        done = self._bar.tasks[-1].completed
        self._bar.update(
            self._task, total=done, completed=done, numbers=f"{seconds:.1f} s  {in_words(logs)}"
        )

    def close(self) -> None:
        """Stop drawing."""
        self._bar.stop()


def make_progress(verbose: bool | str) -> Progress:
    """Return the progress for ``verbose``: a bar on a terminal, lines elsewhere if asked."""
    if verbose is False or verbose == 0:
        return Progress()
    if sys.stdout.isatty():
        return BarProgress()
    return Progress() if verbose == "auto" else LineProgress()


def in_words(logs: Mapping[str, float]) -> str:
    """Return ``"loss 0.1234  accuracy 0.9876"``.

    Example:
        >>> in_words({"loss": 0.12344})
        'loss 0.1234'
    """
    return "  ".join(f"{name} {value:.4f}" for name, value in logs.items())

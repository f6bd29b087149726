"""The order in which a search compiles: one variant of each place, then variants of the fastest.

A place is a slice, a mesh and a batch; recomputation and compiler options make variants of it. One
variant of each place is compiled first, alternating between the slices, so that each slice is seen
before any is refined. Does not own which candidates cannot win (``search.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neurenix.preflight.search.workload import Choice

Place = tuple[Any, ...]


@dataclass(frozen=True)
class Turn:
    """The order of a choice: its variant of the place, and its turn on the slice."""

    variant: int
    number: int


def place_of(choice: Choice) -> Place:
    """Return what the variants of a choice share."""
    return choice.slice.name, choice.mesh_text, choice.batch


def turns(choices: Sequence[Choice], least: Sequence[float], remat: str) -> list[Turn]:
    """Return the turn of each choice.

    Args:
        choices: all that may be compiled.
        least: a lower bound of each value; smaller ones are compiled earlier.
        remat: the workload's own policy, tried first.
    """
    variants: dict[Place, list[int]] = defaultdict(list)
    for index in sorted(range(len(choices)), key=lambda i: _unlike_own(choices[i], remat)):
        variants[place_of(choices[index])].append(index)
    found = [Turn(0, 0)] * len(choices)
    on_slice: dict[str, int] = defaultdict(int)
    for place in sorted(variants, key=lambda place: least[variants[place][0]]):
        for variant, index in enumerate(variants[place]):
            found[index] = Turn(variant, on_slice[place[0]])
        on_slice[place[0]] += 1
    return found


def _unlike_own(choice: Choice, remat: str) -> tuple[int, bool]:
    """Return a sort key that puts the unchanged workload first."""
    return len(choice.compiler_options), choice.remat not in (None, remat)


class Promise:
    """The best value so far at each place and on each slice."""

    def __init__(self, judged: Iterable[tuple[Choice | None, float | None]]) -> None:
        self._best: dict[Any, float] = {}
        for choice, value in judged:
            if choice is not None and value is not None:
                for key in (place_of(choice), choice.slice.name):
                    self._best[key] = min(value, self._best.get(key, value))

    def of(self, choice: Choice) -> float:
        """Return the best value at a choice's place, or else on its slice."""
        everywhere = self._best.get(choice.slice.name, float("inf"))
        return self._best.get(place_of(choice), everywhere)

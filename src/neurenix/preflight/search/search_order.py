"""In which order a search compiles: a little of everything first, then more of what leads.

Owns the order among candidates that may all win. Which of them cannot is ``planning``'s to say.
Recomputation and options of the compiler make variants of one place, which is a slice, a mesh and a
batch. One variant of each place is compiled first, the slices taken in turn, so that each slice has
been seen before any is refined; then further variants, those of the fastest places first.
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
    """When a choice is compiled: as which variant of its place, and in which turn of its slice."""

    variant: int
    number: int


def place_of(choice: Choice) -> Place:
    """Return what a choice shares with its variants."""
    return choice.slice.name, choice.mesh_text, choice.batch


def turns(choices: Sequence[Choice], least: Sequence[float], remat: str) -> list[Turn]:
    """Return the turn of each choice.

    Args:
        choices: all that may be compiled.
        least: the least value that each of them can have; the smaller is the more promising.
        remat: the workload's own policy, which is tried first.
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
    """Return how far a variant is from the workload as it is, which sorts first."""
    return len(choice.compiler_options), choice.remat not in (None, remat)


class Promise:
    """What places have shown so far: the values of their compiled candidates."""

    def __init__(self, judged: Iterable[tuple[Choice | None, float | None]]) -> None:
        self._best: dict[Any, float] = {}
        for choice, value in judged:
            if choice is not None and value is not None:
                for key in (place_of(choice), choice.slice.name):
                    self._best[key] = min(value, self._best.get(key, value))

    def of(self, choice: Choice) -> float:
        """Return the best value at a choice's place; the slice's own where none fitted there."""
        everywhere = self._best.get(choice.slice.name, float("inf"))
        return self._best.get(place_of(choice), everywhere)

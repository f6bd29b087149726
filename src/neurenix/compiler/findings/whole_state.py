"""Find optimizer state that is replicated, or less sharded than its parameters.

It works for compiled and for refused programs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from neurenix._core.units import bytes_text
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.program import Program


@dataclass(frozen=True)
class WholeState:
    """State that could be sharded further.

    Attributes:
        spare_bytes: bytes that a device would save if the state were sharded like its parameters.
        held_bytes: bytes of this state on a device.
        largest: the leaf that would save most.
        parameter: a parameter of the largest leaf's shape.
    """

    spare_bytes: int
    held_bytes: int
    largest: Leaf
    parameter: Leaf

    @property
    def text(self) -> str:
        """The problem as a sentence."""
        return (
            f"Each device holds {bytes_text(self.held_bytes)} of optimizer state, "
            f"{bytes_text(self.spare_bytes)} more than if it were divided like the parameters: "
            f"{self.largest.path} {_shape(self.largest)} is {_divided(self.largest)}, "
            f"{self.parameter.path} is {_divided(self.parameter)}."
        )


def whole_state(program: Program) -> WholeState | None:
    """Return the optimizer state that could be sharded like its parameters, if any.

    A leaf is compared with the least sharded parameter of its shape.
    """
    by_shape: dict[tuple[int, ...], Leaf] = {}
    for leaf in program.leaves:
        if leaf.role == "parameters":
            least = by_shape.setdefault(leaf.shape, leaf)
            by_shape[leaf.shape] = max(least, leaf, key=_share)
    spare: list[tuple[int, Leaf]] = []
    for leaf in program.leaves:
        parameter = by_shape.get(leaf.shape) if leaf.role == "optimizer" else None
        if parameter is not None and _share(leaf) > _share(parameter):
            kept = leaf.device_bytes * _share(parameter) // _share(leaf)
            spare.append((leaf.device_bytes - kept, leaf))
    if not spare:
        return None
    _, largest = max(spare, key=lambda pair: pair[0])
    return WholeState(
        sum(count for count, _ in spare),
        sum(leaf.device_bytes for _, leaf in spare),
        largest,
        by_shape[largest.shape],
    )


def _share(leaf: Leaf) -> int:
    """Return the number of elements that one device holds."""
    return math.prod(leaf.device_shape)


def _shape(leaf: Leaf) -> str:
    return f"{leaf.dtype}[{_sizes(leaf.shape)}]"


def _sizes(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape))


def _divided(leaf: Leaf) -> str:
    entries = [entry for entry in leaf.partition if entry is not None]
    if (
        not entries and leaf.device_shape != leaf.shape
    ):  # sharded by the compiler, without axis names
        return f"divided into [{_sizes(leaf.device_shape)}]"
    return f"divided over ({', '.join(map(str, entries))})" if entries else "whole"

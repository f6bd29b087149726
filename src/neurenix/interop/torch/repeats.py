"""Repeated layers of a program, found by the structure of its graph, as loops.

A model of 80 equal layers becomes one ``lax.scan``, which compiles like one layer. Layers are equal
where their operations, literals, shapes and wiring are. A block that repeats may span several
layers (Gemma 2 alternates two kinds of attention), and includes what stands between layers outside
of their modules. Layers inside of layers are found where the outer ones differ.

Owns finding them. Does not own how a loop is computed (``interpret``) or stored (``storage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from neurenix.interop.torch.program import Operation, Program, Value, values_in

# Groups of operations of one repeated block, and how many repetitions are worth a loop. What
# stands between layers, such as a sum, is a group of its own.
_PERIODS = range(1, 13)
MIN_REPEATS = 4


@dataclass(frozen=True)
class Local:
    """The result of the operation at a position of the same layer."""

    position: int


@dataclass(frozen=True)
class Carried:
    """What the layer before has made; for the first layer, what the loop starts with."""

    number: int


@dataclass(frozen=True)
class Stacked:
    """A weight of the layer, taken from the weights of all layers."""

    number: int


@dataclass(eq=False)
class Loop:
    """Equal consecutive layers.

    Attributes:
        operations: those of one layer. Their arguments are ``Local``, ``Carried``, ``Stacked``,
            and ``Value`` for what is the same for all layers.
        count: how many layers.
        weights: of each ``Stacked`` number, the names in all layers.
        starts: of each ``Carried`` number, what the first layer is given.
        carried: of each ``Carried`` number, the position of the operation that makes it.
        collected: positions of operations whose results of all layers are needed outside.
        collected_values: of each of them, the values outside, by layer; None where unneeded.
        last_values: of each ``Carried`` number, the value outside of the last layer's, or None.
    """

    operations: list[Operation]
    count: int
    weights: list[tuple[str, ...]]
    starts: list[Any]
    carried: list[int]
    collected: list[int]
    collected_values: list[list[int | None]]
    last_values: list[int | None]


Step = Operation | Loop


def find_loops(program: Program) -> list[Step]:
    """Return the operations of a program, with repeated layers as loops."""
    return _fold(program.operations, 0, program, _users(program))


def _fold(
    operations: list[Operation], level: int, program: Program, users: dict[int, list[int]]
) -> list[Step]:
    """Fold the layers of one level of numbered modules; inside of other layers, of the next."""
    steps: list[Step] = []
    starts = _starts(operations, level)
    signatures = [repr((o.name, o.function, o.results)) for o in operations]
    at = 0
    while at < len(operations):
        following = [start for start in starts if start > at] + [len(operations)]
        inside = at in starts and len(operations[at].layers) > level
        found = _longest(operations, signatures, at, following, program, users) if inside else None
        if found is not None:
            loop, used = found
            steps.append(loop)
            at += used
            continue
        part = operations[at : following[0]]
        deeper = inside and any(len(operation.layers) > level + 1 for operation in part)
        steps.extend(_fold(part, level + 1, program, users) if deeper else part)
        at = following[0]
    return steps


def _starts(operations: Sequence[Operation], level: int) -> list[int]:
    """Return where the operations of another layer begin."""
    starts: list[int] = []
    members: set[int] = set()
    current: tuple[str, int] | None = None
    for number, operation in enumerate(operations):
        layer = operation.layers[level] if len(operation.layers) > level else None
        sources = {value.index for value in values_in(operation.arguments)}
        # Taking an item of a tuple belongs to no module: it goes with what made the tuple.
        if layer is None and operation.operator is None and sources & members:
            layer = current
        if not starts or layer != current:
            starts.append(number)
            members, current = set(), layer
        members.add(operation.output)
    return starts


def _users(program: Program) -> dict[int, list[int]]:
    """Return who reads each value: the outputs of operations, and -1 for the program's results."""
    users: dict[int, list[int]] = {}
    for operation in program.operations:
        for value in values_in(operation.arguments):
            users.setdefault(value.index, []).append(operation.output)
    for result in program.results:
        for value in values_in(result.value):
            users.setdefault(value.index, []).append(-1)
    return users


def _longest(
    operations: list[Operation],
    signatures: list[str],
    start: int,
    following: list[int],
    program: Program,
    users: dict[int, list[int]],
) -> tuple[Loop, int] | None:
    """Return the loop from ``start`` on that takes the most operations, and how many it takes.

    A block is the operations up to one of the ``following`` starts of layers; where the last block
    ends does not matter.
    """
    best: tuple[Loop, int] | None = None
    for _, end in zip(_PERIODS, following, strict=False):
        size = end - start
        count = _equal_blocks(signatures, start, size)
        while count >= MIN_REPEATS and (best is None or count * size > best[1]):
            blocks = [operations[start + n * size : start + (n + 1) * size] for n in range(count)]
            loop, fitting = _as_loop(blocks, program, users)
            if loop is not None:
                best = loop, count * size
                break
            count = min(count - 1, fitting)
    return best


def _equal_blocks(signatures: list[str], start: int, size: int) -> int:
    """Return how many blocks of a size have the operations of the first, by name and shape."""
    first = signatures[start : start + size]
    count = 1
    while signatures[start + count * size : start + (count + 1) * size] == first:
        count += 1
    return count


class _Different(Exception):
    """Blocks differ from one on."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count


def _as_loop(
    blocks: list[list[Operation]], program: Program, users: dict[int, list[int]]
) -> tuple[Loop | None, int]:
    """Return blocks as a loop, or how many of them may be one."""
    try:
        return _Comparison(blocks, program).loop(users), len(blocks)
    except _Different as different:
        return None, different.count


class _Comparison:
    """Compares blocks of operations argument by argument."""

    def __init__(self, blocks: list[list[Operation]], program: Program) -> None:
        self._blocks, self._names, self._types = blocks, program.weights, program.types
        self._constants = program.constants
        self._positions = [{o.output: p for p, o in enumerate(block)} for block in blocks]
        self._weights: dict[tuple[str, ...], int] = {}
        self._carried: dict[int, int] = {}  # position → number
        self._starts: list[Any] = []

    def loop(self, users: dict[int, list[int]]) -> Loop:
        operations = [
            replace(row[0], arguments=self._unify([o.arguments for o in row]))
            for row in zip(*self._blocks, strict=True)
        ]
        positions = list(self._carried)
        last: list[int | None] = [None] * len(positions)
        collected: dict[int, list[int | None]] = {}
        for number, block in enumerate(self._blocks):
            inside = set(self._positions[number])
            if number + 1 < len(self._blocks):
                inside |= set(self._positions[number + 1])
            for position, operation in enumerate(block):
                if all(user in inside for user in users.get(operation.output, ())):
                    continue
                final = number == len(self._blocks) - 1
                if final and position in self._carried and position not in collected:
                    last[self._carried[position]] = operation.output
                else:
                    values = collected.setdefault(position, [None] * len(self._blocks))
                    values[number] = operation.output
        return Loop(
            operations=operations,
            count=len(self._blocks),
            weights=list(self._weights),
            starts=self._starts,
            carried=positions,
            collected=list(collected),
            collected_values=list(collected.values()),
            last_values=last,
        )

    def _unify(self, row: list[Any]) -> Any:
        """Return one argument for all blocks.

        Raises:
            _Different: the blocks differ in it.
        """
        first = row[0]
        if isinstance(first, (list, tuple)):
            self._expect([isinstance(a, (list, tuple)) and len(a) == len(first) for a in row])
            return [self._unify(list(each)) for each in zip(*row, strict=True)]
        if isinstance(first, dict):
            self._expect([isinstance(a, dict) and a.keys() == first.keys() for a in row])
            return {name: self._unify([a[name] for a in row]) for name in first}
        if not any(isinstance(a, Value) for a in row):
            self._expect([type(a) is type(first) and repr(a) == repr(first) for a in row])
            return first
        self._expect([isinstance(a, Value) for a in row])
        indices = [a.index for a in row]
        places = [p.get(i) for i, p in zip(indices, self._positions, strict=True)]
        if places[0] is not None:
            self._expect([place == places[0] for place in places])
            return Local(places[0])
        if all(index == indices[0] for index in indices):
            return first
        if all(index in self._names for index in indices):
            self._expect_types(indices)
            names = tuple(self._names[index] for index in indices)
            return Stacked(self._weights.setdefault(names, len(self._weights)))
        if all(index in self._constants for index in indices):
            each = [self._constants[index] for index in indices]
            self._expect([_same(constant, each[0]) for constant in each])
            return first
        return self._from_before(indices)

    def _from_before(self, indices: list[int]) -> Carried:
        """Return an argument that each block takes from the one before it."""
        before = [p.get(i) for i, p in zip(indices[1:], self._positions, strict=False)]
        if not before or before[0] is None:
            raise _Different(1)
        position = before[0]
        self._expect_types(indices)
        self._expect([True, *(place == position for place in before)])
        start = Value(indices[0])
        number = self._carried.setdefault(position, len(self._carried))
        if number == len(self._starts):
            self._starts.append(start)
        elif self._starts[number] != start:
            raise _Different(1)
        return Carried(number)

    def _expect_types(self, indices: list[int]) -> None:
        types = [self._types[index] for index in indices]
        self._expect([each == types[-1] for each in types])

    def _expect(self, same: list[bool]) -> None:
        if not all(same):
            raise _Different(same.index(False))


def _same(constant: Any, other: Any) -> bool:
    if isinstance(constant, np.ndarray) and isinstance(other, np.ndarray):
        return constant.dtype == other.dtype and np.array_equal(constant, other)
    return constant is other


def stacked_names(steps: Sequence[Step]) -> list[tuple[str, ...]]:
    """Return the weights that loops take for all layers at once, each by its names."""
    found: dict[tuple[str, ...], None] = {}
    taken: set[str] = set()
    for step in steps:
        for names in step.weights if isinstance(step, Loop) else ():
            if len(set(names)) == len(names) and not taken & set(names):
                found[names] = None
                taken |= set(names)
    return list(found)

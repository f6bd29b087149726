"""Repeated layers of a program, found by the structure of its graph, as loops.

A model of 80 equal layers becomes one ``lax.scan``, which compiles like one layer. Layers are equal
where their operations, literals, shapes and wiring are. A block that repeats may span several
layers (Gemma 2 alternates two kinds of attention).

Owns finding them. Does not own how a loop is computed (``interpret``) or stored (``storage``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from neurenix.interop.torch.program import Operation, Program, Value, values_in

# Layers of one repeated block, and how many repetitions are worth a loop.
_PERIODS = (1, 2, 3, 4, 5, 6)
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
    users = _users(program)
    groups = _group(program.operations)
    steps: list[Step] = []
    start = 0
    while start < len(groups):
        found = _longest(groups, start, program, users)
        if found is None:
            steps.extend(groups[start][1])
            start += 1
        else:
            loop, used = found
            steps.append(loop)
            start += used
    return steps


Group = tuple[tuple[str, int] | None, list[Operation]]


def _group(operations: Sequence[Operation]) -> list[Group]:
    """Group consecutive operations of one layer."""
    groups: list[Group] = []
    members: set[int] = set()
    for operation in operations:
        layer = operation.layer
        sources = {value.index for value in values_in(operation.arguments)}
        # Taking an item of a tuple belongs to no module: it goes with what made the tuple.
        if layer is None and operation.operator is None and groups and sources & members:
            layer = groups[-1][0]
        if not groups or groups[-1][0] != layer:
            groups.append((layer, []))
            members = set()
        groups[-1][1].append(operation)
        members.add(operation.output)
    return groups


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
    groups: list[Group], start: int, program: Program, users: dict[int, list[int]]
) -> tuple[Loop, int] | None:
    """Return the loop that begins at a group and takes the most groups, and how many it takes."""
    layer = groups[start][0]
    if layer is None:
        return None
    end = start
    while end < len(groups) and (key := groups[end][0]) is not None and key[0] == layer[0]:
        end += 1
    best: tuple[Loop, int] | None = None
    for period in _PERIODS:
        most = (end - start) // period
        if most < MIN_REPEATS or (best is not None and most * period <= best[1]):
            continue
        blocks = [
            [o for _, group in groups[at : at + period] for o in group]
            for at in range(start, start + most * period, period)
        ]
        count = _equal_sizes(blocks)
        while count >= MIN_REPEATS and (best is None or count * period > best[1]):
            loop, fitting = _as_loop(blocks[:count], program, users)
            if loop is not None:
                best = loop, count * period
                break
            count = min(count - 1, fitting)
    return best


def _equal_sizes(blocks: list[list[Operation]]) -> int:
    """Return how many blocks from the first on have its operations, by name and shape."""
    first = [(o.name, o.function, repr(o.results)) for o in blocks[0]]
    for number, block in enumerate(blocks):
        if [(o.name, o.function, repr(o.results)) for o in block] != first:
            return number
    return len(blocks)


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

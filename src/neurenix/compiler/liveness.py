"""Compute live ranges over a scheduled program, and its peak memory.

Flattens the schedule (loops and branches at their calls), finds which values share memory, and
finds the peak. ``neurenix.compiler.peak_memory`` owns totals and the roles of buffers.

Sharing is read from the program: tuples, bitcasts, loops and branches forward buffers,
``input_output_alias`` names the donated arguments, and each instruction's ``aliasing_operands``
lists the operands that its results may overwrite. The text has no addresses, so fragmentation is
not seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from neurenix.compiler.hlo import Computation, Instruction, Module, called_as
from neurenix.compiler.shapes import Shape

HBM = 0

_FOREVER = 2**62
_INDICES = re.compile(r'"indices":\[([^\]]*)\]')
_DONATED = re.compile(r"\{([\d, ]*)\}: \((\d+), \{([\d, ]*)\}")
_SAME = ("bitcast", "opt-barrier", "add-dependency", "domain", "custom-call-update", "async-update")

Tree = int | tuple["Tree", ...]
"""A nested tuple of value numbers, one per array."""


@dataclass
class Value:
    """A buffer, from the first instruction that writes it to the last one that reads it.

    ``start`` and ``end`` are positions in the flattened schedule; ``-1`` and a very large number
    mean before and after it. ``writers`` and ``readers`` are the instructions in between with their
    positions; ``parameter`` is the number of the entry parameter, if the value is one.
    """

    shape: Shape
    start: int
    end: int
    parameter: int | None = None
    is_result: bool = False
    writers: list[tuple[int, Instruction]] = field(default_factory=list)
    readers: list[tuple[int, Instruction]] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Bytes, including the padding of tiles."""
        return self.shape.padded_bytes


@dataclass(frozen=True)
class Peak:
    """The point of highest memory use, and the values live there."""

    position: int
    bytes: int
    live: tuple[Value, ...]


def values(module: Module) -> list[Value]:
    """Return the values of a scheduled module; values that share memory are one.

    Example:
        >>> from neurenix.compiler.hlo import parse
        >>> text = '''HloModule m, is_scheduled=true
        ...
        ... ENTRY %main (p: f32[1024]) -> f32[1024] {
        ...   %p = f32[1024]{0:T(1024)} parameter(0)
        ...   %a = f32[1024]{0:T(1024)} negate(%p)
        ...   %b = f32[1024]{0:T(1024)} cosine(%a)
        ...   ROOT %c = f32[1024]{0:T(1024)} sine(%b)
        ... }
        ... '''
        >>> peak(values(parse(text))).bytes
        12288
    """
    walk = _Walk(module)
    walk.run()
    return walk.found()


def peak(found: Iterable[Value], spaces: tuple[int, ...] = (HBM,)) -> Peak:
    """Return the first point of highest use of the memory ``spaces``."""
    kept = [v for v in found if v.shape.memory_space in spaces and v.bytes]
    steps: dict[int, int] = {}
    for value in kept:
        steps[value.start] = steps.get(value.start, 0) + value.bytes
        steps[value.end + 1] = steps.get(value.end + 1, 0) - value.bytes
    best, position, now = 0, -1, 0
    for at in sorted(steps):
        now += steps[at]
        if now > best:
            best, position = now, at
    live = [v for v in kept if v.start <= position <= v.end]
    return Peak(position, best, tuple(sorted(live, key=lambda v: -v.bytes)))


class _Walk:
    """One pass over the schedule. ``_shared`` is a union-find forest of values."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._values: list[Value] = []
        self._shared: list[int] = []
        self._clock = 0
        self._in_place: list[tuple[int, list[int], list[int]]] = []

    def run(self) -> None:
        entry = self.module.entry
        result, environment = self._computation(entry, None)
        by_number = {
            int(i.argument): list(_leaves(environment[i.name]))
            for i in entry.instructions
            if i.opcode == "parameter"
        }
        for number, leaves in by_number.items():
            for leaf in leaves:
                value = self._values[leaf]
                value.start, value.end, value.parameter = -1, _FOREVER, number
        for leaf in _leaves(result):
            self._values[leaf].end = _FOREVER
            self._values[leaf].is_result = True
        for out, number, inner in _donations(self.module.header):
            target, source = _at(result, out), _at(tuple(by_number.get(number, ())), inner or (0,))
            if isinstance(target, int) and isinstance(source, int):
                self._join(source, target)
        for position, operands, results in self._in_place:
            self._overwrite(position, operands, results)

    def found(self) -> list[Value]:
        return [v for index, v in enumerate(self._values) if self._shared[index] == index]

    def _overwrite(self, position: int, operands: list[int], results: list[int]) -> None:
        """Let each result reuse an operand of equal size that has no later reader."""
        for result in results:
            new = self._root(result)
            for operand in operands:
                old = self._root(operand)
                before, after = self._values[old], self._values[new]
                if (
                    old != new
                    and before.end == position == after.start
                    and before.shape.memory_space == after.shape.memory_space
                    and before.bytes >= after.bytes
                ):
                    self._join(old, new)
                    break

    def _computation(
        self, computation: Computation, given: Tree | None
    ) -> tuple[Tree, dict[str, Tree]]:
        environment: dict[str, Tree] = {}
        for instruction in computation.instructions:
            self._clock += 1
            if instruction.opcode == "parameter" and given is not None:
                environment[instruction.name] = given
            else:
                environment[instruction.name] = self._instruction(
                    instruction, environment, computation
                )
        return environment[computation.root.name], environment

    def _instruction(
        self, instruction: Instruction, environment: dict[str, Tree], computation: Computation
    ) -> Tree:
        opcode = instruction.opcode
        operands = [environment[name] for name in instruction.operands if name in environment]
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element" and operands:
            return _at(operands[0], (int(instruction.attribute("index") or 0),))
        if opcode in _SAME and operands and _count(operands[0]) == len(instruction.shapes):
            return operands[0]
        for operand in operands:
            self._read(operand, instruction)
        if opcode == "while" and operands:
            return self._loop(instruction, operands[0])
        if opcode == "conditional" and 0 < len(instruction.called) == len(operands) - 1:
            return self._branches(instruction, operands[1:])
        if opcode.endswith("-start"):
            given = [computation.by_name[n] for n in instruction.operands if n in environment]
            shapes = [shape for operand in given for shape in operand.shapes]
            return self._start(instruction, operands, shapes)
        if opcode.endswith("-done") and operands and isinstance(operands[0], tuple):
            return self._done(instruction, operands[0])
        made = [self._make(shape, instruction) for shape in instruction.shapes]
        self._note_in_place(instruction, operands, made)
        return made[0] if len(made) == 1 else tuple(made)

    def _loop(self, loop: Instruction, state: Tree) -> Tree:
        """Let body, condition and result of a loop share the memory of its initial state."""
        for role in ("condition", "body"):
            computation = self.module.computations.get(called_as(loop, role))
            if computation is None:
                continue
            result, _ = self._computation(computation, state)
            if role == "body":
                self._join_trees(state, result)
        self._clock += 1
        self._read(state, loop)
        return state

    def _branches(self, conditional: Instruction, given: list[Tree]) -> Tree:
        """Let the results of all branches share memory."""
        results: list[Tree] = []
        for name, argument in zip(conditional.called, given, strict=True):
            result, _ = self._computation(self.module.computations[name], argument)
            results.append(result)
        self._clock += 1
        for tree in (*given, *results):
            self._read(tree, conditional)
        for other in results[1:]:
            self._join_trees(results[0], other)
        return results[0]

    def _start(
        self, instruction: Instruction, operands: list[Tree], given_shapes: list[Shape]
    ) -> Tree:
        """Process an asynchronous start: forwarded operands, results and scratch memory."""
        given = [leaf for operand in operands for leaf in _leaves(operand)]
        shapes = instruction.shapes
        if instruction.opcode == "copy-start" and len(shapes) > 1 and given:
            rest = [self._make(shape, instruction) for shape in shapes[2:]]
            return (self._make(shapes[0], instruction), given[0], *rest)
        kept = 0
        for leaf, old, new in zip(given, given_shapes, shapes, strict=False):
            if str(old) != str(new) or self._values[leaf].shape.memory_space != new.memory_space:
                break
            kept += 1
        made = [self._make(shape, instruction) for shape in shapes[kept:]]
        if instruction.opcode.startswith("dynamic-update-slice") and kept and made:
            self._join(given[0], made[0])
        return (tuple(given[:kept]), tuple(made))

    def _done(self, instruction: Instruction, started: tuple[Tree, ...]) -> Tree:
        leaves = list(_leaves(started))
        if len(started) == 2 and isinstance(started[1], tuple):
            leaves = list(_leaves(started[1]))
        if len(leaves) < len(instruction.shapes):
            made = [self._make(shape, instruction) for shape in instruction.shapes]
            return made[0] if len(made) == 1 else tuple(made)
        kept = leaves[: len(instruction.shapes)]
        return kept[0] if len(kept) == 1 else tuple(kept)

    def _note_in_place(
        self, instruction: Instruction, operands: list[Tree], made: list[int]
    ) -> None:
        given = [leaf for operand in operands for leaf in _leaves(operand)]
        for group in _groups(instruction.attributes):
            old = [given[i] for i in group if i < len(given)]
            new = [made[i - len(given)] for i in group if 0 <= i - len(given) < len(made)]
            if old and new:
                self._in_place.append((self._clock, old, new))

    def _make(self, shape: Shape, writer: Instruction) -> int:
        self._values.append(Value(shape, self._clock, self._clock, writers=[(self._clock, writer)]))
        self._shared.append(len(self._shared))
        return len(self._shared) - 1

    def _read(self, tree: Tree, reader: Instruction) -> None:
        for leaf in _leaves(tree):
            value = self._values[self._root(leaf)]
            value.end = max(value.end, self._clock)
            value.readers.append((self._clock, reader))

    def _root(self, index: int) -> int:
        while self._shared[index] != index:
            self._shared[index] = index = self._shared[self._shared[index]]
        return index

    def _join_trees(self, left: Tree, right: Tree) -> None:
        for one, other in zip(_leaves(left), _leaves(right), strict=False):
            self._join(one, other)

    def _join(self, left: int, right: int) -> None:
        keep, drop = self._root(left), self._root(right)
        if keep == drop:
            return
        one, other = self._values[keep], self._values[drop]
        self._shared[drop] = keep
        one.start, one.end = min(one.start, other.start), max(one.end, other.end)
        one.writers += other.writers
        one.readers += other.readers
        one.is_result |= other.is_result
        if one.parameter is None:
            one.parameter = other.parameter
        if other.bytes > one.bytes:
            one.shape = other.shape


def _leaves(tree: Tree) -> Iterator[int]:
    if isinstance(tree, int):
        yield tree
    else:
        for part in tree:
            yield from _leaves(part)


def _count(tree: Tree) -> int:
    return sum(1 for _ in _leaves(tree))


def _at(tree: Tree, index: Iterable[int]) -> Tree:
    for number in index:
        if isinstance(tree, int) or number >= len(tree):
            return tree
        tree = tree[number]
    return tree


def _groups(attributes: str) -> list[list[int]]:
    """Return the lists of operands and results, numbered consecutively, that may share memory."""
    start = attributes.find('"aliasing_operands"')
    end = attributes.find("]}]", start)
    if start < 0 or end < 0:
        return []
    return [
        [int(number) for number in re.findall(r"\d+", found)]
        for found in _INDICES.findall(attributes[start : end + 2])
    ]


def _donations(header: str) -> Iterator[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    start = header.find("input_output_alias={")
    if start < 0:
        return
    end = header.find("entry_computation_layout", start)
    for out, number, inner in _DONATED.findall(header[start : end if end > 0 else None]):
        yield _numbers(out), int(number), _numbers(inner)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))

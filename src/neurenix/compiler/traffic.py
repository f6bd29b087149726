"""Count the bytes that an instruction of the optimised program reads and writes, by memory.

Of an operand it counts all, or the slice that the instruction reads; of a result all, or the part
that an update replaces. ``instruction_cost`` owns the time.

A scatter is in place, like an update of a slice: if its operand is needed afterwards, the compiler
copies it first. It reads and writes the rows that it changes.
"""

from __future__ import annotations

from collections.abc import Iterator

from neurenix.compiler.hlo import Computation, Instruction, Module
from neurenix.compiler.shapes import Shape

_TAKES_A_PART = ("dynamic-slice", "slice", "gather")


def moved_bytes(
    module: Module, computation: Computation, instruction: Instruction
) -> tuple[int, int]:
    """Return the bytes moved from and to HBM, and from and to VMEM, padding included.

    A sliced operand counts as its slice. An operand updated in place counts nothing, or for a
    scatter as much as the updates; a result that is such an operand counts as the update.

    Example:
        >>> from neurenix.compiler.hlo import parse
        >>> module = parse('''HloModule m
        ...
        ... ENTRY %main (p: f32[64,128], i: s32[]) -> f32[1,128] {
        ...   %p = f32[64,128]{1,0} parameter(0)
        ...   %i = s32[] parameter(1)
        ...   %z = s32[] constant(0)
        ...   ROOT %s = f32[1,128]{1,0} dynamic-slice(%p, %i, %z), dynamic_slice_sizes={1,128}
        ... }
        ... ''')
        >>> moved_bytes(module, module.entry, module.entry.root)[0] - 2 * 4  # but for two indices
        1024
    """
    moved = {0: 0, 1: 0}
    for position, name in enumerate(instruction.operands):
        operand = computation.by_name.get(name)
        if operand is None:
            continue
        part = _read(module, computation, instruction, position)
        whole = sum(shape.padded_bytes for shape in operand.shapes)
        for shape in operand.shapes:
            if shape.memory_space in moved:
                share = shape.padded_bytes if part is None else min(part, whole)
                moved[shape.memory_space] += share
                part = part and 0  # a part of an array that is already counted
    for shape, written in _written(module, computation, instruction):
        if shape.memory_space in moved:
            moved[shape.memory_space] += written
    return moved[0], moved[1]


def _read(module: Module, computation: Computation, user: Instruction, position: int) -> int | None:
    """Return the bytes that ``user`` reads of the operand at a position; ``None`` for all."""
    if user.opcode in _TAKES_A_PART and position == 0:
        return sum(shape.padded_bytes for shape in user.shapes)
    if user.opcode == "dynamic-update-slice" and position == 0:
        return 0
    if user.opcode == "scatter" and position < len(user.shapes):
        update = _update(computation, user, position)
        return update.shapes[0].padded_bytes if update else None
    if user.opcode != "fusion":
        return None
    inner = module.computations.get(user.called[0]) if user.called else None
    parameter = inner.parameters.get(position) if inner else None
    if inner is None or parameter is None:
        return None
    return _read_by_all(module, inner, parameter)


def _read_by_all(module: Module, computation: Computation, value: Instruction) -> int | None:
    if value is computation.root:  # the caller gets all of it
        return None
    total = 0
    for user, position in computation.users.get(value.name, ()):
        if user.opcode == "scatter" and not _is_result(computation, user):
            return None
        if user.opcode == "bitcast":
            part = _read_by_all(module, computation, user)
        else:
            part = _read(module, computation, user, position)
        if part is None:
            return None
        total += part
    return total


def _written(
    module: Module, computation: Computation, instruction: Instruction
) -> Iterator[tuple[Shape, int]]:
    """Yield each array of the result, and the bytes written to it."""
    for shape, source in zip(
        instruction.shapes, _sources(module, computation, instruction), strict=False
    ):
        yield shape, source.shapes[0].padded_bytes if source else shape.padded_bytes


def _update(
    computation: Computation, instruction: Instruction, position: int = 0
) -> Instruction | None:
    """Return what an update of a slice or a scatter writes into one of its operands.

    The operands of a scatter of several arrays are the arrays, the indices and the updates, in this
    order.
    """
    first = len(instruction.shapes) + 1 if instruction.opcode == "scatter" else 1
    return computation.by_name.get(instruction.operands[first + position])


def _is_result(computation: Computation, value: Instruction) -> bool:
    """Return whether a value is only used as the result of the computation, or as a part of it."""
    if value is computation.root:
        return True
    users = computation.users.get(value.name, ())
    return bool(users) and all(
        user.opcode in ("bitcast", "tuple", "get-tuple-element") and _is_result(computation, user)
        for user, _ in users
    )


def _overwrites(computation: Computation, scatter: Instruction, position: int) -> bool:
    """Return whether a scatter inside a fusion changes an operand of the fusion."""
    value = computation.by_name.get(scatter.operands[position])
    while value is not None and value.opcode == "bitcast":
        value = computation.by_name.get(value.operands[0])
    return value is not None and value.opcode == "parameter"


def _sources(
    module: Module, computation: Computation, instruction: Instruction, *, fused: bool = False
) -> list[Instruction | None]:
    """Return, for each array of the result, what updates it in place, if anything."""
    if instruction.opcode == "dynamic-update-slice":
        return [_update(computation, instruction)]
    if instruction.opcode == "scatter":
        return [
            _update(computation, instruction, position)
            if not fused or _overwrites(computation, instruction, position)
            else None
            for position in range(len(instruction.shapes))
        ]
    if instruction.opcode == "bitcast" or instruction.opcode == "tuple":
        found: list[Instruction | None] = []
        for name in instruction.operands:
            operand = computation.by_name.get(name)
            found += _sources(module, computation, operand, fused=fused) if operand else [None]
        return found
    if instruction.opcode == "fusion" and instruction.called:
        inner = module.computations.get(instruction.called[0])
        if inner is not None:
            return _sources(module, inner, inner.root, fused=True)
    return [None] * len(instruction.shapes)

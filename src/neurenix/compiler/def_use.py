"""Find the instructions that define and use a value that the compiler only moves.

Follows moves without a JAX name, such as a spill from VMEM to HBM and back.
``neurenix.compiler.peak_memory`` owns the roles of buffers.
"""

from __future__ import annotations

from collections.abc import Iterator

from neurenix.compiler.hlo import Computation, Instruction, Module

_MOVES = frozenset(
    "copy copy-start copy-done slice-start slice-done async-start async-done bitcast "
    "get-tuple-element".split()
)


class Origins:
    """Definitions and uses of the instructions of one module.

    Example:
        >>> from neurenix.compiler.hlo import parse
        >>> text = '''HloModule m
        ...
        ... ENTRY %main (p: f32[8]) -> f32[8] {
        ...   %p = f32[8]{0} parameter(0)
        ...   %a = f32[8]{0} sine(%p), metadata={op_name="jvp(net)/sin"}
        ...   %s = (f32[8]{0}, f32[8]{0:S(1)}, u32[]) copy-start(%a)
        ...   %d = f32[8]{0} copy-done(%s)
        ...   ROOT %b = f32[8]{0} cosine(%d), metadata={op_name="transpose(jvp(net))/cos"}
        ... }
        ... '''
        >>> module = parse(text)
        >>> spill = module.entry.by_name["s"]
        >>> Origins(module).made_by(spill).name, [i.name for i in Origins(module).read_by(spill)]
        ('a', ['b'])
    """

    def __init__(self, module: Module) -> None:
        self._homes: dict[str, Computation] = {
            instruction.name: computation
            for computation in module.computations.values()
            for instruction in computation.instructions
        }

    def made_by(self, instruction: Instruction) -> Instruction:
        """Return the named instruction whose value an unnamed move moves, else the instruction.

        A move of an argument or of a loop's state has no named definition.
        """
        maker, home = instruction, self._homes.get(instruction.name)
        while home is not None and _is_bare_move(maker) and maker.operands:
            before = home.by_name.get(maker.operands[0])
            if before is None or before.opcode in ("parameter", "constant"):
                return instruction
            maker = before
        return maker if maker.op_name else instruction

    def read_by(self, instruction: Instruction) -> list[Instruction]:
        """Return the readers of the value of an unnamed move, else the instruction itself."""
        home = self._homes.get(instruction.name)
        if home is None or not _is_bare_move(instruction):
            return [instruction]
        return list(_readers(home, instruction))


def _readers(home: Computation, move: Instruction) -> Iterator[Instruction]:
    seen, reached = {move.name}, [move]
    for now in reached:  # grows during the loop
        for user, _ in home.users.get(now.name, ()):
            if user.name in seen:
                continue
            seen.add(user.name)
            if _is_bare_move(user):
                reached.append(user)
            else:
                yield user


def _is_bare_move(instruction: Instruction) -> bool:
    moves = instruction.opcode in _MOVES or (
        instruction.opcode == "custom-call"
        and instruction.attribute("custom_call_target") == "ConcatBitcast"
    )
    return moves and not instruction.op_name

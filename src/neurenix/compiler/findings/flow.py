"""Where a value goes in the optimised program: from operation to operation, in and out of fusions.

Owns following values, and finding the sums that softmaxes divide by. What a rule makes of where a
value arrives is the rule's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from neurenix.compiler.hlo import Computation, Instruction, Module

Place = tuple[Computation, Instruction]

_KEEPS = frozenset("convert bitcast copy copy-start copy-done transpose reshape select".split())
"""Operations after which an exponential is still one, or masked."""
_XLAS_SOFTMAX = "online-softmax"
"""Name of the kernel into which XLA turns softmax and the product after it (libtpu 0.0.42.1)."""


@dataclass(frozen=True)
class Flow:
    """Follows values of one module.

    Fusions, tuples and their elements are walked through as if they were not there; values that go
    into a loop or a branch are not followed inside.
    """

    module: Module

    @cached_property
    def _callers(self) -> dict[str, Place]:
        """By a fused computation's name: the fusion, and where it stands."""
        return {
            name: (computation, instruction)
            for computation in self.module.computations.values()
            for instruction in computation.instructions
            if instruction.opcode == "fusion"
            for name in instruction.called
        }

    def reached(self, start: Place, passes: Callable[[Instruction], bool]) -> Iterator[Place]:
        """Yield what reads a value, and what reads the result of each reader that ``passes``."""
        left, seen = [start], {start[1].name}
        for place in left:  # which grows
            for reader in self._readers(place):
                if reader[1].name not in seen:
                    seen.add(reader[1].name)
                    yield reader
                    if passes(reader[1]):
                        left.append(reader)

    def _readers(self, place: Place, index: int | None = None) -> Iterator[Place]:
        """Yield the operations that read a value, or with ``index`` that element of a tuple."""
        computation, instruction = place
        for user, position in computation.users.get(instruction.name, ()):
            if user.opcode == "tuple":
                yield from self._readers((computation, user), position)
            elif user.opcode == "get-tuple-element":
                if index is None or user.attribute("index") == str(index):
                    yield from self._readers((computation, user))
            elif user.opcode == "fusion":
                called = self.module.computations.get(user.called[0])
                inside = called.parameters.get(position) if called else None
                if called and inside:
                    yield from self._readers((called, inside))
            else:
                yield computation, user
        if instruction is computation.root and computation.name in self._callers:
            yield from self._readers(self._callers[computation.name], index)

    @cached_property
    def softmaxes(self) -> frozenset[tuple[int, int]]:
        """Numbers in an array of exponentials, and in their sum along one axis or some.

        A factor between the two, such as a mask, counts in the forward pass alone: backwards sums
        of exponentials times something are gradients, such as those of ``jax.nn.softplus``.
        """
        found: set[tuple[int, int]] = set()
        for computation in self.module.computations.values():
            for instruction in computation.instructions:
                if instruction.opcode == "exponential":
                    found.update(self._sums((computation, instruction)))
                elif instruction.name.startswith(_XLAS_SOFTMAX):
                    scores = computation.by_name.get(instruction.operands[0])
                    sizes = scores.shapes[0].sizes if scores else ()
                    found.add((math.prod(sizes), math.prod(sizes[:-1])))
        return frozenset(found)

    def _sums(self, exponential: Place) -> Iterator[tuple[int, int]]:
        elements = count(exponential[1])

        def keeps(instruction: Instruction) -> bool:
            masks = instruction.opcode == "multiply" and "transpose(" not in instruction.op_name
            return instruction.opcode in _KEEPS or masks

        for _, reader in self.reached(exponential, keeps):
            if reader.opcode == "reduce" and self._adds(reader) and count(reader) < elements:
                yield elements, count(reader)

    def _adds(self, reduce: Instruction) -> bool:
        called = self.module.computations.get(reduce.called[0]) if reduce.called else None
        return called is not None and called.root.opcode == "add"


def count(instruction: Instruction) -> int:
    """Return how many numbers an instruction's first result has."""
    return math.prod(instruction.shapes[0].sizes) if instruction.shapes else 0

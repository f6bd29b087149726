"""Follow values through the optimised program, in and out of fusions.

Also finds the sums that softmaxes divide by. The rules interpret the results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from neurenix.compiler.hlo import Computation, Instruction, Module

Place = tuple[Computation, Instruction]

_KEEPS = frozenset("convert bitcast copy copy-start copy-done transpose reshape select".split())
"""Operations that keep an exponential, possibly masked."""
_XLAS_SOFTMAX = "online-softmax"
"""XLA's kernel for a softmax and the following product (libtpu 0.0.42.1)."""


@dataclass(frozen=True)
class Flow:
    """The data flow of one module.

    Fusions, tuples and their elements are transparent; loops and branches are not entered.
    """

    module: Module

    @cached_property
    def _callers(self) -> dict[str, Place]:
        """For each fused computation's name, its fusion and the fusion's computation."""
        return {
            name: (computation, instruction)
            for computation in self.module.computations.values()
            for instruction in computation.instructions
            if instruction.opcode == "fusion"
            for name in instruction.called
        }

    def reached(self, start: Place, passes: Callable[[Instruction], bool]) -> Iterator[Place]:
        """Yield the readers of a value, and of the results of readers that ``passes`` accepts."""
        left, seen = [start], {start[1].name}
        for place in left:  # grows during the loop
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
        """Element counts of arrays of exponentials, and of their sums along one axis or more.

        A factor between the two, such as a mask, is accepted in the forward pass only: in the
        backward pass sums of products of exponentials are gradients, such as those of
        ``jax.nn.softplus``.
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
    """Return the number of elements of an instruction's first result."""
    return math.prod(instruction.shapes[0].sizes) if instruction.shapes else 0

"""The records of a finding and of the evidence for the rules, and shared thresholds."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from neurenix._core.source_files import SourceLine
from neurenix.chips import Slice
from neurenix.compiler.findings.flow import Flow
from neurenix.compiler.hlo import Computation, Instruction, Module, called_as
from neurenix.compiler.operations import MatrixProduct, Operation
from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.program import Program
from neurenix.compiler.shapes import Shape
from neurenix.compiler.step_time import StepTime

NOTABLE_SHARE = 0.02
"""Smallest reported share of the device's time: the estimate is less exact than this."""

WARNING_SHARE = 0.10
"""Smallest share of a warning; below it a finding is a note."""

WELL_FILLED = 0.8
"""Used share of the matrix unit above which padding does not justify a change of the model."""


@dataclass(frozen=True)
class Finding:
    """One result of a rule.

    Attributes:
        rule: name of the rule; ``neurenix.rules`` has its page.
        severity: ``"error"``, ``"warning"`` or ``"note"``.
        message: what was found, with its numbers.
        fix: what to do.
        source: the line of the user's program, if known.
        effect_seconds: estimated time of a step that is affected; 0 if the step takes no longer.
        effect_bytes: affected memory on one device, if any.
        scope: the ``jax.named_scope`` of the operation, such as the layer's name.
        effect_share: ``effect_seconds`` as a share of the device's time, 0 to 1.
        called_from: for a ``source`` inside a library, the user's line that calls the program.
    """

    rule: str
    severity: str
    message: str
    fix: str
    source: SourceLine | None = None
    effect_seconds: float = 0.0
    effect_bytes: int = 0
    scope: str = ""
    effect_share: float = 0.0
    called_from: SourceLine | None = None

    @property
    def page(self) -> str:
        """The command that prints the rule's page.

        Example:
            >>> Finding("copy", "note", "A copy.", "Copy less.").page
            'neurenix rule copy'
        """
        return f"neurenix rule {self.rule}"


@dataclass(frozen=True)
class Nearest:
    """A line of the program, and its relation to an operation without a line.

    ``where`` is ``"after"``, ``"before"``, or empty if the line is the operation's own.
    """

    source: SourceLine | None
    where: str = ""


@dataclass(frozen=True)
class Evidence:
    """The input of the rules.

    ``raw_seconds`` is the step by the compiler's cycles; ``factor`` converts such seconds to
    estimates. Without ``module``, rules that read the program's text report nothing.
    """

    program: Program
    where: Slice
    memory: Memory
    operations: tuple[Operation, ...]
    time: StepTime
    raw_seconds: float
    module: Module | None = None
    compile_seconds: float = 0.0

    @property
    def factor(self) -> float:
        """Estimated seconds per second of the schedule."""
        return self.time.device_seconds / self.raw_seconds if self.raw_seconds else 1.0

    def share(self, seconds: float) -> float:
        """Return ``seconds`` of the schedule as a share of the device's time."""
        return seconds / self.raw_seconds if self.raw_seconds else 0.0

    def share_of_step(self, seconds: float) -> float:
        """Return ``seconds`` of the schedule as a share of the step.

        It equals ``share`` unless the host takes longer than the device.
        """
        return seconds * self.factor / self.time.seconds if self.time.seconds else 0.0

    def finding(
        self, rule: str, message: str, fix: str, seconds: float, about: Operation | None = None
    ) -> Finding:
        """Return a finding about ``seconds`` of the schedule; the share sets its severity."""
        share = self.share(seconds)
        return Finding(
            rule,
            "warning" if share >= WARNING_SHARE else "note",
            message,
            fix,
            about.source if about else None,
            seconds * self.factor,
            scope=about.scope if about else "",
            effect_share=min(1.0, share),
        )

    @cached_property
    def _places(self) -> dict[str, tuple[Computation, Instruction]]:
        computations = self.module.computations.values() if self.module else ()
        return {i.name: (c, i) for c in computations for i in c.instructions}

    @cached_property
    def flow(self) -> Flow | None:
        """The data flow of the optimised program, if its text is known."""
        return Flow(self.module) if self.module else None

    @cached_property
    def loop_bodies(self) -> frozenset[str]:
        """Names of the computations that loops repeat."""
        return frozenset(
            called_as(instruction, "body")
            for _, instruction in self._places.values()
            if instruction.opcode == "while"
        )

    def kernel_of(self, product: MatrixProduct) -> tuple[str, Shape] | None:
        """Return the axes of a convolution's kernel as letters, and its shape, if known."""
        labels = product.instruction.attribute("dim_labels") or ""
        found = re.fullmatch(r"\w+_(\w+)->\w+", labels)
        operands = self.operands_of(product)
        return (found[1], operands[1]) if found and len(operands) == 2 else None

    def operands_of(self, product: MatrixProduct) -> tuple[Shape, ...]:
        """Return the shapes of a product's two operands, or nothing if unknown."""
        place = self._places.get(product.instruction.name)
        names = product.instruction.operands[:2]
        found = [place[0].by_name.get(name) for name in names] if place else []
        return tuple(operand.shapes[0] for operand in found if operand)

    def place(self, operation: Operation) -> tuple[Computation, Instruction] | None:
        """Return the instruction of an operation and its computation, if known."""
        return self._places.get(operation.name)

    def nearest(self, operation: Operation) -> Nearest:
        """Return the line of an operation, of its inputs, or of its users.

        It searches the instructions of its computation, nearest first.
        """
        place = self.place(operation)
        if operation.source is not None or self.module is None or place is None:
            return Nearest(operation.source)
        computation, instruction = place
        readers: dict[str, list[str]] = {}
        for other in computation.instructions:
            for name in other.operands:
                readers.setdefault(name, []).append(other.name)
        made_from = {i.name: list(i.operands) for i in computation.instructions}
        for where, following in (("after", made_from), ("before", readers)):
            reached, seen = [instruction.name], {instruction.name}
            for name in reached:  # grows during the loop
                known = computation.by_name.get(name)
                source = self.module.source(known) if known else None
                if source is not None:
                    return Nearest(source, where)
                new = [n for n in following.get(name, ()) if n not in seen]
                seen.update(new)
                reached += new
        return Nearest(None)


def sizes_text(product: MatrixProduct) -> str:
    """Return ``"(rows × depth) · (depth × columns)"`` of a product."""
    batch = f"{product.batch} × " if product.batch > 1 else ""
    return f"{batch}({product.rows} × {product.depth}) · ({product.depth} × {product.columns})"


def fill(size: int, unit: int) -> float:
    """Return the share of the matrix unit's side that ``size`` fills, over all passes.

    Example:
        >>> fill(192, 128)
        0.75
    """
    return size / (-(-size // unit) * unit)


def in_order_of_time(operations: tuple[Operation, ...]) -> list[Operation]:
    """Return operations, longest first."""
    return sorted(operations, key=lambda o: -o.seconds)


def longest(operations: Iterable[Operation]) -> Operation:
    """Return the longest operation of at least one."""
    return max(operations, key=lambda o: o.seconds)


def many(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> many(1, "operation"), many(2, "operation")
        ('1 operation', '2 operations')
    """
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""What the compiler is given of a program, for tests to look into."""

from __future__ import annotations

from jax.extend.mlir import ir
from jax.interpreters import mlir

from neurenix.compiler.program import Program


def module_text(program: Program) -> str:
    """Return the module that is compiled for an estimate, as text."""
    assert program.lowered is not None
    with mlir.make_ir_context():
        return str(ir.Module.parse(program.lowered.module))


def signature(program: Program) -> str:
    """Return what the module says of its parameters and results."""
    (line,) = (
        line for line in module_text(program).splitlines() if "func.func public @main" in line
    )
    return line

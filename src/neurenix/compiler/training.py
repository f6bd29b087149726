"""Which programs are training steps, and what the host sends for one.

Owns what is known of how a program is called. That the trainer's step has this name is
``preflight``'s doing.
"""

from __future__ import annotations

from neurenix.compiler.memory import Memory
from neurenix.compiler.program import Program

TRAINERS_STEP = "training step"
"""The name of the program that a trainer's step becomes; no function can have it."""


def is_trainers_step(program: Program) -> bool:
    """Return whether it is the step of a ``Trainer`` or of a compiled model."""
    return program.name == TRAINERS_STEP


def is_training_step(program: Program) -> bool:
    """Return whether it trains: a trainer's step, or a function that is given an optimizer.

    Example:
        >>> is_training_step(Program("predict", "", {"data": 1}, (), (), 0.0, 0))
        False
    """
    return is_trainers_step(program) or any(leaf.role == "optimizer" for leaf in program.leaves)


def sent_bytes(program: Program, memory: Memory) -> int:
    """Return the bytes of input that every device is sent for one step.

    Those of a training step's batch. The arguments of other functions may stay on the device from
    call to call, and nothing says whether they do.
    """
    if not is_training_step(program):
        return 0
    return sum(buffer.logical_bytes for buffer in memory.buffers if buffer.role == "batch")

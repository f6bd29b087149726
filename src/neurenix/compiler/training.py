"""Which programs are training steps, and what the host sends for one.

Owns what is known of how a program is called. That the trainer's step has this name is
``preflight``'s doing.
"""

from __future__ import annotations

from dataclasses import replace

from neurenix.compiler.peak_memory import Memory
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
    batches = sum(buffer.logical_bytes for buffer in memory.buffers if buffer.role == "batch")
    return batches // program.traits.steps_per_call


def of_several_steps(program: Program, steps: int, *, counted: bool) -> Program:
    """Return the program of a call that makes several steps, told as one step of it is told.

    Args:
        program: of the call.
        steps: that it makes.
        counted: whether their number stands in the program. Otherwise its loop over them counts
            once as it is.
    """
    traits = replace(program.traits, steps_per_call=steps, steps_counted=steps if counted else 1)
    times = traits.steps_counted
    if times == 1:
        return replace(program, traits=traits)
    products = tuple(replace(one, count=max(1, one.count // times)) for one in traits.products)
    callbacks = tuple(replace(one, count=max(1, one.count // times)) for one in traits.callbacks)
    return replace(
        program,
        model_flops=program.model_flops / times,
        traits=replace(traits, products=products, callbacks=callbacks),
    )

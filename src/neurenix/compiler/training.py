"""Recognise training steps, and count the input that the host sends for one.

``preflight`` gives the trainer's step its name.
"""

from __future__ import annotations

from dataclasses import replace

from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.program import Program

TRAINERS_STEP = "training step"
"""Name of the program of a trainer's step; no function can have it."""


def is_trainers_step(program: Program) -> bool:
    """Return whether this is the step of a ``Trainer`` or of a compiled model."""
    return program.name == TRAINERS_STEP


def is_training_step(program: Program) -> bool:
    """Return whether it trains: a trainer's step, or a function with an optimizer argument.

    Example:
        >>> is_training_step(Program("predict", "", {"data": 1}, (), (), 0.0, 0))
        False
    """
    return is_trainers_step(program) or any(leaf.role == "optimizer" for leaf in program.leaves)


def sent_bytes(program: Program, memory: Memory) -> int:
    """Return the input bytes that the host sends to each device for one step.

    They are the batch of a training step. Arguments of other functions may stay on the device
    between calls, so they do not count.
    """
    if not is_training_step(program):
        return 0
    batches = sum(buffer.logical_bytes for buffer in memory.buffers if buffer.role == "batch")
    return batches // program.traits.steps_per_call


def of_several_steps(program: Program, steps: int, *, counted: bool) -> Program:
    """Return the program of a multi-step call, described like one of its steps.

    Args:
        program: of the call.
        steps: number of steps in a call.
        counted: whether the trip count is in the program. Otherwise its loop over the steps counts
            once.
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

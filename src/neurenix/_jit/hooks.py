"""A hook at the first training step, for tools that want the step and not the training.

Owns one slot for each of two moments: the first step of ``Trainer.fit``, and the first call of a
function by ``nx.jit`` or ``strategy.run``. ``neurenix preflight script.py`` fills them; whoever
trains calls them. This module decides nothing and knows nobody.

    >>> from neurenix._jit import intercept
    >>> def told(trainer, batch, steps, whole_calls): print(steps)
    >>> with intercept.listening(on_first_step=told):
    ...     intercept.first_step(None, (), 8, whole_calls=True)
    8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FirstStep = Callable[[Any, tuple[Any, ...], "int | None", bool], None]

on_first_step: FirstStep | None = None
on_first_call: Callable[[Callable[..., Any], tuple[Any, ...]], None] | None = None


class StopScript(BaseException):
    """Raised out of the user's script once its first step has been seen.

    Not an ``Exception``: a script that catches those must not catch this.
    """


@contextmanager
def listening(
    on_first_step: FirstStep | None = None,
    on_first_call: Callable[[Callable[..., Any], tuple[Any, ...]], None] | None = None,
) -> Iterator[None]:
    """Fill the slots inside a ``with`` block and empty them after it."""
    module = globals()
    before = module["on_first_step"], module["on_first_call"]
    module["on_first_step"], module["on_first_call"] = on_first_step, on_first_call
    try:
        yield
    finally:
        module["on_first_step"], module["on_first_call"] = before


def first_step(
    trainer: Any, batch: tuple[Any, ...], steps_per_epoch: int | None, *, whole_calls: bool
) -> None:
    """Tell the listener, if any, of a trainer about to take its first step.

    Args:
        trainer: the trainer.
        batch: shapes of inputs, targets and, where the step takes them, weights.
        steps_per_epoch: steps of an epoch, where that is known.
        whole_calls: whether every compiled call makes all steps that it can make.
    """
    if on_first_step is not None:
        on_first_step(trainer, batch, steps_per_epoch, whole_calls)


def first_call(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Tell the listener, if any, of a compiled function's first call with ``args``."""
    if on_first_call is not None:
        on_first_call(function, args)

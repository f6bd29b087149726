"""Hooks that report the first training step and the first call of a compiled function.

There is one listener for the first step of ``Trainer.fit`` and one for the first call of a function
by ``nx.jit`` or ``strategy.run``. ``neurenix preflight script.py`` sets them.

    >>> from neurenix._jit import hooks
    >>> with hooks.listening(on_first_call=lambda function, args: print(args)):
    ...     hooks.first_call(len, ([],))
    ([],)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FirstStep = Callable[[Any, tuple[Any, ...], "int | None", bool], None]
"""Takes the trainer, the shapes of its batches (inputs, targets and, if the step takes them,
weights), the steps of an epoch (None if unknown), and whether every compiled call runs
``steps_per_execution`` steps."""

on_first_step: FirstStep | None = None
on_first_call: Callable[[Callable[..., Any], tuple[Any, ...]], None] | None = None


class StopScript(BaseException):
    """Raised to end the user's script after its first step.

    Not an ``Exception``, so that a script's ``except Exception`` does not catch it.
    """


@contextmanager
def listening(
    on_first_step: FirstStep | None = None,
    on_first_call: Callable[[Callable[..., Any], tuple[Any, ...]], None] | None = None,
) -> Iterator[None]:
    """Set the listeners inside a ``with`` block."""
    module = globals()
    before = module["on_first_step"], module["on_first_call"]
    module["on_first_step"], module["on_first_call"] = on_first_step, on_first_call
    try:
        yield
    finally:
        module["on_first_step"], module["on_first_call"] = before


def first_call(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Call the listener, if any, before a compiled function's first call with ``args``."""
    if on_first_call is not None:
        on_first_call(function, args)

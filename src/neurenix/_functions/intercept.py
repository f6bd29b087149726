"""A hook at the first training step, for tools that want the step and not the training.

Owns one slot for each of two moments: the first step of ``Trainer.fit``, and the first call of a
function by ``nx.jit`` or ``strategy.run``. ``neurenix preflight script.py`` fills them; whoever
trains calls them. This module decides nothing and knows nobody.

    >>> from neurenix._functions import intercept
    >>> with intercept.listening(on_first_step=lambda trainer, x, y, steps: print(steps)):
    ...     intercept.first_step(None, None, None, 8)
    8
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

on_first_step: Callable[[Any, Any, Any, int | None], None] | None = None
on_first_call: Callable[[Callable[..., Any], tuple[Any, ...]], None] | None = None


class StopScript(BaseException):
    """Raised out of the user's script once its first step has been seen.

    Not an ``Exception``: a script that catches those must not catch this.
    """


@contextmanager
def listening(
    on_first_step: Callable[[Any, Any, Any, int | None], None] | None = None,
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


def first_step(trainer: Any, x: Any, y: Any, steps_per_epoch: int | None) -> None:
    """Tell the listener, if any, of a trainer about to take its first step on ``x`` and ``y``.

    It is the first of so many in an epoch, where that is known.
    """
    if on_first_step is not None:
        on_first_step(trainer, x, y, steps_per_epoch)


def first_call(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Tell the listener, if any, of a compiled function's first call with ``args``."""
    if on_first_call is not None:
        on_first_call(function, args)

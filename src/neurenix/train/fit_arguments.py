"""Checks of what ``fit``, ``evaluate`` and ``predict`` are told, before anything is compiled.

Owns the wording for numbers, names of options, callbacks and what they watch. It does not own the
checks of data (``batch.py``, ``batch_sources.py``, ``example_weights.py``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from neurenix._core.errors import (
    ArgumentTypeError,
    UnknownNameError,
    did_you_mean,
    unknown_name,
)
from neurenix._core.number_checks import whole_number
from neurenix.train.callbacks import Callback


def optional_number(name: str, value: Any) -> int | None:
    """Return ``whole_number(name, value)``, and None for None."""
    return None if value is None else whole_number(name, value)


def check_options(function: str, options: Iterable[str], known: Iterable[str]) -> None:
    """Check the names of options.

    Raises:
        ArgumentTypeError: one of ``options`` is not ``known``.
    """
    known = list(known)
    for name in options:
        if name not in known:
            raise ArgumentTypeError(
                f"{function}() has no option {name!r}.{did_you_mean(name, known)} "
                f"Options: {', '.join(known)}."
            )


def options_of(function: Callable[..., Any]) -> list[str]:
    """Return the names of the keyword-only arguments of a function."""
    parameters = inspect.signature(function).parameters.values()
    return [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return the callbacks that ``fit`` was given: None, one, or several.

    Raises:
        ArgumentTypeError: one of them is no callback.
    """
    if callbacks is None:
        return []
    if isinstance(callbacks, (Callback, type, str)) or not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    found = list(callbacks)
    for callback in found:
        if isinstance(callback, Callback):
            continue
        if isinstance(callback, type) and issubclass(callback, Callback):
            name = callback.__name__
            raise ArgumentTypeError(f"callbacks holds the class {name}. Construct it: {name}().")
        hint = "Derive its class from nx.callbacks.Callback"
        if callable(callback):
            hint = "A function goes into LambdaCallback(on_epoch_end=…)"
        raise ArgumentTypeError(f"callbacks holds {callback!r}, which is no Callback. {hint}.")
    return found


def check_watched(callbacks: list[Callback], log_names: Iterable[str], *, validated: bool) -> None:
    """Check that the logs will have what the callbacks watch, as far as it can be known.

    A callback of the user's may add numbers to the logs; with one of those nothing is checked
    here, and a number that is missing is an error after the first epoch.

    Raises:
        UnknownNameError: a callback watches what the logs will not have.
    """
    if any(_may_add_numbers(callback) for callback in callbacks):
        return
    names = list(log_names)
    known = names + [f"val_{name}" for name in names] if validated else names
    for callback in callbacks:
        for name in callback.watched():
            if name in known:
                continue
            error = unknown_name("number to monitor", name, known)
            hint = ""
            if name.startswith("val_") and not validated:
                hint = " Numbers of validation need validation_data."
            raise UnknownNameError(f"{type(callback).__name__}: {error}{hint}")


def _may_add_numbers(callback: Callback) -> bool:
    module = getattr(callback.on_epoch_end, "__module__", None) or ""
    return not module.startswith("neurenix.")

"""Prevent two threads from training one module at once.

A training step donates the arrays of the module, so another thread would find them deleted. Keeps
the list of running calls of trainers.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from neurenix._core.errors import ModuleInUseError
from neurenix.hardware.allocation import PROGRAM, out_of_memory_told

F = TypeVar("F", bound=Callable[..., Any])

_WRITES = "fit"
_LOCK = threading.Lock()
_RUNNING: dict[int, list[tuple[int, str]]] = {}
"""Module id → (thread, name) of each running call. A running call keeps the module alive."""


def entered(method: F) -> F:
    """Return a method of a trainer that locks the module and explains a lack of memory.

    Raises:
        ModuleInUseError: when called, while another thread trains the trainer's module, or while
            another thread reads it and the method is ``fit``.
        OutOfMemoryError: when called, if the program needs more memory than there is.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(trainer: Any, *args: Any, **options: Any) -> Any:
        with running(trainer.module, name), out_of_memory_told(f"{name} {PROGRAM}"):
            return method(trainer, *args, **options)

    return cast(F, call)


@contextmanager
def running(module: Any, name: str) -> Iterator[None]:
    """Record a call as running. Nested calls of one thread do not conflict.

    Args:
        module: the module that is trained or read.
        name: of the call; ``"fit"`` trains, any other reads.

    Raises:
        ModuleInUseError: a call of another thread conflicts with it.
    """
    own = (threading.get_ident(), name)
    with _LOCK:
        entries = _RUNNING.setdefault(id(module), [])
        for thread, other in entries:
            if thread != own[0] and _WRITES in (name, other):
                raise ModuleInUseError(
                    f"{name}() of a {type(module).__name__} was called while another thread is in "
                    f"its {other}(), and a training step donates the model's arrays. Wait until "
                    "that call has returned, or use a copy, nnx.clone(model), and compile() it."
                )
        entries.append(own)
    try:
        yield
    finally:
        with _LOCK:
            entries.remove(own)
            if not entries:
                del _RUNNING[id(module)]

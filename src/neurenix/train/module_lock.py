"""Which modules are being trained or read, so that no two threads train one at once.

A step gives away the arrays that it starts from: a second thread would find them deleted. Owns the
list of what runs, and how the calls of a trainer are entered on it.
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
"""From a module's id to (thread, call) of each call that is running; it is held while one is."""


def entered(method: F) -> F:
    """Return a method of a trainer that is entered as running, and tells of a want of memory.

    Raises:
        ModuleInUseError: when called, while another thread trains the trainer's module, or while
            another thread reads it and the method is ``fit``.
        OutOfMemoryError: when called: there is less memory than the program takes.
    """
    name = method.__name__

    @functools.wraps(method)
    def call(trainer: Any, *args: Any, **options: Any) -> Any:
        with running(trainer.module, name), out_of_memory_told(f"{name} {PROGRAM}"):
            return method(trainer, *args, **options)

    return cast(F, call)


@contextmanager
def running(module: Any, name: str) -> Iterator[None]:
    """Enter a call as running. Calls inside of one another, in one thread, do not collide.

    Args:
        module: what is trained or read.
        name: of the call; ``"fit"`` trains, any other reads.

    Raises:
        ModuleInUseError: it collides with a call of another thread.
    """
    own = (threading.get_ident(), name)
    with _LOCK:
        entries = _RUNNING.setdefault(id(module), [])
        for thread, other in entries:
            if thread != own[0] and _WRITES in (name, other):
                raise ModuleInUseError(
                    f"{name}() of a {type(module).__name__} was called while another thread is in "
                    f"its {other}(), and a training step gives away the arrays that it starts "
                    "from: wait until that call has returned, or use a copy, nnx.clone(model), "
                    "with a compile() of its own."
                )
        entries.append(own)
    try:
        yield
    finally:
        with _LOCK:
            entries.remove(own)
            if not entries:
                del _RUNNING[id(module)]

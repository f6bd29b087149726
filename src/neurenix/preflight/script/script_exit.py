"""Means to stop a script that runs in this process, whatever it does against it.

Owns the alarm that ends it, also when it catches what should, the way from its threads to the main
one, and what watches the ways out of a process. It does not own when a script is to be stopped and
what is said of it (``script``).
"""

from __future__ import annotations

import concurrent.futures.thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from neurenix._core.source_files import is_library
from neurenix._jit.hooks import StopScript

LONGEST_SECONDS = 1e8
"""What a timer takes."""
_TOLD_AT_MOST = 3
_AGAIN_SECONDS = 2.0

end_process = os._exit
"""``os._exit`` as it is while a script runs with another in its place."""


class OutOfTime(StopScript):
    """The script did not reach a step in time."""


class TimeLimit:
    """Raises ``OutOfTime`` in the main thread after a time, where the system has a timer signal.

    A script that catches even that is told again, and at last the process ends with ``message()``
    and status 2: nothing else can end it.
    """

    def __init__(self, message: Callable[[], str]) -> None:
        self._message = message
        self._told = 0
        self._here = hasattr(signal, "setitimer")

    @contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        """Allow so much time for what is done inside."""
        if not self._here:
            yield
            return
        before = signal.signal(signal.SIGALRM, self._expired)
        self.shorten(seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def shorten(self, seconds: float) -> None:
        """Allow so much time from now on."""
        if self._here:
            signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_SECONDS)

    def _expired(self, number: int, frame: Any) -> None:
        del number, frame
        self._told += 1
        if self._told > _TOLD_AT_MOST:
            os.write(2, f"neurenix: {self._message()}\n".encode())
            end_process(2)
        raise OutOfTime("out of time")


class Waker:
    """Stops the script, which the main thread runs, from a thread that it started.

    Where the system has no timer signal nothing does, and the script runs on to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = hasattr(signal, "setitimer")

    def wake(self) -> None:
        """Let ``TimeLimit`` end the script now."""
        with self._lock:
            main = threading.main_thread().ident
            if self._open and main is not None:
                self._open = False
                signal.pthread_kill(main, signal.SIGALRM)

    def close(self) -> None:
        """Wake nobody any more: the script has ended."""
        with self._lock:
            self._open = False


@contextmanager
def ways_out_watched(leave: Callable[[str], None]) -> Iterator[None]:
    """Call ``leave`` where this process is about to end without a word or to become another.

    Processes that it forks end as they wish.
    """
    owner = os.getpid()

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            if os.getpid() == owner:
                leave(f"os.{name}({args[0] if name == '_exit' and args else '…'})")
            return original(*args, **named)

        return call

    originals = {name: getattr(os, name) for name in ("_exit", "execv", "execve")}
    try:
        for name, original in originals.items():
            setattr(os, name, watched(name, original))
        yield
    finally:
        for name, original in originals.items():
            setattr(os, name, original)


def wait_for_threads(before: Sequence[threading.Thread]) -> None:
    """Wait for the threads that the script started, as Python does before it ends.

    Not for those of a pool, which wait for more to do until they are told that there is no more.
    """
    pools = getattr(concurrent.futures.thread, "_threads_queues", ())
    for thread in threading.enumerate():
        if not (thread.daemon or thread in before or thread in pools):
            thread.join()


def raise_in_handlers(error: BaseException) -> None:
    """Let the first line of the script that catches an exception from now on raise ``error``.

    Raised in an ``except:``, it is out of the reach of that ``except:`` and so of a loop around it.
    Python forgets the tracing as soon as it raises.
    """

    def tracer(frame: Any, event: str, argument: Any) -> Any:
        del frame, argument
        if event == "line":
            raise error
        return tracer

    frame = sys._getframe()
    while frame := frame.f_back:
        if not is_library(frame.f_code.co_filename):
            frame.f_trace = tracer
    sys.settrace(lambda *call: None)  # functions called from now on are left alone

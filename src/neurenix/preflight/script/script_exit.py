"""Means to stop a script that runs in this process, even if it resists.

Owns the alarm that ends the script, the way from its threads to the main thread, and the watch on
calls that end the process. Does not own when to stop a script (``run_script.py``).
"""

from __future__ import annotations

import concurrent.futures.thread
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from neurenix._core.source_files import is_library
from neurenix._jit.hooks import StopScript

LONGEST_SECONDS = 1e8
"""The longest time that a timer accepts."""
_TOLD_AT_MOST = 3
_AGAIN_SECONDS = 2.0

end_process = os._exit
"""The original ``os._exit``, which is replaced while a script runs."""


class OutOfTime(StopScript):
    """The script reached no step in time."""


class TimeLimit:
    """Raises ``OutOfTime`` in the main thread after a time, if the system has a timer signal.

    If the script catches it, it is raised again; finally the process ends with ``message()`` and
    status 2.
    """

    def __init__(self, message: Callable[[], str]) -> None:
        self._message = message
        self._told = 0
        self._here = hasattr(signal, "setitimer")

    @contextmanager
    def of(self, seconds: float) -> Iterator[None]:
        """Set the time limit of the block."""
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
        """Set the time left from now on."""
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
    """Stops the script in the main thread from a thread that it started.

    Without a timer signal on the system, the script runs to its end.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open = hasattr(signal, "setitimer")

    def wake(self) -> None:
        """Make ``TimeLimit`` end the script now."""
        with self._lock:
            main = threading.main_thread().ident
            if self._open and main is not None:
                self._open = False
                signal.pthread_kill(main, signal.SIGALRM)

    def close(self) -> None:
        """Disable ``wake``: the script has ended."""
        with self._lock:
            self._open = False


@contextmanager
def ways_out_watched(leave: Callable[[str], None]) -> Iterator[None]:
    """Call ``leave`` before this process ends by ``os._exit`` or is replaced by ``os.exec…``.

    Forked processes are not watched.
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

    Threads of a ``ThreadPoolExecutor`` are left alone: they wait for work until it is shut down.
    """
    frames = sys._current_frames()
    for thread in threading.enumerate():
        if not (thread.daemon or thread in before or _is_of_pool(frames.get(thread.ident or 0))):
            thread.join()


def _is_of_pool(frame: FrameType | None) -> bool:
    """Return whether a thread with this innermost frame was started by a ``ThreadPoolExecutor``."""
    outermost = ""  # file of the first function that is not ``threading``'s
    while frame is not None:
        if frame.f_code.co_filename != threading.__file__:
            outermost = frame.f_code.co_filename
        frame = frame.f_back
    return outermost == concurrent.futures.thread.__file__


def raise_in_handlers(error: BaseException) -> None:
    """Raise ``error`` in the next line of the script that runs, such as in its handler.

    An error raised inside an ``except:`` escapes that handler and a loop around it. Python removes
    the trace function once it raises.
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
    sys.settrace(lambda *call: None)  # functions called from now on are not traced

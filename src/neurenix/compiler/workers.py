"""The processes that compile: started ahead, used again, stopped.

Owns their life and their surroundings. What they are asked and what they answer is ``worker``'s and
``compile``'s. A worker starts while its user still traces, and serves one compilation after another
inside of ``kept_workers``; outside none is left.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from neurenix._core.errors import CompilationError

NOT_WRITTEN = 100
"""Exit code of a worker that could not read or write its files, and the ``errno`` added to it."""
FOLDERS = "neurenix-"
"""Beginning of the name of every folder for temporary files."""
_POLL_SECONDS = 0.002


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Give a folder that is removed after the block.

    Raises:
        CompilationError: there is none, or the block could not write into it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as directory:
            yield directory
    except OSError as error:
        raise _no_folder(error) from error


def _no_folder(error: OSError) -> CompilationError:
    """Return the error of a folder for temporary files that cannot be used."""
    where = tempfile.tempdir or os.environ.get("TMPDIR", "the folder for temporary files")
    cause = f"{where} cannot be used ({error.strerror or error})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"there is no space left in {where}"
    return CompilationError(
        f"Nothing could be compiled: {cause}. The compiler needs it for temporary files: make room "
        "there, or set TMPDIR to another folder."
    )


class Worker:
    """A process that compiles what it is told, one request after another."""

    def __init__(self) -> None:
        self.environment = _environment()
        try:
            self._folder = tempfile.TemporaryDirectory(prefix=f"{FOLDERS}worker-")
            self._log = Path(self._folder.name) / "log.txt"
            log_file = open(self._log, "wb")
        except OSError as error:
            raise _no_folder(error) from error
        self._logged = 0
        with log_file as log:
            try:
                self._process = subprocess.Popen(
                    _command(),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Its logs would stay in the folder for temporary files, at any other setting.
                    env={**self.environment, "TPU_LOG_DIR": self._folder.name},
                    start_new_session=True,
                )
            except OSError as error:
                self._folder.cleanup()
                raise CompilationError(
                    f"The compiler's process could not be started: {error.strerror}."
                ) from error

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._process.poll() is None

    def compile(
        self, directory: str, timeout_seconds: float, given_up: threading.Event
    ) -> int | None:
        """Compile what ``directory`` asks for.

        Returns:
            0 when ``result.json`` is there, the exit code of a process that ended without it, and
            ``None`` when time was up.

        Raises:
            CompilationError: given up.
        """
        end = time.monotonic() + timeout_seconds
        result = Path(directory) / "result.json"
        self._logged = self._log.stat().st_size
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(f"{directory}\n".encode())
                stdin.flush()
        except BrokenPipeError:  # it ended; its code says how
            self._process.wait()
        while time.monotonic() < end:
            if given_up.is_set():
                raise CompilationError("Another compilation of this request failed.")
            ended = not self.alive
            if result.exists():
                return 0
            if ended:
                return self._process.returncode
            given_up.wait(_POLL_SECONDS)
        return None

    def last_words(self) -> str:
        """Return the end of what it printed since it was asked last."""
        text = self._log.read_bytes()[self._logged :].decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])

    def end(self) -> None:
        """Have the process end, and do not wait for it."""
        if self.alive:
            self._process.kill()

    def stop(self) -> None:
        """End the process and remove what it left."""
        self.end()
        self._process.wait()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:  # what was never read is of no use any more
                pass
        self._folder.cleanup()


class Workers:
    """Workers that wait for their next request, for ``blocks`` inside of one another."""

    def __init__(self) -> None:
        self.blocks = 1
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._ending: list[Worker] = []
        self._open = True

    def start(self, count: int) -> None:
        """Start workers until ``count`` wait."""
        with self._lock:
            while self._open and len(self._idle) < count:
                self._idle.append(Worker())

    def take(self) -> Worker:
        """Return a worker that waits, or else a new one."""
        environment = _environment()
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
            if worker is None:
                return Worker()
            if worker.alive and worker.environment == environment:
                return worker
            worker.stop()

    def give(self, worker: Worker) -> None:
        """Take a worker back that is done."""
        with self._lock:
            if self._open and worker.alive:
                self._idle.append(worker)
                return
        worker.stop()

    def dismiss(self) -> None:
        """Have those that wait end meanwhile, unless a block around this one keeps them too.

        It takes a process that has loaded libtpu 20 ms to end, in which others can be at work.
        """
        with self._lock:
            if self.blocks > 1:
                return
            idle, self._idle = self._idle, []
            self._ending += idle
        for worker in idle:
            worker.end()

    def close(self) -> None:
        """Stop those that wait, and let none wait any more."""
        with self._lock:
            left, self._idle, self._ending = self._idle + self._ending, [], []
            self._open = False
        for worker in left:
            worker.end()
        for worker in left:
            worker.stop()


_KEPT: ContextVar[Workers | None] = ContextVar("kept_workers", default=None)


@contextmanager
def kept_workers(ahead: int = 0) -> Iterator[Workers]:
    """Keep workers between the compilations of a block, its outermost one, and stop them after it.

    Args:
        ahead: how many are started at once, so that they are ready when they are needed.
    """
    outer = _KEPT.get()
    if outer is not None:
        outer.blocks += 1
        try:
            yield outer
        finally:
            outer.blocks -= 1
        return
    workers = Workers()
    token = _KEPT.set(workers)
    try:
        workers.start(ahead)
        yield workers
    finally:
        _KEPT.reset(token)
        workers.close()


def _command() -> list[str]:
    """Return the worker's command; ``-P`` keeps the user's folder from hiding packages."""
    return [sys.executable, "-P", "-m", "neurenix.compiler.worker", str(os.getpid())]


def _environment() -> dict[str, str]:
    environment = dict(os.environ)
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
    environment.update(
        PYTHONPATH=os.pathsep.join(paths),
        TPU_SKIP_MDS_QUERY="1",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
        JAX_PLATFORMS="cpu",
    )
    environment.pop("NEURENIX_SIMULATE", None)
    environment.pop("PYTEST_CURRENT_TEST", None)  # another for each test, and no worker is kept
    return environment

"""Start, reuse and stop the processes that compile.

``worker`` and ``compile`` own requests and answers. Inside ``kept_workers`` a worker starts while
its user still traces and serves several compilations; outside it none remains.
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
"""Base of a worker's exit code for a file error; the ``errno`` is added."""
FOLDERS = "neurenix-"
"""Prefix of the names of temporary folders."""
_POLL_SECONDS = 0.002


@contextmanager
def temporary_folder(prefix: str) -> Iterator[str]:
    """Yield a folder that is removed after the block.

    Raises:
        CompilationError: it cannot be created, or the block could not write to it.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix) as directory:
            yield directory
    except OSError as error:
        raise _no_folder(error) from error


def _no_folder(error: OSError) -> CompilationError:
    """Return the error for an unusable folder for temporary files."""
    where = tempfile.tempdir or os.environ.get("TMPDIR", "the folder for temporary files")
    cause = f"{where} cannot be used ({error.strerror or error})"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        cause = f"there is no space left in {where}"
    return CompilationError(
        f"Nothing could be compiled: {cause}. The compiler needs it for temporary files: make room "
        "there, or set TMPDIR to another folder."
    )


class Worker:
    """A process that compiles one request after another."""

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
                    # Any other setting leaves its logs in the temporary folder.
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
        """Whether the process is running."""
        return self._process.poll() is None

    def compile(
        self, directory: str, timeout_seconds: float, given_up: threading.Event
    ) -> int | None:
        """Compile the request in ``directory``.

        Returns:
            0 if ``result.json`` was written, the exit code of a process that ended without it, and
            ``None`` after a timeout.

        Raises:
            CompilationError: the request was given up.
        """
        end = time.monotonic() + timeout_seconds
        result = Path(directory) / "result.json"
        self._logged = self._log.stat().st_size
        stdin = self._process.stdin
        try:
            if stdin is not None:
                stdin.write(f"{directory}\n".encode())
                stdin.flush()
        except BrokenPipeError:  # it exited; its code is the reason
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
        """Return the end of the output since the last call."""
        text = self._log.read_bytes()[self._logged :].decode(errors="replace")
        return "\n".join(text.strip().splitlines()[-12:])

    def end(self) -> None:
        """Ask the process to exit, without waiting."""
        if self.alive:
            self._process.kill()

    def stop(self) -> None:
        """End the process and remove its files."""
        self.end()
        self._process.wait()
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
            except BrokenPipeError:  # unread requests do not matter
                pass
        self._folder.cleanup()


class Workers:
    """Idle workers of nested blocks; ``blocks`` counts them."""

    def __init__(self) -> None:
        self.blocks = 1
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._ending: list[Worker] = []
        self._open = True

    def start(self, count: int) -> None:
        """Start workers until ``count`` are idle."""
        with self._lock:
            while self._open and len(self._idle) < count:
                self._idle.append(Worker())

    def take(self) -> Worker:
        """Return an idle worker, or a new one."""
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
        """Return a worker to the idle ones."""
        with self._lock:
            if self._open and worker.alive:
                self._idle.append(worker)
                return
        worker.stop()

    def dismiss(self) -> None:
        """Ask idle workers to exit, unless an enclosing block keeps them.

        A process that has loaded libtpu takes 20 ms to exit; this overlaps with other work.
        """
        with self._lock:
            if self.blocks > 1:
                return
            idle, self._idle = self._idle, []
            self._ending += idle
        for worker in idle:
            worker.end()

    def close(self) -> None:
        """Stop idle workers, and keep no more."""
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
    """Keep workers between the compilations of a block; the outermost block stops them.

    Args:
        ahead: number of workers to start at once, so that they are ready when needed.
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
    """Return the worker's command; ``-P`` stops the user's folder from hiding packages."""
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
    environment.pop(
        "PYTEST_CURRENT_TEST", None
    )  # it differs between tests, which would prevent reuse
    return environment

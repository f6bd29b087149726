"""Compile in a separate process: ``python -m neurenix.compiler.worker PID``.

The process isolates libtpu's crashes, lock and memory. For each directory named in a line of its
input, it reads ``request.json``, compiles the program in that directory (``worker_estimates``,
``worker_executables``), and finally writes ``result.json`` atomically. It exits when its input
ends, or with a code for a file error. If the requesting process was killed, it removes the
temporary folders.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
import resource
import shutil
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from neurenix._core.parent import when_parent_ends
from neurenix.compiler.workers import FOLDERS, NOT_WRITTEN

_MOST_RESIDENT_BYTES = 2 * 2**30
_REMOVALS, _PAUSE_SECONDS = (
    5,
    0.2,
)  # retries of removing folders: libtpu may recreate its own for a log


def main(parent: str) -> NoReturn:
    """Compile the request of each directory until the input ends.

    Args:
        parent: process id of the requesting process.
    """
    told: list[Path] = []

    def leave() -> None:
        _remove([*told, *_untold()])
        os._exit(3)

    when_parent_ends(leave, parent=int(parent))
    with suppress(ImportError):  # import early; the first request reports what is missing
        importlib.import_module("neurenix.compiler.worker_estimates")
    try:
        _serve(told)
    except OSError as error:
        if not all(folder.exists() for folder in told):  # removed: the parent is gone
            _remove(told)
        # Not sys.exit: flushing the output may fail for want of space too.
        os._exit(NOT_WRITTEN + (error.errno or errno.EIO))
    _remove(told)  # the parent is gone and thereby closed the input
    os._exit(0)  # skip libtpu's last logs


def _serve(told: list[Path]) -> None:
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        told[:] = [folder]
        request = json.loads((folder / "request.json").read_text())
        result: dict[str, Any] = {"seconds": {}}
        executable = None  # freed after the answer of an estimate
        try:
            executable = _compile(folder, request, result)
            result["outcome"] = "compiled"
        except OSError:  # a file error; the compiler raises other types
            raise
        except Exception as error:  # any error of the compiler is its answer
            result["outcome"] = "refused"
            result["error_type"] = type(error).__name__
            result["error"] = str(error) or "".join(traceback.format_exception(error)[-2:])
        # The CPU device count can be set once, and memory is not returned.
        small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < _MOST_RESIDENT_BYTES
        result["again"] = small and bool(request["target"]["topology_name"])
        partial = folder / "result.json.partial"
        partial.write_text(json.dumps(result))
        os.replace(partial, folder / "result.json")
        del executable


def _compile(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> Any:
    if request["executable"]:
        from neurenix.compiler.worker_executables import compile_executable

        compile_executable(folder, request, result)
        return None
    from neurenix.compiler.worker_estimates import compile_for_estimate

    return compile_for_estimate(folder, request, result)


def _untold() -> list[Path]:
    """Return the folders of unread input: the parent was killed before jax was imported."""
    try:
        os.set_blocking(0, False)
        left = os.read(0, 2**16)
    except OSError:
        return []
    return [Path(line) for line in left.decode(errors="replace").splitlines()]


def _remove(told: list[Path]) -> None:
    """Remove this process's folder and the given ones, if their names are Neurenix's."""
    known = [Path(os.environ.get("TPU_LOG_DIR", "")), *told]
    folders = [folder for folder in known if folder.name.startswith(FOLDERS)]
    for _ in range(_REMOVALS):
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)
        time.sleep(_PAUSE_SECONDS)
        if not any(folder.exists() for folder in folders):
            break


if __name__ == "__main__":
    main(*sys.argv[1:])

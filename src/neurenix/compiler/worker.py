"""The process that compiles: ``python -m neurenix.compiler.worker PID``.

Owns the meeting with libtpu, so that its crash, its lock and its memory are not the user's. For
each directory that it is told, a line of its input, it reads ``request.json``, has the program
compiled that lies beside it (``worker_estimates``, ``worker_executables``), and writes
``result.json``, whole or not at all, when everything else is written. It ends with its input, or
with a code that says which error of the system kept it from its files; where the process that asked
was killed, it removes the folders that nobody else would. It judges nothing.
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
_REMOVALS, _PAUSE_SECONDS = 5, 0.2  # of folders: libtpu makes its own again for a log


def main(parent: str) -> NoReturn:
    """Compile what each directory asks for, until the input ends.

    Args:
        parent: process id of the one that asks.
    """
    told: list[Path] = []

    def leave() -> None:
        _remove([*told, *_untold()])
        os._exit(3)

    when_parent_ends(leave, parent=int(parent))
    with suppress(ImportError):  # ahead of the first request, whose answer says what is missing
        importlib.import_module("neurenix.compiler.worker_estimates")
    try:
        _serve(told)
    except OSError as error:
        if not all(folder.exists() for folder in told):  # removed: whoever asks is gone
            _remove(told)
        # Not sys.exit: what is left to be printed may have no room either.
        os._exit(NOT_WRITTEN + (error.errno or errno.EIO))
    _remove(told)  # whoever asks has closed the input by being gone
    os._exit(0)  # libtpu would write its logs once more


def _serve(told: list[Path]) -> None:
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        told[:] = [folder]
        request = json.loads((folder / "request.json").read_text())
        result: dict[str, Any] = {"seconds": {}}
        executable = None  # of an estimate, freed once it is answered
        try:
            executable = _compile(folder, request, result)
            result["outcome"] = "compiled"
        except OSError:  # of a file; the compiler's own errors are others
            raise
        except Exception as error:  # whatever the compiler raises is its answer, and is handed over
            result["outcome"] = "refused"
            result["error_type"] = type(error).__name__
            result["error"] = str(error) or "".join(traceback.format_exception(error)[-2:])
        # The number of a CPU's devices can be set once, and memory is not given back.
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
    """Return the folders of the input that were never read: it was killed before jax was loaded."""
    try:
        os.set_blocking(0, False)
        left = os.read(0, 2**16)
    except OSError:
        return []
    return [Path(line) for line in left.decode(errors="replace").splitlines()]


def _remove(told: list[Path]) -> None:
    """Remove this process's own folder and those it was told, by their names Neurenix's."""
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

"""Compile a module for an estimate, without JAX.

Turns ``module.bin`` and ``options.bin`` of ``lowering`` into the optimised program's text and the
compiler's memory counts. If a program exceeds memory, the compiler returns no executable; with a
dump requested, its schedule is read from the dump.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from neurenix._jaxlib import compile_module
from neurenix.compiler.device_grid import device_grid, devices_of

_DUMP = "dump"


def compile_for_estimate(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> Any:
    """Compile the request in ``folder``, write ``optimized.hlo`` there and fill in ``result``.

    Returns:
        The executable. Freeing it takes milliseconds, which the caller does after the answer.
    """
    started = time.perf_counter()
    target = request["target"]
    devices = devices_of(target)
    grid = device_grid(devices, tuple(request["axes"][1]), target["num_slices"])
    result["seconds"]["topology"] = time.perf_counter() - started
    module = (folder / "module.bin").read_bytes()
    options = (folder / "options.bin").read_bytes()
    started = time.perf_counter()
    dump_to = str(folder / _DUMP) if request.get("dump") else ""
    try:
        executable = compile_module(module, options, list(grid.flat), dump_to=dump_to)
    except Exception:
        for dumped in (folder / _DUMP).glob("*.after_optimizations.txt"):
            dumped.replace(folder / "optimized.hlo")  # the schedule of the refused program
        raise
    result["memory"] = memory_of(executable.get_compiled_memory_stats())
    (program,) = executable.hlo_modules()
    text = program.to_string()
    result["seconds"]["compile"] = time.perf_counter() - started
    result["device_kind"] = devices[0].device_kind
    (folder / "optimized.hlo").write_text(text)
    return executable


def memory_of(stats: Any) -> dict[str, int]:
    """Return XLA's byte counts for one device by name."""
    return {name: int(getattr(stats, name)) for name in dir(stats) if name.endswith("_in_bytes")}

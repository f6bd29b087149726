"""The process that compiles: ``python -m neurenix.compiler.worker DIRECTORY``.

Owns the meeting with libtpu, so that its crash, its lock and its memory are not the user's. It
reads ``request.json`` and ``program.bin`` and writes ``optimized.hlo`` and then ``result.json``,
each whole or not at all. It judges nothing.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any


def main(directory: str) -> int:
    """Compile what ``directory`` asks for; the exit code is 0 whenever a result was written."""
    _leave_with_parent()
    folder = Path(directory)
    request = json.loads((folder / "request.json").read_text())
    result: dict[str, Any] = {"seconds": {}}
    try:
        _compile(folder, request, result)
        result["outcome"] = "compiled"
    except Exception as error:  # whatever the compiler raises is its answer, and is handed over
        result["outcome"] = "refused"
        result["error_type"] = type(error).__name__
        result["error"] = str(error)
    write_whole(folder / "result.json", json.dumps(result))
    return 0


def write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text)
    os.replace(partial, path)


def _compile(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> None:
    import jax
    from jax import export

    started = time.perf_counter()
    mesh = _mesh(request)
    result["seconds"]["topology"] = time.perf_counter() - started
    started = time.perf_counter()
    exported = export.deserialize(bytearray((folder / "program.bin").read_bytes()))
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, exported.in_shardings_jax(mesh), strict=True)
    ]
    jitted = jax.jit(exported.call, donate_argnums=tuple(request["donated"]))
    lowered = jitted.lower(*arguments)
    result["seconds"]["lower"] = time.perf_counter() - started
    started = time.perf_counter()
    compiled = lowered.compile(compiler_options=request["compiler_options"] or None)
    result["seconds"]["compile"] = time.perf_counter() - started
    stats = compiled.memory_analysis()
    result["memory"] = {
        name: int(getattr(stats, name)) for name in dir(stats) if name.endswith("_in_bytes")
    }
    result["device_kind"] = mesh.devices.flat[0].device_kind
    write_whole(folder / "optimized.hlo", compiled.as_text() or "")


def _mesh(request: dict[str, Any]) -> Any:
    import jax
    from jax.experimental import topologies

    target = request["target"]
    options: dict[str, Any] = {"chips_per_host_bounds": list(target["chips_per_host_bounds"])}
    if target["num_slices"] > 1:
        options["num_slices"] = target["num_slices"]
    if target["chip_config_name"]:
        options["chip_config_name"] = target["chip_config_name"]
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=target["topology_name"], **options
    )
    names, sizes = request["axes"]
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    grid = _grid(topology.devices, tuple(sizes), target["num_slices"])
    return jax.sharding.Mesh(grid, tuple(names), axis_types=auto)


def _grid(devices: Any, sizes: tuple[int, ...], num_slices: int) -> Any:
    """Arrange devices so that neighbours on a mesh axis are neighbours on ICI.

    Several slices lie along the first axis, whose part inside a slice comes after the slices.
    """
    import numpy as np
    from jax.experimental import mesh_utils

    if sum(size > 1 for size in sizes) < 2:
        return np.array(devices).reshape(sizes)
    if num_slices == 1:
        return mesh_utils.create_device_mesh(sizes, devices=list(devices))
    per_slice = len(devices) // num_slices
    inner = (sizes[0] // num_slices, *sizes[1:])
    slices = [
        mesh_utils.create_device_mesh(inner, devices=list(devices[i : i + per_slice]))
        for i in range(0, len(devices), per_slice)
    ]
    return np.concatenate(slices, axis=0)


def _leave_with_parent() -> None:
    """End this process when the one that asked is gone, so that none is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

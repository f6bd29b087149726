"""The process that compiles: ``python -m neurenix.compiler.worker``.

Owns the meeting with libtpu, so that its crash, its lock and its memory are not the user's. For
each directory that it is told, a line of its input, it reads ``request.json`` and ``program.bin``
and writes ``optimized.hlo``, where an artefact is wanted ``executable.bin``, and then
``result.json``, each whole or not at all. It ends with its input, or with a code that says which
error of the system kept it from its files; where the process that asked was killed, it removes the
folders that nobody else would. It judges nothing.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import resource
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

from neurenix.compiler.host import cpu
from neurenix.compiler.workers import FOLDERS, NOT_WRITTEN

_MOST_RESIDENT_BYTES = 2 * 2**30
_REMOVALS, _PAUSE_SECONDS = 5, 0.2  # of folders: libtpu makes its own again for a log


def main() -> NoReturn:
    """Compile what each directory asks for, until the input ends."""
    told: list[Path] = []
    _leave_with_parent(told)
    from jax import export
    from jax.experimental import topologies

    del export, topologies  # imported ahead of the first request
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
    import jax

    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        told[:] = [folder]
        request = json.loads((folder / "request.json").read_text())
        result: dict[str, Any] = {"seconds": {}}
        try:
            with jax.enable_x64(True):  # a program keeps its 64-bit types, whoever traced it
                _compile(folder, request, result)
            result["outcome"] = "compiled"
        except OSError:  # of a file; the compiler's own errors are others
            raise
        except Exception as error:  # whatever the compiler raises is its answer, and is handed over
            result["outcome"] = "refused"
            result["error_type"] = type(error).__name__
            result["error"] = str(error)
        jax.clear_caches()
        # The number of a CPU's devices can be set once, and memory is not given back.
        small = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < _MOST_RESIDENT_BYTES
        result["again"] = small and bool(request["target"]["topology_name"])
        write_whole(folder / "result.json", json.dumps(result))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.replace(partial, path)


def _compile(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> None:
    import jax
    from jax import export

    started = time.perf_counter()
    mesh = _mesh(request)
    result["seconds"]["topology"] = time.perf_counter() - started
    started = time.perf_counter()
    exported = export.deserialize(bytearray((folder / "program.bin").read_bytes()))
    mesh = _with_axis_types(mesh, exported)
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, exported.in_shardings_jax(mesh), strict=True)
    ]
    used = exported.module_kept_var_idx

    def call(*given: Any) -> Any:
        """Take what the program uses; the rest is not a parameter of the compiled program."""
        whole: list[Any] = [jax.numpy.empty(a.shape, a.dtype) for a in exported.in_avals]
        for index, value in zip(used, given, strict=True):
            whole[index] = value
        return exported.call(*whole)

    function = exported.call if len(used) == len(arguments) else call
    given = [arguments[index] for index in used]
    if not given:  # an argument says which devices the program is for
        everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
        given = [jax.ShapeDtypeStruct((), "int32", sharding=everywhere)]
        function = functools.partial(_without_argument, call)
    jitted = jax.jit(function, donate_argnums=tuple(request["donated"]), keep_unused=True)
    lowered = jitted.lower(*given)
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
    if request.get("artefact"):
        result["placement"] = placement = _placement(exported, compiled, mesh)
        executable = compiled.runtime_executable()
        if executable is not None and "problem" not in placement:
            write_whole(folder / "executable.bin", executable.serialize())


def _without_argument(call: Any, unused: Any) -> Any:
    del unused
    return call()


def _placement(exported: Any, compiled: Any, mesh: Any) -> dict[str, Any]:
    """Say on which devices, and how divided over them, the executable takes and leaves arrays.

    The answer is a ``"problem"`` when the executable needs more than its arrays to run.
    """
    if exported.ordered_effects or exported.unordered_effects:
        return {"problem": "it has effects, such as calls of the host, beside its result"}
    shardings = (*compiled.input_shardings[0], *compiled.output_shardings)
    if unnamed := [s for s in shardings if not hasattr(s, "spec")]:
        return {"problem": f"an array is divided in a way that no mesh axis names: {unnamed[0]}"}
    devices = list(mesh.devices.flat)
    outputs = zip(exported.out_avals, compiled.output_shardings, strict=True)
    return {
        "device_ids": [device.id for device in devices],
        "machine": cpu() if devices[0].platform == "cpu" else {},
        "coordinates": [list(getattr(device, "coords", ())) for device in devices],
        "arguments": [_division(sharding) for sharding in compiled.input_shardings[0]],
        "outputs": [
            {"shape": list(aval.shape), "dtype": str(aval.dtype), **_division(sharding)}
            for aval, sharding in outputs
        ],
    }


def _division(sharding: Any) -> dict[str, Any]:
    partition = [list(p) if isinstance(p, tuple) else p for p in sharding.spec]
    return {"partition": partition, "memory_kind": sharding.memory_kind}


def _with_axis_types(mesh: Any, exported: Any) -> Any:
    """Return the mesh with the types of axes (automatic, explicit) that the program has."""
    import jax

    for aval in (*exported.in_avals, *exported.out_avals):
        own = aval.sharding.mesh
        if own.axis_names == mesh.axis_names:
            return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=own.axis_types)
    return mesh


def _mesh(request: dict[str, Any]) -> Any:
    import jax
    from jax.experimental import topologies

    target = request["target"]
    names, sizes = request["axes"]
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    if not target["topology_name"]:
        jax.config.update("jax_num_cpu_devices", target["num_devices"])
        grid = _grid(jax.devices("cpu"), tuple(sizes), target["num_slices"])
        return jax.sharding.Mesh(grid, tuple(names), axis_types=auto)
    options: dict[str, Any] = {"chips_per_host_bounds": list(target["chips_per_host_bounds"])}
    if target["num_slices"] > 1:
        options["num_slices"] = target["num_slices"]
    if target["chip_config_name"]:
        options["chip_config_name"] = target["chip_config_name"]
    topology = topologies.get_topology_desc(
        platform="tpu", topology_name=target["topology_name"], **options
    )
    grid = _grid(topology.devices, tuple(sizes), target["num_slices"])
    return jax.sharding.Mesh(grid, tuple(names), axis_types=auto)


def _grid(devices: Any, sizes: tuple[int, ...], num_slices: int) -> Any:
    """Arrange devices so that neighbours on a mesh axis are neighbours on ICI.

    Several slices lie along the first axis, whose part inside a slice comes after the slices.
    """
    import numpy as np

    if sum(size > 1 for size in sizes) < 2:
        return np.array(devices).reshape(sizes)
    if num_slices == 1:
        return _torus_grid(sizes, devices)
    per_slice = len(devices) // num_slices
    inner = (sizes[0] // num_slices, *sizes[1:])
    slices = [
        _torus_grid(inner, devices[i : i + per_slice]) for i in range(0, len(devices), per_slice)
    ]
    return np.concatenate(slices, axis=0)


def _torus_grid(sizes: tuple[int, ...], devices: Any) -> Any:
    """Arrange the devices of one slice; a mesh axis may be a part of one of the slice's axes."""
    from jax.experimental import mesh_utils

    return mesh_utils.create_device_mesh(
        sizes, devices=list(devices), allow_split_physical_axes=True
    )


def _leave_with_parent(told: list[Path]) -> None:
    """End this process when the one that asked is gone, so that none is left behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        _remove([*told, *_untold()])
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


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
    main()

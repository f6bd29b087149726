"""Compile a program to an executable with JAX, and describe its inputs and outputs.

Turns the exported ``program.bin`` into ``executable.bin`` and its devices and shardings, which JAX
reads from the executable. It also compiles for CPUs.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
from jax import export
from jax.sharding import NamedSharding, PartitionSpec

from neurenix._jax import with_shardy
from neurenix.compiler.cpu_features import cpu
from neurenix.compiler.device_grid import device_grid, devices_of
from neurenix.compiler.worker_estimates import memory_of


def compile_executable(folder: Path, request: dict[str, Any], result: dict[str, Any]) -> None:
    """Compile the request in ``folder``, write its two results there and fill in ``result``."""
    started = time.perf_counter()
    mesh = _mesh(request)
    result["seconds"]["topology"] = time.perf_counter() - started
    exported = export.deserialize(bytearray((folder / "program.bin").read_bytes()))
    mesh = _with_axis_types(mesh, exported)
    with ExitStack() as stack:
        stack.enter_context(with_shardy())
        stack.enter_context(jax.enable_x64(True))  # the program keeps its 64-bit types
        function, arguments = _callable_of(exported, mesh)
        if not any(argument.sharding for argument in arguments):  # no argument names the devices
            stack.enter_context(jax.set_mesh(mesh))
        jitted = jax.jit(function, donate_argnums=tuple(request["donated"]), keep_unused=True)
        lowered = jitted.lower(*arguments)
        started = time.perf_counter()
        try:
            compiled = lowered.compile(compiler_options=request["compiler_options"] or None)
        except Exception as error:  # a private type: JAX converts the shardings of results
            if "mesh_shape" not in str(error):
                raise
            raise ValueError(f"{_unnamed(mesh)}. JAX said: {error}") from error
    result["memory"] = memory_of(compiled.memory_analysis())
    text = compiled.as_text() or ""
    result["seconds"]["compile"] = time.perf_counter() - started
    result["device_kind"] = mesh.devices.flat[0].device_kind
    (folder / "optimized.hlo").write_text(text)
    result["placement"] = placement = _placement(exported, compiled, mesh)
    executable = compiled.runtime_executable()
    if executable is not None and "problem" not in placement:
        (folder / "executable.bin").write_bytes(executable.serialize())
    jax.clear_caches()


def _mesh(request: dict[str, Any]) -> Any:
    target = request["target"]
    names, sizes = request["axes"]
    if target["topology_name"]:
        devices = devices_of(target)
    else:
        jax.config.update("jax_num_cpu_devices", target["num_devices"])
        devices = jax.devices("cpu")
    grid = device_grid(devices, tuple(sizes), target["num_slices"])
    auto = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.sharding.Mesh(grid, tuple(names), axis_types=auto)


def _callable_of(exported: export.Exported, mesh: Any) -> tuple[Any, list[Any]]:
    """Return a function of the arguments that an exported program uses, and their specs."""
    arguments = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)
        for aval, sharding in zip(exported.in_avals, exported.in_shardings_jax(mesh), strict=True)
    ]
    used = exported.module_kept_var_idx

    def call(*given: Any) -> Any:
        """Take only the arguments that the program uses; others are not parameters."""
        whole: list[Any] = [jax.numpy.empty(a.shape, a.dtype) for a in exported.in_avals]
        for index, value in zip(used, given, strict=True):
            whole[index] = value
        return exported.call(*whole)

    function = exported.call if len(used) == len(arguments) else call
    return function, [arguments[index] for index in used]


def _with_axis_types(mesh: Any, exported: Any) -> Any:
    """Return the mesh with the axis types (auto, explicit) of the program."""
    for aval in (*exported.in_avals, *exported.out_avals):
        own = aval.sharding.mesh
        if own.axis_names == mesh.axis_names:
            return jax.sharding.Mesh(mesh.devices, mesh.axis_names, axis_types=own.axis_types)
    return mesh


def _placement(exported: Any, compiled: Any, mesh: Any) -> dict[str, Any]:
    """Describe the devices and shardings of the executable's inputs and outputs.

    The answer is a ``"problem"`` if the executable needs more than arrays to run.
    """
    if exported.ordered_effects or exported.unordered_effects:
        return {"problem": "it has effects, such as calls of the host, beside its result"}
    used = [exported.in_avals[index] for index in exported.module_kept_var_idx]
    inputs = list(zip(used, compiled.input_shardings[0], strict=True))
    outputs = list(zip(exported.out_avals, compiled.output_shardings, strict=True))
    named = [_named(sharding, aval.shape, mesh) for aval, sharding in (*inputs, *outputs)]
    if None in named:
        unnamed = (*inputs, *outputs)[named.index(None)][1]
        return {"problem": f"{_unnamed(mesh)}. It is {unnamed}"}
    divisions = [
        {
            "partition": [list(p) if isinstance(p, tuple) else p for p in sharding.spec],
            "memory_kind": sharding.memory_kind,
        }
        for sharding in named
    ]
    devices = list(mesh.devices.flat)
    return {
        "device_ids": [device.id for device in devices],
        "machine": cpu() if devices[0].platform == "cpu" else {},
        "coordinates": [list(getattr(device, "coords", ())) for device in devices],
        "arguments": divisions[: len(inputs)],
        "outputs": [
            {"shape": list(aval.shape), "dtype": str(aval.dtype), **division}
            for (aval, _), division in zip(outputs, divisions[len(inputs) :], strict=True)
        ],
    }


def _unnamed(mesh: Any) -> str:
    axes = ", ".join(f"{name}={size}" for name, size in mesh.shape.items())
    return (
        f"an array is divided in a way that no axis of its mesh ({axes}) names, as a function over "
        "a mesh of its own divides it; give that one as mesh="
    )


def _named(sharding: Any, shape: tuple[int, ...], mesh: Any) -> Any:
    """Return a sharding by names of mesh axes, or None if they cannot express it.

    JAX names no axes if no argument is sharded over a mesh.
    """
    if hasattr(sharding, "spec"):
        return sharding
    held = sharding.shard_shape(shape)
    parts = [size // own if own else 1 for size, own in zip(shape, held, strict=True)]
    for partition in _partitions(parts, dict(mesh.shape)):
        kind = sharding.memory_kind
        named = NamedSharding(mesh, PartitionSpec(*partition), memory_kind=kind)
        if named.is_equivalent_to(sharding, len(shape)):
            return named
    return None


def _partitions(parts: Sequence[int], axes: Mapping[str, int]) -> Iterator[tuple[Any, ...]]:
    """Yield the partitions over ``axes`` that split each dimension into these numbers of parts.

    Example:
        >>> list(_partitions((4, 1), {"a": 2, "b": 2, "c": 4}))
        [('c', None), (('a', 'b'), None), (('b', 'a'), None)]
    """
    if not parts:
        yield ()
        return
    for count in range(len(axes) + 1) if parts[0] > 1 else (0,):
        for names in itertools.permutations(axes, count):
            if math.prod(axes[name] for name in names) == parts[0]:
                left = {name: size for name, size in axes.items() if name not in names}
                for others in _partitions(parts[1:], left):
                    yield (names[0] if count == 1 else names or None, *others)

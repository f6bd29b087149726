"""Every name of jaxlib and libtpu that compiles for a TPU without loading JAX.

``import jax`` takes several times as long as all of this, and as long as compiling a small program.
The names are private and looked up when they are used; without one of them,
``IncompatibleVersionError`` is raised. Names that are used beside JAX are in ``_jax``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix._core.unstable_names import find, need, need_attribute

_TPU = "tpu"
_FEATURE = "The TPU compiler"

# Loaded before the first program comes.
for _name in ("jaxlib.xla_client:DeviceList", "jaxlib.mlir.ir:"):
    find(_name)


def _load_compiler() -> None:
    """Load libtpu, unless it is loaded: the file that JAX would take."""
    if not need("jaxlib.xla_client:pjrt_plugin_loaded", _FEATURE)(_TPU):
        path = os.environ.get("TPU_LIBRARY_PATH", "")
        path = path if os.path.isfile(path) else need("libtpu:get_library_path", _FEATURE)()
        need("jaxlib.xla_client:load_pjrt_plugin_dynamically", _FEATURE)(_TPU, path)
    if not need("jaxlib.xla_client:pjrt_plugin_initialized", _FEATURE)(_TPU):
        need("jaxlib.xla_client:initialize_pjrt_plugin", _FEATURE)(_TPU)


def slice_devices(topology_name: str, **options: Any) -> list[Any]:
    """Return the devices of a slice that is not attached, for which programs can be compiled.

    ``jax.experimental.topologies.get_topology_desc`` returns the same, and loads JAX.

    Args:
        topology_name: libtpu's, such as ``"v5e:2x4"``.
        options: libtpu's, such as ``chips_per_host_bounds`` and ``num_slices``.
    """
    _load_compiler()
    make = need("jaxlib.xla_client:make_tfrt_tpu_c_api_device_topology", _FEATURE)
    topology = make(topology_name, **options)
    devices = need_attribute(topology, "jaxlib:Topology._make_compile_only_devices", _FEATURE)
    return list(devices())


def torus_mesh(sizes: tuple[int, ...], devices: Sequence[Any]) -> Any:
    """Return an array of the devices of one slice, in which neighbours on an axis are linked.

    An axis may be a part of one axis of the slice. Loads JAX.
    """
    create = need("jax.experimental.mesh_utils:create_device_mesh", _FEATURE)
    return create(sizes, devices=list(devices), allow_split_physical_axes=True)


def compile_module(
    module: bytes, options: bytes, devices: Sequence[Any], *, dump_to: str = ""
) -> Any:
    """Compile a module for devices, in the order of its mesh.

    Args:
        module: bytecode of StableHLO, as JAX lowers a program.
        options: XLA's ``CompileOptions``, serialized, without the devices.
        devices: of ``slice_devices``.
        dump_to: folder for the text of the compiled module, if any.

    Returns:
        PJRT's executable: ``hlo_modules()``, ``get_compiled_memory_stats()``, ``serialize()``.
    """
    compile_options = need("jaxlib.xla_client:CompileOptions", _FEATURE).ParseFromString(options)
    assign = need("jaxlib.xla_client:DeviceAssignment", _FEATURE).create
    compile_options.device_assignment = assign(np.array([[device.id for device in devices]]))
    if dump_to:
        debugging = compile_options.executable_build_options.debug_options
        debugging.xla_dump_to, debugging.xla_dump_hlo_as_text = dump_to, True
    parsed = need("jaxlib.mlir.ir:", _FEATURE).Module.parse(module, _context())
    ordered = need("jaxlib.xla_client:DeviceList", _FEATURE)(tuple(devices))
    return devices[0].client.compile(
        parsed, executable_devices=ordered, compile_options=compile_options
    )


def _context() -> Any:
    """Return a context that can read what JAX writes: the dialects that it registers."""
    ir = need("jaxlib.mlir.ir:", _FEATURE)
    context, registry = ir.Context(), ir.DialectRegistry()
    need("jaxlib.mlir._mlir_libs._jax_mlir_ext:register_dialects", _FEATURE)(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for name in (
        "jaxlib.mlir._mlir_libs._sdy:register_dialect",
        "jaxlib.mlir._mlir_libs._mlirHlo:register_mhlo_dialect",
        "jaxlib.mlir._mlir_libs._chlo:register_dialect",
        "jaxlib.mlir._mlir_libs._stablehlo:register_dialect",
    ):
        need(name, _FEATURE)(context)
    return context

"""The TPU compiler by way of jaxlib alone, in a process that has no use for the rest of JAX.

Owns the names of jaxlib that JAX itself uses to make devices of a slice that is not here and to
compile a module for them; none of them is public. ``import jax`` takes several times as long as
all of this, and as long as compiling a small program. What is of use beside JAX is ``_jax``'s.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxlib import xla_client
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _chlo, _jax_mlir_ext, _mlirHlo, _sdy, _stablehlo

_TPU = "tpu"


def _load_compiler() -> None:
    """Load libtpu, unless it is loaded: the file that JAX would take."""
    import libtpu

    if not xla_client.pjrt_plugin_loaded(_TPU):
        path = os.environ.get("TPU_LIBRARY_PATH", "")
        path = path if os.path.isfile(path) else libtpu.get_library_path()
        xla_client.load_pjrt_plugin_dynamically(_TPU, path)
    if not xla_client.pjrt_plugin_initialized(_TPU):
        xla_client.initialize_pjrt_plugin(_TPU)


def slice_devices(topology_name: str, **options: Any) -> list[Any]:
    """Return the devices of a slice that is not here, for which programs can be compiled.

    ``jax.experimental.topologies.get_topology_desc`` returns the same, and comes with JAX.

    Args:
        topology_name: libtpu's, such as ``"v5e:2x4"``.
        options: libtpu's, such as ``chips_per_host_bounds`` and ``num_slices``.
    """
    _load_compiler()
    topology = xla_client.make_tfrt_tpu_c_api_device_topology(topology_name, **options)
    return list(topology._make_compile_only_devices())


def compile_module(
    module: bytes, options: bytes, devices: Sequence[Any], *, dump_to: str = ""
) -> Any:
    """Compile a module for devices, in the order of its mesh.

    Args:
        module: bytecode of StableHLO, as JAX lowers a program.
        options: XLA's ``CompileOptions``, serialized, for which the devices are still to be named.
        devices: of ``slice_devices``.
        dump_to: folder into which the compiler writes what it makes of the module as text, if any.

    Returns:
        PJRT's executable: ``hlo_modules()``, ``get_compiled_memory_stats()``, ``serialize()``.
    """
    told = xla_client.CompileOptions.ParseFromString(options)
    told.device_assignment = xla_client.DeviceAssignment.create(
        np.array([[device.id for device in devices]])
    )
    if dump_to:
        debugging = told.executable_build_options.debug_options
        debugging.xla_dump_to, debugging.xla_dump_hlo_as_text = dump_to, True
    parsed = ir.Module.parse(module, _context())
    executable_devices = xla_client.DeviceList(tuple(devices))
    return devices[0].client.compile(
        parsed, executable_devices=executable_devices, compile_options=told
    )


def _context() -> Any:
    """Return a context that can read what JAX writes: the dialects that it registers."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    _sdy.register_dialect(context)
    _mlirHlo.register_mhlo_dialect(context)
    _chlo.register_dialect(context)
    _stablehlo.register_dialect(context)
    return context

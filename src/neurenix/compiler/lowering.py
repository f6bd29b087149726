"""Lower a program to the compiler's input: a module for its devices, and XLA options.

This last step before compiling needs JAX but no device, so the process that compiles needs libtpu
but no JAX. ``program`` traces.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._core.errors import ArgumentError
from neurenix._jax import (
    compile_options,
    kept_arguments,
    lowered,
    num_partitions,
    set_num_partitions,
    with_shardy,
)

_MOST_PARAMETERS = 2000
"""Number of parameters of a TPU program above which JAX passes them as one tuple."""


@dataclass(frozen=True)
class Lowered:
    """StableHLO bytecode, and its parameters and results as the compiler sees them.

    Attributes:
        module: the bytecode, including the user's source lines.
        num_devices: number of devices; that of a mesh inside the function if no argument is
            sharded.
        undecided: for each parameter, whether the compiler chooses its sharding.
        num_results: number of returned arrays.
    """

    module: bytes
    num_devices: int
    undecided: tuple[bool, ...]
    num_results: int

    def options(self, named: Mapping[str, Any]) -> bytes:
        """Return serialized ``CompileOptions``.

        Args:
            named: XLA options, as for ``jax.stages.Lowered.compile``.

        Raises:
            ArgumentError: JAX rejects the value of an option.
        """
        told = _compile_options(self.num_devices, named)
        told.parameter_is_tupled_arguments = len(self.undecided) > _MOST_PARAMETERS
        # Arguments keep their partitions. The compiler shards arguments without one, and results.
        building = told.executable_build_options
        building.allow_spmd_sharding_propagation_to_parameters = list(self.undecided)
        building.allow_spmd_sharding_propagation_to_output = [True] * self.num_results
        return told.SerializeAsString()


def lower(
    traced: Any, args: Sequence[jax.ShapeDtypeStruct], num_devices: int, platform: str = "tpu"
) -> tuple[Lowered, tuple[int, ...], str]:
    """Lower a traced function for absent devices.

    Args:
        traced: a ``jax.stages.Traced``.
        args: its arguments; the compiler chooses the sharding of those without one.
        num_devices: number of devices.
        platform: JAX's name of the platform.

    Returns:
        The compiler's input, the indices of the arguments that are parameters, and the module's
        text with locations.
    """
    stage = lowered(traced, platform)
    module: Any = stage.compiler_ir("stablehlo").operation
    kept = kept_arguments(stage)
    undecided = tuple(args[index].sharding is None for index in kept)
    if num_partitions(module) == 1:  # no argument is sharded, or there is one device
        given = set(traced.donate_argnums)
        set_num_partitions(
            module, num_devices, {n for n, index in enumerate(kept) if index in given}
        )
    bytecode = io.BytesIO()
    module.write_bytecode(bytecode)
    results = len(jax.tree.leaves(stage.out_info))
    text = module.get_asm(enable_debug_info=True)
    own = num_partitions(module)
    return Lowered(bytecode.getvalue(), own, undecided, results), kept, text


def _compile_options(num_devices: int, options: Mapping[str, Any]) -> Any:
    for name, value in options.items():
        try:
            compile_options(num_devices, {name: value})
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"compiler_options[{name!r}] has a value that JAX rejects: {value!r}."
            ) from error
    with with_shardy():
        return compile_options(num_devices, options)

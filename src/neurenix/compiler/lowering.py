"""A program as the compiler takes it: a module for its devices, and XLA's options.

Owns the last step before compiling, which needs JAX and no device, so that the process that
compiles needs libtpu and no JAX. Where the program came from is ``program``'s.
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
    divided_over,
    kept_arguments,
    lowered,
    num_partitions,
    with_shardy,
)

_MOST_PARAMETERS = 2000
"""Of a TPU's program, after which JAX hands them over as one tuple."""


@dataclass(frozen=True)
class Lowered:
    """Bytecode of StableHLO, and what the compiler is told of its parameters and results.

    Attributes:
        module: the bytecode, with the user's source lines inside.
        num_devices: that the module is divided over, those of a mesh that the function names where
            no argument lies on one.
        undecided: for each parameter, whether the compiler is to divide it.
        num_results: arrays that it returns.
    """

    module: bytes
    num_devices: int
    undecided: tuple[bool, ...]
    num_results: int

    def options(self, named: Mapping[str, Any]) -> bytes:
        """Return ``CompileOptions`` serialized.

        Args:
            named: XLA's own, as ``jax.stages.Lowered.compile`` takes them.

        Raises:
            ArgumentError: JAX cannot read the value of an option.
        """
        told = _compile_options(self.num_devices, named)
        told.parameter_is_tupled_arguments = len(self.undecided) > _MOST_PARAMETERS
        # What is given lies where its partition says, if it has one; of what has none, and of what
        # is returned, the compiler decides.
        building = told.executable_build_options
        building.allow_spmd_sharding_propagation_to_parameters = list(self.undecided)
        building.allow_spmd_sharding_propagation_to_output = [True] * self.num_results
        return told.SerializeAsString()


def lower(
    traced: Any, args: Sequence[jax.ShapeDtypeStruct], num_devices: int, platform: str = "tpu"
) -> tuple[Lowered, tuple[int, ...], str]:
    """Lower what ``jax.jit`` has traced for devices that are not here.

    Args:
        traced: a ``jax.stages.Traced``.
        args: what it was traced with; one without a sharding is divided by the compiler.
        num_devices: that the program is divided over.
        platform: JAX's name of what they are.

    Returns:
        What the compiler takes, which of the arguments are its parameters, and its module as text
        with locations.
    """
    stage = lowered(traced, platform)
    module: Any = stage.compiler_ir("stablehlo").operation
    kept = kept_arguments(stage)
    undecided = tuple(args[index].sharding is None for index in kept)
    if num_partitions(module) == 1:  # no argument tells JAX of the devices, or there is one
        given = set(traced.donate_argnums)
        divided_over(module, num_devices, {n for n, index in enumerate(kept) if index in given})
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
                f"compiler_options[{name!r}] has a value that JAX does not take: {value!r}."
            ) from error
    with with_shardy():
        return compile_options(num_devices, options)

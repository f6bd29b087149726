"""A program as the compiler takes it: a module for its devices, and XLA's options.

Owns the last step before compiling, which needs JAX and no device, so that the process that
compiles needs libtpu and no JAX. Where the program came from is ``program``'s.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import export
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from neurenix._core.errors import ArgumentError
from neurenix._jax import compile_options, with_shardy, without_last_argument
from neurenix.compiler.meshes import outside_of_meshes
from neurenix.compiler.placement import abstract_mesh

_MOST_PARAMETERS = 2000
"""Of a TPU's program, after which JAX hands them over as one tuple."""


@dataclass(frozen=True)
class Lowered:
    """What a compiler is told: bytecode of StableHLO, and ``CompileOptions`` serialized."""

    module: bytes
    options: bytes


def lower(
    serialized: bytes,
    axes: Mapping[str, int],
    *,
    donated: Sequence[int] = (),
    options: Mapping[str, Any] | None = None,
) -> Lowered:
    """Lower an exported program for the devices of a TPU slice.

    Args:
        serialized: ``jax.export`` bytes.
        axes: mesh axes and their sizes.
        donated: which of the arguments that the program uses are given away.
        options: XLA's, by name, as ``jax.stages.Lowered.compile`` takes them.

    Raises:
        ArgumentError: JAX cannot read the value of an option.
    """
    exported = export.deserialize(bytearray(serialized))
    mesh = abstract_mesh(axes)
    for aval in (*exported.in_avals, *exported.out_avals):
        own = aval.sharding.mesh
        if own.axis_names == mesh.axis_names:
            mesh = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=own.axis_types)
    # A program keeps its 64-bit types, whoever traced it.
    with jax.enable_x64(True), with_shardy(), outside_of_meshes():
        function, arguments = callable_of(exported, mesh)
        undecided = [argument.sharding is None for argument in arguments]
        taken = list(arguments)
        if all(undecided):  # JAX has to be told of the devices by an argument, and XLA has not
            function, last = _naming_devices(function, mesh)
            taken.append(last)
        jitted = jax.jit(function, donate_argnums=tuple(donated), keep_unused=True)
        lowered = jitted.trace(*taken).lower(lowering_platforms=("tpu",))
    stablehlo: Any = lowered.compiler_ir("stablehlo")
    if len(taken) > len(arguments):
        without_last_argument(stablehlo.operation)
    module = io.BytesIO()
    stablehlo.operation.write_bytecode(module)
    told = _compile_options(mesh.size, options or {})
    told.parameter_is_tupled_arguments = len(arguments) > _MOST_PARAMETERS
    # What is given lies where its partition says, if it has one; of what has none, and of what is
    # returned, the compiler decides.
    building = told.executable_build_options
    building.allow_spmd_sharding_propagation_to_parameters = undecided
    results = len(jax.tree.leaves(lowered.out_info))
    building.allow_spmd_sharding_propagation_to_output = [True] * results
    return Lowered(module.getvalue(), told.SerializeAsString())


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


def callable_of(exported: export.Exported, mesh: Mesh | AbstractMesh) -> tuple[Any, list[Any]]:
    """Return a function of the arguments that an exported program uses, and their specs."""
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
    return function, [arguments[index] for index in used]


def _naming_devices(function: Any, mesh: AbstractMesh) -> tuple[Any, jax.ShapeDtypeStruct]:
    """Return a function of one argument more, and that, which says what it is compiled for."""

    @functools.wraps(function)
    def without_last(*given: Any) -> Any:
        return function(*given[:-1])

    everywhere = NamedSharding(mesh, PartitionSpec())
    return without_last, jax.ShapeDtypeStruct((), "int32", sharding=everywhere)

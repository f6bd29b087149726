"""From a target to the program that is compiled for one slice. Compiles nothing.

Owns which program that is and on which mesh: the training step of a model or trainer, which
``neurenix.train`` builds, or any jittable function.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from neurenix import chips
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotCompiledError,
    ShapeError,
    unknown_name,
)
from neurenix._jit.flat_modules import expect_built, is_modules
from neurenix.compiler.abstract_placement import abstract_mesh, spec, unplaced
from neurenix.compiler.compile import CompileOptions
from neurenix.compiler.meshes import axes_of_arguments, check_devices
from neurenix.compiler.program import Program, TraceOptions, trace
from neurenix.compiler.target import CpuHost, kind_of, platform_of
from neurenix.compiler.training import of_several_steps
from neurenix.distribute.mesh import MESH_AXES, check_axes, replicas_of
from neurenix.preflight.array_arguments import given
from neurenix.preflight.module_functions import bind
from neurenix.preflight.script.script_step import ScriptStep
from neurenix.transforms import CompiledFunction

Mesh = Mapping[str, int] | Callable[[Any], Mapping[str, int]]
"""Names and sizes of mesh axes, or a function from a slice to them."""


@dataclass(frozen=True)
class PreflightOptions:
    """Options of a preflight.

    Attributes:
        donate_argnums: donated arguments of a plain function; one number or several, as for
            ``jax.jit``.
        compiler: time limit, cache, XLA options.
        suggest: compile changes that may help if the program does not fit.
        examples: number of examples in one call of a plain function, if its arguments do not show
            it.
        whole_calls: whether ``steps_per_execution`` of a model divides the steps of an epoch. If
            not, ``fit`` compiles a loop that takes the number of steps as an argument.
    """

    donate_argnums: int | Sequence[int] = ()
    compiler: CompileOptions = field(default_factory=CompileOptions)
    suggest: bool = True
    examples: int | None = None
    whole_calls: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.compiler, CompileOptions):
            raise ArgumentTypeError(
                f"compiler is an nx.preflight.CompileOptions(…); got {self.compiler!r}."
            )
        if not isinstance(self.whole_calls, bool):
            raise ArgumentTypeError(f"whole_calls is True or False; got {self.whole_calls!r}.")
        if self.examples is None:
            return
        if not isinstance(self.examples, numbers.Integral) or isinstance(self.examples, bool):
            raise ArgumentTypeError(f"examples is a whole number; got {self.examples!r}.")
        if self.examples < 1:
            raise ArgumentError(f"A call works on 1 example or more; got examples={self.examples}.")


def describe(
    target: Any,
    args: Sequence[Any],
    where: chips.Slice | CpuHost,
    *,
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
    exported: bool = False,
) -> Program:
    """Return the program that ``preflight`` would compile for one slice.

    An ``exported`` program can become an executable. A ``ScriptStep`` is for estimates only.

    Raises:
        ShapeError, NotCompiledError, ArgumentError: as ``preflight``.
    """
    shape = Shape(input_shape, dtype)
    options = given("options", options, PreflightOptions)
    return describer(target, tuple(args), shape, mesh, options, exported)(where)


@dataclass(frozen=True)
class Shape:
    """The shape of a batch of inputs, if no specs are given; float32 by default."""

    sizes: Sequence[int] | None
    dtype: Any = None

    def specs(self) -> tuple[Any, ...]:
        """Return the spec in a tuple, or an empty tuple."""
        if self.sizes is None:
            return ()
        return (spec(self.sizes, "float32" if self.dtype is None else self.dtype),)


def describer(
    target: Any,
    args: tuple[Any, ...],
    shape: Shape,
    mesh: Mesh | None,
    options: PreflightOptions,
    exported: bool = False,
) -> Callable[[chips.Slice | CpuHost], Program]:
    """Return a function from a slice to its program; the target and its batch are checked now."""
    if callable(mesh):
        return lambda where: describer(target, args, shape, mesh(where), options, exported)(where)
    trainer = trainer_of(target)
    if trainer is not None:
        if options.examples is not None:
            raise ArgumentError(
                "The examples of a training step are its batch; leave examples= out."
            )
        batch = _batch(args, shape)
        whole = options.whole_calls
        return lambda where: _training_step(trainer, batch, where, mesh, exported, whole)
    if isinstance(target, ScriptStep):
        with jax.sharding.use_abstract_mesh(target.mesh):
            here = describer(target.function, args, shape, mesh, options)
        return lambda where: target.program(where, here, mesh, options, laid=_laid(args, target))
    if not callable(target):
        raise ArgumentTypeError(
            f"preflight takes a compiled model, a Trainer, a function or a module; got "
            f"{type(target).__name__}."
        )
    args = (*shape.specs(), *args)
    bound = bind(target, args, options.donate_argnums)
    places = isinstance(target, CompiledFunction)  # nx.jit shards its arguments itself
    if not places:
        bound = replace(bound, args=jax.tree.map(unplaced, bound.args))
    context = jax.sharding.get_abstract_mesh()
    own = axes_of_arguments(bound.args) or dict(context.shape_tuple)
    types = zip(context.axis_names, context.axis_types, strict=True)
    explicit = tuple(name for name, kind in types if kind == AxisType.Explicit)

    def described(where: chips.Slice | CpuHost) -> Program:
        program = trace(
            bound.function,
            bound.args,
            axes=axes_on(where, mesh or _if_as_many(own, where)),
            options=replace(
                bound.options,
                platform=platform_of(where),
                device_kind=kind_of(where),
                explicit=explicit,
                any_mesh=mesh is None,
                exported=exported,
            ),
        )
        if not places:
            check_devices(bound.args, unused=program.unused)
        return program

    return described


def _if_as_many(
    axes: Mapping[str, int] | None, where: chips.Slice | CpuHost
) -> Mapping[str, int] | None:
    """Return the mesh axes if the mesh has as many devices as the slice, else None."""
    return axes if axes and math.prod(axes.values()) == where.num_devices else None


def _laid(args: Sequence[Any], step: ScriptStep) -> bool:
    """Return whether a script shards arrays itself; ``nx.jit`` shards them again."""
    leaves = jax.tree.leaves(bind(step.function, args).args)  # in_shardings included
    shardings = (getattr(leaf, "sharding", None) for leaf in leaves)
    own = any(isinstance(s, NamedSharding) and s.mesh.size > 1 for s in shardings)
    own = own or (bool(step.mesh.axis_names) and step.mesh.size > 1)
    return own and not isinstance(step.function, CompiledFunction)


def trainer_of(target: Any) -> Any:
    """Return the trainer of the target (itself or that of a model), or None for a function.

    Raises:
        NotCompiledError: the model is not compiled.
        ArgumentTypeError: the target is a class of modules or trainers.
    """
    if isinstance(target, type) and (is_modules(target) or hasattr(target, "step_program")):
        expect_built(target)
    if hasattr(target, "step_program"):
        return target
    if not hasattr(target, "compile") or not hasattr(target, "fit"):
        return None
    trainer = getattr(target, "trainer", None)
    if trainer is None:
        raise NotCompiledError(
            "The model is not compiled, so there is no training step to look at. Call "
            'model.compile(optimizer="adam", loss="…") first, or give preflight a function of the '
            "model's own."
        )
    return trainer


def _batch(args: tuple[Any, ...], shape: Shape) -> tuple[Any, ...]:
    if shape.sizes is not None:
        if args:
            raise ArgumentTypeError("Give either input_shape or the specs of a batch, not both.")
        return shape.specs()
    if not 1 <= len(args) <= 3:
        raise ArgumentTypeError(
            "The shape of a batch is needed: input_shape=(256, 784), the batch first, or "
            "nx.spec(…) of the inputs and, if wanted, of the targets and of the weights, (N,), "
            "that fit gives to examples where the last batch is filled up."
        )
    x, *_, weight = batch = (*map(_specs, args), *[None] * (3 - len(args)))
    rows = {leaf.shape[:1] for leaf in jax.tree.leaves(x)}
    if weight is not None and rows != {getattr(weight, "shape", None)}:
        raise ShapeError(
            f"The weights have shape {getattr(weight, 'shape', weight)}, and the inputs have "
            f"{sorted(rows)} examples: there is one weight for each."
        )
    return batch


def _specs(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _training_step(
    trainer: Any,
    batch: tuple[Any, ...],
    where: chips.Slice | CpuHost,
    given: Mapping[str, int] | None,
    exported: bool,
    whole_calls: bool,
) -> Program:
    axes = axes_on(where, given or trainer.mesh_axes(where.num_devices))
    known = _known_axes(trainer)
    for name in axes:
        if name not in known:
            raise unknown_name("mesh axis", name, known)
    mesh = abstract_mesh(axes, kind_of(where))
    for leaf in jax.tree.leaves(batch[0]):
        _check_batch(leaf.shape, replicas_of(mesh), where)
    step = trainer.step_program(mesh, *batch, whole_calls=whole_calls)
    program = trace(
        step.function,
        (step.state, *step.arguments),
        axes=axes,
        options=TraceOptions(
            donate_argnums=tuple(step.donate_argnums),
            leaf_roles=tuple(step.leaf_roles),
            name="training step",
            platform=platform_of(where),
            device_kind=kind_of(where),
            exported=exported,
        ),
    )
    return of_several_steps(program, step.call.steps, counted=step.call.exact)


def _check_batch(shape: tuple[int, ...], replicas: int, where: chips.Slice | CpuHost) -> None:
    if not shape:
        raise ShapeError("The inputs of a model have a batch axis first; got a shape of ().")
    if shape[0] < 1:
        raise ShapeError(f"A batch has 1 example or more; got the shape {shape}.")
    if shape[0] % replicas:
        lower = shape[0] - shape[0] % replicas
        choices = f"{lower} or {lower + replicas}" if lower else str(replicas)
        raise ShapeError(
            f"A batch of {shape[0]} cannot be divided over the {replicas} replicas of "
            f"{where.name}; take {choices}. (fit pads such a batch, and the padding is worked on.)"
        )


def _known_axes(trainer: Any) -> list[str]:
    """Return the axes that strategies know and those in the trainer's rules."""
    known = dict.fromkeys(MESH_AXES)
    rules = trainer.rules()
    for _, entries in rules.rules if rules is not None else ():
        for entry in entries:
            known |= dict.fromkeys((entry,) if isinstance(entry, str) else entry or ())
    return list(known)


def axes_on(where: chips.Slice | CpuHost, mesh: Mapping[str, int] | None) -> dict[str, int]:
    """Return the axes of a mesh on a slice; by default one axis ``"data"``.

    Raises:
        ShapeError: the mesh and the slice have different numbers of devices.
    """
    axes = check_axes(mesh) if mesh else {"data": where.num_devices}
    product = 1
    for size in axes.values():
        product *= size
    if product != where.num_devices:
        raise ShapeError(
            f"The mesh {', '.join(f'{name}={size}' for name, size in axes.items())} has "
            f"{product} devices, and {where.name} has {where.num_devices}."
        )
    return axes

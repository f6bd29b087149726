"""The entrance: a model, a trainer or any jittable function, and the slices to ask about.

Owns the choice of what is compiled and on which mesh. It does not own tracing or compiling
(``neurenix.compiler``), nor the training step (``neurenix.train``, which describes it itself).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import jax

from neurenix import chips
from neurenix._core.errors import ArgumentTypeError, NotCompiledError, ShapeError
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import CompileOptions, compile_all
from neurenix.compiler.program import Program, TraceOptions, abstract_mesh, spec, trace
from neurenix.compiler.target import Target
from neurenix.distribute.mesh import replicas_of
from neurenix.preflight.bound import bind
from neurenix.preflight.report import Report

On = str | chips.Slice


@dataclass(frozen=True)
class PreflightOptions:
    """What a preflight may be told beside its target.

    Attributes:
        donate_argnums: of a plain function, the arguments whose memory the results take over.
        compiler: time limit, cache, XLA options.
    """

    donate_argnums: tuple[int, ...] = ()
    compiler: CompileOptions = field(default_factory=CompileOptions)


@overload
def preflight(
    target: Any,
    *args: Any,
    on: On,
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> Report: ...


@overload
def preflight(
    target: Any,
    *args: Any,
    on: Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> list[Report]: ...


def preflight(
    target: Any,
    *args: Any,
    on: On | Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> Report | list[Report]:
    """Compile a program for TPU slices and report how it would run. No TPU is needed.

    Args:
        target: a compiled model or a ``Trainer``, whose training step is taken; or any jittable
            function.
        *args: of a function: arrays or ``nx.spec(shape, dtype)``. Of a model: the spec of one
            global batch of inputs, and optionally of targets, in place of ``input_shape``.
        on: a slice such as ``"v5e-8"``, or a list of them, compiled side by side.
        input_shape: of one global batch of a model's inputs, the batch first.
        dtype: of the inputs.
        mesh: names and sizes of the mesh's axes, such as ``{"fsdp": 8}``. A model divides its batch
            over ``"data"`` and ``"fsdp"``, its parameters and optimizer state over ``"fsdp"`` and
            ``"tensor"``, as ``nx.distribute.Strategy`` says. By default that of the strategy which
            the model was compiled for, and otherwise one axis ``"data"`` over all devices.
        options: donation, compiler.

    Returns:
        A ``Report``, or a list of them when ``on`` is a list.

    Raises:
        UnknownNameError: no such slice.
        ShapeError: the batch cannot be divided over the slice's devices.
        NotCompiledError: the model has no loss and optimizer yet.
        ArgumentError: the function cannot be traced; the message names the line.
        DeviceInitializationError: the TPU compiler does not run on this machine.
        CompilationError: the compiler took longer than the time limit.

    Example:
        A program that the compiler refuses, for want of memory or otherwise, raises nothing: its
        report says ``fits == False`` and why::

            report = nx.preflight(model, on="v5e-8", input_shape=(8192, 1000))
            print(report)
    """
    options = options or PreflightOptions()
    single = isinstance(on, (str, chips.Slice))
    slices = [chips.resolve(name) for name in ([on] if single else on)]
    if not slices:
        raise ArgumentTypeError('on= names no slice; write on="v5e-8" or a list of names.')
    describe = _describer(target, args, _Shape(input_shape, dtype), mesh, options)
    programs = [describe(where) for where in slices]
    pairs = [(program, Target.of(where)) for program, where in zip(programs, slices, strict=True)]
    answers = compile_all(pairs, options.compiler)
    reports = [
        Report(analyse(program, where, answer))
        for program, where, answer in zip(programs, slices, answers, strict=True)
    ]
    return reports[0] if single else reports


def describe(
    target: Any,
    args: Sequence[Any],
    where: chips.Slice,
    *,
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> Program:
    """Return the program that ``preflight`` would compile for one slice.

    Raises:
        ShapeError, NotCompiledError, ArgumentError: as ``preflight``.
    """
    shape = _Shape(input_shape, dtype)
    return _describer(target, tuple(args), shape, mesh, options or PreflightOptions())(where)


@dataclass(frozen=True)
class _Shape:
    """Of a batch of inputs, for whoever gives no specs."""

    sizes: Sequence[int] | None
    dtype: Any


def _describer(
    target: Any,
    args: tuple[Any, ...],
    shape: _Shape,
    mesh: Mapping[str, int] | None,
    options: PreflightOptions,
) -> Callable[[chips.Slice], Program]:
    trainer = _trainer_of(target)
    if trainer is not None:
        batch = _batch(args, shape)
        return lambda where: _training_step(trainer, batch, where, mesh)
    if not callable(target):
        raise ArgumentTypeError(
            f"preflight takes a compiled model, a Trainer or a function; got "
            f"{type(target).__name__}."
        )
    if shape.sizes is not None:
        args = (spec(shape.sizes, shape.dtype), *args)

    bound = bind(target, args, options.donate_argnums)
    return lambda where: trace(
        bound.function, bound.args, axes=_axes(where, mesh), options=bound.options
    )


def _trainer_of(target: Any) -> Any:
    """Return what describes a training step: the target itself or the trainer of a model."""
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


def _batch(args: tuple[Any, ...], shape: _Shape) -> tuple[Any, Any]:
    if shape.sizes is not None:
        if args:
            raise ArgumentTypeError("Give either input_shape or the specs of a batch, not both.")
        return spec(shape.sizes, shape.dtype), None
    if not 1 <= len(args) <= 2:
        raise ArgumentTypeError(
            "The shape of a batch is needed: input_shape=(256, 784), the batch first, or "
            "nx.spec(…) of the inputs and, if wanted, of the targets."
        )
    x, y = (*args, None)[:2]
    return _specs(x), _specs(y)


def _specs(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), tree)


def _training_step(
    trainer: Any, batch: tuple[Any, Any], where: chips.Slice, given: Mapping[str, int] | None
) -> Program:
    axes = _axes(where, given or trainer.mesh_axes(where.num_devices))
    mesh = abstract_mesh(axes)
    x, y = batch
    for leaf in jax.tree.leaves(x):
        _check_batch(leaf.shape, replicas_of(mesh), where)
    step = trainer.step_program(mesh, x, y)
    return trace(
        step.function,
        (step.state, step.batch),
        axes=axes,
        options=TraceOptions(
            donate_argnums=tuple(step.donate_argnums),
            leaf_roles=tuple(step.leaf_roles),
            name="training step",
        ),
    )


def _check_batch(shape: tuple[int, ...], replicas: int, where: chips.Slice) -> None:
    if not shape:
        raise ShapeError("The inputs of a model have a batch axis first; got a shape of ().")
    if shape[0] % replicas:
        lower = shape[0] - shape[0] % replicas
        choices = f"{lower} or {lower + replicas}" if lower else str(replicas)
        raise ShapeError(
            f"A batch of {shape[0]} cannot be divided over the {replicas} replicas of "
            f"{where.name}; take {choices}. (fit pads such a batch, and the padding is worked on.)"
        )


def _axes(where: chips.Slice, mesh: Mapping[str, int] | None) -> dict[str, int]:
    axes = dict(mesh) if mesh else {"data": where.num_devices}
    product = 1
    for size in axes.values():
        product *= size
    if product != where.num_devices:
        raise ShapeError(
            f"The mesh {axes} has {product} devices, and {where.name} has {where.num_devices}."
        )
    return axes

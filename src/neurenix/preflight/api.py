"""The function ``preflight``: describe, compile for each slice, analyse, and suggest changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

from neurenix import chips
from neurenix._core.errors import ArgumentTypeError, NeurenixError
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import Compiled, compile_all, compiler_ready
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.preflight.array_arguments import for_the_function, given, refuse_keywords
from neurenix.preflight.describe_program import Mesh, PreflightOptions, Shape, describer
from neurenix.preflight.report.report import Report
from neurenix.preflight.search.workload import Workload
from neurenix.preflight.suggested_changes import suggestions
from neurenix.preflight.torch_target import torch_target

On = str | chips.Slice


def slices_on(on: On | Sequence[On]) -> list[chips.Slice]:
    """Return the slices that ``on=`` names.

    Raises:
        UnknownNameError: unknown slice.
        ArgumentTypeError: ``on`` is neither a name nor a list of names.

    Example:
        >>> [where.name for where in slices_on(["v5e-8", "v6e-8"])]
        ['v5e-8', 'v6e-8']
    """
    if isinstance(on, str) and "," in on:
        names = ", ".join(f'"{name.strip()}"' for name in on.split(",") if name.strip())
        raise ArgumentTypeError(f"on={on!r} is one text; several slices are a list: on=[{names}].")
    if isinstance(on, (str, chips.Slice)):
        return [chips.resolve(on)]
    if not isinstance(on, Iterable):
        raise ArgumentTypeError(
            f'on= is a slice such as "v5e-8" or a list of slices; got {type(on).__name__}.'
        )
    return [chips.resolve(name) for name in on]


def check_input_shape(target: Any, input_shape: Sequence[int] | None, dtype: Any) -> None:
    """Check that ``input_shape=`` is None or sizes, and that ``dtype=`` is given only with it.

    Raises:
        ArgumentTypeError: it is of another type, or a dtype is given without it.
    """
    if input_shape is None:
        if dtype is not None:
            raise ArgumentTypeError(
                f"dtype={dtype!r} is that of input_shape=, which is not given; a spec has its own: "
                f"nx.spec((256, 784), {dtype!r}). {for_the_function(target, 'dtype')}".rstrip()
            )
    elif isinstance(input_shape, str) or not isinstance(input_shape, Iterable):
        raise ArgumentTypeError(
            "input_shape= is the sizes of one global batch, such as (256, 784); got "
            f"{input_shape!r}."
        )


@overload
def preflight(
    target: Any,
    *args: Any,
    on: On,
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
    example_inputs: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    options: PreflightOptions | None = None,
) -> Report: ...


@overload
def preflight(
    target: Any,
    *args: Any,
    on: Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
    example_inputs: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    options: PreflightOptions | None = None,
) -> list[Report]: ...


def preflight(
    target: Any,
    *args: Any,
    on: On | Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mesh | None = None,
    example_inputs: Any = None,
    loss: Any = None,
    optimizer: Any = None,
    options: PreflightOptions | None = None,
    **others: Any,
) -> Report | list[Report]:
    """Compile a program for TPU slices and report how it would run. No TPU is needed.

    Args:
        target: a compiled model or a ``Trainer``, for its training step; a ``torch.nn.Module``,
            with ``loss``; any jittable function; or an NNX module, for its call.
        *args: for a function: arrays or ``nx.spec(shape, dtype)``, and the static arguments of a
            ``jax.jit`` function. Bind keyword arguments, and numbers or functions that are part of
            the program, with ``functools.partial(function, name=…)``. If some arrays are placed,
            the compiler shards the unplaced ones, as with ``jax.jit``; a spec without a partition
            is replicated. For a model: the spec of one global batch of inputs and, optionally, of
            targets and weights (N,), instead of ``input_shape``. ``fit`` weights its batches if it
            pads the last one. With ``steps_per_execution=K`` the program contains K steps, and
            times are per step.
        on: a slice such as ``"v5e-8"``, or a list of slices, compiled in parallel.
        input_shape: of one global batch of a model's inputs, the batch first.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        mesh: names and sizes of the mesh axes, such as ``{"fsdp": 8}``, or a function from a slice
            to them. A model shards its batch
            over ``"data"`` and ``"fsdp"``, and its parameters and optimizer state over ``"fsdp"``
            and ``"tensor"``, as ``nx.distribute.Strategy`` does. The default for a model is the
            mesh of its strategy; for a function, the mesh of its arrays if it has as many devices
            as the slice; otherwise one axis ``"data"`` over all devices.
        example_inputs: of a PyTorch module: the tensors of one global batch, as its ``forward``
            takes them: one, a tuple, or a dict of named arguments. Their values do not matter, and
            a module and tensors on the ``meta`` device need no memory.
        loss: of a PyTorch module, as ``model.compile`` takes it.
        optimizer: of a PyTorch module, as ``model.compile`` takes it; AdamW by default.
        options: donation and compiler options.
        **others: rejected, with a message on how to pass keyword arguments of the function.

    Returns:
        A ``Report``, or a list of them if ``on`` is a list.

    Raises:
        UnknownNameError: unknown slice.
        ArgumentTypeError: an argument is neither an array nor static.
        ShapeError: the batch cannot be divided over the slice's devices.
        NotCompiledError: the model has no loss and optimizer yet.
        ConversionError: the PyTorch module cannot be converted, see ``nx.from_torch``.
        ArgumentError: the function cannot be traced (the message names the line), or it is a
            flax.linen module, whose parameters are an argument.
        DeviceInitializationError: the TPU compiler does not run on this machine.
        CompilationError: the compiler reached the time limit.

    Example:
        A program that the compiler refuses raises no error: its report has ``fits == False`` and
        the reason::

            report = nx.preflight(model, on="v5e-8", input_shape=(8192, 1000))
            print(report)
    """
    refuse_keywords("nx.preflight", target, others)
    options = given("options", options, PreflightOptions)
    single = isinstance(on, (str, chips.Slice))
    slices = slices_on(on)
    if not slices:
        raise ArgumentTypeError('on= names no slice; write on="v5e-8" or a list of names.')
    check_input_shape(target, input_shape, dtype)
    more = {"example_inputs": example_inputs, "loss": loss, "optimizer": optimizer}
    with compiler_ready(options.compiler) as workers:
        target, args, input_shape = torch_target(target, args, input_shape, dtype, **more)
        describe = describer(target, args, Shape(input_shape, dtype), mesh, options)
        programs = _described(describe, slices)
        pairs = [
            (program, Target.of(where)) for program, where in zip(programs, slices, strict=True)
        ]
        answers = compile_all(pairs, options.compiler, explain=True)
        if not options.suggest or all(isinstance(answer, Compiled) for answer in answers):
            workers.dismiss()
        reports = []
        for program, where, answer in zip(programs, slices, answers, strict=True):
            analysis = analyse(program, where, answer)
            tried = ()
            if options.suggest:
                workload = Workload.of(target, args, input_shape, dtype, options)
                tried = suggestions(workload, analysis)
            reports.append(Report(analysis, tried, examples=options.examples))
    return reports[0] if single else reports


def _described(
    describe: Callable[[chips.Slice], Program], slices: Sequence[chips.Slice]
) -> list[Program]:
    """Return the program for each slice; an error names its slice if it is not the first."""
    programs: list[Program] = []
    for where in slices:
        try:
            programs.append(describe(where))
        except NeurenixError as error:
            if programs:
                error.add_note(
                    f"That is for {where.name}; nothing was compiled for the others either."
                )
            raise
    return programs

"""The entrance: a model, a trainer or any jittable function, and the slices to ask about.

Owns ``preflight``: describe, compile for every slice, analyse, and suggest what would make it fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, overload

from neurenix import chips
from neurenix._core.errors import ArgumentTypeError, NeurenixError
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import Compiled, compile_all, compiler_ready
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.preflight.array_arguments import for_the_function, given, refuse_keywords
from neurenix.preflight.describe_program import PreflightOptions, Shape, describer
from neurenix.preflight.report.report import Report
from neurenix.preflight.search.workload import Workload
from neurenix.preflight.suggested_changes import suggestions

On = str | chips.Slice


def slices_on(on: On | Sequence[On]) -> list[chips.Slice]:
    """Return the slices that ``on=`` names.

    Raises:
        UnknownNameError: no such slice.
        ArgumentTypeError: it is neither a name nor a list of names.

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
    """Check that ``input_shape=`` has sizes, if it is there at all, and ``dtype=`` belongs to it.

    Raises:
        ArgumentTypeError: it is something else; or a dtype is given without it.
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
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> Report: ...


@overload
def preflight(
    target: Any,
    *args: Any,
    on: Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
) -> list[Report]: ...


def preflight(
    target: Any,
    *args: Any,
    on: On | Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
    **others: Any,
) -> Report | list[Report]:
    """Compile a program for TPU slices and report how it would run. No TPU is needed.

    Args:
        target: a compiled model or a ``Trainer``, whose training step is taken; any jittable
            function; or an NNX module of flax, whose call is taken.
        *args: of a function: arrays or ``nx.spec(shape, dtype)``, and the static arguments of one
            that ``jax.jit`` compiled; keyword arguments, and numbers or functions that are part of
            the program, go with ``functools.partial(function, name=…)``. An array that nobody has
            placed is divided by the compiler where others are placed, as for ``jax.jit``; a spec
            without a partition is whole on every device. Of a model: the spec of
            one global batch of inputs, and optionally of targets and weights (N,), in place of
            ``input_shape``. ``fit`` gives its batches weights where the last is filled up; with
            ``steps_per_execution=K`` the program is that of K steps, and times are of one.
        on: a slice such as ``"v5e-8"``, or a list of them, compiled side by side.
        input_shape: of one global batch of a model's inputs, the batch first.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        mesh: names and sizes of the mesh's axes, such as ``{"fsdp": 8}``. A model divides its batch
            over ``"data"`` and ``"fsdp"``, its parameters and optimizer state over ``"fsdp"`` and
            ``"tensor"``, as ``nx.distribute.Strategy`` says. By default that of the strategy which
            the model was compiled for; of a function, the one over which its arrays are laid if it
            has as many devices; and otherwise one axis ``"data"`` over all devices.
        options: donation, compiler.
        **others: none; a keyword argument of the function is refused with a word on how to give it.

    Returns:
        A ``Report``, or a list of them when ``on`` is a list.

    Raises:
        UnknownNameError: no such slice.
        ArgumentTypeError: an argument is neither an array nor static.
        ShapeError: the batch cannot be divided over the slice's devices.
        NotCompiledError: the model has no loss and optimizer yet.
        ArgumentError: the function cannot be traced; the message names the line. Or it is a module
            of flax.linen, whose parameters are an argument.
        DeviceInitializationError: the TPU compiler does not run on this machine.
        CompilationError: the compiler took longer than the time limit.

    Example:
        A program that the compiler refuses, for want of memory or otherwise, raises nothing: its
        report says ``fits == False`` and why::

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
    with compiler_ready(options.compiler) as workers:
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
    """Return the program for each slice; the error of a later one says which that is."""
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

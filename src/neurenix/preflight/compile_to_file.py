"""From a model, a function or a script to a file that runs on a TPU without compiling.

Owns the entrances. What is compiled is what ``preflight`` compiles (``description``); the file is
``neurenix.compiler.nxc_format``'s, and running it ``neurenix.compiler.load_compiled``'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from neurenix import chips
from neurenix._core.errors import CompilationError, OutOfMemoryError
from neurenix._core.files import check_writable
from neurenix._jit.flat_modules import Binding, is_module
from neurenix.compiler import nxc_format as artefact_module
from neurenix.compiler.call_signature import Calling, fixed_text, variables_of
from neurenix.compiler.compile import CompileOptions, Refusal, compile_all, options_of
from neurenix.compiler.nxc_format import Artefact
from neurenix.compiler.program import Program
from neurenix.compiler.target import CpuHost, Target, cpu_host
from neurenix.preflight.api import check_input_shape
from neurenix.preflight.array_arguments import Call, call_of, given, refuse_keywords
from neurenix.preflight.describe_program import PreflightOptions, Shape, describe, trainer_of


def compile_for(
    target: Any,
    *args: Any,
    on: str | chips.Slice,
    path: str | os.PathLike[str],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mapping[str, int] | None = None,
    options: PreflightOptions | None = None,
    **others: Any,
) -> Artefact:
    """Compile a program for a TPU slice that is not here and write the executable to a file.

    ``nx.load_compiled(path)`` on a machine of that slice runs it without compiling. The file holds
    the machine code, the program it was made from and a manifest: target, versions, the path,
    shape, dtype and division of every array, which of them are donated, and a hash of each part.
    It runs only with the versions of jax, jaxlib and libtpu that made it. The step of a model takes
    ``model.trainer.step_state()`` and a batch ``{"x": …, "y": …}``; with
    ``steps_per_execution=K`` K stacked ones, and how many of them count where
    ``options.whole_calls`` is False.

    Args:
        target: a function, a compiled model or a ``Trainer``, as for ``nx.preflight``.
        *args: as for ``nx.preflight``.
        on: one slice, such as ``"v5e-8"``; or ``"cpu"``, or ``"cpu-8"`` for eight virtual devices,
            for a CPU with the instruction sets of this one.
        path: of the file, usually ``….nxc``; what is there is replaced, at once or not at all.
        input_shape: as for ``nx.preflight``.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        mesh: as for ``nx.preflight``.
        options: as for ``nx.preflight``.
        **others: none, as for ``nx.preflight``.

    Raises:
        OutOfMemoryError: the program does not fit into the chips' memory.
        CompilationError: the compiler refused it, crashed, or took longer than the time limit.
        ArgumentError: it cannot be traced; it calls the host or takes random keys, which a file
            cannot hold; or the file cannot be written.
        UnknownNameError, ShapeError, NotCompiledError, DeviceInitializationError: as
            ``nx.preflight``.

    Example:
        >>> import jax.numpy as jnp
        >>> import neurenix as nx
        >>> double = lambda x: {"twice": 2 * x}
        >>> nx.compile_for(double, nx.spec((3,)), on="cpu", path="double.nxc").target
        'cpu'
        >>> loaded = nx.load_compiled("double.nxc")
        >>> loaded(jnp.arange(3.0))["twice"].tolist()
        [0.0, 2.0, 4.0]
    """
    refuse_keywords("nx.compile_for", target, others)
    check_input_shape(target, input_shape, dtype)
    options = given("options", options, PreflightOptions)
    check_writable(path)
    where = _where(on)
    program = describe(
        target,
        args,
        where,
        input_shape=input_shape,
        dtype=dtype,
        mesh=mesh,
        options=options,
        exported=True,
    )
    called = None
    if trainer_of(target) is None:
        shape = Shape(input_shape, dtype).specs()
        called = _calling(call_of(target, (*shape, *args)))
    return _compile(program, where, path, options.compiler, called)


def _calling(call: Call) -> Calling | None:
    """Return how a function is called, where not with arrays by position alone."""
    modules = {n: value for n, value in enumerate(call.arrays.values()) if is_module(value)}
    names = tuple(key for key in call.arrays if isinstance(key, str))
    if not (call.static or names or modules):
        return None
    variables = variables_of(Binding(tuple(modules.values()))) if modules else ()
    fixed = {place: fixed_text(value) for place, value in call.static.items()}
    return Calling(len(call.arrays), fixed, names, tuple(modules), variables)


def recompile(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    on: str | chips.Slice | None = None,
    options: CompileOptions | None = None,
) -> Artefact:
    """Compile the program inside of an artefact again, with the versions installed here.

    Args:
        source: an artefact, whichever versions made it.
        path: of the new file.
        on: a slice with as many devices; ``None`` is the one that it was compiled for.
        options: of the compiler; those of ``source`` are not taken over.

    Raises:
        ArtefactError: ``source`` cannot be read.
        CompilationError: the program is for another number of devices or another platform than
            ``on`` has; or as ``compile_for``.
    """
    check_writable(path)
    artefact = artefact_module.read(source)
    program = artefact.as_program()
    where = _where(on or artefact.target)
    target = Target.of(where)
    if (target.platform, target.num_devices) != (program.platform, program.num_devices):
        raise CompilationError(
            f"The program in {source} was traced for {program.num_devices} {program.platform} "
            f"device(s), and {where.name} has {target.num_devices} of {target.platform}. Compile "
            "the function or the script it comes from."
        )
    return _compile(program, where, path, options or CompileOptions(), artefact.calling)


def _where(on: str | chips.Slice) -> chips.Slice | CpuHost:
    return cpu_host(on) or chips.resolve(on)


def _compile(
    program: Program,
    where: chips.Slice | CpuHost,
    path: str | os.PathLike[str],
    options: CompileOptions,
    call: Calling | None,
) -> Artefact:
    options = options_of(program, options)
    (answer,) = compile_all([(program, Target.of(where))], options, executables=True)
    if isinstance(answer, Refusal):
        kind = OutOfMemoryError if answer.kind == "hbm" else CompilationError
        raise kind(
            f"{program.name} could not be compiled for {where.name}; nothing was written. "
            f"The compiler said: {answer.message.strip()}"
        )
    return artefact_module.write(path, program, answer, options, call)

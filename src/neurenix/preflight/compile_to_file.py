"""``compile_for``: compile a program for a slice and write the executable to a file. Experimental.

Does not own the file's format (``compiler/nxc_format.py``) or loading it
(``compiler/load_compiled.py``).
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from typing import Any

from neurenix import chips
from neurenix._core.errors import CompilationError, MissingExtraError, OutOfMemoryError
from neurenix._core.files import check_writable
from neurenix._jit.flat_modules import Binding, is_module
from neurenix.compiler import nxc_format
from neurenix.compiler.call_signature import Calling, fixed_text, variables_of
from neurenix.compiler.compile import Refusal, compile_all, options_of
from neurenix.compiler.nxc_format import Artefact
from neurenix.compiler.target import Target, cpu_host
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
    """Compile a program for a TPU slice and write the executable to a file. Experimental.

    The file format may change between versions, and no TPU executable has been run from a file yet.

    ``nx.load_compiled(path)`` on a machine of that slice runs the file without compiling. It
    contains the machine code, the program before compilation, and a manifest: target, versions,
    the path, shape, dtype and sharding of every array, the donated arrays, and a hash of each part.
    It runs only with the versions of jax, jaxlib and libtpu that compiled it. The step of a model
    takes ``model.trainer.step_state()`` and a batch ``{"x": …, "y": …}``. With
    ``steps_per_execution=K`` it takes K stacked batches and, if ``options.whole_calls`` is False,
    the number of them that count.

    Args:
        target: a function, a compiled model or a ``Trainer``, as for ``nx.preflight``.
        *args: as for ``nx.preflight``.
        on: one slice, such as ``"v5e-8"``; or ``"cpu"``, or ``"cpu-8"`` for eight virtual devices,
            for CPUs with the instruction sets of this one.
        path: of the file, usually ``….nxc``; an existing file is replaced atomically.
        input_shape: as for ``nx.preflight``.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        mesh: as for ``nx.preflight``.
        options: as for ``nx.preflight``.
        **others: rejected, as by ``nx.preflight``.

    Raises:
        OutOfMemoryError: the program does not fit into the chips' memory.
        CompilationError: the compiler refused the program, crashed or reached the time limit.
        ArgumentError: the program cannot be traced; it calls the host or takes random keys, which
            a file cannot contain; or the file cannot be written.
        UnknownNameError, ShapeError, NotCompiledError, DeviceInitializationError: as
            ``nx.preflight``.
        MissingExtraError: flatbuffers is not installed, with which JAX writes a program.

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
    if importlib.util.find_spec("flatbuffers") is None:  # of jax.export, which asks for it late
        raise MissingExtraError("flatbuffers", "nxc", "nx.compile_for")
    where = cpu_host(on) or chips.resolve(on)
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
    compiler = options_of(program, options.compiler)
    (answer,) = compile_all([(program, Target.of(where))], compiler, executables=True)
    if isinstance(answer, Refusal):
        kind = OutOfMemoryError if answer.kind == "hbm" else CompilationError
        raise kind(
            f"{program.name} could not be compiled for {where.name}; nothing was written. "
            f"The compiler said: {answer.message.strip()}"
        )
    return nxc_format.write(path, program, answer, compiler, called)


def _calling(call: Call) -> Calling | None:
    """Return how a function is called, unless it takes only arrays by position."""
    modules = {n: value for n, value in enumerate(call.arrays.values()) if is_module(value)}
    names = tuple(key for key in call.arrays if isinstance(key, str))
    if not (call.static or names or modules):
        return None
    variables = variables_of(Binding(tuple(modules.values()))) if modules else ()
    fixed = {place: fixed_text(value) for place, value in call.static.items()}
    return Calling(len(call.arrays), fixed, names, tuple(modules), variables)

"""A report on a PyTorch module before it is converted: what is supported, and what is not.

Owns what is reported. Does not own its text (``check_report``), nor how problems are found
(``problems``, ``export``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from neurenix._core.errors import ArgumentTypeError, ConversionError
from neurenix._core.source_files import SourceLine
from neurenix.interop.check_report import CheckReport, OperatorUse, Problem
from neurenix.interop.torch import operators
from neurenix.interop.torch.convert import (
    example_arguments,
    import_torch,
    several_rows,
    uncompiled,
)
from neurenix.interop.torch.export import export_raw, problems_of
from neurenix.interop.torch.functions import NAMESPACE
from neurenix.interop.torch.problems import found_in
from neurenix.interop.torch.program import Program, read_program
from neurenix.interop.torch.programs import free_axes, shared_names, unknown_problems


def check(
    module: Any,
    example_inputs: Any = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
) -> CheckReport:
    """Return a report on a PyTorch module: whether ``nx.from_torch`` can convert it.

    Nothing is computed in JAX. The module is exported in training and in evaluation.

    Args:
        module: a ``torch.nn.Module``.
        example_inputs: as ``nx.from_torch`` takes them.
        example_kwargs: named arguments besides.

    Raises:
        ArgumentError: there are no example inputs.
        ArgumentTypeError: ``module`` is no ``torch.nn.Module``.
        MissingExtraError: PyTorch is not installed.

    Example:
        >>> import torch
        >>> report = check(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> report.is_convertible, [use.name for use in report.operators]
        (True, ['aten::linear.default'])
    """
    torch = import_torch("check")
    if not isinstance(module, torch.nn.Module):
        raise ArgumentTypeError(f"check takes a torch.nn.Module; got {type(module).__name__}.")
    operators.load()
    module = uncompiled(module)
    args, kwargs = example_arguments(module, example_inputs, example_kwargs)
    problems = found_in(module, args, kwargs)
    programs: list[Program] = []
    if not problems:
        args, kwargs = several_rows(args, kwargs)
        shapes, names = free_axes(args, kwargs), shared_names(module)
        for training in (True, False):
            try:
                exported = export_raw(
                    module, args, kwargs, training=training, dynamic_shapes=shapes
                )
                programs.append(read_program(exported, names))
            except ConversionError as error:
                problems.append(Problem(str(error), ""))
            except Exception as error:  # of many kinds, by where PyTorch's compiler stops
                problems += problems_of(error, module, args, kwargs)
    unknown: dict[str, SourceLine | None] = {}
    for program in programs:
        unknown = program.unknown | unknown
    problems += [replace(p, what=f"Not supported: {p.what}") for p in unknown_problems(unknown)]
    unique = tuple({(p.what, p.line): p for p in problems}.values())
    uses = tuple(sorted(_uses(programs), key=lambda use: (use.is_supported, use.name)))
    return CheckReport(type(module).__name__, uses, unique, tuple(_notes(programs)))


def _uses(programs: list[Program]) -> list[OperatorUse]:
    """Return the operators of the first program, and those that others have besides."""
    found: dict[str, OperatorUse] = {}
    for program in programs:
        before = set(found)
        for operation in program.operations:
            name = operation.name
            if operation.function is not None or name in before:
                continue
            known = found.get(name) or OperatorUse(
                name, 0, operation.line, operation.operator is not None
            )
            found[name] = replace(known, count=known.count + 1)
        for name, line in program.unknown.items():
            found.setdefault(name, OperatorUse(name, 1, line, False))
    return list(found.values())


def _notes(programs: list[Program]) -> list[Problem]:
    notes: dict[str, Problem] = {}
    for program in programs:
        for dtype, line in program.narrowed.items():
            narrow = dtype.removeprefix("torch.").replace("64", "32").replace("128", "64")
            notes.setdefault(
                dtype,
                Problem(
                    f"{dtype} is computed as {narrow}",
                    "Larger integers overflow, and real numbers have 7 digits.",
                    line,
                ),
            )
        for operation in program.operations:
            if operation.name.startswith(f"{NAMESPACE}::"):
                cls = operation.name.partition("::")[2].rpartition("_")[0]
                notes.setdefault(
                    cls,
                    Problem(
                        f"{cls} is a torch.autograd.Function",
                        "Its own backward pass, or your rule for it, is used.",
                        operation.line,
                    ),
                )
    return list(notes.values())

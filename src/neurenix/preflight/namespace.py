"""What editors and type checkers see as ``nx.preflight``: a function that has names of its own.

The module ``neurenix.preflight`` is made callable when it is loaded, which no checker can see.
``neurenix`` declares this instance in its place; nothing of it runs. A test holds the names against
those of the module. In annotations use ``from neurenix.preflight import Report``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from neurenix.compiler import compile as _compile
from neurenix.compiler import program
from neurenix.preflight import (
    advice,
    artefact,
    cost,
    description,
    entry,
    largest,
    plan,
    planning,
    report,
    search_space,
)


class PreflightNamespace:
    """The function ``preflight``, and the names beside it."""

    compile_for = staticmethod(artefact.compile_for)
    largest_batch = staticmethod(largest.largest_batch)
    recompile = staticmethod(artefact.recompile)
    search = staticmethod(planning.search)
    spec = staticmethod(program.spec)
    Candidate = plan.Candidate
    CompileOptions = _compile.CompileOptions
    Cost = report.Cost
    Deadline = plan.Deadline
    LargestBatch = largest.LargestBatch
    Plan = plan.Plan
    PreflightOptions = description.PreflightOptions
    Pricing = cost.Pricing
    Report = report.Report
    SearchSpace = search_space.SearchSpace
    Suggestion = advice.Suggestion

    @overload
    def __call__(
        self,
        target: Any,
        *args: Any,
        on: entry.On,
        input_shape: Sequence[int] | None = None,
        dtype: Any = None,
        mesh: Mapping[str, int] | None = None,
        options: description.PreflightOptions | None = None,
    ) -> report.Report: ...

    @overload
    def __call__(
        self,
        target: Any,
        *args: Any,
        on: Sequence[entry.On],
        input_shape: Sequence[int] | None = None,
        dtype: Any = None,
        mesh: Mapping[str, int] | None = None,
        options: description.PreflightOptions | None = None,
    ) -> list[report.Report]: ...

    def __call__(self, target: Any, *args: Any, **options: Any) -> Any:
        """Compile a training step for slices; see ``neurenix.preflight.preflight``."""
        return entry.preflight(target, *args, **options)


preflight = PreflightNamespace()

"""The type of ``nx.preflight`` for editors and type checkers: a function with attributes.

The module ``neurenix.preflight`` becomes callable when it is loaded, which type checkers cannot
see. ``neurenix`` declares this instance instead; nothing here runs. A test compares the names with
those of the module. In annotations use ``from neurenix.preflight import Report``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from neurenix.compiler import compile as _compile
from neurenix.compiler import program
from neurenix.preflight import api, compile_to_file, cost, describe_program
from neurenix.preflight.report import report, report_data
from neurenix.preflight.search import largest_batch as _largest
from neurenix.preflight.search import plan, plan_data, search_space
from neurenix.preflight.search import search as _search


class PreflightNamespace:
    """The function ``preflight`` and its attributes."""

    compile_for = staticmethod(compile_to_file.compile_for)
    largest_batch = staticmethod(_largest.largest_batch)
    search = staticmethod(_search.search)
    spec = staticmethod(program.spec)
    Candidate = plan_data.Candidate
    CompileOptions = _compile.CompileOptions
    Cost = cost.Cost
    Deadline = plan_data.Deadline
    LargestBatch = _largest.LargestBatch
    Plan = plan.Plan
    PreflightOptions = describe_program.PreflightOptions
    Pricing = cost.Pricing
    Report = report.Report
    SearchSpace = search_space.SearchSpace
    Suggestion = report_data.Suggestion

    @overload
    def __call__(
        self,
        target: Any,
        *args: Any,
        on: api.On,
        input_shape: Sequence[int] | None = None,
        dtype: Any = None,
        mesh: describe_program.Mesh | None = None,
        example_inputs: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        options: describe_program.PreflightOptions | None = None,
    ) -> report.Report: ...

    @overload
    def __call__(
        self,
        target: Any,
        *args: Any,
        on: Sequence[api.On],
        input_shape: Sequence[int] | None = None,
        dtype: Any = None,
        mesh: describe_program.Mesh | None = None,
        example_inputs: Any = None,
        loss: Any = None,
        optimizer: Any = None,
        options: describe_program.PreflightOptions | None = None,
    ) -> list[report.Report]: ...

    def __call__(self, target: Any, *args: Any, **options: Any) -> Any:
        """Compile a training step for slices; see ``neurenix.preflight.preflight``."""
        return api.preflight(target, *args, **options)


preflight = PreflightNamespace()

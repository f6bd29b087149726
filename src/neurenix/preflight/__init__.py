"""Preflight: how a program would run on a TPU slice, without a TPU.

``nx.preflight(model, on="v5e-8", input_shape=(256, 784))`` compiles the training step of ``fit``
with the real TPU compiler. ``nx.preflight.search`` compares slices. ``nx.compile_for``
(experimental) writes the executable to a file, and ``nx.load_compiled`` runs it on that slice.

Does not own compiling and analysis (``neurenix.compiler``).
"""

from neurenix._core.callable_module import make_callable
from neurenix.compiler.compile import CompileOptions
from neurenix.compiler.program import spec
from neurenix.preflight.api import preflight
from neurenix.preflight.compile_to_file import compile_for
from neurenix.preflight.cost import Cost, Pricing
from neurenix.preflight.describe_program import PreflightOptions
from neurenix.preflight.report.report import Report
from neurenix.preflight.report.report_data import Suggestion
from neurenix.preflight.search.largest_batch import LargestBatch, largest_batch
from neurenix.preflight.search.plan import Plan
from neurenix.preflight.search.plan_data import Candidate, Deadline
from neurenix.preflight.search.search import search
from neurenix.preflight.search.search_space import SearchSpace

__all__ = [
    "Suggestion",
    "SearchSpace",
    "Deadline",
    "Candidate",
    "CompileOptions",
    "Cost",
    "LargestBatch",
    "Plan",
    "PreflightOptions",
    "Pricing",
    "Report",
    "compile_for",
    "largest_batch",
    "preflight",
    "search",
    "spec",
]

make_callable(__name__, "preflight")

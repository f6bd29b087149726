"""Find possible improvements of a compiled program, each with source line, size and fix.

Owns the list of rules and their order. A rule is a function that takes the ``Evidence`` and yields
findings. It belongs to the module of its subject and to ``RULES``, and has a page in
``neurenix.rules``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from neurenix._core.source_files import is_library
from neurenix.compiler.findings.arithmetic import (
    badly_tiled_products,
    float32_products,
    grouped_gradients,
    padded_products,
    small_batch,
    unsupported_types,
)
from neurenix.compiler.findings.attention import head_dimension, materialised_attention
from neurenix.compiler.findings.communication import (
    collective_matmul,
    exposed_collectives,
    synchronised_statistics,
    undivided_work,
)
from neurenix.compiler.findings.compile_errors import REFUSALS, of_refusal
from neurenix.compiler.findings.evidence import Evidence, Finding
from neurenix.compiler.findings.movement import (
    captured_constants,
    missing_donation,
    moves,
    padded_arguments,
    undivided_state,
)
from neurenix.compiler.findings.program_structure import (
    host_callbacks,
    recompiling_arguments,
    small_operations,
    small_steps,
    unrolled_layers,
)
from neurenix.compiler.program import Program

__all__ = ["REFUSALS", "RULES", "Evidence", "Finding", "find", "of_refusal", "with_caller"]

RULES: dict[str, Callable[[Evidence], Iterator[Finding]]] = {
    "padded-matmul": padded_products,
    "head-dimension": head_dimension,
    "float32-matmul": float32_products,
    "unsupported-type": unsupported_types,
    "small-batch": small_batch,
    "grouped-gradient": grouped_gradients,
    "badly-tiled": badly_tiled_products,
    "materialised-attention": materialised_attention,
    "copy": moves,
    "donation": missing_donation,
    "undivided-state": undivided_state,
    "padded-arguments": padded_arguments,
    "captured-constants": captured_constants,
    "exposed-collective": exposed_collectives,
    "sync-batchnorm": synchronised_statistics,
    "collective-matmul": collective_matmul,
    "undivided": undivided_work,
    "host-bound": small_steps,
    "host-callback": host_callbacks,
    "small-operations": small_operations,
    "unrolled-layers": unrolled_layers,
    "recompile": recompiling_arguments,
}


_SMALLEST_SECONDS = 1e-9
"""Smallest effect: a thousandth of the time of any operation."""


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Apply every rule; sort findings by severity, then by effect."""
    order = {"error": 0, "warning": 1, "note": 2}
    found = [
        with_caller(_sized(finding), evidence.program)
        for rule in RULES.values()
        for finding in rule(evidence)
    ]
    return tuple(sorted(found, key=lambda f: (order[f.severity], -f.effect_seconds)))


def with_caller(finding: Finding, program: Program) -> Finding:
    """Return a finding inside a library with the user's line that calls the program."""
    if finding.source is None or not is_library(finding.source.file):
        return finding
    return replace(finding, called_from=program.called_from)


def _sized(finding: Finding) -> Finding:
    """Return a finding without an effect that is negligible."""
    if 0 < finding.effect_seconds < _SMALLEST_SECONDS:
        return replace(finding, effect_seconds=0.0)
    return finding

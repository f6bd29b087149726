"""From a report to the plain data of its JSON file.

Owns the writing of the document that ``record`` describes and reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from neurenix.compiler.cache import versions
from neurenix.compiler.peak_memory import Memory, largest
from neurenix.preflight.cost import Pricing
from neurenix.preflight.report.report_json import SCHEMA, SCHEMA_VERSION, hbm_is_known, plain

if TYPE_CHECKING:
    from neurenix.preflight.report.report import Report
    from neurenix.preflight.suggested_changes import Suggestion

_OF_A_TIME = ("seconds", "low", "high", "device_seconds", "host_seconds", "basis", "shares")
_RATES = ("examples_per_second", "tokens_per_second", "tokens_per_second_per_chip")
_OF_A_RUN = (
    "id", "model", "generation", "num_chips", "batch_size", "sequence_length", "step_seconds",
    "tokens_per_second_per_chip", "mfu", "source",
)  # fmt: skip

_LISTED = ("buffers", "temporaries")


def document(report: Report, pricing: Pricing) -> dict[str, Any]:
    """Return the document of a report, its cost at ``pricing``."""
    time, where, program = report.step_time, report.slice, report.analysis.program
    run = report.published_run
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "versions": versions(),
        "program": program.name,
        "slice": {
            "name": where.name,
            "generation": where.generation.name,
            "topology": where.topology_name,
            "chips": where.num_chips,
            "devices": where.num_devices,
            "hosts": where.num_hosts,
        },
        "mesh": dict(program.axes),
        "fits": report.fits,
        "refused": report.refused,
        "estimated_step_time": time and _named(time, _OF_A_TIME),
        "bound": report.bound,
        "mfu": report.mfu,
        "model_flops": program.model_flops,
        "batch": {
            "examples": report.batch_size,
            "sequence_length": report.sequence_length,
            "tokens": report.tokens,
        },
        "estimated_rates": time and _named(report, _RATES),
        "estimated_cost": time and _cost(report, pricing),
        "published_run": run and _named(run, _OF_A_RUN),
        "hbm_per_device": _hbm(report.hbm) if hbm_is_known(report.refused) else None,
        "findings": [{**plain(finding), "page": finding.page} for finding in report.findings],
        "suggestions": [_suggestion(suggestion) for suggestion in report.suggestions],
        "operations": [
            {
                "name": operation.name,
                "opcode": operation.opcode,
                "kind": operation.kind,
                "estimated_seconds": report.calibrated(operation.seconds),
                "count": operation.count,
                "flops": operation.flops,
                "bytes": operation.bytes,
                "shape": operation.shape,
                "op_name": operation.op_name,
                "source": str(operation.source) if operation.source else None,
            }
            for operation in report.operations
        ],
        "notes": list(report.analysis.notes),
        "compile_seconds": report.analysis.compile_seconds,
        "from_cache": report.analysis.from_cache,
    }


def _named(thing: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: plain(getattr(thing, name)) for name in names}


def _hbm(memory: Memory) -> dict[str, Any]:
    return {
        **{n: plain(v) for n, v in vars(memory).items() if n not in _LISTED},
        "largest_buffers": [plain(buffer) for buffer in largest(memory)],
    }


def _suggestion(suggestion: Suggestion) -> dict[str, Any]:
    analysis = suggestion.analysis
    memory, time = analysis.memory, analysis.time
    return {
        "change": suggestion.change,
        "slice": analysis.where.name,
        "mesh": dict(analysis.program.axes),
        "fits": suggestion.fits,
        "refused": analysis.refused,
        "hbm_peak_bytes": memory.peak_bytes if hbm_is_known(analysis.refused) else None,
        "hbm_limit_bytes": memory.limit_bytes,
        "estimated_step_seconds": time and time.seconds,
    }


def _cost(report: Report, pricing: Pricing) -> dict[str, Any]:
    cost, steps = report.cost(1, **vars(pricing)), report.steps_per_epoch
    return {
        "usd_per_step": cost.usd_per_step,
        "usd_per_epoch": report.cost(steps, **vars(pricing)).usd if steps else None,
        "usd_per_million_tokens": cost.usd_per_million_tokens,
        "usd_per_chip_hour": cost.usd_per_chip_hour,
        "region": pricing.region,
        "commitment": pricing.commitment,
        "price_source": cost.price.source if cost.price else None,
        "price_as_of": cost.price.as_of if cost.price else None,
    }

"""A search as a JSON document, the file of ``neurenix plan``.

Owns the document and its schema, ``preflight/plan.schema.json`` (JSON Schema 2020-12). A document
is one object. Sizes are in bytes, times in seconds, and every time is an estimate. The fields:

- ``schema``, ``schema_version``: ``"neurenix.plan"`` and 1. New fields keep the version; renaming,
  removing or redefining a field changes it.
- ``versions``: of jax, jaxlib and libtpu, which determine the compiler's answer.
- ``objective``; ``deadline`` (examples, hours) or null; ``pricing``, in which
  ``usd_per_chip_hour`` is the caller's price, an object of prices by generation, or null.
- ``candidates``, the best first: the choice (slice, mesh, batch, remat, compiler_options), ``won``,
  ``reason`` (why it lost; empty for the winner), ``estimated_value`` (seconds or USD per example,
  or per call if the examples are unknown; null if the candidate cannot be used), and ``fits``,
  ``refused``, the HBM of a device and the estimates, null if it was not compiled.
- ``best``: the winner's report, of the schema of ``report_json``, or null.
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from neurenix.compiler.cache import versions
from neurenix.preflight.report.report_data import hbm_is_known
from neurenix.preflight.search.plan_data import Candidate, PlanData

SCHEMA = "neurenix.plan"
SCHEMA_VERSION = 1


def document(plan: PlanData) -> dict[str, Any]:
    """Return the document of a search."""
    winner, deadline = plan.winner, plan.deadline
    best = winner.report if winner is not None else None
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "versions": versions(),
        "objective": plan.objective,
        "deadline": None if deadline is None else dict(vars(deadline)),
        "pricing": dict(vars(plan.pricing)),
        "candidates": [_candidate(plan, candidate) for candidate in plan.candidates],
        "best": None if best is None else best.to_dict(plan.pricing),
    }


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    text = resources.files("neurenix.preflight").joinpath("plan.schema.json").read_text("utf-8")
    return json.loads(text)


def _candidate(plan: PlanData, candidate: Candidate) -> dict[str, Any]:
    report, choice = candidate.report, candidate.choice
    time = report.step_time if report else None
    usd = report.cost(1, **vars(plan.pricing)).usd if report and time else None
    known = report is not None and hbm_is_known(report.refused)
    return {
        "slice": candidate.slice.name,
        "mesh": dict(choice.mesh) if choice and choice.mesh else {},
        "batch": candidate.batch,
        "remat": candidate.remat,
        "compiler_options": dict(choice.compiler_options) if choice else {},
        "won": candidate is plan.winner,
        "reason": candidate.reason,
        "estimated_value": candidate.value,
        "fits": report.fits if report else None,
        "refused": report.refused if report else None,
        "hbm_peak_bytes": report.hbm.peak_bytes if report and known else None,
        "hbm_limit_bytes": report.hbm.limit_bytes if report and known else None,
        "estimated_step_time": None
        if time is None
        else {"seconds": time.seconds, "low": time.low, "high": time.high},
        "estimated_usd_per_step": usd,
        "bound": report.bound if report else None,
        "mfu": report.mfu if report else None,
    }

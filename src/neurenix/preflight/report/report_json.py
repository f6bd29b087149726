"""A report as a JSON document: writing, reading and checking it.

Owns the document and its schema, ``preflight/report.schema.json`` (JSON Schema 2020-12). A document
is one object; the command line writes a list of them. Sizes are in bytes, times in seconds, and
every time is an estimate. The fields:

- ``schema``, ``schema_version``: ``"neurenix.preflight"`` and 1. New fields keep the version;
  renaming, removing or redefining a field changes it.
- ``versions``: of jax, jaxlib and libtpu, which determine the compiler's answer.
- ``program``, ``workload`` (what was picked for a model that came as its configuration, in words;
  empty for other programs and in older files), ``slice`` (name, topology, chips, devices, hosts),
  ``mesh`` (axis → size).
- ``fits``; ``refused``: why there is no program, or null.
- ``estimated_step_time`` (seconds, low, high, device_seconds, host_seconds, basis, shares) or null;
  ``low`` and ``high`` are the ends of the 80 % interval, expected to contain four of five measured
  steps; ``bound``; ``mfu``; ``model_flops`` of all devices for one step.
- ``batch`` (examples, sequence_length, tokens of one step) and ``estimated_rates``; null if
  unknown.
- ``estimated_cost`` of one step, with the price's region, commitment, source and date; and of an
  epoch of the script's ``fit`` without its validation, null if its number of steps is unknown.
- ``published_run``: the most similar published run, for orientation; never a run of Neurenix.
- ``hbm_per_device``: byte counts; ``roles``, which divides the arguments; and
  ``largest_buffers``, of 1 % of the peak or more, with shape and source line. Null if unknown: the
  compiler crashed, reached the time limit, or refused the program for another reason than memory.
  ``activations_bytes`` and ``gradients_bytes`` are null for a program that was refused without a
  schedule; ``temporaries_bytes`` then includes them.
- ``findings`` (rule, severity, message, fix, source, scope, effect_seconds, effect_bytes,
  effect_share, called_from, page). ``called_from`` is the user's line that calls the program if
  ``source`` is inside a library, else null.
- ``suggestions``: for a program that does not fit, the compiled changes, those that fit first:
  the change, its slice and mesh, and the result. Empty when read from older files.
- ``operations``: the slowest first, with their part of the estimated step.
- ``notes``, ``compile_seconds``, ``from_cache``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._core.source_files import SourceLine
from neurenix.compiler.cache import versions
from neurenix.compiler.peak_memory import Memory, largest
from neurenix.preflight.cost import Pricing
from neurenix.preflight.report.report_data import (
    NO_ANSWER,
    ReportData,
    Suggestion,
    hbm_is_known,
    memory_parts,
)

SCHEMA = "neurenix.preflight"
SCHEMA_VERSION = 1

_ADDED: dict[str, Any] = {"suggestions": [], "workload": ""}
_ADDED_TO_COST: dict[str, Any] = {"usd_per_epoch": None}
"""Fields that older files of this version lack, with the values they are read as."""


_OF_A_TIME = ("seconds", "low", "high", "device_seconds", "host_seconds", "basis", "shares")
_RATES = ("examples_per_second", "tokens_per_second", "tokens_per_second_per_chip")
_OF_A_RUN = (
    "id", "model", "generation", "num_chips", "batch_size", "sequence_length", "step_seconds",
    "tokens_per_second_per_chip", "mfu", "source",
)  # fmt: skip
_LISTED = ("buffers", "temporaries")


def document(report: ReportData, pricing: Pricing) -> dict[str, Any]:
    """Return the document of a report, with its cost at ``pricing``."""
    time, where, program = report.step_time, report.slice, report.analysis.program
    run = report.published_run
    return {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "versions": versions(),
        "program": program.name,
        "workload": report.workload,
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


def _cost(report: ReportData, pricing: Pricing) -> dict[str, Any]:
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


class Record:
    """A report as its document, ``data``.

    ``Report.record()`` makes one, ``load_report`` reads one.
    """

    def __init__(self, data: Mapping[str, Any], source: str = "this report") -> None:
        _check(data, source)
        self.data = _completed(data)
        self.source = source

    @property
    def program(self) -> str:
        """The program's name."""
        return self.data["program"]

    @property
    def slice_name(self) -> str:
        """Name of the slice."""
        return self.data["slice"]["name"]

    @property
    def fits(self) -> bool:
        """Whether the compiler accepted the program."""
        return self.data["fits"]

    @property
    def step_seconds(self) -> float | None:
        """Estimated seconds of one step."""
        time = self.data["estimated_step_time"]
        return None if time is None else time["seconds"]

    @property
    def hbm(self) -> dict[str, Any] | None:
        """The document's ``hbm_per_device``; ``None`` if unknown.

        Older files contain the bytes of the arguments in this case.
        """
        return self.data["hbm_per_device"] if hbm_is_known(self.data["refused"]) else None

    def values(self) -> dict[str, bool | float | int | None]:
        """Return the values of the names of ``--fail-if``; None is unknown."""
        time = self.data["estimated_step_time"] or {}
        memory, findings = self.hbm or {"peak_bytes": None}, self.data["findings"]
        peak = memory["peak_bytes"]
        severities = [finding["severity"] for finding in findings]
        return {
            "fits": None if self.data["refused"] in NO_ANSWER else self.fits,
            "step_time": time.get("seconds"),
            "step_time_low": time.get("low"),
            "step_time_high": time.get("high"),
            "hbm_peak_bytes": peak,
            "hbm_headroom": None if peak is None else memory["limit_bytes"] - peak,
            "mfu": self.data["mfu"],
            "cost_per_step": (self.data["estimated_cost"] or {}).get("usd_per_step"),
            "findings": len(findings),
            "errors": severities.count("error"),
            "warnings": severities.count("warning"),
        }

    def memory(self) -> dict[str, int] | None:
        """Return the bytes of one device's HBM by purpose, which add up to the peak.

        ``None`` if unknown.
        """
        return None if self.hbm is None else memory_parts(self.hbm)


def load_reports(path: str | os.PathLike[str]) -> list[Record]:
    """Read every report of a JSON file, one object or a list of them.

    Raises:
        ArgumentError: the file is missing, not JSON, or not a report of this version.
    """
    file = Path(path)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{file} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ArgumentError(f"{file} is not JSON ({error}).") from None
    except RecursionError:
        raise ArgumentError(f"{file} is not JSON that can be read: it nests too deep.") from None
    documents = content if isinstance(content, list) else [content]
    if not documents:
        raise ArgumentError(f"{file} holds no report.")
    return [Record(document, str(file)) for document in documents]


def load_report(path: str | os.PathLike[str]) -> Record:
    """Read the one report of a JSON file.

    Raises:
        ArgumentError: as ``load_reports``, or the file has several reports.
    """
    records = load_reports(path)
    if len(records) > 1:
        names = ", ".join(record.slice_name for record in records)
        raise ArgumentError(
            f"{path} holds {len(records)} reports ({names}); read them with load_reports."
        )
    return records[0]


@cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema of a document."""
    text = resources.files("neurenix.preflight").joinpath("report.schema.json").read_text("utf-8")
    return json.loads(text)


def plain(value: Any) -> Any:
    """Return dataclasses as dictionaries and source locations as ``"file:line"``.

    Example:
        >>> plain({"at": SourceLine("train.py", 7), "sizes": (1, 2)})
        {'at': 'train.py:7', 'sizes': [1, 2]}
    """
    if isinstance(value, SourceLine):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _completed(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the fields that older files lack."""
    found, cost = _ADDED | dict(data), data.get("estimated_cost")
    if isinstance(cost, Mapping):
        found["estimated_cost"] = _ADDED_TO_COST | dict(cost)
    return found


def _check(data: Any, source: str) -> None:
    name = data.get("schema") if isinstance(data, Mapping) else None
    version = data.get("schema_version") if isinstance(data, Mapping) else None
    if name == SCHEMA and version != SCHEMA_VERSION:
        raise ArgumentError(
            f"{source} is a preflight report of schema version {version!r}, and this Neurenix "
            f"reads version {SCHEMA_VERSION}. Write it again with this version."
        )
    if isinstance(name, str) and name != SCHEMA:
        raise ArgumentError(
            f"{source} has the schema {name!r}, version {version!r}, and this Neurenix reads "
            f"reports of {SCHEMA!r}, version {SCHEMA_VERSION}. Write it again with this version."
        )
    if name != SCHEMA:
        raise ArgumentError(f"{source} is not a preflight report: it has no schema {SCHEMA!r}.")
    problem = next(problems(schema(), _completed(data)), None)
    if problem:
        raise ArgumentError(f"{source} is damaged: {problem}.")


_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,), "array": (list,), "string": (str,), "boolean": (bool,),
    "null": (type(None),), "integer": (int,), "number": (int, float),
}  # fmt: skip


def problems(schema: Mapping[str, Any], value: Any, at: str = "the report") -> Iterator[str]:
    """Yield the violations of a JSON Schema.

    Supports type, const, enum, required, properties, additionalProperties and items.

    Example:
        >>> list(problems({"type": "object", "required": ["fits"]}, {}))
        ['the report has no "fits"']
    """
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        yield f"{at} is {type(value).__name__}, not {' or '.join(types)}"
        return
    if isinstance(value, float) and not math.isfinite(value):
        yield f"{at} is {value}, not a finite number"
    if "const" in schema and value != schema["const"]:
        yield f"{at} is {value!r}, not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{at} is {value!r}, not one of {schema['enum']}"
    if isinstance(value, Mapping):
        for name in schema.get("required", ()):
            if name not in value:
                yield f'{at} has no "{name}"'
        known, others = schema.get("properties", {}), schema.get("additionalProperties", {})
        for name, item in value.items():
            yield from problems(known.get(name, others), item, f"{at}.{name}")
    if isinstance(value, list) and "items" in schema:
        for number, item in enumerate(value):
            yield from problems(schema["items"], item, f"{at}[{number}]")


def _is(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name])

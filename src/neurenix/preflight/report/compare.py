"""What changed between two reports of a program: time, memory, findings, operations.

Both reports are estimates of the same time model, so a difference shows a change of the compiled
program rather than of hardware.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neurenix.preflight.cost import usd_text
from neurenix.preflight.report.formatting import (
    KIND_NAMES,
    bytes_text,
    hanging,
    percent_text,
    seconds_text,
    shown,
)
from neurenix.preflight.report.report_data import NO_ANSWER, UNDIVIDED
from neurenix.preflight.report.report_json import Record

_SHOWN = 5
_TOLD_APART = ("activations", "gradients", "temporaries", "new results", "alignment")
_NOTABLE_SHARE = 0.005
_SAME_SHARE = 1e-6
_WRAPPERS = re.compile(r"^(?:jit\([^)]*\)/|call_exported/)+")
_NUMBER_AT_END = re.compile(r"[.\d]+$")


@dataclass(frozen=True)
class Change:
    """One number before and after; ``None`` if it is missing."""

    name: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float:
        """After − before; a missing number counts as 0."""
        return (self.after or 0) - (self.before or 0)

    @property
    def changed(self) -> bool:
        """Whether the two numbers differ by more than rounding."""
        if self.before is None or self.after is None:
            return self.before is not self.after
        return abs(self.difference) > _SAME_SHARE * max(abs(self.before), abs(self.after))


@dataclass(frozen=True)
class Comparison:
    """Two records and their differences.

    Attributes:
        step_time: in estimated seconds.
        memory: in bytes of one device, by purpose; empty if one of the two is unknown, and less
            divided if the compiler refused one of them.
        came: new findings, as in the document.
        went: findings that are gone.
        operations: in estimated seconds of a step, the largest difference first; operations of one
            kind from one place in the program count as one.
        notes: other differences, such as versions or prices.
    """

    before: Record
    after: Record
    step_time: Change
    mfu: Change
    cost_per_step: Change
    peak: Change
    memory: tuple[Change, ...]
    came: tuple[dict[str, Any], ...]
    went: tuple[dict[str, Any], ...]
    operations: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether anything that is compared differs."""
        numbers = (self.step_time, self.mfu, self.cost_per_step, self.peak, *self.memory)
        fits = self.before.fits == self.after.fits
        moved = any(change.changed for change in (*numbers, *self.operations))
        return moved or bool(self.came or self.went or self.notes) or not fits

    def text(self, width: int = 100) -> str:
        """Return the comparison as text, folded to ``width`` columns."""
        after, before = self.after, self.before
        lines = [f"Compared with {before.source}: {before.program} on {before.slice_name}"]
        rows: list[tuple[str, str]] = []
        fits = [_fits(record) for record in (before, after)]
        if fits[0] != fits[1]:
            rows.append(("fits", " → ".join(fits)))
        rows.append(("step time", _line(self.step_time, seconds_text, " estimated")))
        if self.mfu.changed:
            rows.append(("MFU", _line(self.mfu, lambda share: percent_text(share, 2))))
        if self.cost_per_step.changed:
            rows.append(("cost a step", _line(self.cost_per_step, usd_text)))
        rows.append(("HBM", _line(self.peak, bytes_text, none="not known")))
        rows += [
            (f"  {change.name}", _line(change, bytes_text))
            for change in self.memory
            if change.changed
        ]
        lines += [line for label, text in rows for line in hanging(f"  {label:<12} ", text, width)]
        for word, findings in (("new", self.came), ("gone", self.went)):
            for finding in findings:
                said = finding["message"].split("\n", 1)[0]
                text = f"{finding['severity']}: {said} ({finding['rule']})"
                lines += hanging(f"  {word:<4} ", text, width)
        moved = [change for change in self.operations if change.changed][:_SHOWN]
        if moved:
            lines.append("  operations that moved most, estimated time of a step")
        for change in moved:
            lines += hanging("    ", f"{_moved(change)}  {change.name}", width, indent=6)
        lines += [line for note in self.notes for line in hanging("  note: ", note, width)]
        if not self.changed:
            lines.append("  Nothing changed.")
        return shown("\n".join(lines))

    def __str__(self) -> str:
        return self.text()


def compare(before: Record, after: Record) -> Comparison:
    """Compare two records of a program, the earlier one first."""
    old, new = before.values(), after.values()

    def change(name: str) -> Change:
        return Change(name, _number(old[name]), _number(new[name]))

    kept = _findings(before), _findings(after)
    return Comparison(
        before=before,
        after=after,
        step_time=change("step_time"),
        mfu=change("mfu"),
        cost_per_step=change("cost_per_step"),
        peak=change("hbm_peak_bytes"),
        memory=_memory(before, after),
        came=_without(kept[1], kept[0]),
        went=_without(kept[0], kept[1]),
        operations=_operations(before, after),
        notes=tuple(_notes(before.data, after.data)),
    )


def matching(records: Sequence[Record], after: Record) -> Record | None:
    """Return the record of the same slice and, if possible, program to compare a report with.

    A single record matches any report; the comparison then notes the difference.
    """
    of_slice = [r for r in records if r.slice_name == after.slice_name]
    same = [r for r in of_slice if r.program == after.program] or of_slice
    if same:
        return same[0]
    return records[0] if len(records) == 1 else None


def _memory(before: Record, after: Record) -> tuple[Change, ...]:
    old, new = before.memory(), after.memory()
    if old is None or new is None:
        return ()
    if UNDIVIDED not in old and UNDIVIDED not in new:
        return tuple(_changes(old, new))
    changes = _changes(_undivided(old), _undivided(new))
    padding = max(record.hbm["padding_bytes"] for record in (before, after) if record.hbm)
    return tuple(c for c in changes if c.name == UNDIVIDED or not _is_padding(c, padding))


def _is_padding(change: Change, padding: int) -> bool:
    """Return whether a change may be padding alone, which is unknown for a refused program."""
    return change.changed and abs(change.difference) <= padding


def _undivided(parts: dict[str, int]) -> dict[str, int]:
    """Return the parts, with one sum for those that are not divided in a refused program.

    The sum includes padding and, on several devices, the new results.
    """
    as_one = {UNDIVIDED, *_TOLD_APART}
    total = sum(size for name, size in parts.items() if name in as_one)
    return {n: size for n, size in parts.items() if n not in as_one} | {UNDIVIDED: total}


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    names = dict.fromkeys([*before, *after])
    changes = [Change(name, before.get(name), after.get(name)) for name in names]
    return sorted(changes, key=lambda change: -abs(change.difference))


def _operations(before: Record, after: Record) -> tuple[Change, ...]:
    """Pair operations by their origin, since the compiler's names change."""
    step = max(before.step_seconds or 0.0, after.step_seconds or 0.0)
    if before.step_seconds is None or after.step_seconds is None:
        return ()
    changes = _changes(_by_origin(before), _by_origin(after))
    return tuple(c for c in changes if abs(c.difference) >= _NOTABLE_SHARE * step)


def _by_origin(record: Record) -> dict[str, float]:
    totals: dict[str, float] = {}
    for operation in record.data["operations"]:
        kind = KIND_NAMES.get(operation["kind"], operation["kind"])
        origin = _WRAPPERS.sub("", operation["op_name"]) or _NUMBER_AT_END.sub(
            "", operation["name"]
        )
        name = f"{operation['opcode']} ({kind}) from {origin}"
        totals[name] = totals.get(name, 0.0) + operation["estimated_seconds"]
    return totals


def _findings(record: Record) -> list[tuple[tuple[str, str], dict[str, Any]]]:
    return [((f["rule"], f["scope"]), f) for f in record.data["findings"]]


def _without(
    findings: list[tuple[tuple[str, str], dict[str, Any]]],
    others: list[tuple[tuple[str, str], dict[str, Any]]],
) -> tuple[dict[str, Any], ...]:
    """Return the findings whose rule and scope are not among the others."""
    left = [key for key, _ in others]
    alone = []
    for key, finding in findings:
        if key in left:
            left.remove(key)
        else:
            alone.append(finding)
    return tuple(alone)


def _notes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    notes = []
    for name, what in (("program", "program"), ("mesh", "mesh"), ("batch", "batch")):
        if before[name] != after[name]:
            notes.append(f"the {what} was {_short(before[name])} and is {_short(after[name])}")
    if before["slice"]["name"] != after["slice"]["name"]:
        notes.append(f"the slice was {before['slice']['name']} and is {after['slice']['name']}")
    if before["model_flops"] != after["model_flops"]:
        notes.append(
            f"the program had {before['model_flops']:.4g} model FLOPs and has "
            f"{after['model_flops']:.4g}"
        )
    for package in sorted({*before["versions"], *after["versions"]}):
        old, new = (d["versions"].get(package, "absent") for d in (before, after))
        if old != new:
            notes.append(f"{package} was {old} and is {new}: the compiler is not the same")
    times = before["estimated_step_time"], after["estimated_step_time"]
    if all(times) and times[0]["basis"] != times[1]["basis"]:
        notes.append("the times are calibrated differently, so they do not compare")
    prices = before["estimated_cost"], after["estimated_cost"]
    if all(prices) and prices[0]["usd_per_chip_hour"] != prices[1]["usd_per_chip_hour"]:
        old, new = (_price(price) for price in prices)
        notes.append(f"the price was {old} and is {new}")
    return notes


def _price(cost: dict[str, Any]) -> str:
    usd = cost["usd_per_chip_hour"]
    return "unknown" if usd is None else f"{usd:g} USD a chip-hour"


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items() if v is not None) or "unknown"
    return str(value)


def _number(value: bool | float | int | None) -> float | None:
    return None if value is None else float(value)


def _fits(record: Record) -> str:
    if record.data["refused"] in NO_ANSWER:
        return "not known"
    return "yes" if record.fits else "NO"


def _line(change: Change, text: Any, after: str = "", none: str = "none") -> str:
    was, now = (none if v is None else text(v) for v in (change.before, change.after))
    if not change.changed:
        return f"{now}{after if change.after is not None else ''}, as before"
    share = ""
    if change.before and change.after is not None:
        share = f" ({change.difference / change.before:+.1%})"
    return f"{was} → {now}{after}{share}"


def _moved(change: Change) -> str:
    sign = "+" if change.difference > 0 else "−"
    how = {(True, False): " (new)", (False, True): " (gone)"}.get(
        (change.before is None, change.after is None), ""
    )
    return f"{sign}{seconds_text(abs(change.difference))}{how}"

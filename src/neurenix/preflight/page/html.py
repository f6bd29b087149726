"""A self-contained HTML page of one report or several.

Owns the document, its first lines and the order of the sections; each section has a module. Names
from a program are escaped. A content security policy forbids the page the network and every script
but its own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from html import escape

from neurenix._core.errors import ArgumentError
from neurenix.preflight.cost import Pricing, money_text
from neurenix.preflight.page.comparison_section import compare_section
from neurenix.preflight.page.findings_section import findings_section
from neurenix.preflight.page.memory_section import memory_section
from neurenix.preflight.page.operations_section import operations_section
from neurenix.preflight.page.roofline_section import time_section
from neurenix.preflight.page.style import HATCH, SCRIPT, STYLE
from neurenix.preflight.report.formatting import (
    INTERVAL,
    KIND_NAMES,
    amount,
    bytes_text,
    percent_text,
    printable,
    seconds_text,
)
from neurenix.preflight.report.report_data import NO_ANSWER, ReportData, hbm_is_known

ESTIMATED = (
    "<p class=sub><span class=stamp>Estimated, not measured</span> Compiled with the TPU compiler; "
    "nothing ran on a TPU.</p>"
)

_REFUSED = {
    "hbm": "does not fit",
    "vmem": "has a kernel out of VMEM",
    "crash": "crashed the compiler, so whether it fits is not known,",
    "timeout": "took the compiler too long, so whether it fits is not known,",
}


def page(report: ReportData | Sequence[ReportData], pricing: Pricing | None = None) -> str:
    """Return the page of one report, or of several with a comparison and a tab for each.

    Args:
        report: one report, or a list.
        pricing: of the costs; on demand in the US by default.

    Raises:
        ArgumentError: the list is empty.
    """
    pricing = pricing or Pricing()
    reports = list(report) if isinstance(report, Sequence) else [report]
    if not reports:
        raise ArgumentError("A page needs at least one report; got an empty list.")
    names = ", ".join(each.slice.name for each in reports)
    title = f"Preflight of {reports[0].name} on {names}"
    if len(reports) == 1:
        name = escape(reports[0].name)
        body = f"<h1>Preflight of {name}</h1>{ESTIMATED}{target(reports[0], pricing)}"
    else:
        body = (
            f"<h1>Preflight of {escape(reports[0].name)} on {amount(len(reports), 'target')}</h1>"
            f"{ESTIMATED}{compare_section(reports, pricing)}{_targets(reports, pricing)}"
        )
    return document(title, body)


def document(title: str, body: str) -> str:
    """Return an HTML document that runs only its own script and loads nothing."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return printable(
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body>{HATCH}<main>"
        f"{body}</main><script>{SCRIPT}</script></body></html>"
    )


def _targets(reports: Sequence[ReportData], pricing: Pricing) -> str:
    parts = []
    for number, report in enumerate(reports, start=1):
        name = escape(report.slice.name)
        parts.append(
            f'<section class=target id="target-{number}" data-name="{name}">'
            f'<h2 class="target-name">{name}</h2>{target(report, pricing)}</section>'
        )
    return "".join(parts)


def target(report: ReportData, pricing: Pricing) -> str:
    """Return all sections about one report."""
    where = report.slice
    about = (
        f"{escape(where.name)}: {amount(where.num_chips, 'chip')} "
        f"{escape(where.generation.device_kind)}, {amount(where.num_devices, 'device')}, "
        f"{amount(where.num_hosts, 'host')}."
    )
    sections = (
        _verdict(report), _cards(report, pricing), _published(report), findings_section(report),
        time_section(report), memory_section(report), operations_section(report), _notes(report),
    )  # fmt: skip
    workload = f"<p class=sub>{escape(report.workload)}</p>" if report.workload else ""
    return f"<p class=sub>{about}</p>{workload}{''.join(sections)}"


def _verdict(report: ReportData) -> str:
    """Return the answer in one sentence."""
    time, where = report.step_time, escape(report.slice.name)
    if time is None:
        no = _REFUSED.get(report.refused or "", "does not compile")
        return f"<p class=verdict><b class=bad>✕ It {no}</b> on {where}.</p>{_suggestions(report)}"
    bound = escape(KIND_NAMES.get(time.bound, time.bound))
    return (
        f"<p class=verdict><b class=good>✓ It fits</b> on {where}. A step takes about "
        f"{seconds_text(time.seconds)} ({INTERVAL}: {seconds_text(time.low)} to "
        f"{seconds_text(time.high)}), bound by {bound}.</p>"
    )


def _suggestions(report: ReportData) -> str:
    """Return the changes that were compiled because the program does not fit."""
    rows = []
    for suggestion in report.suggestions:
        memory, time = suggestion.analysis.memory, suggestion.analysis.time
        refused = suggestion.analysis.refused
        sign = "✓" if suggestion.fits else "?" if refused in NO_ANSWER else "✕"
        held = f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)}"
        cells = (
            suggestion.change,
            f"{sign} {suggestion.verdict}",
            held if hbm_is_known(refused) else "",
            f"{seconds_text(time.seconds)}" if time else "",
        )
        rows.append(f"<tr>{''.join(f'<td class=why>{escape(cell)}</td>' for cell in cells)}</tr>")
    if not rows:
        return ""
    heads = ("change", "then", "HBM", "step (est.)")
    head = "".join(f"<th scope=col>{name}</th>" for name in heads)
    return (
        "<h2>What would make it fit (each compiled again)</h2>"
        '<div class=wide tabindex=0 role=region aria-label="Changes"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cards(report: ReportData, pricing: Pricing) -> str:
    memory, time = report.hbm, report.step_time
    used = memory.peak_bytes / memory.limit_bytes
    fits = "✓ fits" if report.fits else "✕ does not fit"
    held = f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)}"
    held += f" ({percent_text(used)})"
    if not hbm_is_known(report.refused):
        fits, held = "? not known", "the compiler gave no answer about it"
    cards = [("HBM on each device", fits, held, "good" if report.fits else "bad")]
    if time is not None:
        mfu = "no products" if report.mfu is None else percent_text(report.mfu)
        interval = f"{INTERVAL}: {seconds_text(time.low)} to {seconds_text(time.high)}"
        cards += [
            ("Step time, estimated", seconds_text(time.seconds), interval, ""),
            ("Bound by", KIND_NAMES.get(time.bound, time.bound), _share(report), ""),
            ("MFU, estimated", mfu, _rate(report), ""),
            ("1,000 steps, estimated", *_cost(report, pricing), ""),
            *_epoch(report, pricing),
        ]
    return (
        "<div class=cards>"
        + "".join(
            f'<div class="card {kind}"><div class=label>{escape(label)}</div>'
            f"<div class=value>{escape(value)}</div><div class=detail>{escape(detail)}</div></div>"
            for label, value, detail, kind in cards
        )
        + "</div>"
    )


def _cost(report: ReportData, pricing: Pricing) -> tuple[str, str]:
    """Return the USD of 1,000 steps and the source of the price."""
    cost = report.cost(1000, **vars(pricing))
    if cost.usd is None:
        return "no public price", ""
    hourly = f"{cost.usd_per_chip_hour:g} USD a chip-hour"
    if cost.price is None:
        return money_text(cost.usd), f"{hourly}, your price"
    which = f"{cost.price.region} {cost.price.commitment}"
    return money_text(cost.usd), f"{hourly}, {which}, list of {cost.price.as_of}"


def _epoch(report: ReportData, pricing: Pricing) -> list[tuple[str, str, str, str]]:
    """Return the card of an epoch in USD, if its number of steps is known."""
    steps = report.steps_per_epoch
    usd = report.cost(steps, **vars(pricing)).usd if steps else None
    if not steps or usd is None:
        return []
    return [("An epoch, estimated", money_text(usd), amount(steps, "step"), "")]


def _rate(report: ReportData) -> str:
    if report.tokens_per_second:
        return f"{report.tokens_per_second:,.0f} tokens/s"
    rate = report.examples_per_second
    return f"{rate:,.0f} examples/s" if rate else ""


def _published(report: ReportData) -> str:
    run = report.published_run
    if run is None or report.step_time is None:
        return ""
    words = (
        f"Nearest published run, for orientation and not ours: {run.model} on {run.machine}, "
        f"batch {run.batch_size} × {run.sequence_length}, MFU {run.mfu:.0%}, "
        f"{run.tokens_per_second_per_chip:,.0f} tokens/s/chip ({run.source})."
    )
    return f"<p class=sub>{escape(words)}</p>"


def _share(report: ReportData) -> str:
    time = report.step_time
    share = time.shares.get(time.bound) if time else None
    return f"{share:.0%} of the device's time" if share else ""


def _notes(report: ReportData) -> str:
    notes = list(report.analysis.notes)
    if report.analysis.from_cache:
        notes.append("The compiler's answer came from the cache.")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<h2>Notes</h2><ul>{items}</ul>" if items else ""

"""One page that needs nothing but itself: memory, time, roofline, operations, findings.

Owns the drawing. Every name from a program is escaped; there is no network access in the page, and
its script only sorts and filters a table that is complete without it.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING

from neurenix.preflight.page_style import SCRIPT, STYLE
from neurenix.preflight.text import KIND_NAMES, amount, bytes_text, seconds_text, source_text

if TYPE_CHECKING:
    from neurenix.compiler.time import Operation
    from neurenix.preflight.report import Report

_COLOURS = {
    "parameters": "#3b6fb6", "optimizer": "#6a51a3", "model_state": "#2b8a8a",
    "metrics": "#8c8c8c", "batch": "#3a8a4d", "other": "#a0a0a0", "argument": "#3b6fb6",
    "temporaries": "#c8742b", "new results": "#b0413e", "code": "#707070",
    "compute": "#3a8a4d", "hbm": "#c8742b", "ici": "#3b6fb6", "dcn": "#b0413e",
    "vector": "#2b8a8a", "overhead": "#8c8c8c",
}  # fmt: skip
_SHOWN_OPERATIONS = 400


def page(report: Report) -> str:
    """Return the page of a report as one HTML document."""
    title = f"Preflight of {report.name} on {report.slice.name}"
    sections = [_head(report), _summary(report), _memory(report)]
    if report.step_time is not None:
        sections += [_time(report), _roofline(report)]
    sections += [_findings(report), _operations(report), _notes(report)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f"{''.join(sections)}</main><script>{SCRIPT}</script></body></html>"
    )


def _head(report: Report) -> str:
    where = report.slice
    return (
        f"<h1>Preflight of {escape(report.name)}</h1>"
        f"<p class=sub>{escape(where.name)}: {amount(where.num_chips, 'chip')} "
        f"{escape(where.generation.device_kind)}, {amount(where.num_devices, 'device')}, "
        f"{amount(where.num_hosts, 'host')}. Compiled with the TPU compiler; nothing ran on a TPU, "
        "and every time on this page is an estimate.</p>"
    )


def _summary(report: Report) -> str:
    memory, time = report.hbm, report.step_time
    used = memory.peak_bytes / memory.limit_bytes
    cards = [
        (
            "HBM on each device",
            "fits" if report.fits else "does not fit",
            f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)} ({used:.1%})",
            "good" if report.fits else "bad",
        )
    ]
    if time is not None:
        cards.append(
            (
                "Step time, estimated",
                seconds_text(time.seconds),
                f"{seconds_text(time.low)} to {seconds_text(time.high)}",
                "",
            )
        )
        bound = KIND_NAMES.get(time.bound, time.bound)
        mfu = f"{report.mfu:.1%} MFU" if report.mfu is not None else ""
        cards.append(("Bound by", bound, mfu, ""))
        cost = report.cost(1000)
        cards.append(
            (
                "1,000 steps, estimated",
                "no public price" if cost.usd is None else f"{cost.usd:.4g} USD",
                ""
                if cost.price is None
                else f"{cost.usd_per_chip_hour:.2f} USD a chip-hour, {cost.price.as_of}",
                "",
            )
        )
    return (
        "<div class=cards>"
        + "".join(
            f'<div class="card {kind}"><div class=label>{escape(label)}</div>'
            f"<div class=value>{escape(value)}</div><div class=detail>{escape(detail)}</div></div>"
            for label, value, detail, kind in cards
        )
        + "</div>"
    )


def _bar(parts: list[tuple[str, float, str]], whole: float) -> str:
    """Draw a bar of (name, amount, text) parts against ``whole``."""
    pieces, legend = [], []
    for name, size, text in parts:
        if size <= 0:
            continue
        colour = _COLOURS.get(name, "#808080")
        label = escape(f"{KIND_NAMES.get(name, name)} {text}")
        pieces.append(
            f'<span style="width:{min(100.0, size / whole * 100):.3f}%;background:{colour}" '
            f'title="{label}"></span>'
        )
        legend.append(f'<li><i style="background:{colour}"></i>{label}</li>')
    return f"<div class=bar>{''.join(pieces)}</div><ul class=legend>{''.join(legend)}</ul>"


def _memory(report: Report) -> str:
    memory = report.hbm
    parts = [(role, float(size), bytes_text(size)) for role, size in memory.roles.items()]
    new = memory.outputs_bytes - memory.aliased_bytes
    for name, size in (
        ("temporaries", memory.temporaries_bytes),
        ("new results", new),
        ("code", memory.code_bytes),
    ):
        parts.append((name, float(size), bytes_text(size)))
    rows = "".join(
        f"<tr><td>{escape(b.path)}</td><td>{escape(b.role)}</td><td>{escape(b.shape)}</td>"
        f"<td class=n>{bytes_text(b.logical_bytes)}</td>"
        f"<td class=n>{bytes_text(b.padded_bytes)}</td></tr>"
        for b in sorted(memory.buffers, key=lambda b: -b.padded_bytes)[:20]
    )
    scale = max(memory.limit_bytes, memory.peak_bytes)
    used = memory.peak_bytes / memory.limit_bytes
    zoomed = ""
    if used < 0.2:
        zoomed = f"<h3>The part in use</h3>{_bar(parts, memory.peak_bytes)}"
        parts_bar = f'<div class=bar><span style="width:{used * 100:.2f}%"></span></div>'
    else:
        parts_bar = _bar(parts, scale)
    return (
        f"<h2>Memory of one device</h2><p>{bytes_text(memory.peak_bytes)} of "
        f"{bytes_text(memory.limit_bytes)}; {bytes_text(max(0, memory.headroom_bytes))} left. "
        f"{bytes_text(memory.aliased_bytes)} of state are donated: updated in place.</p>"
        f"{parts_bar}{zoomed}<details><summary>Largest arguments</summary><table>"
        "<thead><tr><th>argument</th><th>role</th><th>on one device</th><th class=n>bytes</th>"
        f"<th class=n>padded</th></tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _time(report: Report) -> str:
    time = report.step_time
    if time is None:
        return ""
    parts = [
        (kind, share, f"{share:.1%} ({seconds_text(share * time.device_seconds)})")
        for kind, share in time.shares.items()
    ]
    return (
        f"<h2>Where the step goes (estimated)</h2>{_bar(parts, 1.0)}"
        f"<p class=sub>Calibrated on {escape(time.basis)}. Host: about "
        f"{seconds_text(time.host_seconds)} a step, beside the device.</p>"
    )


def _roofline(report: Report) -> str:
    """Draw achieved FLOP/s against FLOPs per byte of the operations, both axes logarithmic."""
    generation = report.slice.generation
    peak = generation.peak_flops_per_second["bfloat16"]
    bandwidth = generation.hbm_bandwidth_bytes_per_second_per_device
    points = [
        (o, o.flops / o.bytes, o.flops / report.calibrated(o.seconds))
        for o in report.operations
        if o.flops > 0 and o.bytes > 0 and o.seconds > 0
    ]
    if not points:
        return ""
    left, right = -1.0, 5.0
    top = math.log10(peak) + 0.3
    bottom = top - 5.0

    def x(value: float) -> float:
        return 50 + (min(max(math.log10(value), left), right) - left) / (right - left) * 610

    def y(value: float) -> float:
        return 10 + (top - min(max(math.log10(value), bottom), top)) / (top - bottom) * 250

    ridge = peak / bandwidth
    start = max(10**left, 10**bottom / bandwidth)
    circles = "".join(
        f'<circle cx="{x(i):.1f}" cy="{y(f):.1f}" r="{_radius(o, report):.1f}">'
        f"<title>{escape(o.name)}: {f / 1e12:.2f} TFLOP/s, {i:.1f} FLOP/byte</title></circle>"
        for o, i, f in points[:200]
    )
    ticks = "".join(
        f'<text x="{x(10.0**e):.0f}" y="278" class=tick text-anchor="middle">{10.0**e:g}</text>'
        for e in range(-1, 6)
    )
    return (
        "<h2>Roofline of one device (estimated)</h2>"
        '<svg viewBox="0 0 700 300" role="img" aria-label="Roofline">'
        f'<polyline points="{x(start):.1f},{y(start * bandwidth):.1f} {x(ridge):.1f},{y(peak):.1f} '
        f'{x(10**right):.1f},{y(peak):.1f}" class=roof />{circles}{ticks}'
        f'<text x="675" y="{y(peak) - 6:.0f}" class=tick text-anchor="end">'
        f"{peak / 1e12:.0f} TFLOP/s bfloat16</text>"
        '<text x="365" y="296" class=tick text-anchor="middle">FLOPs per byte of HBM</text>'
        "</svg>"
    )


def _radius(operation: Operation, report: Report) -> float:
    time = report.step_time
    whole = time.device_seconds if time else 1.0
    return 2.5 + 14 * math.sqrt(min(1.0, report.calibrated(operation.seconds) / (whole or 1.0)))


def _findings(report: Report) -> str:
    if not report.findings:
        return "<h2>Findings</h2><p>None.</p>"
    items = []
    for finding in report.findings:
        effect = ""
        if finding.effect_seconds > 0:
            effect = f" <b>≈ {seconds_text(finding.effect_seconds)} of a step</b>"
        if finding.effect_bytes > 0:
            effect += f" <b>{bytes_text(finding.effect_bytes)}</b>"
        named = [finding.scope, source_text(finding.source)]
        source = f"<code>{escape(' '.join(filter(None, named)))}</code>"
        items.append(
            f"<li class={finding.severity}><span class=badge>{finding.severity}</span> "
            f"<span class=rule>{escape(finding.rule)}</span>{effect}<p class=pre>"
            f"{escape(finding.message)}</p>"
            f"<p class=fix>{escape(finding.fix)}</p>{source}</li>"
        )
    return f"<h2>Findings</h2><ol class=findings>{''.join(items)}</ol>"


def _operations(report: Report) -> str:
    if not report.operations:
        return ""
    time = report.step_time
    whole = time.device_seconds if time else 1.0
    rows = []
    for o in report.operations[:_SHOWN_OPERATIONS]:
        seconds = report.calibrated(o.seconds)
        source = source_text(o.source)
        rows.append(
            f'<tr><td class=n data-v="{seconds:.3e}">{seconds_text(seconds)}</td>'
            f'<td class=n data-v="{seconds / whole:.6f}">{seconds / whole:.1%}</td>'
            f"<td>{KIND_NAMES.get(o.kind, escape(o.kind))}</td><td>{escape(o.name)}</td>"
            f"<td class=n data-v={o.count}>{o.count}</td>"
            f'<td class=n data-v="{o.flops:.0f}">{o.flops / 1e9:.2f}</td>'
            f'<td class=n data-v="{o.bytes}">{bytes_text(o.bytes)}</td>'
            f"<td>{escape(o.shape)}</td><td>{escape(source)}</td><td>{escape(o.op_name)}</td></tr>"
        )
    heads = ("time", "share", "kind", "operation", "times", "GFLOP", "HBM", "makes", "at", "from")
    numeric = {"time", "share", "times", "GFLOP", "HBM"}
    head = "".join(f"<th{' class=n' if h in numeric else ''}>{h}</th>" for h in heads)
    left_out = len(report.operations) - len(rows)
    more = f"<p class=sub>{left_out} cheaper ones are in the JSON.</p>" if left_out > 0 else ""
    return (
        "<h2>Operations (estimated)</h2>"
        '<input id=filter type=search placeholder="Filter" aria-label="Filter operations">'
        f"<div class=wide><table id=operations><thead><tr>{head}</tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>{more}"
    )


def _notes(report: Report) -> str:
    notes = list(report.analysis.notes)
    if report.analysis.from_cache:
        notes.append("The compiler's answer came from the cache.")
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"<h2>Notes</h2><ul>{items}</ul>" if items else ""

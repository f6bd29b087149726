"""The comparison of several reports on the page: a table, step times and the frontier."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from neurenix.compiler.step_time import StepTime
from neurenix.preflight.cost import Pricing, money_text
from neurenix.preflight.page.charts import Axis, fluid, line, percent, text
from neurenix.preflight.page.frontier_section import Point, frontier
from neurenix.preflight.report.formatting import (
    INTERVAL,
    KIND_NAMES,
    bytes_text,
    percent_text,
    seconds_text,
)
from neurenix.preflight.report.report_data import NO_ANSWER, ReportData, hbm_is_known

_ROW = 40.0  # pixels of one target: its name, and its interval below
STEPS = 1000


def compare_section(reports: Sequence[ReportData], pricing: Pricing) -> str:
    """Return several reports in one table, their intervals, and their frontier."""
    heads = ("slice", "chips", "fits", "HBM", "step (est.)", INTERVAL, "bound by", "MFU")
    head = "".join(f"<th scope=col>{name}</th>" for name in (*heads, "1,000 steps", "most severe"))
    rows = "".join(
        _report_row(report, number, pricing) for number, report in enumerate(reports, start=1)
    )
    times = [(r.slice.name, t) for r in reports if (t := r.step_time) is not None]
    points = [
        Point(report.slice.name, report.step_time.seconds, usd)
        for report in reports
        if report.step_time is not None and (usd := usd_of(report, pricing)) is not None
    ]
    return (
        "<h2>The targets beside each other (estimated)</h2>"
        '<div class=wide tabindex=0 role=region aria-label="Targets"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{intervals(times)}{frontier(points)}"
    )


def usd_of(report: ReportData, pricing: Pricing) -> float | None:
    """Return the USD of 1,000 steps; None without a step time or a public price."""
    return report.cost(STEPS, **vars(pricing)).usd if report.step_time is not None else None


def fits_text(report: ReportData) -> str:
    """Return the words of the column ``fits``."""
    if report.refused in NO_ANSWER:
        return "? not known"
    return "✓ yes" if report.fits else "✕ NO"


def cost_text(usd: float | None) -> str:
    """Return an amount of USD in words."""
    return "no public price" if usd is None else money_text(usd)


def _report_row(report: ReportData, number: int, pricing: Pricing) -> str:
    time, memory = report.step_time, report.hbm
    used = "not known"
    if hbm_is_known(report.refused):
        used = f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)}"
    first = report.findings[0] if report.findings else None
    cells = [str(report.slice.num_chips), fits_text(report), used]
    if time is None:
        cells += [""] * 5
    else:
        cells += [
            seconds_text(time.seconds),
            f"{seconds_text(time.low)} to {seconds_text(time.high)}",
            KIND_NAMES.get(time.bound, time.bound),
            "" if report.mfu is None else percent_text(report.mfu),
            cost_text(usd_of(report, pricing)),
        ]
    why = f"{first.severity}: {first.rule}" if first else ""
    name = f'<td><a href="#target-{number}">{escape(report.slice.name)}</a></td>'
    return f"<tr>{name}{''.join(f'<td>{escape(c)}</td>' for c in (*cells, why))}</tr>"


def intervals(rows: Sequence[tuple[str, StepTime]]) -> str:
    """Draw the step time of each target with its interval, below its name.

    Args:
        rows: names and times of the targets.
    """
    if not rows:
        return ""
    low = min(max(t.low, t.seconds / 100) for _, t in rows)
    high = max(t.high for _, t in rows)
    logarithmic = low > 0 and high > 20 * low
    bottom = 8.0 + _ROW * len(rows)
    x = Axis(low * 0.9 if logarithmic else 0.0, high * 1.05, 0.0, 100.0, logarithmic)
    parts = []
    for value in x.ticks(most=4):
        place = percent(x(value))
        parts.append(line(place, 4, place, bottom, "grid"))
        words = seconds_text(value) if value > 0 else "0"
        parts.append(text(place, bottom + 16, words, "tick", "middle"))
    for number, (name, t) in enumerate(rows):
        y = 28.0 + _ROW * number
        ends = [percent(x(end)) for end in (t.low, t.high)]
        words = (
            f"{name}: {seconds_text(t.seconds)} ({seconds_text(t.low)} to {seconds_text(t.high)})"
        )
        parts.append(text(0, y - 12, words, "name"))
        parts.append(line(ends[0], y, ends[1], y, "whisker"))
        parts += [line(end, y - 5, end, y + 5, "whisker") for end in ends]
        parts.append(
            f'<circle cx="{percent(x(t.seconds))}" cy="{y:.1f}" r="5.5" class="solid">'
            f"<title>{escape(words)}</title></circle>"
        )
    label = "Estimated step times with their intervals; the table above has the numbers"
    picture = fluid(bottom + 24, label, "".join(parts), left=16, right=16)
    return f"<h3>Step time with its {INTERVAL} (estimated)</h3>{picture}"

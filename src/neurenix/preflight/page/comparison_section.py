"""Targets beside each other: what several reports and the candidates of a search look like.

Owns the comparison table and the picture of intervals; that of cost and time is
``page_frontier``'s. Which candidate is better, and why others lost, is ``planning``'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from neurenix.preflight.cost import Pricing, money_text
from neurenix.preflight.page.charts import Axis, fluid, line, percent, text
from neurenix.preflight.page.frontier_section import Point, frontier
from neurenix.preflight.page.frontier_section import undominated as undominated
from neurenix.preflight.report.formatting import (
    INTERVAL,
    KIND_NAMES,
    amount,
    bytes_text,
    percent_text,
    seconds_text,
)
from neurenix.preflight.report.report_json import NO_ANSWER, hbm_is_known

if TYPE_CHECKING:
    from neurenix.compiler.step_time import StepTime
    from neurenix.preflight.report.report import Report
    from neurenix.preflight.search.search_result import Candidate, Plan

_ROW = 40.0  # pixels of one target: its words, and its interval below them
_STEPS = 1000


def compare_section(reports: Sequence[Report], pricing: Pricing) -> str:
    """Return several reports in one table, their intervals, and their frontier."""
    heads = ("slice", "chips", "fits", "HBM", "step (est.)", INTERVAL, "bound by", "MFU")
    head = "".join(f"<th scope=col>{name}</th>" for name in (*heads, "1,000 steps", "gravest"))
    rows = "".join(
        _report_row(report, number, pricing) for number, report in enumerate(reports, start=1)
    )
    times = [(r.slice.name, t) for r in reports if (t := r.step_time) is not None]
    points = [
        Point(report.slice.name, report.step_time.seconds, usd)
        for report in reports
        if report.step_time is not None and (usd := _usd(report, pricing)) is not None
    ]
    return (
        "<h2>The targets beside each other (estimated)</h2>"
        '<div class=wide tabindex=0 role=region aria-label="Targets"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{intervals(times)}{frontier(points)}"
    )


def _usd(report: Report, pricing: Pricing) -> float | None:
    return report.cost(_STEPS, **vars(pricing)).usd if report.step_time is not None else None


def _fits(report: Report) -> str:
    if report.refused in NO_ANSWER:
        return "? not known"
    return "✓ yes" if report.fits else "✕ NO"


def _money(usd: float | None) -> str:
    return "no public price" if usd is None else money_text(usd)


def _report_row(report: Report, number: int, pricing: Pricing) -> str:
    time, memory = report.step_time, report.hbm
    used = "not known"
    if hbm_is_known(report.refused):
        used = f"{bytes_text(memory.peak_bytes)} of {bytes_text(memory.limit_bytes)}"
    first = report.findings[0] if report.findings else None
    cells = [str(report.slice.num_chips), _fits(report), used]
    if time is None:
        cells += [""] * 5
    else:
        cells += [
            seconds_text(time.seconds),
            f"{seconds_text(time.low)} to {seconds_text(time.high)}",
            KIND_NAMES.get(time.bound, time.bound),
            "" if report.mfu is None else percent_text(report.mfu),
            _money(_usd(report, pricing)),
        ]
    why = f"{first.severity}: {first.rule}" if first else ""
    name = f'<td><a href="#target-{number}">{escape(report.slice.name)}</a></td>'
    return f"<tr>{name}{''.join(f'<td>{escape(c)}</td>' for c in (*cells, why))}</tr>"


def intervals(rows: Sequence[tuple[str, StepTime]]) -> str:
    """Draw the step time of each target as a sign within its interval, below its name.

    Args:
        rows: names of targets with their times.
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


def candidates_section(plan: Plan, pricing: Pricing) -> str:
    """Return the frontier of a search, and every candidate with why it lost.

    Candidates of different batches are drawn by the example, since their steps are not alike.
    """
    ran = [c for c in plan.candidates if c.report is not None and c.report.step_time is not None]
    by_example = len({c.batch for c in ran}) > 1 and all(c.batch for c in ran)
    points = []
    for candidate in ran:
        point = _point(candidate, ran, pricing, by_example=by_example)
        points += [point] if point else []
    words = ("a million examples", "a million examples") if by_example else ()
    heads = "slice mesh batch remat XLA_options fits HBM step_(est.) 1,000_steps verdict".split()
    rows = [
        _candidate_cells(candidate, plan, pricing, best=number == 0)
        for number, candidate in enumerate(plan.candidates)
    ]
    told = [i for i in range(len(heads)) if any(row[i] for row in rows)]
    head = "".join(f"<th scope=col>{heads[i].replace('_', ' ')}</th>" for i in told)
    body = "".join(f"<tr>{''.join(_cell(row[i], heads[i]) for i in told)}</tr>" for row in rows)
    return (
        f"<h2>Candidates, the best {escape(plan.objective)} first (estimated)</h2>"
        f"{_left_out(plan)}{frontier(points, *words)}"
        '<div class=wide tabindex=0 role=region aria-label="Candidates"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _left_out(plan: Plan) -> str:
    """Say how many candidates the end of the budget left out, if any."""
    if not plan.num_not_compiled:
        return ""
    shown = amount(plan.num_not_compiled, "candidate")
    return f"<p class=sub>Not compiled, since the time for the search was up: {shown}.</p>"


def _cell(words: str, column: str) -> str:
    shown = escape(words)
    kind = {"verdict": " class=why", "XLA_options": f' class=options title="{shown}"'}
    return f"<td{kind.get(column, '')}>{shown}</td>"


def _point(
    candidate: Candidate, ran: Sequence[Candidate], pricing: Pricing, *, by_example: bool
) -> Point | None:
    """Return a candidate as a point, named by what tells it from the others."""
    report = candidate.report
    usd = _usd(report, pricing) if report else None
    if report is None or report.step_time is None or usd is None:
        return None
    parts = [candidate.slice.name]
    for name in ("mesh", "batch", "remat", "compiler_options"):
        on_this_slice = [c for c in ran if c.slice.name == candidate.slice.name]
        value = getattr(candidate, name)
        if value and len({getattr(c, name) for c in on_this_slice}) > 1:
            parts.append(f"batch {value}" if name == "batch" else str(value))
    seconds, scale = report.step_time.seconds, 1.0
    if by_example and candidate.batch:
        seconds, scale = seconds * 1e6 / candidate.batch, 1e6 / candidate.batch / _STEPS
    return Point(", ".join(parts), seconds, usd * scale)


def _candidate_cells(
    candidate: Candidate, plan: Plan, pricing: Pricing, *, best: bool
) -> list[str]:
    report = candidate.report
    won = best and candidate.value is not None
    reason = candidate.reason or (f"best {plan.objective}" if won else "")
    cells = [
        candidate.slice.name, candidate.mesh, str(candidate.batch or ""), candidate.remat,
        candidate.compiler_options,
    ]  # fmt: skip
    if report is None:
        cells += [""] * 4
    else:
        time = report.step_time
        cells += [
            _fits(report),
            bytes_text(report.hbm.peak_bytes) if hbm_is_known(report.refused) else "",
            seconds_text(time.seconds) if time else "",
            _money(_usd(report, pricing)) if time else "",
        ]
    return [*cells, f"{'★ ' if won else ''}{reason}"]

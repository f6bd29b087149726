"""Targets beside each other: what several reports and the candidates of a search look like.

Owns the comparison table, the picture of intervals and the frontier of cost and time. Which
candidate is better, and why others lost, is ``planning``'s to say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from neurenix.preflight.charts import Axis, line, scaled, svg, text
from neurenix.preflight.cost import Pricing, usd_text
from neurenix.preflight.record import NO_ANSWER, hbm_is_known
from neurenix.preflight.text import KIND_NAMES, amount, bytes_text, percent_text, seconds_text

if TYPE_CHECKING:
    from neurenix.preflight.plan import Candidate, Plan
    from neurenix.preflight.report import Report

_WIDTH = 900.0
_STEPS = 1000


@dataclass(frozen=True)
class Point:
    """A way to run a program: estimated seconds and USD for as much work as the others do."""

    label: str
    seconds: float
    usd: float


def compare_section(reports: Sequence[Report], pricing: Pricing) -> str:
    """Return several reports in one table, their intervals, and their frontier."""
    heads = ("slice", "chips", "fits", "HBM", "step (est.)", "interval", "bound by", "MFU")
    head = "".join(f"<th scope=col>{name}</th>" for name in (*heads, "1,000 steps", "gravest"))
    rows = "".join(
        _report_row(report, number, pricing) for number, report in enumerate(reports, start=1)
    )
    points = [
        Point(report.slice.name, report.step_time.seconds, usd)
        for report in reports
        if report.step_time is not None and (usd := _usd(report, pricing)) is not None
    ]
    return (
        "<h2>The targets beside each other (estimated)</h2>"
        '<div class=wide tabindex=0 role=region aria-label="Targets"><table><thead><tr>'
        f"{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"{_intervals(reports)}{frontier(points)}"
    )


def _usd(report: Report, pricing: Pricing) -> float | None:
    return report.cost(_STEPS, **vars(pricing)).usd if report.step_time is not None else None


def _fits(report: Report) -> str:
    if report.refused in NO_ANSWER:
        return "? not known"
    return "✓ yes" if report.fits else "✕ NO"


def _money(usd: float | None) -> str:
    return "no public price" if usd is None else usd_text(usd)


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


def _intervals(reports: Sequence[Report]) -> str:
    """Draw the step time of each target as a sign within its interval."""
    rows = [(r.slice.name, t) for r in reports if (t := r.step_time) is not None]
    if not rows:
        return ""
    low = min(max(t.low, t.seconds / 100) for _, t in rows)
    high = max(t.high for _, t in rows)
    logarithmic = low > 0 and high > 20 * low
    bottom = 16.0 + 26 * len(rows)
    x = Axis(low * 0.9 if logarithmic else 0.0, high * 1.05, 150, _WIDTH - 90, logarithmic)
    parts = []
    for value in x.ticks():
        parts.append(line(x(value), 8, x(value), bottom, "grid"))
        words = seconds_text(value) if value > 0 else "0"
        parts.append(text(x(value), bottom + 16, words, "tick", "middle"))
    for number, (name, t) in enumerate(rows):
        y = 24.0 + 26 * number
        parts.append(text(140, y + 4, name, "name", "end"))
        parts.append(line(x(t.low), y, x(t.high), y, "whisker"))
        parts += [line(x(end), y - 5, x(end), y + 5, "whisker") for end in (t.low, t.high)]
        words = f"{seconds_text(t.seconds)} ({seconds_text(t.low)} to {seconds_text(t.high)})"
        title = f"<title>{escape(f'{name}: {words}')}</title>"
        parts.append(
            f'<circle cx="{x(t.seconds):.1f}" cy="{y:.1f}" r="5.5" class="solid">{title}</circle>'
        )
        parts.append(text(x(t.high) + 9, y + 4, seconds_text(t.seconds), "tick"))
    label = "Estimated step times with their intervals; the table above has the numbers"
    picture = svg((_WIDTH, bottom + 24), label, "".join(parts))
    return f"<h3>Step time with its interval (estimated)</h3>{picture}"


def undominated(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other beats in both time and cost, the fastest first.

    Example:
        >>> front = undominated([Point("a", 1, 9), Point("b", 2, 3), Point("c", 3, 4)])
        >>> [point.label for point in front]
        ['a', 'b']
    """
    front: list[Point] = []
    for point in sorted(points, key=lambda p: (p.seconds, p.usd)):
        if not front or point.usd < front[-1].usd:
            front.append(point)
    return front


def frontier(points: Sequence[Point], work: str = "1,000 steps", unit: str = "a step") -> str:
    """Draw cost against time; those on the frontier are filled and joined.

    Args:
        points: none is drawn when there are fewer than two.
        work: what the USD are for.
        unit: what the seconds are of.
    """
    if len(points) < 2:
        return ""
    height, bottom = 360.0, 312.0
    x = _axis([p.seconds for p in points], 80, _WIDTH - 110)
    y = _axis([p.usd for p in points], bottom, 26)
    front = undominated(points)
    parts = []
    for value in x.ticks():
        parts.append(line(x(value), 26, x(value), bottom, "grid"))
        words = seconds_text(value) if value > 0 else "0"
        parts.append(text(x(value), bottom + 17, words, "tick", "middle"))
    for value in y.ticks():
        parts.append(line(80, y(value), _WIDTH - 110, y(value), "grid"))
        parts.append(text(72, y(value) + 4, scaled(value, ""), "tick", "end"))
    parts.append(text(8, 14, f"USD for {work}", "axis"))
    middle = (80 + _WIDTH - 110) / 2
    parts.append(text(middle, height - 8, f"estimated time of {unit}", "axis", "middle"))
    corners: list[str] = []
    for before, after in zip(front, front[1:], strict=False):
        corners += [f"{x(before.seconds):.1f},{y(before.usd):.1f}"]
        corners += [f"{x(after.seconds):.1f},{y(before.usd):.1f}"]
    corners.append(f"{x(front[-1].seconds):.1f},{y(front[-1].usd):.1f}")
    parts.append(f'<polyline points="{" ".join(corners)}" class=frontier />')
    taken: list[tuple[float, float]] = []
    for point in sorted(points, key=front.__contains__):  # the frontier last: it lies on top
        on = point in front
        place = x(point.seconds), y(point.usd)
        words = f"{point.label}: {seconds_text(point.seconds)}, {usd_text(point.usd)}"
        title = f"<title>{escape(words)}{' (on the frontier)' if on else ''}</title>"
        parts.append(
            f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{6.5 if on else 5}" '
            f'class="{"solid" if on else "hollow"}">{title}</circle>'
        )
        lift = _free(place, taken)
        taken.append((place[0], place[1] + lift))
        parts.append(text(place[0] + 8, place[1] + lift - 7, point.label, "name"))
    label = "Cost against time of the candidates; the table has the numbers"
    return (
        "<h3>Cost against time (estimated)</h3>"
        f"{svg((_WIDTH, height), label, ''.join(parts))}"
        "<p class=sub>Filled signs on the dashed line are the frontier: nothing else is both "
        "faster and cheaper. What has no public price is only in the table.</p>"
    )


def _axis(values: list[float], start: float, stop: float) -> Axis:
    """Return an axis from nought, or a logarithmic one where values differ twentyfold."""
    low, high = min(values), max(values)
    if low > 0 and high > 20 * low:
        floor, ceiling = math.floor(math.log10(low)), math.ceil(math.log10(high * 1.01))
        return Axis(10.0**floor, 10.0**ceiling, start, stop, logarithmic=True)
    return Axis(0.0, high * 1.12 or 1.0, start, stop)


def _free(place: tuple[float, float], taken: list[tuple[float, float]]) -> float:
    """Return how far a label moves up, below nought, so that it lies on no other."""
    lift = 0.0
    while any(abs(place[0] - a) < 90 and abs(place[1] + lift - b) < 13 for a, b in taken):
        lift -= 13
    return lift


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

"""The page of a search: its frontier, its candidates and the winner in full.

Does not own who wins (``search.py``) or the picture of the frontier (``frontier_section.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from neurenix.preflight.cost import Pricing
from neurenix.preflight.page.comparison_section import STEPS, cost_text, fits_text, usd_of
from neurenix.preflight.page.frontier_section import Point, frontier
from neurenix.preflight.page.html import ESTIMATED, document, target
from neurenix.preflight.report.formatting import amount, bytes_text, seconds_text
from neurenix.preflight.report.report_data import hbm_is_known
from neurenix.preflight.search.plan_data import Candidate, PlanData


def plan_page(plan: PlanData, pricing: Pricing | None = None) -> str:
    """Return the page of a search: its frontier, its candidates, and the winner in full.

    Args:
        plan: the data of a search.
        pricing: of the costs; on demand in the US by default.
    """
    pricing = pricing or Pricing()
    winners = [c.report for c in plan.candidates[:1] if c.report and c.value is not None]
    named = winners or [c.report for c in plan.candidates if c.report]
    name = named[0].name if named else "a program"
    body = (
        f"<h1>Plan for {escape(name)}</h1>{ESTIMATED}{candidates_section(plan, pricing)}"
        + "".join(
            f'<section class=target><h2 class="target-name">The best: '
            f"{escape(winner.slice.name)}</h2>{target(winner, pricing)}</section>"
            for winner in winners
        )
    )
    return document(f"Plan for {name}", body)


def candidates_section(plan: PlanData, pricing: Pricing) -> str:
    """Return the frontier of a search, and every candidate with the reason why it lost.

    Candidates of different batches are compared per example.
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


def _left_out(plan: PlanData) -> str:
    """Return how many candidates were left out when the budget ended, if any."""
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
    """Return a candidate as a point, named by its differences from the others."""
    report = candidate.report
    usd = usd_of(report, pricing) if report else None
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
        seconds, scale = seconds * 1e6 / candidate.batch, 1e6 / candidate.batch / STEPS
    return Point(", ".join(parts), seconds, usd * scale)


def _candidate_cells(
    candidate: Candidate, plan: PlanData, pricing: Pricing, *, best: bool
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
            fits_text(report),
            bytes_text(report.hbm.peak_bytes) if hbm_is_known(report.refused) else "",
            seconds_text(time.seconds) if time else "",
            cost_text(usd_of(report, pricing)) if time else "",
        ]
    return [*cells, f"{'★ ' if won else ''}{reason}"]

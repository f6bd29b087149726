"""A search as text: every candidate, why it lost, and the winner."""

from __future__ import annotations

from neurenix.preflight.cost import usd_text
from neurenix.preflight.report.formatting import (
    INTERVAL,
    KIND_NAMES,
    amount,
    bytes_text,
    hanging,
    seconds_text,
    shown,
)
from neurenix.preflight.report.report_data import NO_ANSWER, hbm_is_known
from neurenix.preflight.search.plan_data import Candidate, PlanData

_HEAD = (
    "slice", "mesh", "batch", "remat", "XLA options", "fits", "HBM", "step (est.)",
)  # fmt: skip
_OPTIONS = _HEAD.index("XLA options")
_LONGEST_OPTION = 24
_SHORT = 36


def table(plan: PlanData) -> str:
    """Return one line for each candidate, with its verdict last, not folded."""
    head = [*_HEAD, _work(plan), ""]
    rows = [head, *([*_cells(plan, c), _verdict(plan, c)] for c in plan.candidates)]
    return shown("\n".join(_columns(rows)))


def text_of(plan: PlanData, width: int) -> str:
    """Return the whole answer, in ``width`` columns if the table allows it.

    Verdicts are printed beside their candidates if the short ones fit there, with long ones folded;
    otherwise below.
    """
    cells = [_cells(plan, candidate) for candidate in plan.candidates]
    verdicts = [_verdict(plan, candidate) for candidate in plan.candidates]
    for row, candidate in enumerate(cells):
        if len(candidate[_OPTIONS]) > _LONGEST_OPTION:
            verdicts[row] += f"; XLA options {candidate[_OPTIONS]}"
            candidate[_OPTIONS] = "see below"
    head, *rows = _columns([[*_HEAD, _work(plan)], *cells])
    used = max(map(len, (head, *rows)), default=0)
    number = len(f"  {len(rows)}. ")
    room = width - number - used - 2
    longest_short = max((len(v) for v in verdicts if len(v) <= _SHORT), default=0)
    needed = [longest_short if len(v) <= _SHORT else _SHORT for v in verdicts]
    lines = [*_title(plan, width), (" " * number + head).rstrip()]
    told = zip(rows, verdicts, needed, strict=True)
    for index, (row, verdict, least) in enumerate(told, start=1):
        first = f"{f'{index}. ':>{number}}{row}"
        if room >= least:
            lines += hanging(f"{first:<{number + used + 2}}", verdict, width)
        else:
            lines += [first.rstrip(), *hanging(" " * number + "→ ", verdict, width)]
    return shown("\n".join([*lines, *_winner(plan, width)]))


def _title(plan: PlanData, width: int) -> list[str]:
    compiled = sum(candidate.report is not None for candidate in plan.candidates)
    slices = len({candidate.slice.name for candidate in plan.candidates})
    what = f"Plan: {amount(len(plan.candidates), 'candidate')} on {amount(slices, 'slice')}, "
    return hanging(
        "",
        f"{what}{compiled} compiled, the best {plan.objective} first (estimated)",
        width,
        indent=2,
    )


def _winner(plan: PlanData, width: int) -> list[str]:
    """Return the winner with its interval and its cost."""
    best = plan.winner
    if best is None or best.report is None or best.report.step_time is None:
        return ["No candidate can be taken: the reasons stand beside them."]
    time = best.report.step_time
    parts = [best.slice.name, f"mesh {best.mesh}"]
    parts += [f"batch {best.batch}"] if best.batch else []
    parts += [f"remat {best.remat}"] if best.remat else []
    parts += [f"XLA options {best.compiler_options}"] if best.compiler_options else []
    lines = hanging(*_best(plan, ", ".join(parts)), width, indent=6)
    bound = KIND_NAMES.get(time.bound, time.bound)
    lines += hanging(
        "  step time  ",
        f"{seconds_text(time.seconds)} estimated ({INTERVAL}: {seconds_text(time.low)} to "
        f"{seconds_text(time.high)}), bound by {bound}",
        width,
    )
    cost = best.report.cost(1000, **vars(plan.pricing))
    words = cost.missing
    if cost.usd is not None:
        words = f"{usd_text(cost.usd)} estimated for 1,000 steps"
        if (million := cost.usd_per_million_examples) is not None:
            words += f", {usd_text(million)} for a million examples"
    lines += hanging("  cost       ", words, width)
    return [*lines, *hanging("  ", "Nothing ran on a TPU.", width)]


def _best(plan: PlanData, named: str) -> tuple[str, str]:
    """Return the line of the winner, with the number of candidates that were not compiled."""
    left_out = plan.num_not_compiled
    if not left_out:
        return "Best: ", named
    were = "was" if left_out == 1 else "were"
    return "Best of those compiled ", f"({left_out} {were} not, the time was up): {named}"


def _columns(rows: list[list[str]]) -> list[str]:
    """Return rows of aligned cells, without columns that are empty below their head."""
    used = [i for i in range(len(rows[0])) if any(row[i] for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in used}
    return ["  ".join(row[i].ljust(widths[i]) for i in used).rstrip() for row in rows]


def _work(plan: PlanData) -> str:
    """Return the unit of cost; steps of different batches cannot be compared."""
    return "USD/1M examples" if _batches_differ(plan) else "USD/1k steps"


def _batches_differ(plan: PlanData) -> bool:
    return len({candidate.batch for candidate in plan.candidates}) > 1


def _verdict(plan: PlanData, candidate: Candidate) -> str:
    return candidate.reason or f"best {plan.objective}"


def _cells(plan: PlanData, candidate: Candidate) -> list[str]:
    report = candidate.report
    chosen = [
        candidate.slice.name,
        candidate.mesh,
        str(candidate.batch or ""),
        candidate.remat,
        candidate.compiler_options,
    ]
    if report is None:
        return [*chosen, "", "", "", ""]
    time, unknown = report.step_time, report.refused in NO_ANSWER
    cost = report.cost(1000, **vars(plan.pricing)) if time else None
    usd = None
    if cost is not None:
        usd = cost.usd_per_million_examples if _batches_differ(plan) else cost.usd
    return [
        *chosen,
        "?" if unknown else "yes" if report.fits else "no",
        bytes_text(report.hbm.peak_bytes) if hbm_is_known(report.refused) else "",
        seconds_text(time.seconds) if time else "",
        "" if usd is None else f"{usd:.4g}",
    ]

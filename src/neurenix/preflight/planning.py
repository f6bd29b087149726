"""Which slice? Every candidate compiled, compared and listed with why it lost.

Owns the comparison. The candidates are the slices asked about, each with the batch as given and
the batch divided over all devices; what a candidate does is ``preflight``'s to say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ShapeError, unknown_name
from neurenix.preflight.entry import On, PreflightOptions, describe, preflight
from neurenix.preflight.report import Report
from neurenix.preflight.text import bytes_text, seconds_text

_OBJECTIVES = {"time": "estimated step time", "cost": "cost of a step"}


@dataclass(frozen=True)
class Candidate:
    """One slice that was tried. ``reason`` says why it lost, and is empty for the winner."""

    slice: chips.Slice
    mesh: str
    batch: int | None
    remat: str
    report: Report | None
    value: float | None
    reason: str


@dataclass(frozen=True)
class Plan:
    """All candidates, the best first."""

    objective: str
    candidates: tuple[Candidate, ...]

    @property
    def best(self) -> Report:
        """The report of the winner.

        Raises:
            ArgumentError: no candidate can run the program.
        """
        first = self.candidates[0]
        if first.value is None or first.report is None:
            raise ArgumentError(f"No slice can run this program:\n{self.table()}")
        return first.report

    def table(self) -> str:
        """Return every candidate tried as a table of text. Times are estimates."""
        head = ("slice", "mesh", "batch", "remat", "fits", "HBM", "step (est.)", "USD/1k steps", "")
        rows = [head, *(_row(candidate, self.objective) for candidate in self.candidates)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip()
            for row in rows
        )

    def __str__(self) -> str:
        return self.table()


def search(
    target: Any,
    *args: Any,
    on: Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    objective: str = "time",
    options: PreflightOptions | None = None,
) -> Plan:
    """Compile a program for each slice and order the slices by time or by cost.

    Args:
        target: a compiled model, a ``Trainer`` or a jittable function, as for ``preflight``.
        *args: as for ``preflight``.
        on: names of slices.
        input_shape: of one global batch, the same on every slice.
        dtype: of the inputs.
        objective: ``"time"`` (of a step) or ``"cost"`` (of a step, on demand in the US).
        options: as for ``preflight``.

    Raises:
        UnknownNameError: an objective or a slice that does not exist.
        ArgumentError: as ``preflight``; a batch that does not divide is a reason and no error.

    Example:
        ::

            plan = nx.preflight.search(model, on=["v5e-8", "v6e-8"], input_shape=(8192, 1000),
                                       objective="cost")
            print(plan.table())
    """
    if objective not in _OBJECTIVES:
        raise unknown_name("objective", objective, _OBJECTIVES)
    slices = [chips.resolve(name) for name in ([on] if isinstance(on, str) else on)]
    shape = {"input_shape": input_shape, "dtype": dtype, "options": options}
    possible, refused = [], []
    for where in slices:
        try:
            describe(target, args, where, **shape)
        except ShapeError as error:
            refused.append(
                Candidate(where, _mesh(where), None, "as written", None, None, str(error))
            )
        else:
            possible.append(where)
    reports = preflight(target, *args, on=possible, **shape) if possible else []
    measured = [_candidate(report, objective) for report in reports]
    measured.sort(key=lambda c: (c.value is None, c.value or 0.0))
    return Plan(objective, (*_explain(measured, objective), *refused))


def _mesh(where: chips.Slice) -> str:
    return f"data={where.num_devices}"


def _candidate(report: Report, objective: str) -> Candidate:
    value: float | None = None
    reason = ""
    if report.step_time is None:
        reason = report.findings[0].message.split("\n", 1)[0]
    elif objective == "time":
        value = report.step_time.seconds
    else:
        value = report.cost(1).usd
        if value is None:
            reason = f"no public price for {report.slice.generation.name}"
    mesh = ", ".join(f"{k}={v}" for k, v in report.analysis.program.axes.items())
    return Candidate(report.slice, mesh, report.batch_size, "as written", report, value, reason)


def _explain(measured: list[Candidate], objective: str) -> list[Candidate]:
    explained = []
    for number, candidate in enumerate(measured):
        reason = candidate.reason
        if number and candidate.value is not None and measured[0].value:
            ratio = candidate.value / measured[0].value
            reason = f"{_OBJECTIVES[objective]} {ratio:.2f} × the best"
        explained.append(
            Candidate(
                candidate.slice, candidate.mesh, candidate.batch, candidate.remat,
                candidate.report, candidate.value, reason,
            )
        )  # fmt: skip
    return explained


def _row(candidate: Candidate, objective: str) -> tuple[str, ...]:
    report = candidate.report
    if report is None:
        return (candidate.slice.name, candidate.mesh, "", "", "", "", "", "", candidate.reason)
    time = report.step_time
    usd = report.cost(1000).usd if time else None
    return (
        candidate.slice.name,
        candidate.mesh,
        str(candidate.batch or ""),
        candidate.remat,
        "yes" if report.fits else "no",
        bytes_text(report.hbm.peak_bytes),
        seconds_text(time.seconds) if time else "",
        "" if usd is None else f"{usd:.4g}",
        candidate.reason or f"best {objective}",
    )

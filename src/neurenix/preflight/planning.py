"""Which slice, and how? Candidates pruned by bounds, compiled, compared, each loser with a reason.

Owns the search. A candidate's program is ``choice``'s, its estimate is ``preflight``'s. Bounds only
ever drop what cannot win: state that is larger than HBM, a batch above one that did not fit, and a
time below which the peak of the matrix units lets nothing go.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ShapeError, unknown_name
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import compile_all
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.preflight import html
from neurenix.preflight.choice import Choice, Workload
from neurenix.preflight.description import PreflightOptions
from neurenix.preflight.entry import On
from neurenix.preflight.report import Report, write_whole
from neurenix.preflight.text import bytes_text, seconds_text

_OBJECTIVES = {"time": "estimated time", "cost": "estimated cost"}
COLLECTIVE_MATMUL_OFF = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
"""Gathers before products rather than in pieces between them: halved a GPT-2 step on v5e-8."""


@dataclass(frozen=True)
class Candidate:
    """One choice that was looked at. ``reason`` says why it lost, and is empty for the winner.

    ``value`` is what it was judged by: seconds or USD per example (of a function: per call).
    """

    slice: chips.Slice
    mesh: str
    batch: int | None
    remat: str
    report: Report | None
    value: float | None
    reason: str
    compiler_options: str = ""
    choice: Choice | None = None


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
            raise ArgumentError(f"No candidate can run this program:\n{self.table()}")
        return first.report

    def table(self) -> str:
        """Return every candidate as a table of text. Times are estimates."""
        head = ["slice", "mesh", "batch", "remat", "XLA options", "fits", "HBM", "step (est.)",
                "USD/1k steps", ""]  # fmt: skip
        rows = [head, *(_row(candidate, self.objective) for candidate in self.candidates)]
        used = [i for i in range(len(head)) if any(row[i] for row in rows[1:])]
        widths = {i: max(len(row[i]) for row in rows) for i in used}
        return "\n".join("  ".join(row[i].ljust(widths[i]) for i in used).rstrip() for row in rows)

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the frontier of cost and time, every candidate, and the winner."""
        write_whole(path, html.plan_page(self))

    def __str__(self) -> str:
        return self.table()


@dataclass(frozen=True)
class SearchSpace:
    """What a search may change; each field a list, or ``"auto"`` for what is worth trying.

    Attributes:
        meshes: of axis names and sizes. ``"auto"``: data parallel, FSDP, and FSDP with tensor
            parallelism of 2, 4 and 8 where the model's rules know the axis. By default the mesh of
            the model's strategy.
        batches: global batch sizes. By default the one given.
        remats: policies. ``"auto"``: all that the model or the trainer has. By default its own.
        compiler_options: mappings. ``"auto"``: XLA's own choice, and collective matmul off. By
            default XLA's own choice.
    """

    meshes: Sequence[Mapping[str, int]] | str | None = None
    batches: Sequence[int] | None = None
    remats: Sequence[str] | str | None = None
    compiler_options: Sequence[Mapping[str, Any]] | str | None = None

    def __post_init__(self) -> None:
        for name in ("meshes", "remats", "compiler_options"):
            value = getattr(self, name)
            if isinstance(value, str) and value != "auto":
                raise ArgumentError(f'SearchSpace: {name} is a list or "auto"; got {value!r}.')

    @classmethod
    def auto(cls) -> SearchSpace:
        """Return the space in which everything but the batch is chosen."""
        return cls(meshes="auto", remats="auto", compiler_options="auto")

    def choices(self, workload: Workload, slices: Sequence[chips.Slice]) -> list[Choice]:
        """Return every combination."""
        if workload.trainer is None and (self.batches or self.remats):
            raise ArgumentError(
                "SearchSpace: batches and remats are a training step's; a plain function is "
                "compiled as it is written. Pass a compiled model or a Trainer."
            )
        remats = workload.remats if self.remats == "auto" else self.remats
        for remat in remats or ():
            if remat not in workload.remats:
                raise unknown_name("remat policy", remat, workload.remats)
        options: Sequence[Any] = (None, COLLECTIVE_MATMUL_OFF)
        if not isinstance(self.compiler_options, str):
            options = self.compiler_options or (None,)
        return [
            Choice(where, mesh, batch, remat, compiler_options=option or {})
            for where in slices
            for mesh, batch, remat, option in itertools.product(
                self._meshes(workload, where), self.batches or (None,), remats or (None,), options
            )
        ]

    def _meshes(self, workload: Workload, where: chips.Slice) -> Sequence[Any]:
        if isinstance(self.meshes, str):
            return workload.meshes(where)
        return self.meshes or (None,)


@dataclass(frozen=True)
class Deadline:
    """Everything must be done in time: ``examples`` trained on within ``hours``."""

    examples: float
    hours: float

    def misses(self, seconds_per_example: float) -> str:
        """Return why a candidate is too slow, or an empty string."""
        needed = seconds_per_example * self.examples / 3600
        if needed <= self.hours:
            return ""
        return f"takes {needed:.3g} h (est.), and the deadline is {self.hours:.3g} h"


def search(
    target: Any,
    *args: Any,
    on: On | Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = "float32",
    objective: str = "time",
    space: SearchSpace | None = None,
    deadline: Deadline | None = None,
    budget_seconds: float = math.inf,
    options: PreflightOptions | None = None,
) -> Plan:
    """Find the slice, mesh, batch, recomputation and compiler options that are fastest or cheapest.

    Args:
        target: a compiled model, a ``Trainer`` or a jittable function, as for ``preflight``.
        *args: as for ``preflight``.
        on: names of slices.
        input_shape: of one global batch, the same on every slice.
        dtype: of the inputs.
        objective: ``"time"`` or ``"cost"`` (on demand in the US), per example.
        space: what else may be changed; by default nothing.
        deadline: leaves out what is too slow for it: ``objective="cost"`` with a deadline is the
            cheapest way to be done in time.
        budget_seconds: after which no further candidate is compiled.
        options: as for ``preflight``.

    Raises:
        UnknownNameError: an objective, a slice or a policy that does not exist.
        ArgumentError: as ``preflight``; a batch that does not divide is a reason and no error.

    Example:
        ::

            plan = nx.preflight.search(model, on=["v5e-8", "v6e-8"], input_shape=(8192, 1000),
                                       objective="cost", space=nx.preflight.SearchSpace.auto())
            print(plan.table())
    """
    if objective not in _OBJECTIVES:
        raise unknown_name("objective", objective, _OBJECTIVES)
    names = [on] if isinstance(on, (str, chips.Slice)) else on
    slices = [chips.resolve(name) for name in names]
    workload = Workload.of(target, args, input_shape, dtype, options)
    hunt = _Hunt(workload, objective, deadline, time.monotonic() + budget_seconds)
    hunt.run((space or SearchSpace()).choices(workload, slices))
    return Plan(objective, hunt.ranked(budget_seconds))


@dataclass(frozen=True)
class _Described:
    choice: Choice
    program: Program
    least_seconds: float


class _Hunt:
    """The state of one search."""

    def __init__(
        self, workload: Workload, objective: str, deadline: Deadline | None, end: float
    ) -> None:
        self._workload, self._objective = workload, objective
        self._deadline, self._end = deadline, end
        self._done: list[Candidate] = []
        self._best = math.inf

    def run(self, choices: Sequence[Choice]) -> None:
        """Describe, prune and compile."""
        waiting = list(filter(None, map(self._described, choices)))
        waiting.sort(key=lambda d: self._value(d.choice, d.least_seconds) or math.inf)
        workers = self._workload.options.compiler.workers or max(1, (os.cpu_count() or 1) // 2)
        while waiting:
            left = self._end - time.monotonic()
            wave: list[_Described] = []
            while waiting and len(wave) < workers and left > 0:
                same = not wave or (
                    waiting[0].choice.compiler_options == wave[0].choice.compiler_options
                )
                if not same:
                    break
                described = waiting.pop(0)
                why = self._cannot_win(described)
                if why:
                    self._lose(described.choice, why)
                else:
                    wave.append(described)
            if wave:
                self._compile(wave, left)
            elif left <= 0:
                break
        for described in waiting:
            self._lose(described.choice, "not compiled: the time for the search was up")

    def ranked(self, budget_seconds: float) -> tuple[Candidate, ...]:
        """Return all candidates, the best first, each loser with its reason."""
        del budget_seconds
        self._done.sort(key=lambda c: (c.value is None, c.report is None, c.value or 0.0))
        best = self._done[0].value if self._done else None
        ranked = []
        for number, candidate in enumerate(self._done):
            if number and best and candidate.value is not None and not candidate.reason:
                ratio = candidate.value / best
                reason = f"{_OBJECTIVES[self._objective]} {ratio:.2f} × the best"
                candidate = replace(candidate, reason=reason)
            ranked.append(candidate)
        return tuple(ranked)

    def _described(self, choice: Choice) -> _Described | None:
        try:
            program = self._workload.program(choice)
        except ShapeError as error:
            self._lose(choice, str(error))
            return None
        generation = choice.slice.generation
        held = sum(leaf.device_bytes for leaf in program.leaves)
        if held > generation.hbm_bytes_per_device:
            self._lose(
                choice,
                f"state and batch alone take {bytes_text(held)} of "
                f"{bytes_text(generation.hbm_bytes_per_device)}",
            )
            return None
        peak = generation.peak_flops_per_second["bfloat16"] * program.num_devices
        choice = replace(choice, mesh=program.axes)
        return _Described(choice, program, program.model_flops / peak)

    def _cannot_win(self, described: _Described) -> str:
        choice = described.choice
        for other in self._done:
            tried = other.choice
            if (
                tried is not None
                and other.report is not None
                and other.report.refused == "hbm"
                and replace(tried, batch=None) == replace(choice, batch=None)
                and (tried.batch or 0) < (choice.batch or 0)
            ):
                return f"a batch of {tried.batch} already did not fit"
        least = self._value(choice, described.least_seconds)
        if least is not None and least >= self._best:
            return "slower than the best even at the peak of the matrix units"
        return ""

    def _compile(self, wave: Sequence[_Described], left: float) -> None:
        timeout = None if math.isinf(left) else max(left, 1.0)
        options = self._workload.compile_options(wave[0].choice, timeout)
        pairs = [(d.program, Target.of(d.choice.slice)) for d in wave]
        for described, answer in zip(wave, compile_all(pairs, options), strict=True):
            where = described.choice.slice
            self._judge(described.choice, Report(analyse(described.program, where, answer)))

    def _judge(self, choice: Choice, report: Report) -> None:
        value, reason = None, ""
        if report.step_time is None:
            reason = report.findings[0].message.split("\n", 1)[0]
        else:
            value = self._value(choice, report.step_time.seconds)
            if value is None:
                reason = f"no public price for {choice.slice.generation.name}"
            elif self._deadline is not None:
                per_example = report.step_time.seconds / (self._batch(choice) or 1)
                reason = self._deadline.misses(per_example)
                value = None if reason else value
        if value is not None:
            self._best = min(self._best, value)
        self._done.append(self._candidate(choice, report, value, reason))

    def _value(self, choice: Choice, seconds: float) -> float | None:
        """Return seconds or USD per example of a step of ``seconds``."""
        per_example = seconds / (self._batch(choice) or 1)
        if self._objective == "time":
            return per_example
        price = chips.price(choice.slice.generation.name)
        if price is None:
            return None
        return per_example * price.usd_per_chip_hour * choice.slice.num_chips / 3600

    def _batch(self, choice: Choice) -> int | None:
        return choice.batch or self._workload.batch

    def _lose(self, choice: Choice, reason: str) -> None:
        self._done.append(self._candidate(choice, None, None, reason))

    def _candidate(
        self, choice: Choice, report: Report | None, value: float | None, reason: str
    ) -> Candidate:
        return Candidate(
            slice=choice.slice,
            mesh=choice.mesh_text,
            batch=self._batch(choice) or (report.batch_size if report else None),
            remat=choice.remat or self._workload.remat,
            report=report,
            value=value,
            reason=reason,
            compiler_options=choice.options_text,
            choice=choice,
        )


def _row(candidate: Candidate, objective: str) -> list[str]:
    report = candidate.report
    chosen = [
        candidate.slice.name,
        candidate.mesh,
        str(candidate.batch or ""),
        candidate.remat,
        candidate.compiler_options,
    ]
    if report is None:
        return [*chosen, "", "", "", "", candidate.reason]
    when = report.step_time
    usd = report.cost(1000).usd if when else None
    return [
        *chosen,
        "yes" if report.fits else "no",
        bytes_text(report.hbm.peak_bytes),
        seconds_text(when.seconds) if when else "",
        "" if usd is None else f"{usd:.4g}",
        candidate.reason or f"best {objective}",
    ]

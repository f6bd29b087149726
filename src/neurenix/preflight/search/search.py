"""``search``: candidates pruned by bounds, compiled and compared; each loser has a reason.

Bounds drop candidates that cannot win: their state is larger than HBM, a smaller batch did not fit,
or they lose even at the peak of the matrix units.

The last bound uses the FLOPs that the compiler leaves. They are fewer than the model's FLOPs if the
compiler merges equal products or drops unused parts. So the model's FLOPs are scaled by the
smallest share left in any compiled candidate; before the first one, this bound drops nothing.

Does not own what may be tried (``search_space.py``), in which order (``search_order.py``), or the
program of a candidate (``workload.py``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CompilationError,
    NeurenixError,
    UnknownNameError,
    unknown_name,
)
from neurenix._core.number_checks import check_number
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.compile import compile_all, compiler_ready
from neurenix.compiler.operations import peak_of
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.preflight.api import On, check_input_shape, slices_on
from neurenix.preflight.array_arguments import given, refuse_keywords
from neurenix.preflight.batch_units import batch_of
from neurenix.preflight.cost import Pricing
from neurenix.preflight.describe_program import PreflightOptions
from neurenix.preflight.report.formatting import bytes_text
from neurenix.preflight.report.report import Report
from neurenix.preflight.search.plan import Plan
from neurenix.preflight.search.plan_data import OUT_OF_TIME, Candidate, Deadline
from neurenix.preflight.search.search_order import Promise, Turn, turns
from neurenix.preflight.search.search_space import SearchSpace
from neurenix.preflight.search.workload import Choice, Workload

_OBJECTIVES = ("time", "cost")
_ARGUMENTS = (
    *("on", "input_shape", "dtype", "objective", "space"),
    *("deadline", "budget_seconds", "pricing", "options"),
)


def check_objective(objective: str) -> None:
    """Check the name of an objective.

    Raises:
        UnknownNameError: unknown objective.
    """
    if objective not in _OBJECTIVES:
        raise unknown_name("objective", objective, _OBJECTIVES)


def search(
    target: Any,
    *args: Any,
    on: On | Sequence[On],
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    objective: str = "time",
    space: SearchSpace | None = None,
    deadline: Deadline | None = None,
    budget_seconds: float = math.inf,
    pricing: Pricing | None = None,
    options: PreflightOptions | None = None,
    **others: Any,
) -> Plan:
    """Find the slice, mesh, batch, recomputation and compiler options that are fastest or cheapest.

    Candidates that cannot win are not compiled: their state does not fit, a smaller batch did not
    fit, or they lose even at the peak of the matrix units. Each slice, mesh and batch is compiled
    once, alternating between the slices; then recomputation and compiler options are varied,
    starting with the fastest.

    Args:
        target: a compiled model, a ``Trainer`` or a jittable function, as for ``preflight``.
        *args: as for ``preflight``.
        on: names of slices; two names of one slice count once.
        input_shape: of one global batch, the same on every slice.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        objective: ``"time"`` or ``"cost"``, per example; the other one decides ties.
        space: what else may be changed; nothing by default.
        deadline: excludes slower candidates; ``objective="cost"`` with a deadline finds the
            cheapest way to finish in time.
        budget_seconds: no compilation starts after this time.
        pricing: of the chip-hours; on demand in the US by default.
        options: as for ``preflight``.
        **others: rejected, as by ``preflight``.

    Raises:
        UnknownNameError: unknown objective, slice, mesh axis or policy.
        ShapeError, ArgumentError, CompilationError: no candidate has a program: no mesh divides the
            batch, the mesh fits no slice, or the script fails for every number of devices. If only
            some have none, they lose with that reason.
        ArgumentError, ArgumentTypeError: as ``preflight``; or a deadline is given for a function
            whose number of examples is unknown.

    Example:
        ::

            plan = nx.preflight.search(model, on=["v5e-8", "v6e-8"], input_shape=(8192, 1000),
                                       objective="cost", space=nx.preflight.SearchSpace.auto())
            print(plan.table())
    """
    _refuse_keywords(target, others)
    check_objective(objective)
    slices = list(dict.fromkeys(slices_on(on)))
    if not slices:
        raise ArgumentError('on= names no slice; write on="v5e-8" or a list of names.')
    check_input_shape(target, input_shape, dtype)
    check_number("budget_seconds", budget_seconds)
    if math.isnan(budget_seconds):
        raise ArgumentError("budget_seconds must be a number of seconds; got NaN.")
    options = given("options", options, PreflightOptions)
    space, pricing = given("space", space, SearchSpace), given("pricing", pricing, Pricing)
    deadline = None if deadline is None else given("deadline", deadline, Deadline)
    space.check(slices)
    goal = _Goal(objective, deadline, pricing, time.monotonic() + budget_seconds)
    with compiler_ready(options.compiler):
        workload = Workload.of(target, args, input_shape, dtype, options)
        hunt = _Hunt(workload, goal)
        hunt.run(space.choices(workload, slices))
    return Plan(objective, hunt.ranked(), pricing, deadline)


def _refuse_keywords(target: Any, others: Mapping[str, Any]) -> None:
    """Reject unknown keyword arguments; name the ``SearchSpace`` for those that it has."""
    for name in others.keys() & {field.name for field in fields(SearchSpace)}:
        raise ArgumentTypeError(
            f"nx.preflight.search has no argument {name!r}; what may be changed is a space: "
            f"space=nx.preflight.SearchSpace({name}=…)."
        )
    refuse_keywords("nx.preflight.search", target, others, _ARGUMENTS)


def share_left(analysis: Analysis) -> float:
    """Return the share of the model's FLOPs that a compiled program still computes, at most 1.

    FLOPs that a kernel does not declare are not counted, so the share is never too large.
    """
    program = analysis.program
    if not program.model_flops:
        return 1.0
    compiled = program.num_devices * sum(operation.flops for operation in analysis.operations)
    return min(1.0, compiled / program.model_flops)


@dataclass(frozen=True)
class _Goal:
    objective: str
    deadline: Deadline | None
    pricing: Pricing
    end: float


@dataclass(frozen=True)
class _Described:
    choice: Choice
    program: Program
    least_seconds: float
    examples: int | None
    turn: Turn = Turn(0, 0)


def _differ(one: _Described, other: _Described) -> bool:
    """Return whether two candidates need different compiler options, so different waves."""
    return one.choice.compiler_options != other.choice.compiler_options


class _Hunt:
    """The state of one search."""

    def __init__(self, workload: Workload, goal: _Goal) -> None:
        self._workload, self._goal = workload, goal
        self._done: list[Candidate] = []
        self._mistakes: list[NeurenixError] = []
        self._best = math.inf
        self._shares_left: list[float] = []

    def run(self, choices: Sequence[Choice]) -> None:
        """Describe, prune and compile."""
        waiting = list(filter(None, map(self._described, choices)))
        if self._mistakes and len(self._mistakes) == len(choices):
            raise self._mistakes[0]
        waiting = self._with_turns(waiting)
        while waiting and (left := self._goal.end - time.monotonic()) > 0:
            wave = self._next_wave(waiting)
            if wave:
                self._compile(wave, left)
        for described in sorted(waiting, key=self._order):
            why = self._cannot_win(described) or OUT_OF_TIME
            self._finish(described.choice, described.examples, why)

    def _with_turns(self, waiting: Sequence[_Described]) -> list[_Described]:
        least = list(map(self._least, waiting))
        given = turns([described.choice for described in waiting], least, self._workload.remat)
        return [replace(d, turn=turn) for d, turn in zip(waiting, given, strict=True)]

    def _next_wave(self, waiting: list[_Described]) -> list[_Described]:
        """Take the next candidates to compile in parallel, and drop those that cannot win."""
        promise = Promise((candidate.choice, candidate.value) for candidate in self._done)
        wave: list[_Described] = []
        later: list[_Described] = []
        for described in sorted(waiting, key=lambda d: self._order(d, promise)):
            full = len(wave) == self._workload.options.compiler.at_once
            if full or (wave and _differ(described, wave[0])):
                later.append(described)
            elif why := self._cannot_win(described):
                self._finish(described.choice, described.examples, why)
            else:
                wave.append(described)
        waiting[:] = later
        return wave

    def _order(self, described: _Described, promise: Promise | None = None) -> tuple[float, ...]:
        """Return the sort key of the candidates to compile."""
        turn = described.turn
        refines = turn.variant > 0
        shown = promise.of(described.choice) if promise and refines else 0.0
        return refines, shown, turn.variant, turn.number, self._least(described)

    def _least(self, described: _Described) -> float:
        """Return a lower bound of the value at the model's own FLOPs."""
        least = self._value(described, described.least_seconds)
        return math.inf if least is None else least

    def ranked(self) -> tuple[Candidate, ...]:
        """Return all candidates, the best first; each loser has a reason."""
        self._done.sort(
            key=lambda c: (c.value is None, c.report is None, c.value or 0.0, self._second(c))
        )
        best = self._done[0] if self._done else None
        ranked = []
        for candidate in self._done:
            lost = candidate is not best and not candidate.reason
            if lost and best is not None and best.value is not None and candidate.value is not None:
                # If the best is 0, all are 0.
                ratio = candidate.value / best.value if best.value else 1.0
                reason = f"{self._goal.objective} {ratio:.2f} × the best"
                if candidate.value == best.value and self._second(candidate) > self._second(best):
                    reason += {"time": ", and dearer", "cost": ", and slower"}[self._goal.objective]
                candidate = replace(candidate, reason=reason)
            ranked.append(candidate)
        return tuple(ranked)

    def _second(self, candidate: Candidate) -> float:
        """Return the tie-breaker: USD if the objective is time, else seconds."""
        report, where = candidate.report, candidate.slice
        if candidate.value is None or report is None or report.step_time is None:
            return 0.0
        seconds = report.step_time.seconds / (candidate.batch or 1)
        if self._goal.objective == "cost":
            return seconds
        rate = self._goal.pricing.rate(where.generation)
        return math.inf if rate is None else seconds * rate * where.num_chips

    def _described(self, choice: Choice) -> _Described | None:
        try:
            program = self._workload.program(choice)
        except UnknownNameError:  # a misspelt name is wrong for every slice
            raise
        except (ArgumentError, CompilationError) as error:
            self._mistakes.append(error)
            first = str(error).partition("\n")[0]
            self._finish(choice, None, first.partition(". ")[0].removesuffix("."))
            return None
        examples = batch_of(program, self._workload.options.examples).examples
        if examples is None and self._goal.deadline is not None:
            raise ArgumentError(
                f"{program.name} is not known to take examples, so neither is the time for "
                f"{self._goal.deadline.examples:,.0f} of them. Say how many one call takes: "
                "options=PreflightOptions(examples=…), or --examples-per-step."
            )
        generation = choice.slice.generation
        held = sum(leaf.device_bytes for leaf in program.leaves if not leaf.is_unplaced)
        if held > generation.hbm_bytes_per_device:
            whole = bytes_text(generation.hbm_bytes_per_device)
            self._finish(
                choice, examples, f"state and batch alone take {bytes_text(held)} of {whole}"
            )
            return None
        types = {product.dtypes for product in program.traits.products}
        fastest = max((peak_of(pair, generation) for pair in types), default=math.inf)
        peak = fastest * program.num_devices
        choice = replace(choice, mesh=program.axes)
        return _Described(choice, program, program.model_flops / peak, examples)

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
        least = self._value(
            described, described.least_seconds * min(self._shares_left, default=0.0)
        )
        if least is not None and least > self._best:
            worse = {"time": "slower", "cost": "dearer"}[self._goal.objective]
            return f"{worse} than the best even at the peak of the matrix units"
        return ""

    def _compile(self, wave: Sequence[_Described], left: float) -> None:
        timeout = None if math.isinf(left) else max(left, 1.0)
        options = self._workload.compile_options(wave[0].choice, timeout)
        pairs = [(d.program, Target.of(d.choice.slice)) for d in wave]
        for described, answer in zip(wave, compile_all(pairs, options), strict=True):
            if getattr(answer, "kind", "") == "timeout" and time.monotonic() >= self._goal.end:
                self._finish(described.choice, described.examples, OUT_OF_TIME)
                continue
            analysis = analyse(described.program, described.choice.slice, answer)
            if analysis.fits:
                self._shares_left.append(share_left(analysis))
            self._judge(described, Report(analysis, examples=described.examples))

    def _judge(self, described: _Described, report: Report) -> None:
        choice, value, reason = described.choice, None, ""
        if report.step_time is None:
            reason = report.findings[0].message.split("\n", 1)[0]
        else:
            value = self._value(described, report.step_time.seconds)
            if value is None:
                reason = self._goal.pricing.missing(choice.slice.generation)
            elif self._goal.deadline is not None:
                reason = self._goal.deadline.misses(
                    report.step_time.seconds, described.examples or 1
                )
                value = None if reason else value
        if value is not None:
            self._best = min(self._best, value)
        self._finish(choice, described.examples, reason, report, value)

    def _value(self, described: _Described, seconds: float) -> float | None:
        """Return seconds or USD per example of a step of ``seconds``."""
        where, per_example = described.choice.slice, seconds / (described.examples or 1)
        if self._goal.objective == "time":
            return per_example
        rate = self._goal.pricing.rate(where.generation)
        return None if rate is None else per_example * rate * where.num_chips / 3600

    def _finish(
        self,
        choice: Choice,
        examples: int | None,
        reason: str,
        report: Report | None = None,
        value: float | None = None,
    ) -> None:
        candidate = Candidate(
            slice=choice.slice,
            mesh=choice.mesh_text,
            batch=examples or choice.batch or self._workload.batch,
            remat=choice.remat or self._workload.remat,
            report=report,
            value=value,
            reason=reason,
            compiler_options=choice.options_text,
            choice=choice,
        )
        self._done.append(candidate)

"""Which slice, and how? Candidates pruned by bounds, compiled, compared, each loser with a reason.

Owns the search. A candidate's program is ``choice``'s, its estimate is ``preflight``'s. Bounds only
ever drop what cannot win: state that is larger than HBM, a batch above one that did not fit, and a
time below which the peak of the matrix units lets nothing go.
"""

from __future__ import annotations

import itertools
import json
import math
import numbers
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, unknown_name
from neurenix._core.files import write_whole
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import compile_all, compiler_ready
from neurenix.compiler.program import Program
from neurenix.compiler.target import Target
from neurenix.compiler.time import peak_of
from neurenix.preflight import html, plan_document, plan_text, terminal
from neurenix.preflight.arguments import given, refuse_keywords
from neurenix.preflight.batch import batch_of
from neurenix.preflight.choice import Choice, Workload
from neurenix.preflight.cost import Pricing, check_number
from neurenix.preflight.description import PreflightOptions, axes_on
from neurenix.preflight.entry import On, check_input_shape, slices_on
from neurenix.preflight.report import Report
from neurenix.preflight.text import bytes_text

_OBJECTIVES = ("time", "cost")
_NOT_COMPILED = "not compiled: the time for the search was up"
_ARGUMENTS = (
    *("on", "input_shape", "dtype", "objective", "space"),
    *("deadline", "budget_seconds", "pricing", "options"),
)
COLLECTIVE_MATMUL_OFF = {"xla_jf_spmd_threshold_for_windowed_einsum_mib": 1_000_000}
"""Gathers before products rather than in pieces between them: halved a GPT-2 step on v5e-8."""
LARGE_TILES_V6E = {"xla_tpu_scoped_vmem_limit_kib": 98304}
"""As the Trillium recipes of tpu-recipes have it: took Llama 3.1 8B from an estimated 5.1 s to 4.0,
and three times the time to compile."""


@dataclass(frozen=True)
class Candidate:
    """One choice that was looked at. ``reason`` says why it lost, and is empty for the winner.

    ``value`` is what it was judged by: seconds or USD per example (per call of a function that is
    not known to take examples).
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
class Deadline:
    """Everything must be done in time: ``examples`` trained on within ``hours``."""

    examples: float
    hours: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(f"Deadline: {name}", value)
            if not (value > 0 and math.isfinite(value)):
                raise ArgumentError(f"Deadline: {name} must be positive; got {value:g}.")

    def misses(self, seconds_per_example: float) -> str:
        """Return why a candidate is too slow, or an empty string."""
        needed = seconds_per_example * self.examples / 3600
        if needed <= self.hours:
            return ""
        return f"takes {needed:.3g} h (est.), and the deadline is {self.hours:.3g} h"


@dataclass(frozen=True)
class Plan:
    """All candidates, the best first; ``pricing`` is that of their costs."""

    objective: str
    candidates: tuple[Candidate, ...]
    pricing: Pricing = Pricing()
    deadline: Deadline | None = None

    @property
    def winner(self) -> Candidate | None:
        """The best candidate; ``None`` when none can run the program (in time, at a price)."""
        first = self.candidates[0] if self.candidates else None
        return first if first is not None and first.value is not None else None

    @property
    def best(self) -> Report:
        """The report of the winner.

        Raises:
            ArgumentError: no candidate can run the program.
        """
        if self.winner is None or self.winner.report is None:
            raise ArgumentError(f"No candidate can run this program:\n{self.table()}")
        return self.winner.report

    def table(self) -> str:
        """Return every candidate as a table of text, a line for each. Times are estimates."""
        return plan_text.table(self)

    def text(self, width: int | None = None) -> str:
        """Return what ``neurenix plan`` prints: the table folded to ``width``, then the winner.

        Args:
            width: in columns; the terminal's if left out.
        """
        return plan_text.text_of(self, width or terminal.width_here())

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write a page with the frontier of cost and time, every candidate, and the winner."""
        write_whole(path, html.plan_page(self, self.pricing))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data of the schema that ``preflight.plan_document`` describes."""
        return plan_document.document(self)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, whole or not at all."""
        write_whole(path, json.dumps(self.to_dict(), indent=1))

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
        compiler_options: mappings. ``"auto"``: XLA's own choice, collective matmul off, and that
            with larger tiles in VMEM on v6e. By default XLA's own choice.
    """

    meshes: Sequence[Mapping[str, int]] | str | None = None
    batches: Sequence[int] | None = None
    remats: Sequence[str] | str | None = None
    compiler_options: Sequence[Mapping[str, Any]] | str | None = None

    def __post_init__(self) -> None:
        for name in ("meshes", "remats", "compiler_options"):
            value = getattr(self, name)
            if isinstance(value, Mapping) or (isinstance(value, str) and value != "auto"):
                raise ArgumentError(f'SearchSpace: {name} is a list or "auto"; got {value!r}.')
            if value is not None and not isinstance(value, Sequence):
                raise ArgumentTypeError(
                    f'SearchSpace: {name} is a list or "auto"; got {type(value).__name__}.'
                )
        if self.batches is None:
            return
        if isinstance(self.batches, str) or not isinstance(self.batches, Iterable):
            raise ArgumentTypeError(
                "SearchSpace: batches is a list of whole numbers, such as [64, 128]; got "
                f"{self.batches!r}."
            )
        for batch in self.batches:
            if not isinstance(batch, numbers.Integral):
                raise ArgumentTypeError(f"SearchSpace: a batch is a whole number; got {batch!r}.")
            if batch < 1:
                raise ArgumentError(f"SearchSpace: a batch has 1 example or more; got {batch}.")

    @classmethod
    def auto(cls) -> SearchSpace:
        """Return the space in which everything but the batch is chosen, as far as it applies.

        Of a plain function, which is compiled as it is written, that is the compiler's options.
        """
        return cls(meshes="auto", remats="auto", compiler_options="auto")

    def check(self, slices: Sequence[chips.Slice]) -> None:
        """Check what can be checked without a program.

        Raises:
            ShapeError: none of the meshes has the number of devices of one of the slices.
            ArgumentTypeError: a mesh is no mapping of names to sizes.
        """
        mistakes: list[ShapeError] = []
        meshes = () if isinstance(self.meshes, str) else self.meshes or ()
        for mesh, where in itertools.product(meshes, slices):
            try:
                axes_on(where, mesh)
            except ShapeError as error:
                mistakes.append(error)
        if mistakes and len(mistakes) == len(meshes) * len(slices):
            raise mistakes[0]

    def choices(self, workload: Workload, slices: Sequence[chips.Slice]) -> list[Choice]:
        """Return every combination, each once."""
        remats = workload.remats if self.remats == "auto" else self.remats
        if workload.trainer is None and (self.batches or remats):
            raise ArgumentError(
                "SearchSpace: batches and remats are a training step's; a plain function is "
                "compiled as it is written. Pass a compiled model or a Trainer."
            )
        for remat in remats or ():
            if remat not in workload.remats:
                raise unknown_name("remat policy", remat, workload.remats)
        choices = [
            Choice(where, mesh, batch, remat, compiler_options=option or {})
            for where in slices
            for mesh, batch, remat, option in itertools.product(
                self._meshes(workload, where),
                self.batches or (None,),
                remats or (None,),
                self._options(where),
            )
        ]
        return [choice for n, choice in enumerate(choices) if choice not in choices[:n]]

    def _options(self, where: chips.Slice) -> Sequence[Any]:
        if not isinstance(self.compiler_options, str):
            return self.compiler_options or (None,)
        choices: list[Any] = [None, COLLECTIVE_MATMUL_OFF]
        if where.generation.name == "v6e":
            choices.append({**COLLECTIVE_MATMUL_OFF, **LARGE_TILES_V6E})
        return choices

    def _meshes(self, workload: Workload, where: chips.Slice) -> Sequence[Any]:
        if isinstance(self.meshes, str):
            return workload.meshes(where)
        return self.meshes or (None,)


def check_objective(objective: str) -> None:
    """Check the name of an objective.

    Raises:
        UnknownNameError: there is no such objective.
    """
    if objective not in _OBJECTIVES:
        raise unknown_name("objective", objective, _OBJECTIVES)


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
    pricing: Pricing | None = None,
    options: PreflightOptions | None = None,
    **others: Any,
) -> Plan:
    """Find the slice, mesh, batch, recomputation and compiler options that are fastest or cheapest.

    Args:
        target: a compiled model, a ``Trainer`` or a jittable function, as for ``preflight``.
        *args: as for ``preflight``.
        on: names of slices; one that two names mean is looked at once.
        input_shape: of one global batch, the same on every slice.
        dtype: of the inputs.
        objective: ``"time"`` or ``"cost"``, per example.
        space: what else may be changed; by default nothing.
        deadline: leaves out what is too slow for it: ``objective="cost"`` with a deadline is the
            cheapest way to be done in time.
        budget_seconds: after which no candidate is compiled any more.
        pricing: which price of a chip-hour; on demand in the US if left out.
        options: as for ``preflight``.
        **others: none, as for ``preflight``.

    Raises:
        UnknownNameError: an objective, a slice, a mesh axis or a policy that does not exist.
        ShapeError: no candidate can be described: batches that no mesh divides, a mesh that fits
            no slice. One that can is enough; the others then lose with that reason.
        ArgumentError, ArgumentTypeError: as ``preflight``; or there is a deadline, and a function
            of which it is not known how many examples it takes.

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
    check_input_shape(input_shape)
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
    """Refuse keyword arguments that ``search`` does not have, some of which a space has."""
    for name in others.keys() & {field.name for field in fields(SearchSpace)}:
        raise ArgumentTypeError(
            f"nx.preflight.search has no argument {name!r}; what may be changed is a space: "
            f"space=nx.preflight.SearchSpace({name}=…)."
        )
    refuse_keywords("nx.preflight.search", target, others, _ARGUMENTS)


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


class _Hunt:
    """The state of one search."""

    def __init__(self, workload: Workload, goal: _Goal) -> None:
        self._workload, self._goal = workload, goal
        self._done: list[Candidate] = []
        self._mistakes: list[ShapeError] = []
        self._best = math.inf

    def run(self, choices: Sequence[Choice]) -> None:
        """Describe, prune and compile."""
        waiting = list(filter(None, map(self._described, choices)))
        if self._mistakes and len(self._mistakes) == len(choices):
            raise self._mistakes[0]
        waiting.sort(key=lambda d: self._value(d, d.least_seconds) or math.inf)
        workers = self._workload.options.compiler.at_once
        while waiting:
            left = self._goal.end - time.monotonic()
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
                    self._finish(described.choice, described.examples, why)
                else:
                    wave.append(described)
            if wave:
                self._compile(wave, left)
            elif left <= 0:
                break
        for described in waiting:
            self._finish(described.choice, described.examples, _NOT_COMPILED)

    def ranked(self) -> tuple[Candidate, ...]:
        """Return all candidates, the best first, each loser with its reason."""
        self._done.sort(key=lambda c: (c.value is None, c.report is None, c.value or 0.0))
        best = self._done[0].value if self._done else None
        ranked = []
        for number, candidate in enumerate(self._done):
            if number and best and candidate.value is not None and not candidate.reason:
                ratio = candidate.value / best
                reason = f"{self._goal.objective} {ratio:.2f} × the best"
                candidate = replace(candidate, reason=reason)
            ranked.append(candidate)
        return tuple(ranked)

    def _described(self, choice: Choice) -> _Described | None:
        try:
            program = self._workload.program(choice)
        except ShapeError as error:
            self._mistakes.append(error)
            self._finish(choice, None, str(error).partition(". ")[0].removesuffix("."))
            return None
        examples = batch_of(program, self._workload.options.examples).examples
        if examples is None and self._goal.deadline is not None:
            raise ArgumentError(
                f"{program.name} is not known to take examples, so neither is the time for "
                f"{self._goal.deadline.examples:,.0f} of them. Say how many one call takes: "
                "options=PreflightOptions(examples=…), or --examples-per-step."
            )
        generation = choice.slice.generation
        held = sum(leaf.device_bytes for leaf in program.leaves)
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
        least = self._value(described, described.least_seconds)
        if least is not None and least >= self._best:
            return "slower than the best even at the peak of the matrix units"
        return ""

    def _compile(self, wave: Sequence[_Described], left: float) -> None:
        timeout = None if math.isinf(left) else max(left, 1.0)
        options = self._workload.compile_options(wave[0].choice, timeout)
        pairs = [(d.program, Target.of(d.choice.slice)) for d in wave]
        for described, answer in zip(wave, compile_all(pairs, options), strict=True):
            if getattr(answer, "kind", "") == "timeout" and time.monotonic() >= self._goal.end:
                self._finish(described.choice, described.examples, _NOT_COMPILED)
                continue
            analysis = analyse(described.program, described.choice.slice, answer)
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
                per_example = report.step_time.seconds / (described.examples or 1)
                reason = self._goal.deadline.misses(per_example)
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

"""The report of one preflight: what was found, as values, text and files.

Owns what a report can be asked. It judges nothing (``neurenix.compiler``), words nothing
(``terminal``), draws no page (``html``), and does not own the JSON document (``document``,
``record``) or the sums (``cost``). Every time in it is an estimate and says so.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.files import write_whole
from neurenix.compiler.analysis import Analysis
from neurenix.compiler.findings import Finding
from neurenix.compiler.operations import Operation
from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.step_time import StepTime
from neurenix.preflight.batch_units import batch_of
from neurenix.preflight.cost import Cost, Pricing, Work, cost_of, steps_for
from neurenix.preflight.page import html
from neurenix.preflight.report import report_text
from neurenix.preflight.report.compare import Comparison, compare, matching
from neurenix.preflight.report.report_data import document
from neurenix.preflight.report.report_json import Record, load_report, load_reports

if TYPE_CHECKING:
    from neurenix.preflight.suggested_changes import Suggestion


class Report:
    """What a program would do on one slice, as far as the compiler and a model of time can say.

    Attributes:
        suggestions: of a program that does not fit, changes that were compiled, those first that
            make it fit: other slices, and of a training step what else may help.
        steps_per_epoch: of the run that it is a step of, where a script has told, else None; with
            it, text, JSON and page have the cost of an epoch, without what validates it.
    """

    def __init__(
        self,
        analysis: Analysis,
        suggestions: tuple[Suggestion, ...] = (),
        *,
        examples: int | None = None,
    ) -> None:
        self._analysis = analysis
        self.suggestions = suggestions
        self.steps_per_epoch: int | None = None
        self._batch = batch_of(analysis.program, examples)
        self._memory = _with_results(analysis)

    @property
    def name(self) -> str:
        """The program."""
        return self._analysis.program.name

    @property
    def slice(self) -> chips.Slice:
        """The slice that it was compiled for."""
        return self._analysis.where

    @property
    def fits(self) -> bool:
        """Whether the compiler accepted the program, its memory included."""
        return self._analysis.fits

    @property
    def refused(self) -> str | None:
        """Why there is no program: ``"hbm"``, ``"vmem"``, ``"error"``, ``"crash"``, ``"timeout"``.

        After a crash of the compiler, or when its time was up, whether it fits is not known, and
        ``fits`` is false; ``None`` where it fits.
        """
        return self._analysis.refused

    @property
    def step_time(self) -> StepTime | Any:
        """Estimated seconds of one step with an 80 % interval; ``None`` if it does not fit.

        (Declared so that ``report.step_time.seconds`` is no error to a type checker, as the
        standard library's ``re.Match.group`` is.)
        """
        return self._analysis.time

    @property
    def hbm(self) -> Memory:
        """Bytes of HBM on one device."""
        return self._memory

    @property
    def mfu(self) -> float | None:
        """Model FLOPs ÷ (estimated step time × peak); ``None`` without products.

        The peak is that of the types which the program multiplies, weighed by their FLOPs: that of
        bfloat16, and of int8 or fp8 where the chip multiplies these faster and the program does.
        """
        return self._analysis.mfu

    @property
    def bound(self) -> str | None:
        """What the step is bound by: a kind of ``Operation``, or ``"host"``."""
        return self.step_time.bound if self.step_time else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could be better, the gravest first."""
        return self._analysis.findings

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations of the compiled step, the dearest first. Their seconds are not calibrated."""
        return self._analysis.operations

    @property
    def analysis(self) -> Analysis:
        """Everything that was found."""
        return self._analysis

    @property
    def batch_size(self) -> int | None:
        """Examples in one global batch, where the program has a batch."""
        return self._batch.examples

    @property
    def sequence_length(self) -> int | None:
        """Tokens of one example, of a program that reads token ids ``(N, T)``."""
        return self._batch.sequence_length

    @property
    def tokens(self) -> int | None:
        """Tokens of one step, of a program that reads token ids."""
        return self._batch.tokens

    @property
    def examples_per_second(self) -> float | None:
        """Examples a second of the whole slice, estimated."""
        return self._rate(self.batch_size)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second of the whole slice, estimated."""
        return self._rate(self.tokens)

    @property
    def tokens_per_second_per_chip(self) -> float | None:
        """Tokens a second of one chip, estimated."""
        rate = self.tokens_per_second
        return None if rate is None else rate / self.slice.num_chips

    def _rate(self, amount: int | None) -> float | None:
        return amount / self.step_time.seconds if amount and self.step_time else None

    @property
    def flops_per_token(self) -> float | None:
        """Model FLOPs of a token, forward and backward; ``None`` without tokens or products."""
        flops = self._analysis.program.model_flops
        return flops / self.tokens if self.tokens and flops else None

    @property
    def published_run(self) -> chips.PublishedRun | None:
        """The published training run most like this program, for orientation; never ours.

        Its MFU counts causal attention half; ours counts products as the program has them.
        """
        if self.flops_per_token is None or self.sequence_length is None:
            return None
        return chips.nearest_run(
            self.slice.generation.name,
            flops_per_token=self.flops_per_token,
            num_devices=self.slice.num_devices,
            sequence_length=self.sequence_length,
        )

    def calibrated(self, seconds: float) -> float:
        """Return the estimated seconds for seconds of the compiler's schedule."""
        if self.step_time is None:
            return math.nan
        total = sum(operation.seconds for operation in self.operations)
        return seconds * self.step_time.device_seconds / total if total else 0.0

    def cost(
        self,
        steps: int | None = None,
        *,
        examples: int | None = None,
        tokens: int | None = None,
        region: str = "us",
        commitment: str = "on-demand",
        usd_per_chip_hour: float | Mapping[str, float] | None = None,
    ) -> Cost:
        """Return what steps cost at the estimated step time, one step if nothing says how many.

        An epoch is ``cost(examples=len(dataset))``; a last batch that is not full is a step too.

        Args:
            steps: how many.
            examples: or so many examples.
            tokens: or so many tokens.
            region: ``"us"`` or a region that ``chips.price`` knows.
            commitment: ``"on-demand"``, ``"1-year"``, ``"3-year"`` or ``"spot"``.
            usd_per_chip_hour: your own price, in place of the list's, or one for each generation.

        Returns:
            A ``Cost``, whose ``usd`` is ``None`` where no public price is known.

        Raises:
            ArgumentError: the program does not fit, so it has no step time; a negative number, or
                none at all (NaN); examples or tokens of a program that has none.
            ArgumentTypeError: what is given is not a number.
            UnknownNameError: no such region, commitment or generation.
        """
        pricing = Pricing(region, commitment, usd_per_chip_hour)
        work = self._work()
        count = steps_for(work, steps=steps, examples=examples, tokens=tokens)
        return cost_of(work, count, self.slice, pricing)

    def _work(self) -> Work:
        time = self.step_time
        if time is None:
            raise ArgumentError(f"{self.name} does not run on {self.slice.name}: no cost.")
        return Work(time.seconds, time.low, time.high, self.batch_size, self.tokens)

    def record(self, pricing: Pricing | None = None) -> Record:
        """Return the report as the data that its JSON holds."""
        return Record(self.to_dict(pricing), f"{self.name} on {self.slice.name}")

    def compare(
        self, before: Report | Record | str | os.PathLike[str], pricing: Pricing | None = None
    ) -> Comparison:
        """Return what changed since ``before``: a report, a record, or the path of a JSON file.

        ``pricing`` is that of this report's cost, and of ``before`` where that is a report.

        Raises:
            ArgumentError: the file holds no report that this one can be compared with.
            ArgumentTypeError: it is none of these.
        """
        now = self.record(pricing)
        if isinstance(before, Report):
            return compare(before.record(pricing), now)
        if isinstance(before, Record):
            return compare(before, now)
        if not isinstance(before, (str, os.PathLike)):
            raise ArgumentTypeError(
                "compare takes a report, what from_json read, or the path of a JSON file; got "
                f"{type(before).__name__}."
            )
        records = load_reports(before)
        found = matching(records, now)
        if found is None:
            raise ArgumentError(
                f"{os.fspath(before)} holds no report for {self.slice.name}; it has "
                f"{', '.join(record.slice_name for record in records)}."
            )
        return compare(found, now)

    @staticmethod
    def from_json(path: str | os.PathLike[str]) -> Record:
        """Read a report that ``to_json`` wrote, as a ``Record`` that can be compared.

        Raises:
            ArgumentError: no such file, no report, several, or another version.
        """
        return load_report(path)

    def to_dict(self, pricing: Pricing | None = None) -> dict[str, Any]:
        """Return plain data of the schema that ``preflight.record`` describes.

        All times are estimates. ``pricing`` is that of ``estimated_cost``.
        """
        return document(self, pricing or Pricing())

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write ``to_dict()`` to a file, whole or not at all.

        Raises:
            ArgumentError: it cannot be written.
        """
        write_whole(path, json.dumps(self.to_dict(), indent=1))

    def to_html(self, path: str | os.PathLike[str], pricing: Pricing | None = None) -> None:
        """Write a page that needs nothing but itself, whole or not at all.

        ``pricing`` is that of its costs.

        Raises:
            ArgumentError: it cannot be written.
        """
        write_whole(path, html.page(self, pricing))

    def text(self, width: int | None = None, pricing: Pricing | None = None) -> str:
        """Return the terminal report.

        Args:
            width: in columns; the terminal's if left out.
            pricing: of the cost.
        """
        return report_text.text_of(self, width or report_text.width_here(), pricing or Pricing())

    def __str__(self) -> str:
        return self.text()

    def __rich__(self) -> Any:
        return report_text.styled(self.text())


def _with_results(analysis: Analysis) -> Memory:
    """Return the memory, of a program that does not fit into one device with its results named.

    There the compiler says one number; the results are as large as the program has them. Over
    several devices it is not known how they would be divided. What was compiled is known.
    """
    memory, program = analysis.memory, analysis.program
    if memory.activations_bytes is not None or program.num_devices > 1:
        return memory
    donated = sum(program.leaves[index].device_bytes for index in program.donated)
    results = min(max(0, program.output_bytes - donated), memory.temporaries_bytes)
    return replace(
        memory, outputs_bytes=results, temporaries_bytes=memory.temporaries_bytes - results
    )

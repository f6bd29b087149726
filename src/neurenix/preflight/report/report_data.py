"""The data of a report: what was found for one program on one slice.

Owns the values and the numbers derived from them; text, JSON and page are written from them. Every
time is an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError
from neurenix.compiler.analysis import Analysis
from neurenix.compiler.findings import Finding
from neurenix.compiler.operations import Operation
from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.step_time import StepTime
from neurenix.preflight.batch_units import Batch, batch_of
from neurenix.preflight.cost import Cost, Pricing, Work, cost_of, steps_for

NO_ANSWER = ("crash", "timeout")
"""Values of ``refused`` for which it is unknown whether the program fits."""
UNDIVIDED = "activations and others"
"""Everything but the arguments, for a program that was refused before its memory was divided."""
_VERDICTS = {
    "hbm": "does not fit",
    "vmem": "has a kernel out of VMEM",
    "crash": "not known, the compiler crashed",
    "timeout": "not known, the compiler took too long",
}


@dataclass(frozen=True)
class Suggestion:
    """One change to a program that does not fit, compiled.

    Attributes:
        change: what to write.
        analysis: of the changed program.
    """

    change: str
    analysis: Analysis

    @property
    def fits(self) -> bool:
        """Whether the changed program fits."""
        return self.analysis.fits

    @property
    def verdict(self) -> str:
        """The compiler's answer in words: ``"fits"``, ``"does not fit"``, or another reason."""
        if self.fits:
            return "fits"
        return _VERDICTS.get(self.analysis.refused or "", "does not compile")


@dataclass(frozen=True, eq=False, repr=False)
class ReportData:
    """What the compiler and the time model say about one program on one slice.

    Attributes:
        analysis: everything that was found.
        suggestions: for a program that does not fit, the changes that were compiled, those that
            make it fit first: other slices and, for a training step, smaller batches and less
            memory for each example.
        examples: examples in one global batch, if the caller gave them.
        workload: what was picked for a model that came as its configuration alone, in words; empty
            for a program of the user's.
        steps_per_epoch: steps of one epoch of the script's ``fit``, or None; text, JSON and page
            then include the cost of an epoch, without its validation.
    """

    analysis: Analysis
    suggestions: tuple[Suggestion, ...] = ()
    examples: int | None = None
    steps_per_epoch: int | None = None
    workload: str = ""

    @property
    def name(self) -> str:
        """The program's name."""
        return self.analysis.program.name

    @property
    def slice(self) -> chips.Slice:
        """The slice that the program was compiled for."""
        return self.analysis.where

    @property
    def fits(self) -> bool:
        """Whether the compiler accepted the program, its memory included."""
        return self.analysis.fits

    @property
    def refused(self) -> str | None:
        """Why there is no program: ``"hbm"``, ``"vmem"``, ``"error"``, ``"crash"``, ``"timeout"``.

        ``None`` if the program fits. After a crash or a timeout of the compiler it is unknown
        whether the program fits, and ``fits`` is False.
        """
        return self.analysis.refused

    @property
    def step_time(self) -> StepTime | Any:
        """Estimated seconds of one step with an 80 % interval; ``None`` if it does not fit.

        The annotation includes ``Any`` so that type checkers accept ``report.step_time.seconds``.
        """
        return self.analysis.time

    @cached_property
    def hbm(self) -> Memory:
        """Bytes of HBM on one device."""
        return _with_results(self.analysis)

    @property
    def mfu(self) -> float | None:
        """Model FLOPs ÷ (estimated step time × peak); ``None`` without matrix products.

        The peak is the chip's peak for the dtypes that the program multiplies, weighted by their
        FLOPs: bfloat16, or int8 and fp8 where the chip multiplies them faster.
        """
        return self.analysis.mfu

    @property
    def bound(self) -> str | None:
        """What limits the step: a kind of ``Operation``, or ``"host"``."""
        return self.step_time.bound if self.step_time else None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What could be improved, the most severe first."""
        return self.analysis.findings

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Operations of the compiled step, the slowest first; their seconds are not calibrated."""
        return self.analysis.operations

    @cached_property
    def _batch(self) -> Batch:
        return batch_of(self.analysis.program, self.examples)

    @property
    def batch_size(self) -> int | None:
        """Examples in one global batch; ``None`` if the program has no batch."""
        return self._batch.examples

    @property
    def sequence_length(self) -> int | None:
        """Tokens of one example, for a program that reads token ids ``(N, T)``."""
        return self._batch.sequence_length

    @property
    def tokens(self) -> int | None:
        """Tokens of one step, for a program that reads token ids."""
        return self._batch.tokens

    @property
    def examples_per_second(self) -> float | None:
        """Estimated examples per second of the whole slice."""
        return self._rate(self.batch_size)

    @property
    def tokens_per_second(self) -> float | None:
        """Estimated tokens per second of the whole slice."""
        return self._rate(self.tokens)

    @property
    def tokens_per_second_per_chip(self) -> float | None:
        """Estimated tokens per second of one chip."""
        rate = self.tokens_per_second
        return None if rate is None else rate / self.slice.num_chips

    def _rate(self, amount: int | None) -> float | None:
        return amount / self.step_time.seconds if amount and self.step_time else None

    @property
    def flops_per_token(self) -> float | None:
        """Model FLOPs per token, forward and backward; ``None`` without tokens or products."""
        flops = self.analysis.program.model_flops
        return flops / self.tokens if self.tokens and flops else None

    @property
    def published_run(self) -> chips.PublishedRun | None:
        """The most similar published training run, for orientation; never a run of Neurenix.

        Its MFU counts causal attention half; the report's counts products as the program has them.
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
        """Return the cost of steps at the estimated step time; of one step by default.

        The cost of an epoch is ``cost(examples=len(dataset))``; a last partial batch is one step.

        Args:
            steps: number of steps.
            examples: number of examples, instead of steps.
            tokens: number of tokens, instead of steps.
            region: ``"us"`` or a region that ``chips.price`` knows.
            commitment: ``"on-demand"``, ``"1-year"``, ``"3-year"`` or ``"spot"``.
            usd_per_chip_hour: your price instead of the list price, or one for each generation.

        Returns:
            A ``Cost``, whose ``usd`` is ``None`` if no public price is known.

        Raises:
            ArgumentError: the program does not fit, so it has no step time; a number is negative
                or NaN; or the program has no examples or tokens to count.
            ArgumentTypeError: an argument is not a number.
            UnknownNameError: unknown region, commitment or generation.
        """
        time = self.step_time
        if time is None:
            raise ArgumentError(f"{self.name} does not run on {self.slice.name}: no cost.")
        work = Work(time.seconds, time.low, time.high, self.batch_size, self.tokens)
        count = steps_for(work, steps=steps, examples=examples, tokens=tokens)
        return cost_of(work, count, self.slice, Pricing(region, commitment, usd_per_chip_hour))


def hbm_is_known(refused: str | None) -> bool:
    """Return whether the compiler reported the HBM of a program that it accepted or refused.

    Example:
        >>> hbm_is_known(None), hbm_is_known("hbm"), hbm_is_known("timeout")
        (True, True, False)
    """
    return refused in (None, "hbm")


def memory_parts(memory: Mapping[str, Any]) -> dict[str, int]:
    """Divide ``hbm_per_device`` into parts that add up to its peak, arguments by their role."""
    parts = dict(memory["roles"])
    arguments = sum(parts.values()) - parts.get("constants", 0)
    rest = memory["arguments_bytes"] - arguments
    if rest > 0:
        parts["alignment"] = rest
    named = {name: memory[f"{name}_bytes"] for name in ("activations", "gradients")}
    if None in named.values():
        parts[UNDIVIDED] = memory["temporaries_bytes"]
    else:
        parts.update(named)
        parts["temporaries"] = memory["temporaries_bytes"] - sum(named.values())
    parts["new results"] = memory["outputs_bytes"] - memory["aliased_bytes"]
    return parts


def _with_results(analysis: Analysis) -> Memory:
    """Return the memory, with the results split off for a program refused on one device.

    For a refused program the compiler reports one number, and the size of the results is known
    from the program. On several devices the sharding of the results is unknown.
    """
    memory, program = analysis.memory, analysis.program
    if memory.activations_bytes is not None or program.num_devices > 1:
        return memory
    donated = sum(program.leaves[index].device_bytes for index in program.donated)
    results = min(max(0, program.output_bytes - donated), memory.temporaries_bytes)
    return replace(
        memory, outputs_bytes=results, temporaries_bytes=memory.temporaries_bytes - results
    )

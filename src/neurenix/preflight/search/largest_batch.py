"""The largest batch that fits, extrapolated from small batches and verified by compiling.

Near the memory limit the compiler recomputes values instead of keeping them, so small batches
compiled as usual do not predict large ones. Small batches are therefore compiled with nearly all
memory reserved. Their memory is then the least that the compiler can reach, which grows linearly up
to the limit. (libtpu 0.0.42 compiles the same program at the limit; 0.0.50 keeps more for some
large batches, and the line overestimates by a fifth.) If the compiler refuses the predicted batch,
it reports the memory needed, which corrects the prediction. The search then compiles until the
largest accepted and the smallest refused batch are neighbours.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, CompilationError
from neurenix._core.output_encoding import plain
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import CompileOptions, compile_all, compiler_ready
from neurenix.compiler.target import Target
from neurenix.distribute.mesh import BATCH_AXES
from neurenix.preflight.api import On, check_input_shape, slices_on
from neurenix.preflight.describe_program import PreflightOptions
from neurenix.preflight.report.formatting import bytes_text, seconds_text
from neurenix.preflight.report.report import Report
from neurenix.preflight.report.report_data import hbm_is_known
from neurenix.preflight.search.workload import Choice, Workload

_FINENESS = 64  # the default step divides the first guess into this many to twice as many parts
_TRUSTED = 16  # how many times the batch a line through two smaller ones is extrapolated
# XLA's option, and the reserved share of a device's memory; 14 of a v5e's 15.75 GiB gave the same.
# A program that needs more than the rest is not refused; the compiler reports its size.
_RESERVE, _RESERVED = "xla_tpu_user_reserved_hbm_bytes", 15 / 16


@dataclass(frozen=True)
class LargestBatch:
    """The largest batch of a slice.

    Attributes:
        batch: the largest global batch that fits, in examples, a multiple of ``step``; 0 if none
            fits.
        report: of that batch; ``None`` if none fits.
        refused: the report of ``batch + step``, which the compiler refuses.
        step: resolution of the search, in examples.
        forecast: the extrapolated batch, before any large batch was compiled.
        compiled: the compiled batches, in order.
    """

    batch: int
    report: Report | None
    refused: Report
    step: int
    forecast: int
    compiled: tuple[int, ...]

    def __str__(self) -> str:
        """Return the result in words."""
        where, refused = self.refused.slice.name, self.refused.hbm
        needs, limit = bytes_text(refused.peak_bytes), bytes_text(refused.limit_bytes)
        if self.report is None or self.report.step_time is None:
            return (
                f"no batch fits on {where}: {self.step} examples need {needs} of {limit} a device."
            )
        time = self.report.step_time
        return plain(
            f"the largest global batch that fits on {where} is {self.batch:,} examples: "
            f"{bytes_text(self.report.hbm.peak_bytes)} of {limit} a device, estimated "
            f"{seconds_text(time.seconds)} a step. {self.batch + self.step:,} would need {needs}; "
            f"{len(self.compiled)} batches were compiled."
        )


def largest_batch(
    target: Any,
    *args: Any,
    on: On,
    input_shape: Sequence[int] | None = None,
    dtype: Any = None,
    mesh: Mapping[str, int] | None = None,
    step: int | None = None,
    options: PreflightOptions | None = None,
) -> LargestBatch:
    """Find the largest global batch whose training step the TPU compiler accepts for a slice.

    Extrapolates the memory of small batches, corrects the result by the memory that the compiler
    reports for a refused batch, then searches in strides that double and halve. Every batch is
    compiled: four in all if the first extrapolation is right.

    Args:
        target: a compiled model or a ``Trainer``.
        *args: as for ``preflight``: the specs of one batch, where the search starts.
        on: a slice such as ``"v5e-8"``.
        input_shape: of one global batch of a model's inputs, the batch first.
        dtype: of the inputs that ``input_shape`` describes; float32 by default.
        mesh: as for ``preflight``.
        step: resolution of the result in examples, a multiple of the parts that a batch is divided
            into; by default one to two hundredths of the first guess.
        options: as for ``preflight``.

    Raises:
        UnknownNameError: unknown slice.
        ArgumentTypeError: the target has no training step, or ``step`` is not a whole number.
        ShapeError: the batch has no examples.
        ArgumentError: ``step`` cannot be divided over the replicas.
        CompilationError: a batch was refused for another reason than memory.

    Example:
        ::

            found = nx.preflight.largest_batch(model, on="v5e-8", input_shape=(256, 784))
            print(found)
            model.fit(x, y, batch_size=found.batch)
    """
    slices = slices_on(on)
    if len(slices) != 1:
        raise ArgumentTypeError("largest_batch: on= names one slice.")
    check_input_shape(target, input_shape, dtype)
    if step is not None and not isinstance(step, numbers.Integral):
        raise ArgumentTypeError(f"step is a whole number of examples; got {step!r}.")
    workload = Workload.of(target, args, input_shape, dtype, options)
    if workload.trainer is None or workload.batch is None:
        raise ArgumentTypeError(
            "largest_batch needs a training step: a compiled model or a Trainer, and the shape of "
            f"a batch of its inputs; got {type(target).__name__}."
        )
    with compiler_ready(workload.options.compiler):
        hunt = _Hunt(workload, slices[0], mesh)
        finest = hunt.parts
        if step is not None and (step < 1 or step % finest):
            raise ArgumentError(
                f"step={step} cannot be divided over the {finest} parts of a batch: replicas, and "
                "steps of accumulation."
            )
        guess = hunt.forecast(max(1, round(workload.batch / finest)) * finest)
        fine = finest << max(0, (guess // (finest * _FINENESS)).bit_length() - 1)
        unit = fine if step is None else step
        limit = slices[0].generation.hbm_bytes_per_device
        units = corrected(guess // unit, lambda n: hunt.ask(n * unit).hbm.peak_bytes, limit)
        last = unit * _last_that_fits(lambda n: hunt.ask(n * unit).fits, units)
    reports = hunt.reports
    return LargestBatch(
        last, reports.get(last), reports[last + unit], unit, guess, tuple(hunt.compiled)
    )


def pressed(options: CompileOptions, limit_bytes: int) -> CompileOptions:
    """Return ``options`` that make the TPU compiler minimize the program's memory.

    Args:
        options: of the program as it will run.
        limit_bytes: HBM of a device.

    Example:
        >>> dict(pressed(CompileOptions(), 16 * 2**30).compiler_options)
        {'xla_tpu_user_reserved_hbm_bytes': '16106127360'}
    """
    reserved = {_RESERVE: str(int(limit_bytes * _RESERVED))}
    return replace(options, compiler_options={**options.compiler_options, **reserved})


def corrected(guess: int, peak_bytes: Callable[[int], int], limit_bytes: int) -> int:
    """Return a guess reduced until its batch is below the limit.

    Args:
        guess: the largest batch, in units of ``step``.
        peak_bytes: returns the memory that the compiler reports for a batch, accepted or refused.
        limit_bytes: HBM of a device.

    Example:
        Large batches may be compiled differently from the small ones, which predicted 196:

        >>> corrected(196, lambda steps: 50 + 10 * steps, 1700)
        165
    """
    before, taken, least = 0, 0, 0.5
    while guess > 1 and (peak := peak_bytes(guess)) > limit_bytes:
        growth = (peak - taken) / (guess - before)
        fewer = math.ceil((peak - limit_bytes) / growth) if growth > 0 else guess
        before, taken = guess, peak
        guess -= min(max(fewer, math.ceil(least)), guess // 2)
        least *= 2  # bounds the number of iterations for any peaks
    return guess


class _Hunt:
    """One search and the batches compiled so far.

    Attributes:
        parts: number of parts of a batch: replicas × accumulation steps.
        reports: of each batch, compiled as it would run.
        compiled: the compiled batches, in order.
    """

    def __init__(
        self, workload: Workload, where: chips.Slice, mesh: Mapping[str, int] | None
    ) -> None:
        self._workload, self._choice = workload, Choice(where, mesh)
        axes = workload.program(self._choice).axes
        replicas = math.prod(axes.get(axis, 1) for axis in BATCH_AXES)
        self.parts = replicas * workload.trainer.options.accumulate_steps
        self.reports: dict[int, Report] = {}
        self.compiled: list[int] = []

    def ask(self, batch: int) -> Report:
        """Return the report of a batch, compiled once."""
        if batch not in self.reports:
            self.reports[batch] = self._compile(batch, self._workload.options.compiler)
        return self.reports[batch]

    def _least(self, batch: int) -> Report:
        """Compile a batch with the least memory that the compiler can reach."""
        limit = self._choice.slice.generation.hbm_bytes_per_device
        return self._compile(batch, pressed(self._workload.options.compiler, limit))

    def _compile(self, batch: int, options: CompileOptions) -> Report:
        where = self._choice.slice
        program = self._workload.program(replace(self._choice, batch=batch))
        (answer,) = compile_all([(program, Target.of(where))], options)
        report = Report(analyse(program, where, answer))
        if not hbm_is_known(report.refused):
            raise CompilationError(f"A batch of {batch:,} cannot be compiled.\n{report}")
        self.compiled.append(batch)
        return report

    def forecast(self, start: int) -> int:
        """Return the largest batch by extrapolating the least memory of small batches."""
        one = self._least(start)
        fixed = one.hbm.arguments_bytes
        grown = max(one.hbm.peak_bytes - fixed, 1)
        guess = self._divisible(start * (one.hbm.limit_bytes - fixed) / grown)
        if not one.fits or guess <= start:
            return guess
        # A second point separates the memory that does not grow with the batch. Batches far below
        # the limit, or far from each other, are tiled differently, so their line is not trusted.
        near = min(2 * start, guess)
        while (two := self._least(near)).fits:
            more = two.hbm.peak_bytes - one.hbm.peak_bytes
            left = two.hbm.limit_bytes - two.hbm.peak_bytes
            guess = self._divisible(near + left * (near - start) / max(more, 1))
            trusted = guess <= _TRUSTED * near
            if trusted and near <= 2 * start:
                return guess
            factor = 2 if trusted else _TRUSTED
            one, start, near = two, near, max(near + self.parts, min(factor * near, guess))
        return near

    def _divisible(self, batch: float) -> int:
        return max(1, int(batch / self.parts)) * self.parts


def _last_that_fits(fits: Callable[[int], bool], guess: int) -> int:
    """Return the largest number that fits, verified with its successor; 0 if none fits."""
    guess, stride = max(1, guess), 1
    if fits(guess):
        while fits(guess + stride):
            guess, stride = guess + stride, stride * 2
        low, high = guess, guess + stride
    else:
        while guess - stride > 0 and not fits(guess - stride):
            guess, stride = guess - stride, stride * 2
        low, high = max(guess - stride, 0), guess
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

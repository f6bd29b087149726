"""Published training runs on TPUs, with their step times.

The table is ``published_runs.csv``. Its rows are recipes of AI-Hypercomputer/tpu-recipes and of
MaxText, each with its source file; none was run by this project. Where a source gives FLOP/s and no
seconds, ``note`` says that the seconds are derived.

Columns of the file: g_full and g_half are model GFLOPs per token with attention counted in full and
in its causal half; act the active parameters (10^9); tf the source's TFLOP/s per chip; acct how the
source counts attention; mfu is causal-half model FLOPs ÷ the documented bfloat16 peak, computed in
the same way for all rows, so it differs from the sources' figures.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from neurenix._core.errors import ArgumentError
from neurenix.chips.generations import generation as generation_named

# Weights of the distance between two runs, in natural logarithms of ratios: 1 is a factor of e.
# Runs of the same generation always rank first; the number of chips matters least. The weights are
# a judgement; the rows are for orientation and are used in no estimate.
_OTHER_GENERATION = 6.0
_WEIGHT_OF_FLOPS, _WEIGHT_OF_SEQUENCE, _WEIGHT_OF_DEVICES = 1.0, 0.7, 0.5


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One published run. Seconds are per optimizer step; batch and tokens are global.

    ``flops_per_token`` and ``mfu`` count causal attention half.
    """

    id: str
    generation: str
    num_slices: int
    num_chips: int
    model: str
    batch_size: int
    sequence_length: int
    precision: str
    parallelism: str
    remat: str
    step_seconds: float
    tokens_per_second_per_chip: float
    flops_per_token: float
    mfu: float
    source: str
    note: str

    @property
    def num_devices(self) -> int:
        """JAX devices of the run: two per chip on v2, v3 and tpu7x."""
        return self.num_chips * generation_named(self.generation).devices_per_chip

    @property
    def machine(self) -> str:
        """The machine, in chips, whatever the slice's retail name counts."""
        one = f"{self.num_chips // self.num_slices} {self.generation} chips"
        return one if self.num_slices == 1 else f"{self.num_slices} slices of {one}"


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return every row of the table.

    Example:
        >>> run = nx.chips.published_runs()[0]
        >>> run.model, run.machine, run.step_seconds
        ('gpt3-175b', '256 v6e chips', 17.182)
    """
    text = resources.files("neurenix.chips").joinpath("published_runs.csv").read_text("utf-8")
    return tuple(_run(row) for row in csv.DictReader(text.splitlines()))


def nearest_run(
    generation: str, *, flops_per_token: float, num_devices: int, sequence_length: int
) -> PublishedRun:
    """Return the published run most similar to a program.

    The generation counts most, then the model FLOPs per token, the sequence length, the devices.

    Args:
        generation: any name of a generation, such as ``"v5e"`` or ``"v5litepod"``.
        flops_per_token: model FLOPs of one training step ÷ tokens, above 0.
        num_devices: JAX devices.
        sequence_length: tokens per example.

    Raises:
        ArgumentTypeError: ``generation`` is not a string.
        ArgumentError: a number is not positive.
        UnknownNameError: unknown generation.

    Example:
        >>> llama = {"flops_per_token": 50e9, "num_devices": 8, "sequence_length": 8192}
        >>> run = nx.chips.nearest_run("v6e", **llama)
        >>> run.id, run.model, run.num_chips
        ('T12', 'llama3.1-8b', 8)
    """
    generation = generation_named(generation).name
    asked = (flops_per_token, num_devices, sequence_length)
    if not all(number > 0 for number in asked):
        raise ArgumentError(
            f"FLOPs per token, devices and sequence length must be positive; got {asked}."
        )

    def distance(run: PublishedRun) -> float:
        return (
            _OTHER_GENERATION * (run.generation != generation)
            + _WEIGHT_OF_FLOPS * abs(math.log(run.flops_per_token / flops_per_token))
            + _WEIGHT_OF_SEQUENCE * abs(math.log(run.sequence_length / sequence_length))
            + _WEIGHT_OF_DEVICES * abs(math.log(run.num_devices / num_devices))
        )

    return min(published_runs(), key=distance)


def _run(row: dict[str, str]) -> PublishedRun:
    generation, rate, mfu = row["gen"], float(row["tokchip"]), float(row["mfu"])
    if row["g_half"]:
        flops = float(row["g_half"]) * 1e9
    else:  # the model's dimensions are unknown: derive the FLOPs from its MFU and token rate
        device = generation_named(generation)
        peak = device.peak_flops_per_second["bfloat16"] * device.devices_per_chip
        flops = mfu * peak / rate
    return PublishedRun(
        id=row["id"],
        generation=generation,
        num_slices=int(row["slices"]),
        num_chips=int(row["chips"]),
        model=row["model"],
        batch_size=int(row["gb"]),
        sequence_length=int(row["seq"]),
        precision=row["prec"],
        parallelism=row["par"],
        remat=row["remat"],
        step_seconds=float(row["step"]),
        tokens_per_second_per_chip=rate,
        flops_per_token=flops,
        mfu=mfu,
        source=row["src"],
        note=row["tag"],
    )

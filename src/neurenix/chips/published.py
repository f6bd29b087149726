"""Training runs on TPUs that others published: how long their steps took.

Owns the table ``published_runs.csv`` and what "near" means in it. The rows are recipes of
AI-Hypercomputer/tpu-recipes and of MaxText, each with the file it was read from; none of them was
run by us. Where a source gives FLOP/s and no seconds, ``note`` says that the seconds are derived.

Columns of the file: g_full and g_half are model GFLOPs a token with attention counted in full and
in its causal half; act the active parameters (10^9); tf the source's own TFLOP/s a chip; acct how
that source counts attention; mfu is causal-half model FLOPs ÷ the documented bfloat16 peak, the
same for all rows, so it differs from the sources' own figure.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from neurenix._core.errors import ArgumentError
from neurenix.chips.generations import generation as generation_named

# How far apart two runs are that differ in one thing: in natural logarithms of ratios, so that 1
# is a factor of e. A generation is a world of its own; the number of chips matters least. A
# judgement: the rows are for orientation and enter no estimate.
_OTHER_GENERATION = 6.0
_WEIGHT_OF_FLOPS, _WEIGHT_OF_SEQUENCE, _WEIGHT_OF_DEVICES = 1.0, 0.7, 0.5


@dataclass(frozen=True, slots=True)
class PublishedRun:
    """One published run. Seconds are of one optimizer step; batch and tokens are global.

    ``flops_per_token`` counts causal attention half; ``mfu`` goes with it.
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
        """JAX devices of the run: two on each chip of v2, v3 and tpu7x."""
        return self.num_chips * generation_named(self.generation).devices_per_chip

    @property
    def machine(self) -> str:
        """What it ran on. Chips are counted, whatever the slice's retail name counts."""
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
    """Return the published run that is most like a program.

    The generation counts most, then the model FLOPs of a token, the sequence, the devices.

    Args:
        generation: any name of a generation, such as ``"v5e"`` or ``"v5litepod"``.
        flops_per_token: model FLOPs of one training step ÷ tokens, more than 0.
        num_devices: JAX devices.
        sequence_length: tokens of one example.

    Raises:
        ArgumentTypeError: ``generation`` is no text.
        ArgumentError: a number is not positive.
        UnknownNameError: a generation that does not exist.

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
    else:  # The model's dimensions are not known; what its MFU and its rate mean.
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

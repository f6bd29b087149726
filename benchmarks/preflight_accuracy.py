"""Estimated against published step times of training runs on real TPUs.

    python benchmarks/preflight_accuracy.py [--rows T12 E1 …] [--timeout 1800]

Rebuilds every row of the published table that ``neurenix.models`` cover (``published_rows.py``),
but those held out of the fit only where ``--rows`` names them, compiles its step for its slice, and
prints estimated over published seconds: as the package says, with a calibration fitted to the rows
at hand, and with one from which all rows of the same model and generation were left out. Beside it
the baseline that knows the model's FLOPs only and takes one MFU for each generation, as the median
of all published runs and with the configuration left out. The first run compiles for hours on two
cores; later ones read the cache. Of rows of one configuration there is nothing to leave out: only
what the package says is printed.

The calibration: seconds = factor(generation) × (products by their floor and cycles, see
``calibration.product_seconds``, + sum over other kinds of operations of weight × seconds by the
compiler's cycles or the model of transfers) × a factor if there are several slices. All is fitted
to the logarithms, each parameter pulled towards a prior (weights: 0.5 for element-wise work, 2 for
kernels, 0.7 for the others, ± 50 %; the exponent of products: 0.5 ± 0.25; several slices: 1 ± 10 %;
a common factor of 1 ± 30 %, each generation's within 5 % of it; a product over its floor at least
1.1 ± 10 %, each generation's within 15 % of it), each configuration counted once.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from common import report as print_json
from jax.scipy.optimize import minimize
from published_rows import HELD_OUT, NOT_COVERED, ROWS, report_of

from neurenix import chips
from neurenix.compiler.calibration import WEIGHTS, WELL_USED
from neurenix.preflight import CompileOptions

LINEAR = ("kernel", "ici", "host")  # whose seconds are weighed
COUNTED = ("vector", "hbm")  # whose cycles are weighed, down to their floor
KINDS = (*LINEAR, *COUNTED)
# Of the parameters; then come two for each generation, its factor and its least, as deviations.
NAMES = (*KINDS, "exponent", "slices", "common", "least")
PRIOR = np.array([*np.log([2.0, 0.7, 0.7, 0.5, 0.7]), 0.5, 0.0, 0.0, 0.1])
DEVIATION = np.array([*[0.5] * len(KINDS), 0.25, 0.1, 0.3, 0.1])
GENERATION_DEVIATION = 0.05
LEAST_DEVIATION = 0.15
ROW_DEVIATION = 0.07
Z80 = 1.2816  # of a normal distribution, 80 % lie within so many standard deviations

# Median MFU by generation of 93 published rows (in-sample): the baseline to beat.
MEDIAN_MFU = {"v4": 0.545, "v5e": 0.554, "v5p": 0.653, "v6e": 0.416, "tpu7x": 0.520}


@dataclass(frozen=True)
class Measured:
    """One row: what was published and what the compiler's program says."""

    run: chips.PublishedRun
    rest: float  # seconds of all that has no weight
    seconds: np.ndarray  # before their weight, by kind: LINEAR
    counted: dict[str, np.ndarray]  # by kind of COUNTED, of each: seconds by its cycles, its floor
    products: np.ndarray  # of each: the logarithms of its floor, of cycles ÷ floor up to and beyond
    estimate: float  # seconds, as the package says, and its interval relative to them
    low: float
    high: float

    @property
    def configuration(self) -> tuple[str, str]:
        """What is left out together."""
        return self.run.generation, self.run.model

    @property
    def ideal(self) -> float:
        """Seconds of the model's FLOPs at the peak."""
        run = self.run
        tokens = run.batch_size * run.sequence_length
        peak = chips.generation(run.generation).peak_flops_per_second["bfloat16"] * run.num_devices
        return tokens * run.flops_per_token / peak


def measure(run: chips.PublishedRun, compiler: CompileOptions) -> Measured | str:
    """Compile a row, or say why there is no estimate."""
    report = report_of(ROWS[run.id], run.batch_size, run.sequence_length, compiler)
    time = report.step_time
    if time is None:
        return report.findings[0].message.split("\n", 1)[0][:200]
    seconds: dict[str, float] = {}
    counted: dict[str, list[list[float]]] = {kind: [[0.0, 0.0]] for kind in COUNTED}
    products = []
    for operation in report.operations:
        cycles, floor = operation.cycles_seconds, operation.floor_seconds
        if operation.products:
            over = max(cycles / floor, 1.0)
            near = min(over, WELL_USED)
            products.append(np.log([floor, near, over / near]))
            continue
        kind = operation.kind
        if kind == "compute":
            kind = "kernel" if operation.attention else "rest"
        if kind in COUNTED and cycles:
            counted[kind].append([cycles, floor])
            continue
        if kind not in LINEAR:
            kind = "rest"
        weighed = operation.seconds / WEIGHTS.get(kind, 1.0)
        seconds[kind] = seconds.get(kind, 0.0) + weighed
    features = np.array([seconds.get(kind, 0.0) for kind in LINEAR])
    low, high = time.low / time.seconds, time.high / time.seconds
    return Measured(
        run,
        seconds.get("rest", 0.0),
        features,
        {kind: np.array(pairs).T for kind, pairs in counted.items()},
        np.array(products).T,
        time.seconds,
        low,
        high,
    )


def log_seconds(row: Measured, p: Any, generations: list[str]) -> Any:
    """Return the logarithm of a row's step under a calibration."""
    kinds = len(KINDS)
    exponent, slices, common, least = p[kinds : len(NAMES)]
    factors, leasts = p[len(NAMES) :].reshape(2, len(generations))
    place = generations.index(row.run.generation)
    floor, near, beyond = row.products
    over = jnp.maximum(exponent * near, least + leasts[place])
    work = jnp.sum(jnp.exp(floor + over + beyond))
    weights = jnp.exp(p[:kinds])
    work += row.rest + row.seconds @ weights[: len(LINEAR)]
    for weight, kind in zip(weights[len(LINEAR) :], COUNTED, strict=True):
        cycles, least = row.counted[kind]
        work += jnp.sum(jnp.maximum(weight * cycles, least))
    return jnp.log(work) + common + factors[place] + slices * (row.run.num_slices > 1)


def fit(rows: list[Measured], generations: list[str]) -> np.ndarray:
    """Return the parameters: logarithms, but for the exponent."""
    width = len(generations)
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row.configuration] = counts.get(row.configuration, 0) + 1

    def loss(p: jax.Array) -> jax.Array:
        shared, own = p[: len(NAMES)], p[len(NAMES) :]
        total = jnp.sum(((shared - PRIOR) / DEVIATION) ** 2)
        total += jnp.sum((own[:width] / GENERATION_DEVIATION) ** 2)
        total += jnp.sum((own[width:] / LEAST_DEVIATION) ** 2)
        for row in rows:
            off = log_seconds(row, p, generations) - math.log(row.run.step_seconds)
            total += (off / ROW_DEVIATION) ** 2 / counts[row.configuration]
        return total

    start = jnp.concatenate([jnp.array(PRIOR), jnp.zeros(2 * width)])
    return np.array(minimize(jax.jit(loss), start, method="BFGS", options={"maxiter": 1000}).x)


def predict(row: Measured, parameters: np.ndarray, generations: list[str]) -> float:
    """Return the seconds of a row under a calibration."""
    return float(jnp.exp(log_seconds(row, parameters, generations)))


def predictions_left_out(rows: list[Measured], generations: list[str]) -> dict[str, float]:
    """Return the seconds of every row by a calibration that has not seen its configuration."""
    left_out: dict[str, float] = {}
    for configuration in sorted({row.configuration for row in rows}):
        others = [row for row in rows if row.configuration != configuration]
        parameters = fit(others, generations)
        for row in rows:
            if row.configuration == configuration:
                left_out[row.run.id] = predict(row, parameters, generations)
    return left_out


def baseline_left_out(row: Measured, rows: list[Measured]) -> float:
    """Return the seconds at the median MFU of the other configurations of a generation.

    Where there is none, at the median of the other generations' medians.
    """
    mfu: dict[str, list[float]] = {}
    for other in rows:
        if other.configuration != row.configuration:
            mfu.setdefault(other.run.generation, []).append(other.ideal / other.run.step_seconds)
    known = mfu.get(row.run.generation) or [statistics.median(values) for values in mfu.values()]
    return row.ideal / statistics.median(known)


def main() -> None:
    """Compile, fit, and print the table."""
    parser = argparse.ArgumentParser()
    fitted = [name for name in ROWS if name not in HELD_OUT]
    parser.add_argument("--rows", nargs="*", default=fitted)
    parser.add_argument("--timeout", type=float, default=1800.0)
    options = parser.parse_args()
    compiler = CompileOptions(timeout_seconds=options.timeout)
    rows, refused = [], {}
    for run in chips.published_runs():
        if run.id not in options.rows:
            continue
        sys.stderr.write(f"{run.id}: {run.model} on {run.machine}\n")
        measured = measure(run, compiler)
        if isinstance(measured, str):
            refused[run.id] = measured
        else:
            rows.append(measured)
    if len({row.configuration for row in rows}) < 2:
        said = {row.run.id: round(row.estimate, 3) for row in rows}
        published = {row.run.id: row.run.step_seconds for row in rows}
        print_json("preflight_accuracy", estimated=said, published=published, refused=refused)
        return
    jax.config.update("jax_enable_x64", True)  # for the fit; the programs above are as users' are
    generations = sorted({row.run.generation for row in rows})
    everything = fit(rows, generations)
    left_out = predictions_left_out(rows, generations)
    errors: dict[str, list[float]] = {
        name: [] for name in ("out", "fit", "said", "base", "base_out")
    }
    logs, inside = [], []
    lines = [
        "| row | model | machine | published s "
        "| left out | in the fit | said | one MFU | left out |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        published = row.run.step_seconds
        ratios = {
            "out": left_out[row.run.id] / published,
            "fit": predict(row, everything, generations) / published,
            "said": row.estimate / published,
            "base": row.ideal / MEDIAN_MFU[row.run.generation] / published,
            "base_out": baseline_left_out(row, rows) / published,
        }
        for name, ratio in ratios.items():
            errors[name].append(abs(ratio - 1))
        logs.append(math.log(ratios["out"]))
        inside.append(row.low * ratios["out"] <= 1 <= row.high * ratios["out"])
        figures = " | ".join(f"{ratio:.2f}" for ratio in ratios.values())
        lines.append(
            f"| {row.run.id} | {row.run.model} | {row.run.machine} | {published:g} | {figures} |"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    deviation = math.sqrt(statistics.fmean(value**2 for value in logs))
    values = dict(zip(NAMES, everything[: len(NAMES)].tolist(), strict=True))
    factors, leasts = everything[len(NAMES) :].reshape(2, len(generations))
    print_json(
        "preflight_accuracy",
        rows=len(rows),
        mean_absolute_error_left_out=round(statistics.fmean(errors["out"]), 3),
        worst_left_out=round(max(errors["out"]), 3),
        mean_absolute_error_in_the_fit=round(statistics.fmean(errors["fit"]), 3),
        mean_absolute_error_as_said=round(statistics.fmean(errors["said"]), 3),
        mean_absolute_error_of_one_mfu=round(statistics.fmean(errors["base"]), 3),
        worst_of_one_mfu=round(max(errors["base"]), 3),
        mean_absolute_error_of_one_mfu_left_out=round(statistics.fmean(errors["base_out"]), 3),
        worst_of_one_mfu_left_out=round(max(errors["base_out"]), 3),
        deviation_of_logarithm=round(deviation, 3),
        half_width_of_80_percent=round(Z80 * deviation, 3),
        share_of_left_out_inside_the_interval=round(statistics.fmean(inside), 2),
        weights={name: round(math.exp(values[name]), 3) for name in KINDS},
        exponent=round(values["exponent"], 3),
        several_slices=round(math.exp(values["slices"]), 3),
        common_factor=round(math.exp(values["common"]), 3),
        factors=_named(generations, factors + values["common"]),
        leasts=_named(generations, leasts + values["least"]),
        least_of_others=round(math.exp(values["least"]), 3),
        refused=refused,
        not_covered=NOT_COVERED,
    )


def _named(generations: list[str], logarithms: np.ndarray) -> dict[str, float]:
    """Return the number of every generation."""
    pairs = zip(generations, np.exp(logarithms), strict=True)
    return {name: round(float(value), 3) for name, value in pairs}


if __name__ == "__main__":
    main()

"""Estimated against published step times of training runs on real TPUs.

    python benchmarks/preflight_accuracy.py [--rows T12 E1 …] [--timeout 1800]

Rebuilds every row of the published table that ``neurenix.models`` cover (``published_rows.py``),
compiles its step for its slice, and prints estimated over published seconds: as the package says,
with a calibration fitted to the rows at hand, and with one from which all rows of the same model
and generation were left out. Beside it the baseline that knows the model's FLOPs only and takes one
MFU for each generation, as the median of all published runs and with the configuration left out.
The first run compiles for hours on two cores; later ones read the cache. Of rows of one
configuration there is nothing to leave out: only what the package says is printed.

The calibration: seconds = factor(generation) × (products by their floor and cycles, see
``calibration.product_seconds``, + sum over other kinds of operations of weight × seconds by the
compiler's cycles or the model of transfers) × a factor if there are several slices. All is fitted
to the logarithms, each parameter pulled towards a prior (weights: 0.5 for element-wise work, 2 for
kernels, 0.7 for the others, ± 50 %; the exponent of products: 0.5 ± 0.25; several slices: 1 ± 10 %;
a common factor of 1 ± 30 %; each generation's within 8 % of it), each configuration counted once.
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
from published_rows import NOT_COVERED, ROWS, report_of

from neurenix import chips
from neurenix.compiler.calibration import WEIGHTS, WELL_USED
from neurenix.preflight import CompileOptions

KINDS = ("kernel", "vector", "hbm", "ici", "host")
NAMES = (*KINDS, "exponent", "slices", "common")  # of the parameters; then one for each generation
PRIOR = np.array([*np.log([2.0, 0.5, 0.7, 0.7, 0.7]), 0.5, 0.0, 0.0])
DEVIATION = np.array([*[0.5] * len(KINDS), 0.25, 0.1, 0.3])
GENERATION_DEVIATION = 0.08
ROW_DEVIATION = 0.07
Z80 = 1.2816  # of a normal distribution, 80 % lie within so many standard deviations

# Median MFU by generation of 93 published rows (in-sample): the baseline to beat.
MEDIAN_MFU = {"v4": 0.545, "v5e": 0.554, "v5p": 0.653, "v6e": 0.416, "tpu7x": 0.520}


@dataclass(frozen=True)
class Measured:
    """One row: what was published and what the compiler's program says."""

    run: chips.PublishedRun
    seconds: np.ndarray  # by kind: all that has no weight, then KINDS
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
    by_kind: dict[str, float] = {}
    products = []
    for operation in report.operations:
        if operation.products:
            over = max(operation.cycles_seconds / operation.floor_seconds, 1.0)
            near = min(over, WELL_USED)
            products.append(np.log([operation.floor_seconds, near, over / near]))
            continue
        kind = "kernel" if operation.kind == "compute" else operation.kind
        seconds = operation.seconds / WEIGHTS.get(kind, 1.0)
        by_kind[kind] = by_kind.get(kind, 0.0) + seconds
    rest = sum(seconds for kind, seconds in by_kind.items() if kind not in KINDS)
    features = np.array([rest, *(by_kind.get(kind, 0.0) for kind in KINDS)])
    low, high = time.low / time.seconds, time.high / time.seconds
    return Measured(run, features, np.array(products).T, time.seconds, low, high)


def log_seconds(row: Measured, p: Any, generations: list[str]) -> Any:
    """Return the logarithm of a row's step under a calibration."""
    kinds = len(KINDS)
    exponent, slices, common = p[kinds], p[kinds + 1], p[kinds + 2]
    floor, near, beyond = row.products
    work = jnp.sum(jnp.exp(floor + exponent * near + beyond))
    work += row.seconds[0] + row.seconds[1:] @ jnp.exp(p[:kinds])
    own = p[len(NAMES) + generations.index(row.run.generation)]
    return jnp.log(work) + common + own + slices * (row.run.num_slices > 1)


def fit(rows: list[Measured], generations: list[str]) -> np.ndarray:
    """Return the parameters: logarithms, but for the exponent."""
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row.configuration] = counts.get(row.configuration, 0) + 1

    def loss(p: jax.Array) -> jax.Array:
        shared, own = p[: len(NAMES)], p[len(NAMES) :]
        total = jnp.sum(((shared - PRIOR) / DEVIATION) ** 2)
        total += jnp.sum((own / GENERATION_DEVIATION) ** 2)
        for row in rows:
            off = log_seconds(row, p, generations) - math.log(row.run.step_seconds)
            total += (off / ROW_DEVIATION) ** 2 / counts[row.configuration]
        return total

    start = jnp.concatenate([jnp.array(PRIOR), jnp.zeros(len(generations))])
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
    parser.add_argument("--rows", nargs="*", default=list(ROWS))
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
    own = everything[len(NAMES) :] + values["common"]
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
        factors={
            name: round(float(np.exp(value)), 3)
            for name, value in zip(generations, own, strict=True)
        },
        refused=refused,
        not_covered=NOT_COVERED,
    )


if __name__ == "__main__":
    main()

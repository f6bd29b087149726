"""Estimated against published step times of training runs on real TPUs.

    python benchmarks/preflight_accuracy.py [--rows T12 E1 …] [--timeout 1800]

Rebuilds every row of the published table that ``neurenix.models`` cover (``published_rows.py``),
compiles its step for its slice, and prints estimated over published seconds: as the package is
calibrated today, and with a calibration from which all rows of the same model and generation were
left out. Beside it the baseline that knows the model's FLOPs only and takes one MFU for each
generation. The first run compiles for half an hour or more; later ones read the cache.

The calibration: seconds = factor(generation) × sum over kinds of operations of weight × seconds by
the compiler's cycles or the model of transfers. Factors and weights are fitted to the logarithms,
each pulled towards a prior (weights: 0.5 for element-wise work, 0.7 for the others, ± 50 %; a
common factor of 1 ± 20 %; each generation's within 8 % of it), each configuration counted once.
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
from neurenix.compiler.calibration import WEIGHTS
from neurenix.preflight import CompileOptions

KINDS = ("vector", "hbm", "ici", "host")
PRIOR = np.log([0.5, 0.7, 0.7, 0.7])
WEIGHT_DEVIATION, COMMON_DEVIATION, GENERATION_DEVIATION = 0.5, 0.2, 0.08
ROW_DEVIATION = 0.07
Z80 = 1.2816  # of a normal distribution, 80 % lie within so many standard deviations

# Median MFU by generation of 93 published rows (in-sample): the baseline to beat.
MEDIAN_MFU = {"v4": 0.545, "v5e": 0.554, "v5p": 0.653, "v6e": 0.416, "tpu7x": 0.520}


@dataclass(frozen=True)
class Measured:
    """One row: what was published and what the compiler's program says."""

    run: chips.PublishedRun
    seconds: np.ndarray  # by kind: all that has no weight, then KINDS
    estimate: float
    covered: bool

    @property
    def configuration(self) -> tuple[str, str]:
        """What is left out together."""
        return self.run.generation, self.run.model

    @property
    def baseline(self) -> float:
        """Seconds of the rule of one MFU for a generation."""
        run = self.run
        tokens = run.batch_size * run.sequence_length
        peak = chips.generation(run.generation).peak_flops_per_second["bfloat16"] * run.num_devices
        return tokens * run.flops_per_token / (peak * MEDIAN_MFU[run.generation])


def measure(run: chips.PublishedRun, compiler: CompileOptions) -> Measured | str:
    """Compile a row, or say why there is no estimate."""
    report = report_of(ROWS[run.id], run.batch_size, run.sequence_length, compiler)
    time = report.step_time
    if time is None:
        return report.findings[0].message.split("\n", 1)[0][:200]
    by_kind: dict[str, float] = {}
    for operation in report.operations:
        kind = "product" if operation.products else operation.kind
        seconds = operation.seconds / WEIGHTS.get(kind, 1.0)
        by_kind[kind] = by_kind.get(kind, 0.0) + seconds
    rest = sum(seconds for kind, seconds in by_kind.items() if kind not in KINDS)
    features = np.array([rest, *(by_kind.get(kind, 0.0) for kind in KINDS)])
    published = run.step_seconds
    return Measured(run, features, time.seconds, time.low <= published <= time.high)


def fit(rows: list[Measured], generations: list[str]) -> np.ndarray:
    """Return the logarithms of the weights, of the common factor, and of each generation's."""
    counts: dict[Any, int] = {}
    for row in rows:
        counts[row.configuration] = counts.get(row.configuration, 0) + 1
    share = jnp.array([1 / counts[row.configuration] for row in rows])
    seconds = jnp.array([row.seconds for row in rows])
    published = jnp.log(jnp.array([row.run.step_seconds for row in rows]))
    places = jnp.array([generations.index(row.run.generation) for row in rows])

    def loss(p: jax.Array) -> jax.Array:
        weights, common, own = p[: len(KINDS)], p[len(KINDS)], p[len(KINDS) + 1 :]
        estimate = jnp.log(seconds[:, 0] + seconds[:, 1:] @ jnp.exp(weights)) + common + own[places]
        return (
            jnp.sum(share * ((estimate - published) / ROW_DEVIATION) ** 2)
            + jnp.sum(((weights - PRIOR) / WEIGHT_DEVIATION) ** 2)
            + (common / COMMON_DEVIATION) ** 2
            + jnp.sum((own / GENERATION_DEVIATION) ** 2)
        )

    start = jnp.concatenate([jnp.array(PRIOR), jnp.zeros(1 + len(generations))])
    return np.array(minimize(loss, start, method="BFGS", options={"maxiter": 1000}).x)


def predict(row: Measured, parameters: np.ndarray, generations: list[str]) -> float:
    """Return the seconds of a row under a calibration."""
    weights, common = parameters[: len(KINDS)], parameters[len(KINDS)]
    own = parameters[len(KINDS) + 1 + generations.index(row.run.generation)]
    work = row.seconds[0] + row.seconds[1:] @ np.exp(weights)
    return float(work * np.exp(common + own))


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
    jax.config.update("jax_enable_x64", True)  # for the fit; the programs above are as users' are
    generations = sorted({row.run.generation for row in rows})
    everything = fit(rows, generations)
    left_out: dict[str, float] = {}
    for configuration in sorted({row.configuration for row in rows}):
        others = [row for row in rows if row.configuration != configuration]
        parameters = fit(others, generations)
        for row in rows:
            if row.configuration == configuration:
                left_out[row.run.id] = predict(row, parameters, generations)
    errors, base_errors, logs, covered = [], [], [], []
    lines = [
        "| row | model | machine | published s | left out | in the fit | one MFU |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        published = row.run.step_seconds
        out = left_out[row.run.id] / published
        inside = predict(row, everything, generations) / published
        base = row.baseline / published
        errors.append(abs(out - 1))
        base_errors.append(abs(base - 1))
        logs.append(math.log(out))
        covered.append(row.covered)
        lines.append(
            f"| {row.run.id} | {row.run.model} | {row.run.machine} | {published:g} | {out:.2f} | "
            f"{inside:.2f} | {base:.2f} |"
        )
    sys.stderr.write("\n".join(lines) + "\n")
    deviation = math.sqrt(statistics.fmean(value**2 for value in logs))
    print_json(
        "preflight_accuracy",
        rows=len(rows),
        mean_absolute_error_left_out=round(statistics.fmean(errors), 3),
        worst_left_out=round(max(errors), 3),
        mean_absolute_error_of_one_mfu=round(statistics.fmean(base_errors), 3),
        worst_of_one_mfu=round(max(base_errors), 3),
        deviation_of_logarithm=round(deviation, 3),
        half_width_of_80_percent=round(Z80 * deviation, 3),
        share_inside_the_interval=round(statistics.fmean(covered), 2),
        weights=dict(zip(KINDS, np.exp(everything[: len(KINDS)]).round(3).tolist(), strict=True)),
        common_factor=round(float(np.exp(everything[len(KINDS)])), 3),
        factors={
            name: round(float(np.exp(everything[len(KINDS)] + own)), 3)
            for name, own in zip(generations, everything[len(KINDS) + 1 :], strict=True)
        },
        refused=refused,
        not_covered=NOT_COVERED,
    )


if __name__ == "__main__":
    main()

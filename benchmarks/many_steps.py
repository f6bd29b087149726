"""``steps_per_execution=50`` against 1, and against a hand-written scan; Keras beside it.

    python benchmarks/many_steps.py [--rounds 7] [--alone]

A tiny model (64-32-10, batch 32) on one CPU device, steps per second in one run. What others wrote
is compiled before ``fit`` sets up JAX's CPU for the process: as if Neurenix were not there;
``hand_50_set_up`` is the same scan compiled after.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from common import count, median_microseconds, ratio, report, rounds
from fit_overhead import BATCH, keras_fit, ours
from flax import nnx
from models import build, data_for

PER_CALL = 50
STEPS = {
    "fit_50": 20000,
    "unchecked_50": 20000,
    "hand_50": 20000,
    "hand_50_set_up": 20000,
    "fit_1": 4000,
    "keras_50": 5000,
    "keras_1": 1000,
}


def hand_written(x: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    """Return the scan that one writes with JAX and optax, of a number of steps."""
    graphdef, params, rest = nnx.split(build("tiny"), nnx.Param, ...)
    transformation = optax.adam(1e-3)
    state = {"carry": (params, transformation.init(params))}
    size = BATCH["tiny"]

    def step(carry: Any, batch: Any) -> Any:
        params, opt = carry

        def loss_of(params: Any) -> Any:
            logits = nnx.merge(graphdef, params, rest)(batch[0])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, opt = transformation.update(gradients, opt, params)
        return (optax.apply_updates(params, updates), opt), loss

    many = jax.jit(lambda carry, batches: jax.lax.scan(step, carry, batches), donate_argnums=0)
    generator = np.random.default_rng(0)

    def run(steps: int) -> None:
        carry, loss = state["carry"], None
        for _ in range(steps // PER_CALL):
            rows = generator.permutation(len(x))[: PER_CALL * size].reshape(PER_CALL, size)
            carry, loss = many(carry, (x[rows], y[rows]))
        state["carry"] = carry
        jax.block_until_ready(loss)

    return run


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    x, y = data_for("tiny", PER_CALL * BATCH["tiny"])
    loops = {"hand_50": hand_written(x, y)}
    loops["hand_50"](PER_CALL)
    others = {}
    if not options.alone:
        more = data_for("tiny", STEPS["keras_50"] * BATCH["tiny"])
        others["keras_50"] = keras_fit("tiny", *more, STEPS["keras_50"], PER_CALL)
        others["keras_1"] = keras_fit("tiny", *more, STEPS["keras_1"], 1)
        for contender in others.values():
            contender()
    loops |= {
        "fit_50": ours("tiny", x, y, PER_CALL),
        "unchecked_50": ours("tiny", x, y, PER_CALL, check_gradients=False),
        "fit_1": ours("tiny", x, y),
    }
    loops["fit_50"](PER_CALL)
    loops["hand_50_set_up"] = hand_written(x, y)
    contenders = {name: lambda run=run, n=name: run(STEPS[n]) for name, run in loops.items()}
    contenders |= others
    seconds = {
        name: [value / STEPS[name] for value in values]
        for name, values in rounds(contenders, count=options.rounds).items()
    }
    report(
        "many_steps/tiny",
        steps_per_second_over_hand_written=ratio(seconds, "hand_50", "fit_50"),
        over_hand_written_and_set_up=ratio(seconds, "hand_50_set_up", "fit_50"),
        without_check_of_gradients=ratio(seconds, "hand_50", "unchecked_50"),
        steps_per_second_over_single_steps=ratio(seconds, "fit_1", "fit_50"),
        **({} if options.alone else {"keras_gain": ratio(seconds, "keras_1", "keras_50")}),
        step_us={name: median_microseconds(value, 1) for name, value in seconds.items()},
    )


if __name__ == "__main__":
    main()

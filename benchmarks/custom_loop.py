"""Host time per call of ``nx.jit(train_step)``, against ``fit`` and ``nnx.jit``.

    python benchmarks/custom_loop.py [--layers 2 6 24] [--calls 128] [--rounds 24]

The widths are tiny, so that the host's work is what is timed: the processor time of the calling
thread, per call, in the middle of a run. On a machine whose caches are shared, one such run is off
by a third and more: the ratio is the median of many rounds, in each of which the two stand side by
side. `nnx.jit` is so far off that three do. It comes last, so that the other two are timed as in a
program that does not use it.
"""

from __future__ import annotations

import argparse
import os
from collections import deque
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import optax
from common import count, host_rounds, median_microseconds, ratio, report
from flax import nnx
from models import Transformer, data_for

import neurenix as nx
from neurenix.train import Trainer
from neurenix.train.epoch import MAX_IN_FLIGHT

BATCH = 4
WARM = 64
"""Calls before the clock runs; afterwards the time of one rises no more."""


def step(model: Any, optimizer: Any, batch: Any) -> Any:
    """Make one step; the same function for both compilers."""

    def loss_fn(model: Any) -> Any:
        logits = model(batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    loss, gradients = nnx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return loss


Loop = Callable[[int, Callable[[], None]], None]
"""Makes a number of steps, and calls a function in every one of them."""


def loop(compile_with: Callable[..., Any], layers: int, optimizer: Any) -> Loop:
    """Return a loop of a compiled function."""
    model = Transformer(layers, 8, heads=2)
    optimizer = optimizer(model)
    compiled = compile_with(step)
    x, y = data_for("transformer", BATCH)

    def run(calls: int, tick: Callable[[], None]) -> None:
        in_flight: deque[Any] = deque()
        for _ in range(calls):
            tick()
            in_flight.append(compiled(model, optimizer, (x, y)))
            if len(in_flight) > MAX_IN_FLIGHT:  # as fit: else JAX computes in this very thread
                waited_for = [in_flight.popleft() for _ in range(MAX_IN_FLIGHT // 2)]
                waited_for[-1].block_until_ready()
        jax.block_until_ready(in_flight.pop())

    return run


def fit_loop(layers: int) -> Loop:
    """Return ``fit``."""
    trainer = Trainer(
        Transformer(layers, 8, heads=2),
        optimizer=nx.optim.Adam(1e-3),
        loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = data_for("transformer", BATCH * 8)
    dataset = nx.data.Dataset.from_arrays(x, y).shuffle(seed=0).repeat().batch(BATCH)

    def run(calls: int, tick: Callable[[], None]) -> None:
        def ticked(x: Any, y: Any) -> Any:
            tick()
            return x, y

        trainer.fit(dataset.map(ticked), steps_per_epoch=calls)

    return run


def warm_up(loops: dict[str, Loop]) -> None:
    """Compile what the loops run."""
    for run in loops.values():
        run(2, lambda: None)


def main() -> None:
    """Print one line for each depth."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, nargs="*", default=[2, 6, 24])
    parser.add_argument("--calls", type=count, default=128)
    parser.add_argument("--rounds", type=count, default=24)
    options = parser.parse_args()
    for layers in options.layers:
        loops = {
            "fit": fit_loop(layers),
            "nx_jit": loop(nx.jit, layers, lambda m: nx.Optimizer(m, optax.adam(1e-3))),
        }
        warm_up(loops)
        fast = host_rounds(loops, options.calls, options.rounds, warm=WARM)
        loops["nnx_jit"] = loop(
            nnx.jit, layers, lambda m: nnx.Optimizer(m, optax.adam(1e-3), wrt=nnx.Param)
        )
        warm_up(loops)
        slow = host_rounds(loops, max(1, options.calls // 4), 3, warm=WARM // 4)
        report(
            f"custom_loop/{layers}_layers",
            nx_jit_over_fit=ratio(fast, "nx_jit", "fit"),
            nnx_jit_over_nx_jit=ratio(slow, "nnx_jit", "nx_jit"),
            host_us_per_call={
                name: median_microseconds(seconds, 1) for name, seconds in {**slow, **fast}.items()
            },
        )


if __name__ == "__main__":
    main()

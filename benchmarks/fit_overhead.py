"""``fit`` against a hand-written JAX loop, Keras 3 on JAX and PyTorch on the CPU.

    python benchmarks/fit_overhead.py [--models mlp cnn transformer] [--rounds 7] [--alone]

Prints for each model the ratio of step times, and the host's processor time per step in ``fit``
beyond that of the bare compiled call. ``--alone`` leaves Keras and PyTorch out. What others wrote
is compiled before ``fit`` sets up JAX's CPU for the process: as if Neurenix were not there.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import optax
from common import count, host_microseconds, median_microseconds, ratio, report, rounds
from flax import nnx
from models import build, build_keras, build_torch, data_for

import neurenix as nx
from neurenix.train import Trainer, TrainOptions

BATCH = {"mlp": 256, "cnn": 200, "transformer": 32, "tiny": 32, "wide": 64}
STEPS = {"mlp": 120, "cnn": 300, "transformer": 80, "tiny": 2000}


def hand_written(name: str, x: np.ndarray, y: np.ndarray) -> Callable[[int], None]:
    """Return the loop that one writes with JAX and optax, of a number of steps."""
    graphdef, params, rest = nnx.split(build(name), nnx.Param, ...)
    transformation = optax.adam(1e-3)
    size = BATCH[name]
    state = {"params": params, "opt": transformation.init(params)}

    def step(params: Any, opt: Any, x: Any, y: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = nnx.merge(graphdef, params, rest)(x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        updates, opt = transformation.update(gradients, opt, params)
        return optax.apply_updates(params, updates), opt, loss

    compiled = jax.jit(step, donate_argnums=(0, 1))
    generator = np.random.default_rng(0)

    def run(steps: int) -> None:
        per_pass = len(x) // size
        params, opt, loss = state["params"], state["opt"], None
        for number in range(steps):
            if number % per_pass == 0:
                order = generator.permutation(len(x))
            begin = number % per_pass * size
            rows = order[begin : begin + size]
            params, opt, loss = compiled(params, opt, x[rows], y[rows])
        state.update(params=params, opt=opt)
        jax.block_until_ready(loss)

    return run


def ours(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    per_call: int = 1,
    check_gradients: bool = True,
) -> Callable[[int], Any]:
    """Return ``fit`` of a number of steps."""
    trainer = Trainer(
        build(name),
        optimizer=nx.optim.Adam(1e-3),
        loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
        options=TrainOptions(steps_per_execution=per_call, check_gradients=check_gradients),
    )
    dataset = nx.data.Dataset.from_arrays(x, y).shuffle(seed=0).repeat().batch(BATCH[name])
    return lambda steps: trainer.fit(dataset, steps_per_epoch=steps)


def keras_fit(name: str, x: np.ndarray, y: np.ndarray, steps: int, per_call: int = 1) -> Any:
    """Return an epoch of Keras's ``fit``."""
    import keras

    model = build_keras(name)
    model.compile(
        keras.optimizers.Adam(1e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=per_call,
    )
    rows = steps * BATCH[name]
    return lambda: model.fit(x[:rows], y[:rows], batch_size=BATCH[name], verbose=0)


def torch_loop(name: str, x: np.ndarray, y: np.ndarray, steps: int) -> Callable[[], None]:
    """Return an epoch of the loop that one writes with PyTorch."""
    import torch

    model = build_torch(name)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    loss_of = torch.nn.CrossEntropyLoss()
    if name == "cnn":
        x = x.transpose(0, 3, 1, 2).copy()
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))
    size = BATCH[name]

    def epoch() -> None:
        order = torch.randperm(len(inputs))
        for number in range(steps):
            rows = order[number * size : (number + 1) * size]
            optimizer.zero_grad()
            loss_of(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()

    return epoch


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", default=["mlp", "cnn", "transformer"])
    parser.add_argument("--rounds", type=count, default=7)
    parser.add_argument("--alone", action="store_true")
    options = parser.parse_args()
    others: dict[str, dict[str, Callable[[], Any]]] = {}
    hand: dict[str, Callable[[int], Any]] = {}
    for name in options.models:
        steps = STEPS[name]
        data = data_for(name, steps * BATCH[name])
        hand[name] = hand_written(name, *data)
        others[name] = {"hand": partial(hand[name], steps)}
        if not options.alone:
            others[name] |= {
                "keras": keras_fit(name, *data, steps),
                "torch": torch_loop(name, *data, steps),
            }
        for contender in others[name].values():
            contender()
    for name in options.models:
        steps = STEPS[name]
        loops = {"fit": ours(name, *data_for(name, steps * BATCH[name])), "hand": hand[name]}
        contenders = {"fit": partial(loops["fit"], steps), **others[name]}
        seconds = rounds(contenders, count=options.rounds)
        host = host_microseconds(loops, steps // 4, options.rounds)
        figures = {f"fit_over_{other}": ratio(seconds, "fit", other) for other in seconds}
        figures.pop("fit_over_fit")
        report(
            f"fit_overhead/{name}",
            **figures,
            step_us={key: median_microseconds(value, steps) for key, value in seconds.items()},
            host_us_per_step={key: round(value, 1) for key, value in host.items()},
        )


if __name__ == "__main__":
    main()

"""Batches that are filled up, or computed in parts: what the model, the loss and others see."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix import nn

pytestmark = pytest.mark.cpu8

FEATURES = 3


def data(examples: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    x = random.normal(2.0, 3.0, (examples, FEATURES)).astype(np.float32)
    return x, x.sum(1, keepdims=True)


def model_with_norm() -> Any:
    nx.seed(3)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.BatchNorm(8), nn.ReLU(), nn.Linear(8, 1))


def loop_of(model: Any, x: np.ndarray, y: np.ndarray, batch_size: int, rate: float) -> None:
    """Train by hand on batches as they are, the last one smaller."""
    optimizer = nx.Optimizer(model, nx.optim.SGD(rate))
    for start in range(0, len(x), batch_size):
        part = slice(start, start + batch_size)
        gradients = nx.grad(lambda m, p=part: jnp.mean((m(x[p]) - y[p]) ** 2))(model)
        optimizer.update(model, gradients)


@pytest.mark.parametrize("per_call", [1, 2])
@pytest.mark.parametrize(("replicas", "batch_size"), [(1, 16), (8, 16), (8, 20)])
def test_added_rows_do_not_enter_batch_statistics(
    replicas: int, batch_size: int, per_call: int
) -> None:
    x, y = data(53)
    expected, model = model_with_norm(), model_with_norm()
    loop_of(expected, x, y, batch_size, 1e-3)
    devices = nx.distribute.OneDeviceStrategy("tpu:0"), nx.distribute.TPUStrategy()
    with devices[replicas == 8].scope():
        model.compile(nx.optim.SGD(1e-3), "mse", steps_per_execution=per_call)
    model.fit(x, y, batch_size=batch_size, shuffle=False)
    for name in ("mean", "var"):
        statistics = [np.asarray(getattr(m[1], name)[...]) for m in (model, expected)]
        np.testing.assert_allclose(*statistics, rtol=1e-4)
    np.testing.assert_allclose(model.predict(x), expected.predict(x), rtol=1e-3, atol=1e-4)


def test_a_last_batch_of_one_example_leaves_the_running_statistics() -> None:
    x, y = data(5)
    model = nn.Sequential(nn.BatchNorm(FEATURES), nn.Linear(FEATURES, 1))
    model.compile(nx.optim.SGD(0.0), "mse")
    model.fit(x, y, batch_size=4, shuffle=False)
    np.testing.assert_allclose(model[0].mean[...], 0.1 * x[:4].mean(0), rtol=1e-5)
    np.testing.assert_allclose(model[0].var[...], 0.9 + 0.1 * x[:4].var(0, ddof=1), rtol=1e-5)


def test_only_examples_enter_the_statistics_of_each_part_of_an_accumulation() -> None:
    x, y = data(7)
    model = nn.Sequential(nn.BatchNorm(FEATURES), nn.Linear(FEATURES, 1))
    model.compile(nx.optim.SGD(0.0), "mse", accumulate_steps=2)
    model.fit(x, y, batch_size=10, shuffle=False)
    expected = 0.9 * (0.1 * x[0::2].mean(0)) + 0.1 * x[1::2].mean(0)
    np.testing.assert_allclose(model[0].mean[...], expected, rtol=1e-5)


class Penalised(nn.Module):
    """Returns a penalty on its weights beside its output."""

    def __init__(self) -> None:
        self.layer = nn.Linear(FEATURES, 1)

    def __call__(self, x: Any) -> tuple[Any, Any]:
        return self.layer(x), jnp.sum(self.layer.kernel[...] ** 2)


def test_an_output_without_rows_goes_through_an_accumulation() -> None:
    x, y = data(8)
    kernels = []
    for parts in (1, 2):
        nx.seed(0)
        model = Penalised()
        model.compile(
            nx.optim.SGD(1e-2),
            lambda y, output: jnp.mean((y - output[0]) ** 2) + 0.1 * output[1],
            accumulate_steps=parts,
        )
        model.fit(x, y, batch_size=8, shuffle=False)
        kernels.append(np.asarray(model.layer.kernel[...]))
    np.testing.assert_allclose(*kernels, rtol=1e-5)


def test_an_optimizer_that_follows_the_loss_is_given_it() -> None:
    x, y = data(16)
    nx.seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, 1))
    kernels = [np.asarray(model[0].kernel[...])]
    # The loss does not fall by 99 % at once, so the rate falls at every step after the first.
    plateau = optax.contrib.reduce_on_plateau(factor=0.01, patience=1, rtol=0.99)
    model.compile(optax.chain(optax.sgd(1e-2), plateau), "mse")
    for _ in range(3):
        model.fit(x, y, batch_size=16)
        kernels.append(np.asarray(model[0].kernel[...]))
    first, *_, last = (abs(a - b).max() for a, b in zip(kernels, kernels[1:], strict=False))
    assert first > 1e-2
    assert last < 1e-3 * first

"""``strategy.run`` inside of compiled functions: what is a share there, and what nobody knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.errors import ArgumentError
from neurenix.distribute import OneDeviceStrategy, PerReplica, TPUStrategy

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

SHARES = [float(2 * n + 2 * n + 1) for n in range(8)]  # of 0 … 15, two numbers each


@pytest.fixture(scope="module")
def strategy() -> TPUStrategy:
    return TPUStrategy()


def total(x: Any) -> Any:
    return jnp.sum(x["x"] if isinstance(x, dict) else x)


def batch_of(strategy: TPUStrategy, example: Callable[[Any], Any] = lambda x: x) -> Any:
    return next(iter(strategy.distribute([example(np.arange(16, dtype=np.float32))])))


def numbers(result: PerReplica) -> list[float]:
    return [float(n) for n in np.ravel(result.stacked)]


def test_a_batch_arrives_as_shares_and_a_whole_array_whole(strategy: TPUStrategy) -> None:
    inside = nx.jit(lambda x: strategy.run(total, args=(x,)))
    for _ in range(2):  # each has a program of its own
        assert numbers(inside(batch_of(strategy))) == SHARES
        assert numbers(inside(jnp.arange(16.0))) == [120.0] * 8
    assert inside.compilations == 2
    assert numbers(inside(batch_of(strategy, lambda x: {"x": x}))) == SHARES


def test_arrays_that_lie_alike_have_one_program(strategy: TPUStrategy) -> None:
    inside = nx.jit(lambda x: strategy.run(jnp.sum, args=(x,)))
    for spec in (("data",), ("data", None)):
        lies = jax.NamedSharding(strategy.mesh, jax.P(*spec))
        assert numbers(inside(jax.device_put(jnp.ones((16, 2)), lies))) == [4.0] * 8
    for spec in ((), (None, None)):
        lies = jax.NamedSharding(strategy.mesh, jax.P(*spec))
        assert numbers(inside(jax.device_put(jnp.ones((16, 2)), lies))) == [32.0] * 8
    assert inside.compilations == 2


def test_a_function_in_a_function_knows_it_too(strategy: TPUStrategy) -> None:
    inner = nx.jit(lambda scale, x: strategy.run(lambda x: scale * total(x), args=(x,)))
    outer = nx.jit(lambda x: inner(2.0, x))
    assert numbers(outer(batch_of(strategy))) == [2 * n for n in SHARES]


def test_many_steps_in_one_call_take_shares(strategy: TPUStrategy) -> None:
    def step(x: Any) -> Any:
        return strategy.run(total, args=(x,)).stacked

    steps = nx.multi_step(step, steps=3)
    batches = strategy.distribute([np.arange(16, dtype=np.float32) + n for n in range(3)])
    wanted = [[n + 2 * step for n in SHARES] for step in range(3)]
    np.testing.assert_array_equal(steps(iter(batches)), wanted)


def test_a_step_in_a_compiled_function_trains_as_one_outside(strategy: TPUStrategy) -> None:
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        def loss(model: Any) -> Any:
            return nx.distribute.compute_average_loss(jnp.sum(model(x) ** 2, axis=-1))

        value, gradient = nx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    def run(model: Any, optimizer: Any, x: Any) -> Any:
        return strategy.reduce("sum", strategy.run(step, args=(model, optimizer, x)))

    found = []
    for loop in (run, nx.jit(run)):
        nx.seed(0)
        with strategy.scope():
            model = nn.Linear(3, 2)
            optimizer = nx.Optimizer(model, nx.optim.SGD(0.1))
        data = [np.full((16, 3), n, np.float32) for n in (1, 2)]
        losses = [float(loop(model, optimizer, x)) for x in strategy.distribute(data)]
        found.append((losses, np.array(model.kernel[...])))
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    np.testing.assert_allclose(found[1][1], found[0][1], rtol=1e-5)


def test_what_is_computed_beside_a_share_is_refused(strategy: TPUStrategy) -> None:
    computed = nx.jit(lambda x: strategy.run(total, args=(2 * x,)))
    with pytest.raises(ArgumentError, match=r"not known whether this array of shape \(16,\)"):
        computed(batch_of(strategy))
    assert numbers(computed(jnp.arange(16.0))) == [240.0] * 8  # nothing is split there
    scaled = nx.jit(lambda x, y: strategy.run(lambda x, y: y * total(x), args=(x, 2 * y)))
    assert numbers(scaled(batch_of(strategy), 1.5)) == [3 * n for n in SHARES]


def test_a_function_of_jax_knows_nothing(strategy: TPUStrategy) -> None:
    with pytest.raises(ArgumentError, match="Compile that function with nx.jit"):
        jax.jit(lambda x: strategy.run(total, args=(x,)).stacked)(batch_of(strategy))
    alone = OneDeviceStrategy("cpu")  # where a share is the whole
    found = jax.jit(lambda x: alone.run(total, args=(x,)).stacked)(jnp.arange(16.0))
    assert found.tolist() == [120.0]


def test_the_gradient_of_a_run_outside_of_compiled_functions(strategy: TPUStrategy) -> None:
    def loss(x: Any) -> Any:
        return jnp.sum(strategy.run(lambda x: jnp.sum(x**2), args=(x,)).stacked)

    whole, split = jax.grad(loss)(jnp.ones(16)), jax.grad(loss)(batch_of(strategy))
    np.testing.assert_array_equal(whole, np.full(16, 16.0))
    np.testing.assert_array_equal(split, 2 * np.arange(16.0))

"""What replicas leave in a module: kept where it is one value, summed, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix.distribute import TPUStrategy, compute_average_loss, get_replica_context

pytestmark = pytest.mark.cpu8


@pytest.fixture(scope="module")
def strategy() -> TPUStrategy:
    return TPUStrategy()


def batch_of(strategy: TPUStrategy, values: Any) -> Any:
    return next(iter(strategy.distribute([np.asarray(values, np.float32)])))


class Centre(nx.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mean = nnx.Variable(jnp.zeros(()))


def moving_mean(module: Any, x: Any) -> None:
    module.mean[...] = 0.5 * module.mean[...] + 0.5 * x.mean()


def together(module: Any, x: Any) -> None:
    moving_mean(module, get_replica_context().all_reduce("mean", x))


def gathered(module: Any, x: Any) -> None:
    moving_mean(module, get_replica_context().all_gather(x))


def in_a_loop(module: Any, x: Any) -> None:
    def one(i: Any, mean: Any) -> Any:
        return mean + x.mean() * i

    module.mean[...] = jax.lax.fori_loop(0, 3, one, module.mean[...])


def in_a_while(module: Any, x: Any) -> None:
    module.mean[...] = jax.lax.while_loop(lambda m: m < x.mean(), lambda m: m + 1, 0.0)


def in_a_choice(module: Any, x: Any) -> None:
    module.mean[...] = jax.lax.cond(x.mean() > 0, lambda: 1.0, lambda: 0.0)


def in_a_compiled_call(module: Any, x: Any) -> None:
    module.mean[...] = jax.jit(lambda mean, x: mean + x.mean())(module.mean[...], x)


def number_of_the_replica(module: Any, x: Any) -> None:
    module.mean[...] = jax.lax.map(lambda one: one + get_replica_context().replica_id, x * 0)[0]


def in_a_loop_together(module: Any, x: Any) -> None:
    def one(mean: Any, value: Any) -> Any:
        return mean + get_replica_context().all_reduce("mean", value), value

    module.mean[...] = jax.lax.scan(one, module.mean[...], x)[0]


APART = [
    moving_mean,
    in_a_loop,
    in_a_while,
    in_a_choice,
    in_a_compiled_call,
    number_of_the_replica,
]


@pytest.mark.parametrize("function", APART)
def test_a_variable_that_differs_between_replicas_is_named(
    strategy: TPUStrategy, function: Callable[..., None]
) -> None:
    module = Centre()
    with pytest.raises(nx.ArgumentError, match=r"Centre\.mean different.*all_reduce\(\"mean\""):
        strategy.run(function, args=(module, batch_of(strategy, np.arange(8))))
    assert float(module.mean[...]) == 0.0, "nothing has run"


@pytest.mark.parametrize(
    ("function", "wanted"), [(together, 1.75), (gathered, 1.75), (in_a_loop_together, 3.5)]
)
def test_a_variable_that_is_brought_together_is_kept(
    strategy: TPUStrategy, function: Callable[..., None], wanted: float
) -> None:
    module = Centre()
    strategy.run(function, args=(module, batch_of(strategy, np.arange(8))))
    assert {float(shard.data) for shard in module.mean[...].addressable_shards} == {wanted}


def test_a_step_written_by_hand_needs_the_gradients_of_all_replicas(strategy: TPUStrategy) -> None:
    def step(model: Any, x: Any, all_reduced: bool) -> None:
        gradients = nx.grad(lambda model: compute_average_loss(model(x[:, None])))(model)
        if all_reduced:
            gradients = get_replica_context().all_reduce("sum", gradients)
        model.kernel[...] -= 0.1 * gradients["kernel"][...]

    def alone(model: Any, x: Any) -> None:
        step(model, x, False)

    def summed(model: Any, x: Any) -> None:
        step(model, x, True)

    model, x = nx.nn.Linear(1, 1), batch_of(strategy, np.arange(8))
    before = np.asarray(model.kernel[...])
    with pytest.raises(nx.ArgumentError, match=r"Linear\.kernel.*Optimizer"):
        strategy.run(alone, args=(model, x))
    strategy.run(summed, args=(model, x))
    np.testing.assert_allclose(model.kernel[...], before - 0.35, rtol=1e-5)


@pytest.mark.parametrize("name", ["sgd", "adam", "adafactor", "lion"])
def test_what_an_optimizer_changes_costs_no_more_than_its_gradients(
    strategy: TPUStrategy, name: str
) -> None:
    reductions = []

    def step(model: Any, optimizer: Any, x: Any) -> None:
        gradients = nx.grad(lambda model: compute_average_loss(model(x[:, None])))(model)
        optimizer.update(model, gradients)
        reductions.append(1)

    model = nx.nn.Linear(1, 1)
    chain = optax.chain(optax.clip_by_global_norm(1.0), getattr(optax, name)(1e-2))
    optimizer = nx.Optimizer(model, chain)
    for _ in range(3):
        strategy.run(step, args=(model, optimizer, batch_of(strategy, np.arange(8))))
    assert len(reductions) == 1, "one program, traced once"
    values = {float(shard.data[0, 0]) for shard in model.kernel[...].addressable_shards}
    assert len(values) == 1 and optimizer.step == 3


def test_on_one_replica_everything_may_change() -> None:
    strategy = nx.distribute.Strategy(["tpu:0"])
    module, welford = Centre(), nnx.metrics.Welford()
    strategy.run(moving_mean, args=(module, jnp.arange(8.0)))
    strategy.run(lambda w, x: w.update(values=x), args=(welford, jnp.arange(8.0)))
    assert float(module.mean[...]) == 1.75 and float(welford.compute().mean) == 3.5


class Largest(nx.metrics.Metric):
    """Wrong: its state is no sum."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self._sum()

    def update(self, x: Any) -> None:
        self.largest[...] = jnp.maximum(self.largest[...], x.max())


class Running(nnx.Metric):
    """Wrong: what it adds depends on what is there."""

    def __init__(self) -> None:
        self.mean = nnx.metrics.MetricState(jnp.zeros(()))

    def update(self, x: Any) -> None:
        self.mean[...] += 0.1 * (x.mean() - self.mean[...])


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (lambda: nnx.metrics.Welford("x"), "Welford.m2"),
        (Largest, "Largest.largest"),
        (Running, "Running.mean"),
    ],
)
def test_a_metric_that_is_no_sum_is_refused(
    strategy: TPUStrategy, make: Callable[[], Any], state: str
) -> None:
    with pytest.raises(nx.ArgumentError, match=f"{state}.*cannot be summed.*all_gather"):
        strategy.run(
            lambda metric, x: metric.update(x=x), args=(make(), batch_of(strategy, np.arange(8)))
        )


def test_any_metric_takes_the_values_of_all_replicas(strategy: TPUStrategy) -> None:
    welford = nnx.metrics.Welford()

    def update(metric: Any, x: Any) -> None:
        metric.update(values=get_replica_context().all_gather(x))

    for _ in range(2):
        strategy.run(update, args=(welford, batch_of(strategy, np.arange(8))))
    assert float(welford.compute().mean) == 3.5
    np.testing.assert_allclose(welford.compute().standard_deviation, np.arange(8).std(), rtol=1e-6)


def test_a_metric_is_reset_outside_of_the_replicas(strategy: TPUStrategy) -> None:
    mean = nx.metrics.Mean()

    def anew(mean: Any, x: Any) -> None:
        mean.reset()
        mean.update(x)

    with pytest.raises(nx.ArgumentError, match=r"Mean\.(total|count).*Reset the metric before"):
        strategy.run(anew, args=(mean, batch_of(strategy, np.ones(8))))
    for value in (1.0, 2.0):
        mean.reset()
        batch = batch_of(strategy, np.full(8, value))
        strategy.run(lambda mean, x: mean.update(x), args=(mean, batch))
    assert float(mean.result()) == 2.0
    strategy.run(lambda mean: mean.reset(), args=(mean,))
    assert float(mean.count[...]) == 0.0


def test_metrics_of_flax_and_those_updated_in_a_loop_are_summed(strategy: TPUStrategy) -> None:
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"), accuracy=nnx.metrics.Accuracy())

    def update(metrics: Any, x: Any) -> None:
        logits, labels = jnp.stack([x, 3.5 - x], -1), jnp.zeros(x.shape, jnp.int32)
        metrics.update(loss=x, logits=logits, labels=labels)

    def looped(mean: Any, x: Any) -> None:
        nnx.scan(lambda mean, x: (mean, mean.update(x)), in_axes=(nnx.Carry, 0))(mean, x)

    mean, x = nx.metrics.Mean(), batch_of(strategy, np.arange(16))
    strategy.run(update, args=(metrics, x))
    strategy.run(looped, args=(mean, x))
    found = metrics.compute()
    assert float(found["loss"]) == 7.5 and float(found["accuracy"]) == 14 / 16
    assert float(mean.result()) == 7.5 and float(mean.count[...]) == 16

"""What strategies are given by mistake, or in a way of its own: an error in words, or as meant."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix.distribute import (
    PerReplica,
    ShardingRules,
    TPUStrategy,
    compute_average_loss,
    constrain,
    get_replica_context,
)

pytestmark = pytest.mark.cpu8

X = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
Y = X.sum(1, keepdims=True)


@pytest.fixture(scope="module")
def strategy() -> TPUStrategy:
    return TPUStrategy()


@pytest.mark.parametrize("axes", [("fsdp", "fsdp"), (("data", "data"), None)])
def test_a_rule_or_a_constraint_names_a_mesh_axis_once(axes: Any) -> None:
    with pytest.raises(nx.ArgumentError, match="'kernel\\$' names the mesh axis '.*' twice"):
        ShardingRules((("kernel$", axes),))
    with pytest.raises(nx.ArgumentError, match=r"constrain\(value, .* the mesh axis '.*' twice"):
        constrain(jnp.ones((8, 8)), *axes)


def test_a_constraint_speaks_of_every_axis_of_the_value() -> None:
    mesh = jax.sharding.AbstractMesh((2, 4), ("data", "fsdp"))
    with jax.sharding.use_abstract_mesh(mesh):
        with pytest.raises(nx.ArgumentError, match=r"told of 1 axes.*shape \(8, 4\)"):
            jax.eval_shape(lambda x: constrain(x, "data"), nx.spec((8, 4)))


@pytest.mark.parametrize(
    ("value", "axis", "error", "message"),
    [
        (np.float32(1), 0, nx.ShapeError, r"scalar.*value\[None\]"),
        (np.ones((2, 3)), 5, nx.ArgumentError, "axis is 5.*the axes 0 to 1"),
        (np.ones((2, 3)), -3, nx.ArgumentError, "axis is -3"),
        (np.ones((2, 3)), "x", nx.ArgumentTypeError, "axis is 'x'"),
    ],
)
def test_all_gather_needs_an_axis(
    strategy: TPUStrategy, value: Any, axis: Any, error: type[Exception], message: str
) -> None:
    def gather(value: Any) -> Any:
        return get_replica_context().all_gather(value, axis=axis)

    for call in (lambda: strategy.run(gather, args=(value,)), lambda: gather(value)):
        with pytest.raises(error, match=message):
            call()


def test_all_gather_counts_a_negative_axis_from_the_last(strategy: TPUStrategy) -> None:
    gathered = strategy.run(
        lambda x: get_replica_context().all_gather(x, axis=-1), args=(np.ones((2, 3)),)
    )
    assert gathered[0].shape == (2, 24)


def test_a_replica_runs_nothing_on_replicas(strategy: TPUStrategy) -> None:
    with pytest.raises(nx.ArgumentError, match="one replica already"):
        strategy.run(lambda x: strategy.run(jnp.sin, args=(x,)), args=(1.0,))


def test_a_replica_returns_arrays(strategy: TPUStrategy) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=r"returns 'a' \(str\).*no array"):
        strategy.run(lambda: {"x": "a"})


def test_a_callable_without_a_hash_runs_and_is_compiled_once(strategy: TPUStrategy) -> None:
    traces = []

    @dataclass
    class Scale:
        factor: float

        def __call__(self, x: Any) -> Any:
            traces.append(1)
            return self.factor * x

    double, triple = Scale(2.0), Scale(3.0)
    for _ in range(2):
        assert float(strategy.run(double, args=(np.float32(1),))[0]) == 2.0
        assert float(strategy.run(triple, args=(np.float32(1),))[0]) == 3.0
    assert len(traces) == 2


@pytest.mark.parametrize("size", ["8", [8], (8,)])
def test_the_size_of_the_global_batch_is_a_number(size: Any) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="global_batch_size is .*whole number"):
        compute_average_loss(jnp.ones(2), global_batch_size=size)


def test_a_scope_may_be_entered_again(strategy: TPUStrategy) -> None:
    scope = strategy.scope()
    for _ in range(2):
        with scope as entered, scope:
            assert entered is nx.distribute.get_strategy() is strategy
        assert nx.distribute.get_strategy() is None


def test_a_copy_of_a_divided_model_computes_where_it_lies() -> None:
    with TPUStrategy(mesh={"fsdp": 8}).scope():
        model = nx.nn.Sequential(nx.nn.Linear(2, 8), nx.nn.Linear(8, 1))
        model.compile(optimizer="sgd", loss="mse")
        model.fit(X, Y, verbose=0)
    twin = copy.deepcopy(model)
    np.testing.assert_allclose(twin.predict(X), model.predict(X), rtol=1e-5, atol=1e-6)
    twin.compile(optimizer="sgd", loss="mse")
    twin.fit(X, Y, verbose=0)
    assert not twin[0].kernel[...].is_fully_replicated


@pytest.mark.parametrize("convert", [np.asarray, np.array, np.sum])
def test_the_values_of_replicas_are_not_one_array(
    strategy: TPUStrategy, convert: Callable[[Any], Any]
) -> None:
    values = strategy.run(lambda: jnp.ones((2, 3)))
    with pytest.raises(nx.ArgumentTypeError, match=r"strategy\.reduce.*leading axis of 8"):
        convert(values)


def test_fit_and_predict_take_batches_that_a_function_deals_out(strategy: TPUStrategy) -> None:
    def trained(*data: Any, **options: Any) -> tuple[Any, Any]:
        nx.seed(0)
        with strategy.scope():
            model = nx.nn.Sequential(nx.nn.Linear(2, 1))
        model.compile(optimizer="sgd", loss="mse")
        model.fit(*data, epochs=2, verbose=0, **options)
        return model, np.asarray(model[0].kernel[...])

    def dealt(*arrays: Any) -> Any:
        data = nx.data.Dataset.from_arrays(*arrays)
        return strategy.distribute_from_function(
            lambda context: data.batch(context.per_replica_batch_size(16))
        )

    model, kernel = trained(dealt(X, Y))
    _, wanted = trained(nx.data.Dataset.from_arrays(X, Y).batch(16))
    np.testing.assert_allclose(kernel, wanted, rtol=1e-5)
    np.testing.assert_allclose(model.predict(dealt(X)), model.predict(X), rtol=1e-5)
    assert model.evaluate(dealt(X, Y), verbose=0) == pytest.approx(model.evaluate(X, Y, verbose=0))


def test_a_per_replica_counts_its_entries_from_either_end(strategy: TPUStrategy) -> None:
    values = PerReplica(jax.device_put(np.arange(8.0), strategy.batch_sharding()))
    assert values[-1] == values.values[7] == 7.0 and values[-8] == 0.0
    assert nx.device_of(values[-1]) == nx.Device("tpu:7"), "no copy"
    for beyond in (8, -9):
        with pytest.raises(IndexError, match=f"replica {beyond} of 8"):
            values[beyond]


def test_a_per_replica_of_host_values_prints() -> None:
    assert repr(PerReplica(np.arange(2.0))) == "PerReplica{0: 0., 1: 1.}"

"""Which scope's strategy counts: that of compile, of fit, or that in which a model was made."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import neurenix as nx
from neurenix import nn

pytestmark = pytest.mark.cpu8

X, Y = np.ones((16, 4), np.float32), np.ones((16, 1), np.float32)


def made() -> Any:
    return nn.Sequential(nn.Linear(4, 1))


def trained_on(model: Any) -> int:
    model.fit(X, Y)
    return len(model[0].kernel[...].sharding.device_set)


def test_a_model_made_in_a_scope_and_compiled_outside_trains_on_its_devices() -> None:
    strategy = nx.distribute.TPUStrategy()
    with strategy.scope():
        model = made()
    model.compile("sgd", "mse")
    assert model.trainer.strategy is strategy
    assert trained_on(model) == 8
    assert model.predict(X).shape == (16, 1)
    assert made().compile("sgd", "mse").trainer.strategy.num_replicas_in_sync == 1


def test_the_scope_of_compile_comes_first_then_that_of_fit() -> None:
    eight, two = nx.distribute.TPUStrategy(), nx.distribute.Strategy(["tpu:0", "tpu:1"])
    with eight.scope():
        model = made()
    with two.scope():
        model.compile("sgd", "mse")
    assert trained_on(model) == 2
    with eight.scope():
        other = made()
    other.compile("sgd", "mse")
    with two.scope():
        assert trained_on(other) == 2
    options = nx.train.TrainOptions(strategy=two)
    assert nx.Trainer(other, loss="mse", options=options).strategy is two


def test_a_model_that_is_moved_trains_where_it_was_moved_to() -> None:
    with nx.distribute.TPUStrategy().scope():
        model = made()
    model.compile("sgd", "mse").to("tpu:3")
    assert trained_on(model) == 1
    assert str(nx.device_of(model[0].kernel[...])) == "tpu:3"


def test_a_model_outside_of_any_scope_trains_on_the_devices_that_hold_it() -> None:
    some = nx.distribute.Strategy(["tpu:3", "tpu:1"])
    model = nx.to(made(), some.state_sharding)
    assert model.compile("sgd", "mse").trainer.strategy.devices == some.devices

    backwards = np.array(jax.devices())[::-1]
    mesh = Mesh(backwards, ("fsdp",))
    model = nx.to(nn.Sequential(nn.Linear(8, 8)), NamedSharding(mesh, PartitionSpec("fsdp")))
    strategy = model.compile("sgd", "mse").trainer.strategy
    assert strategy.mesh == mesh and strategy.devices[0] == nx.Device("tpu:7")

    rows = NamedSharding(Mesh(backwards, ("rows",)), PartitionSpec("rows"))
    with pytest.raises(nx.ArgumentError, match="divided over 8 devices and no strategy says how"):
        _ = nx.to(model, rows).compile("sgd", "mse").trainer.strategy


def test_a_scope_is_no_part_of_the_model() -> None:
    inside, outside = [], made()
    with nx.distribute.TPUStrategy().scope():
        inside += [made(), nnx.clone(outside), copy.deepcopy(outside)]
    step = nx.jit(lambda model, x: model(x), donate=False)
    step(outside, X)
    for model in inside:
        assert nnx.graphdef(model) == nnx.graphdef(outside)
        twin = pickle.loads(pickle.dumps(model))
        assert nnx.graphdef(copy.deepcopy(twin)) == nnx.graphdef(outside)
        step(model, X)
    assert step.compilations == 1

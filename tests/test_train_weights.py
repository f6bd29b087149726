"""Weights of examples and of classes: what they may be, and what they do wherever given."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix.train import FitOptions, Trainer, TrainOptions
from train_helpers import MLP, assert_same_weights, classification

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(48)
WEIGHTS = np.linspace(0, 3, 48, dtype=np.float32)


def test_validation_data_is_weighted() -> None:
    trainer = Trainer(MLP(), optimizer=optax.sgd(0.0), loss=LOSS)
    found = trainer.fit(X, Y, validation_data=(X, Y, WEIGHTS))["val_loss"]
    assert found == pytest.approx([trainer.evaluate(X, Y, sample_weight=WEIGHTS)["loss"]], rel=1e-5)
    assert found[0] != pytest.approx(trainer.evaluate(X, Y)["loss"], rel=1e-3)


def test_accumulation_weighs_each_part() -> None:
    modules = [MLP(), MLP()]
    for module, parts in zip(modules, (1, 4), strict=True):
        options = TrainOptions(accumulate_steps=parts)
        trainer = Trainer(module, optimizer=optax.sgd(0.5), loss=LOSS, options=options)
        weighted = FitOptions(shuffle=False, sample_weight=WEIGHTS)
        trainer.fit(X, Y, batch_size=16, options=weighted)
    assert_same_weights(*modules, rtol=1e-4, atol=1e-6)


def test_a_class_beyond_those_that_have_a_weight_has_1() -> None:
    modules = [MLP(), MLP()]
    each = np.where(Y == 0, 2.0, 1.0).astype(np.float32)
    ways: Any = {"class_weight": {0: 2.0}}, {"sample_weight": each}
    for module, way in zip(modules, ways, strict=True):
        Trainer(module, optimizer="sgd", loss=LOSS).fit(X, Y, shuffle=False, **way)
    assert_same_weights(*modules, rtol=1e-5, atol=1e-6)


def test_the_loss_of_weights_that_are_all_0_is_0() -> None:
    found = Trainer(MLP(), loss=LOSS).evaluate(X, Y, sample_weight=np.zeros(48))
    assert found == {"loss": 0.0}


@pytest.mark.parametrize("weight", [-1.0, -2.0, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_of_jax_are_checked_as_those_of_numpy(weight: float, dtype: str) -> None:
    batch = (X, Y, jnp.full(48, weight, dtype))
    trainer = Trainer(MLP(), loss=LOSS)
    for call in (trainer.fit, trainer.evaluate):
        with pytest.raises(nx.DataError, match=r"sample_weight holds .* at index \(0,\)"):
            call([batch])


def test_whole_numbers_in_a_list_are_checked() -> None:
    with pytest.raises(nx.DataError, match="sample_weight holds -1"):
        Trainer(MLP(), loss=LOSS).fit(X, Y, sample_weight=[-1] * 48)


def test_true_is_no_class() -> None:
    with pytest.raises(nx.ArgumentError, match="key True"):
        Trainer(MLP(), loss=LOSS).fit(X, Y, class_weight={True: 2.0})


def test_weights_beside_a_dataset_are_told() -> None:
    with pytest.raises(nx.ArgumentError, match="goes with arrays"):
        Trainer(MLP(), loss=LOSS).fit([(X, Y)], sample_weight=np.ones(48))

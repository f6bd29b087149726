"""Evaluation and validation: which batches are taken, of which size, and what is held out."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix.data import Dataset
from neurenix.train import Trainer
from neurenix.train.validation_split import hold_out
from train_helpers import MLP, classification

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
X, Y = classification(48)
NUMBERS = X[:, :1]
ARRAYS = (X, NUMBERS)


def rmse(y_true: Any, y_pred: Any) -> Any:
    """A loss whose mean over batches tells their size."""
    return jnp.sqrt(jnp.mean((y_true - y_pred) ** 2))


@pytest.mark.parametrize(
    ("data", "options"),
    [
        (ARRAYS, {"validation_data": ARRAYS, "batch_size": 48, "validation_batch_size": 16}),
        (ARRAYS, {"validation_data": Dataset.from_arrays(*ARRAYS), "batch_size": 16}),
        ((Dataset.from_arrays(*ARRAYS).batch(16),), {"validation_data": ARRAYS}),
    ],
    ids=["its own", "that of the call", "that of the data"],
)
def test_the_size_of_batches_of_validation(data: Any, options: Any) -> None:
    module = MLP((6, 8, 1))
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss=rmse)
    parts = [slice(start, start + 16) for start in (0, 16, 32)]
    expected = np.mean([rmse(NUMBERS[part], module(X[part])) for part in parts])
    assert trainer.fit(*data, **options)["val_loss"] == pytest.approx([expected], rel=1e-5)


def test_some_steps_of_validation_are_the_first_after_every_epoch() -> None:
    trainer = Trainer(MLP(), optimizer=optax.sgd(0.0), loss=LOSS)
    expected = trainer.evaluate(X[:16], Y[:16])["loss"]
    options = {"validation_data": (X, Y), "validation_steps": 2, "batch_size": 8}
    found = trainer.fit(X, Y, epochs=3, **options)
    assert found["val_loss"] == pytest.approx([expected] * 3, rel=1e-5)


def test_the_rows_that_are_kept_are_counted_as_in_keras() -> None:
    kept, held = hold_out(X[:10], Y[:10], None, 0.25)
    assert (len(kept[0]), len(held[0])) == (7, 3)

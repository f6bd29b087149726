"""Losses under PyTorch's names, taking **logits** where PyTorch's do.

Owns the names only. The order of arguments is ours, ``(y_true, y_pred)``, because ``fit`` calls
every loss so; classes are the last axis.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.losses.base import at_least_float32
from neurenix.losses.crossentropy import (
    BinaryCrossentropy,
    CategoricalCrossentropy,
    SparseCategoricalCrossentropy,
)
from neurenix.losses.margin import Hinge
from neurenix.losses.regression import Huber, MeanAbsoluteError, MeanSquaredError

MSELoss = MeanSquaredError
L1Loss = MeanAbsoluteError
HuberLoss = Huber
BCELoss = BinaryCrossentropy
HingeLoss = Hinge


@dataclass(frozen=True)
class CrossEntropyLoss(SparseCategoricalCrossentropy):
    """Cross-entropy of logits; ``y_true`` are integer classes, or rows of probabilities.

    Positions of the label -100 do not count: the mean is over all others, as in PyTorch. Rows of
    probabilities all count.

    Example:
        >>> print(f"{nx.losses.CrossEntropyLoss()(nx.tensor([0]), nx.tensor([[0.0, 0.0]])):.4f}")
        0.6931
    """

    from_logits: bool = True
    ignore_index: int | None = -100

    @property
    def _soft(self) -> CategoricalCrossentropy:
        return CategoricalCrossentropy(self.from_logits, self.label_smoothing)

    def elementwise(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        """Return the cross-entropy of every position, shape (N, ...)."""
        if _is_soft(y_true, y_pred):
            return self._soft.elementwise(y_true, y_pred)
        return super().elementwise(y_true, y_pred)

    def _counts(self, y_true: jax.Array, y_pred: jax.Array) -> jax.Array | None:
        return None if _is_soft(y_true, y_pred) else super()._counts(y_true, y_pred)

    def _check_order(self, y_true: jax.Array, y_pred: jax.Array) -> None:
        if _is_soft(y_true, y_pred):
            self._soft._check_order(y_true, y_pred)

    def validate(self, y_true: np.ndarray, y_pred_shape) -> None:
        """Check targets on the host; see :meth:`Loss.validate`."""
        if _is_soft(y_true, np.empty(y_pred_shape, np.bool_)):
            self._soft.validate(y_true, y_pred_shape)
        else:
            super().validate(y_true, y_pred_shape)


@dataclass(frozen=True)
class BCEWithLogitsLoss(BinaryCrossentropy):
    """Binary cross-entropy of logits."""

    from_logits: bool = True


@dataclass(frozen=True)
class NLLLoss(SparseCategoricalCrossentropy):
    """Minus the log-probability of the right class; ``y_pred`` are log-probabilities.

    Positions of the label -100 do not count, as for :class:`CrossEntropyLoss`.
    """

    ignore_index: int | None = -100

    def _log_probabilities(self, y_pred: jax.Array) -> jax.Array:
        return at_least_float32(y_pred)


def _is_soft(y_true, y_pred) -> bool:
    return np.shape(y_true) == np.shape(y_pred) and jnp.issubdtype(
        jnp.asarray(y_true).dtype, jnp.floating
    )

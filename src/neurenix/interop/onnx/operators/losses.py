"""Negative log-likelihood and the cross-entropy of logits, with weights and ignored targets.

Letters: ``N`` batch, ``C`` classes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.registry import operator


@operator("NegativeLogLikelihoodLoss")
def negative_log_likelihood(x, target, weight=None, *, ignore_index=None, reduction="mean"):
    return _loss(x, target, weight, ignore_index, reduction)


@operator("SoftmaxCrossEntropyLoss")
def softmax_cross_entropy(x, target, weight=None, *, ignore_index=None, reduction="mean"):
    log_probabilities = jax.nn.log_softmax(x, axis=1)
    loss = _loss(log_probabilities, target, weight, ignore_index, reduction)
    return [loss, log_probabilities]


def _loss(
    log_probabilities: Any, target: Any, weight: Any, ignore_index: int | None, reduction: str
) -> Any:
    """Return the loss of log-probabilities (N, C, …) for targets (N, …)."""
    kept = jnp.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    safe = jnp.where(kept, target, 0)
    chosen = jnp.take_along_axis(log_probabilities, safe[:, None], axis=1)[:, 0]
    factor = kept.astype(chosen.dtype) if weight is None else jnp.where(kept, weight[safe], 0)
    losses = jnp.where(kept, -chosen, 0) * factor
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    if reduction != "mean":
        raise ConversionError(f"the reduction {reduction!r} is not one of none, sum, mean.")
    return losses.sum() / factor.sum()

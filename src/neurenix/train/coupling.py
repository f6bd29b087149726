"""Losses that couple the examples of a batch: a contrastive loss, the root of a mean.

Owns finding out whether a scalar loss function is the mean over the examples. One that is not
becomes another function when a batch is filled up or weighted, so its batches are left whole
(``feed.py``).
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.losses import Loss
from neurenix.losses.registry import FunctionLoss
from neurenix.train.outputs import OutputLosses

_TOLERANCE = 1e-3  # relative; a mean in another order of float32 sums differs by far less
_MOST_NUMBERS = 2**24  # of the output to try with; of a larger one, fewer examples


def couples_examples(loss: Loss, y: Any, output: Any) -> bool:
    """Tell whether a loss function returns one number that is no mean over the examples.

    It is tried on these targets and on predictions from 0.1 to 0.9, which any loss takes; where
    either value is not finite nothing is known, and the function is taken for a mean.

    Args:
        loss: any loss; only functions of users are tried.
        y: targets of a batch, (N, …).
        output: shapes and dtypes of the model's output for it, (N, …).

    Example:
        >>> from neurenix.losses import get
        >>> spec = jax.ShapeDtypeStruct((4, 1), jnp.float32)
        >>> root = get(lambda t, p: jnp.sqrt(jnp.mean((t - p) ** 2)))
        >>> couples_examples(root, np.ones((4, 1), "float32"), spec)
        True
    """
    if isinstance(loss, OutputLosses):
        return any(couples_examples(one, t, p) for one, _, t, p in loss.picked(y, output))
    if not isinstance(loss, FunctionLoss):
        return False
    if getattr(jax.eval_shape(loss.function, y, output), "ndim", 0):
        return False
    y, prediction = _some_of(y, output)
    whole = float(jax.jit(lambda y, p: loss(y, p))(y, prediction))
    try:
        mean = float(jax.jit(lambda y, p: jnp.mean(loss.per_example(y, p)))(y, prediction))
    except (TypeError, ValueError):  # it cannot be called on one example alone
        return True
    if not (math.isfinite(whole) and math.isfinite(mean)):
        return False
    return abs(whole - mean) > _TOLERANCE * max(abs(whole), abs(mean))


def _some_of(y: Any, output: Any) -> tuple[Any, Any]:
    """Return the targets and predictions of as many examples as are cheap to try, 2 at least."""
    of_one = sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(output))
    examples = jax.tree.leaves(y)[0].shape[0]
    count = min(examples, max(2, _MOST_NUMBERS // max(of_one, 1)))
    random = np.random.default_rng(0)

    def drawn(leaf: Any) -> jax.Array:
        shape = (min(count, leaf.shape[0]), *leaf.shape[1:]) if leaf.shape else ()
        return jnp.asarray(random.uniform(0.1, 0.9, shape), leaf.dtype)

    return jax.tree.map(lambda leaf: leaf[:count], y), jax.tree.map(drawn, output)

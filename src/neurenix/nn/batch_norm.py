"""Batch normalisation, the only norm with running statistics; other norms are in ``norm``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ShapeError
from neurenix._jit.training_mode import evaluates
from neurenix._nnx import nnx
from neurenix._padding_mask import examples_of
from neurenix.distribute import get_replica_context
from neurenix.nn._checks import expect_features, positive, share
from neurenix.nn._parameters import parameter_dtype
from neurenix.nn.module import Module
from neurenix.nn.norm import affine, widen


class BatchNorm(Module):
    """``(x - mean) / √(var + eps) · scale + bias`` per channel: (N, ..., C) → the same.

    In training (``model.train()``, the default), mean and biased variance are computed over all
    axes but the last, in float32, across *all* replicas when ``fit`` or ``strategy.run`` splits the
    batch. Padding rows that ``fit`` adds to the last batch are excluded. The running statistics are
    updated as in PyTorch: ``running = (1 - momentum) · running + momentum · batch``, with the
    **unbiased** variance. (Flax and Keras call ``1 - momentum`` momentum and use the biased
    variance.) In evaluation (``model.eval()``), the running statistics are used.

    Args:
        num_features: channels C, the last axis.
        eps: added to the variance.
        momentum: weight of the batch in the running statistics, in [0, 1].
        affine: whether to learn ``scale`` (starts at 1) and ``bias`` (at 0).
        dtype: of the parameters; float32 by default. Running statistics are always float32, also
            after ``model.to(dtype=…)``.

    Attributes:
        mean, var: (C,) the running statistics, ``nnx.BatchStat``.
        use_running_average: set by ``train()`` and ``eval()``.

    Raises:
        ShapeError: the input has another channel count, or only one value per channel in
            training.

    Example:
        >>> nn.BatchNorm(3)(nx.ones((4, 8, 8, 3))).shape
        (4, 8, 8, 3)
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        *,
        dtype: jax.typing.DTypeLike | None = None,
    ) -> None:
        (num_features,) = positive(num_features=num_features)
        share("momentum", momentum)
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.use_running_average = False
        self.mean = nnx.BatchStat(jnp.zeros(num_features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(num_features, jnp.float32))
        dtype = parameter_dtype(dtype)
        self.scale = nnx.Param(jnp.ones(num_features, dtype)) if affine else nnx.data(None)
        self.bias = nnx.Param(jnp.zeros(num_features, dtype)) if affine else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised; in training, also update the running statistics."""
        expect_features("BatchNorm", x, self.num_features, channels=True)
        wide = widen(x)
        if evaluates(self, self.use_running_average):
            mean, variance = self.mean[...], self.var[...]
        else:
            mean, variance = self._batch_statistics(wide)
        normal = (wide - mean) * lax.rsqrt(variance + self.eps)
        return affine(normal, self.scale, self.bias, x)

    def _batch_statistics(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        replica = get_replica_context()
        count = x.size // self.num_features * replica.num_replicas_in_sync
        examples = examples_of(x)
        if count < 2 and examples is None:
            raise ShapeError(
                f"BatchNorm in training needs more than one value per channel; its input has "
                f"shape {x.shape}. Call model.eval(), or give a larger batch."
            )
        axes = tuple(range(x.ndim - 1))
        if examples is not None:
            return self._statistics_of(examples, x, axes)
        mean = replica.all_reduce("mean", jnp.mean(x, axis=axes))
        variance = replica.all_reduce("mean", jnp.mean(jnp.square(x - mean), axis=axes))
        self._move(self.mean, mean)
        self._move(self.var, variance * (count / (count - 1)))
        return mean, variance

    def _statistics_of(
        self, examples: jax.Array, x: jax.Array, axes: tuple[int, ...]
    ) -> tuple[jax.Array, jax.Array]:
        """Return mean and variance over the rows that are not padding.

        With fewer than two values per channel, the running statistics stay unchanged.
        """
        count = jnp.sum(examples, dtype=x.dtype) * (x.size // self.num_features // len(x))
        at_least_one = jnp.maximum(count, 1)
        mean = jnp.sum(x, axis=axes, where=examples) / at_least_one
        variance = jnp.sum(jnp.square(x - mean), axis=axes, where=examples) / at_least_one
        enough = count > 1
        unbiased = variance * (count / jnp.maximum(count - 1, 1))
        self._move(self.mean, jnp.where(enough, mean, self.mean[...]))
        self._move(self.var, jnp.where(enough, unbiased, self.var[...]))
        return mean, variance

    def _move(self, running: nnx.BatchStat, batch: jax.Array) -> None:
        batch = lax.stop_gradient(batch).astype(running[...].dtype)
        running[...] = (1 - self.momentum) * running[...] + self.momentum * batch

    def set_view(self, use_running_average: bool | None = None) -> None:
        """Set the mode of an ``nnx.view`` of this layer."""
        if use_running_average is not None:
            self.use_running_average = use_running_average


# PyTorch's names; all take channels last, of any rank.
BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm

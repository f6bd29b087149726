"""RMSprop, Adagrad, Adadelta, Adafactor; the update rules are optax's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from neurenix._migration.optimizers import RMSPROP
from neurenix.optim.base import LearningRate, OptimizerSpec


@dataclass(frozen=True)
class RMSprop(OptimizerSpec):
    """RMSprop, as ``torch.optim.RMSprop``.

    Args:
        learning_rate: step size, or a schedule.
        alpha: decay of the mean square, below 1.
        eps: added to the root.
        momentum: decay of the momentum; 0 for none.
        centered: divide by the root of the variance instead of the mean square.

    Example:
        >>> nx.optim.RMSprop().alpha
        0.99
    """

    learning_rate: LearningRate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False

    migration_options = RMSPROP

    def rule(self) -> optax.GradientTransformation:
        """Return the RMSprop rule, with momentum if it is above 0."""
        rule = (
            _scale_by_deviation(self.alpha, self.eps)
            if self.centered
            else optax.scale_by_rms(self.alpha, self.eps, eps_in_sqrt=False)
        )
        return optax.chain(rule, optax.trace(self.momentum)) if self.momentum else rule


@dataclass(frozen=True)
class Adagrad(OptimizerSpec):
    """Gradients over the root of the sum of all squares (Duchi et al. 2011).

    Args:
        learning_rate: step size, or a schedule.
        initial_accumulator_value: initial sum of squares.
        eps: added to the sum, inside the root (PyTorch adds it outside).
    """

    learning_rate: LearningRate = 1e-2
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10

    def rule(self) -> optax.GradientTransformation:
        """Return the sum-of-squares rule."""
        return optax.scale_by_rss(self.initial_accumulator_value, self.eps)


@dataclass(frozen=True)
class Adadelta(OptimizerSpec):
    """Adadelta (Zeiler 2012, arXiv:1212.5701).

    Args:
        learning_rate: factor on the update, or a schedule.
        rho: decay of both running squares, below 1.
        eps: added inside both roots.
    """

    learning_rate: LearningRate = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    def rule(self) -> optax.GradientTransformation:
        """Return optax's Adadelta rule."""
        return optax.scale_by_adadelta(self.rho, self.eps)


@dataclass(frozen=True)
class Adafactor(OptimizerSpec):
    """Adafactor: second moments factored into rows and columns (Shazeer & Stern 2018).

    For a matrix it needs O(rows + columns) memory, where Adam needs 2 · rows · columns
    (arXiv:1804.04235). The step is relative to the size of each parameter.

    Args:
        learning_rate: step size relative to the parameter's root mean square, or a schedule.
        decay_rate: exponent of the decay of second moments, ``1 - step ** -decay_rate``.
        clip_threshold: updates are scaled down to at most this root mean square.
        min_dim_size_to_factor: matrices with a smaller side are not factored.
        eps: added to squared gradients.
    """

    learning_rate: LearningRate = 1e-2
    decay_rate: float = 0.8
    clip_threshold: float = 1.0
    min_dim_size_to_factor: int = 128
    eps: float = 1e-30
    _decoupled = True

    def rule(self) -> optax.GradientTransformation:
        """Return the factored rule, clipped and scaled by the parameters."""
        return optax.chain(
            optax.scale_by_factored_rms(
                decay_rate=self.decay_rate,
                min_dim_size_to_factor=self.min_dim_size_to_factor,
                epsilon=self.eps,
            ),
            optax.clip_by_block_rms(self.clip_threshold),
            optax.scale_by_param_block_rms(),
        )


def _scale_by_deviation(decay: float, eps: float) -> optax.GradientTransformation:
    """Return ``optax.scale_by_stddev`` with a variance that cannot be negative; same state.

    For a constant gradient, the mean square minus the squared mean is rounding noise of either
    sign. The variance is therefore at least one rounding error of the mean square; with 0, the
    step would be the gradient divided by ``eps``.
    """
    inner = optax.scale_by_stddev(decay, eps, eps_in_sqrt=False)

    def factor(mean: jax.Array, square: jax.Array) -> jax.Array:
        least = float(jnp.finfo(square.dtype).eps) * square
        return 1 / (jnp.sqrt(jnp.maximum(square - (mean.conj() * mean).real, least)) + eps)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        _, state = inner.update(updates, state, params)
        factors = jax.tree.map(factor, state.mu, state.nu)
        return jax.tree.map(jnp.multiply, factors, updates), state

    return optax.GradientTransformation(inner.init, update)

"""Stochastic gradient descent, and LARS."""

from __future__ import annotations

from dataclasses import dataclass

import optax

from neurenix._core.errors import ArgumentError
from neurenix.optim.base import LearningRate, OptimizerSpec


@dataclass(frozen=True)
class SGD(OptimizerSpec):
    """Gradient descent with momentum, as ``torch.optim.SGD``.

    Args:
        learning_rate: step size, or a schedule.
        momentum: decay of the momentum; 0 for none.
        nesterov: use Nesterov momentum; needs ``momentum``.

    Example:
        >>> nx.optim.SGD(0.1, momentum=0.9).momentum
        0.9
    """

    learning_rate: LearningRate = 1e-2
    momentum: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.nesterov and not self.momentum:
            raise ArgumentError("`nesterov=True` needs a `momentum` above 0; it is 0.")

    def rule(self) -> optax.GradientTransformation:
        """Return the momentum rule."""
        if not self.momentum:
            return optax.identity()
        return optax.trace(self.momentum, nesterov=self.nesterov)


@dataclass(frozen=True)
class Lars(OptimizerSpec):
    """Layer-wise adaptive rates for very large batches (You et al. 2017, arXiv:1708.03888).

    ``weight_decay`` is coupled, as in the paper.

    Args:
        learning_rate: step size, or a schedule.
        momentum: decay of the momentum.
        trust_coefficient: step of a layer as a share of the norm of its weights.
    """

    learning_rate: LearningRate = 0.1
    momentum: float = 0.9
    trust_coefficient: float = 1e-3

    def rule(self) -> optax.GradientTransformation:
        """Return the trust-ratio rule; momentum is applied after the learning rate."""
        return optax.scale_by_trust_ratio(trust_coefficient=self.trust_coefficient)

    def _finish(self, learning_rate) -> list[optax.GradientTransformation]:
        return [*super()._finish(learning_rate), optax.trace(self.momentum)]

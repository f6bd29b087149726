"""Adam and its relatives.

Owns their options, with PyTorch's defaults; the rules are optax's, the chain is in ``base``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import optax

from neurenix.optim.base import LearningRate, OptimizerSpec


@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adaptive moments (Kingma & Ba 2014, arXiv:1412.6980), as ``torch.optim.Adam``.

    ``weight_decay`` is added to the gradient; for decoupled decay use :class:`AdamW`.

    Args:
        learning_rate: step size, or a schedule.
        betas: decay of the first and second moment, each in [0, 1).
        eps: added to the root of the second moment.

    Example:
        >>> nx.optim.Adam(1e-3).betas
        (0.9, 0.999)
    """

    learning_rate: LearningRate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of adaptive moments."""
        return optax.scale_by_adam(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv:1711.05101).

    Args:
        weight_decay: share of each weight taken off per step, times the learning rate.
    """

    weight_decay: float = field(default=1e-2, kw_only=True)
    _decoupled = True


@dataclass(frozen=True)
class NAdam(Adam):
    """Adam with Nesterov momentum (Dozat 2016).

    Without PyTorch's momentum schedule (``momentum_decay``), so the two differ.
    """

    learning_rate: LearningRate = 2e-3

    def rule(self) -> optax.GradientTransformation:
        """Return the rule of adaptive moments with look-ahead."""
        return optax.scale_by_adam(*self.betas, eps=self.eps, nesterov=True)


@dataclass(frozen=True)
class RAdam(Adam):
    """Rectified Adam, which warms itself up (Liu et al. 2019, arXiv:1908.03265)."""

    def rule(self) -> optax.GradientTransformation:
        """Return the rectified rule."""
        return optax.scale_by_radam(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class Adamax(Adam):
    """Adam with the infinity norm (Kingma & Ba 2014, section 7.1)."""

    learning_rate: LearningRate = 2e-3

    def rule(self) -> optax.GradientTransformation:
        """Return the infinity-norm rule."""
        return optax.scale_by_adamax(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class Lamb(Adam):
    """Adam scaled layer by layer, for very large batches (You et al. 2019, arXiv:1904.00962)."""

    eps: float = 1e-6
    _decoupled = True

    def _finish(self, learning_rate) -> list[optax.GradientTransformation]:
        return [optax.scale_by_trust_ratio(), *super()._finish(learning_rate)]


@dataclass(frozen=True)
class Lion(OptimizerSpec):
    """The sign of a moment: one buffer instead of two (Chen et al. 2023, arXiv:2302.06675).

    Takes a learning rate 3 to 10 times below Adam's.

    Args:
        learning_rate: step size, or a schedule.
        betas: decay of the update's and of the buffer's average, each in [0, 1).
    """

    learning_rate: LearningRate = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    _decoupled = True

    def rule(self) -> optax.GradientTransformation:
        """Return the sign rule."""
        return optax.scale_by_lion(*self.betas)

"""Adam and its variants, with PyTorch's defaults; the update rules are optax's."""

from __future__ import annotations

from dataclasses import dataclass, field

import optax

from neurenix.optim.base import LearningRate, OptimizerSpec


@dataclass(frozen=True)
class Adam(OptimizerSpec):
    """Adam (Kingma & Ba 2014, arXiv:1412.6980), as ``torch.optim.Adam``.

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
        """Return optax's Adam rule."""
        return optax.scale_by_adam(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with decoupled weight decay (Loshchilov & Hutter 2017, arXiv:1711.05101).

    Args:
        weight_decay: share subtracted from each weight per step, times the learning rate.
    """

    weight_decay: float = field(default=1e-2, kw_only=True)
    _decoupled = True


@dataclass(frozen=True)
class NAdam(Adam):
    """Adam with Nesterov momentum (Dozat 2016).

    PyTorch's momentum schedule (``momentum_decay``) is not used, so results differ from PyTorch.
    """

    learning_rate: LearningRate = 2e-3

    def rule(self) -> optax.GradientTransformation:
        """Return optax's Adam rule with Nesterov momentum."""
        return optax.scale_by_adam(*self.betas, eps=self.eps, nesterov=True)


@dataclass(frozen=True)
class RAdam(Adam):
    """Rectified Adam, with a built-in warm-up (Liu et al. 2019, arXiv:1908.03265)."""

    def rule(self) -> optax.GradientTransformation:
        """Return optax's rectified Adam rule."""
        return optax.scale_by_radam(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class Adamax(Adam):
    """Adam with the infinity norm (Kingma & Ba 2014, section 7.1)."""

    learning_rate: LearningRate = 2e-3

    def rule(self) -> optax.GradientTransformation:
        """Return optax's Adamax rule."""
        return optax.scale_by_adamax(*self.betas, eps=self.eps)


@dataclass(frozen=True)
class Lamb(Adam):
    """Adam with a trust ratio per layer, for large batches (You et al. 2019, arXiv:1904.00962)."""

    eps: float = 1e-6
    _decoupled = True

    def _finish(self, learning_rate) -> list[optax.GradientTransformation]:
        return [optax.scale_by_trust_ratio(), *super()._finish(learning_rate)]


@dataclass(frozen=True)
class Lion(OptimizerSpec):
    """Lion: the sign of a momentum, one buffer per weight (Chen et al. 2023, arXiv:2302.06675).

    Its learning rate should be 3 to 10 times lower than Adam's.

    Args:
        learning_rate: step size, or a schedule.
        betas: decay in the update and in the momentum buffer, each in [0, 1).
    """

    learning_rate: LearningRate = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    _decoupled = True

    def rule(self) -> optax.GradientTransformation:
        """Return optax's Lion rule."""
        return optax.scale_by_lion(*self.betas)

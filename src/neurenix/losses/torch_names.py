"""Losses with PyTorch's names: ``loss(input, target)``, predictions first.

The formulas are in ``torch_forms`` and in the modules of the Keras-style losses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import unknown_name
from neurenix._core.names import OptionsExplained
from neurenix.losses.base import REDUCTIONS, Loss
from neurenix.losses.regression import Huber, MeanAbsoluteError, MeanSquaredError
from neurenix.losses.torch_forms import (
    BinaryCrossEntropy,
    CrossEntropy,
    Divergence,
    SmoothL1,
    frozen,
)


@dataclass(frozen=True)
class TorchLoss(OptionsExplained, ABC):
    """Base of the losses with PyTorch's names; called with predictions first.

    ``compile``, ``Trainer`` and ``preflight`` accept them like any other loss, through
    ``targets_first``. Hashable; compares by its options. Two differences from PyTorch: only (N,)
    and (N, 1) are broadcast, and the mean over no position is 0, not NaN.

    Attributes:
        reduction: ``"mean"``, ``"sum"`` or ``"none"``; ``fit`` uses the mean.

    Raises:
        UnknownNameError: unknown reduction.
        ArgumentTypeError: unknown option.

    Example:
        >>> loss = nx.losses.BCELoss(reduction="sum")
        >>> print(f"{loss(nx.tensor([0.9, 0.2]), nx.tensor([1.0, 0.0])):.3f}")
        0.329
    """

    migration_options: ClassVar[Mapping[str, str]] = {
        "reduce": "reduction",
        "size_average": "reduction",
    }
    direction: ClassVar[str] = "min"
    reduction: str = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        """Check the options; weights are copied, so that the loss can be hashed."""
        for name in ("weight", "pos_weight"):
            if hasattr(self, name):
                object.__setattr__(self, name, frozen(name, getattr(self, name)))
        _ = self.targets_first

    @abstractmethod
    def _targets_first(self) -> Loss: ...

    @property
    def targets_first(self) -> Loss:
        """The same loss in the library's order, ``(y_true, y_pred)``."""
        return self._targets_first()

    @property
    def name(self) -> str:
        """The name in logs and errors."""
        return self.targets_first.name

    def __call__(self, input: jax.Array, target: jax.Array) -> jax.Array:
        """Return the loss, reduced by ``reduction``.

        Args:
            input: the model's output; half precision is computed in float32.
            target: the targets; see the class for shape and dtype.

        Raises:
            ShapeError: the shapes are incompatible.
            DataError: dtypes, values or differentiation show that targets were given first; or
                known targets are out of range.
        """
        return self.targets_first(target, input)


@dataclass(frozen=True)
class MSELoss(TorchLoss):
    """``(input - target)²``."""

    def _targets_first(self) -> Loss:
        return MeanSquaredError(reduction=self.reduction)


@dataclass(frozen=True)
class L1Loss(TorchLoss):
    """``|input - target|``."""

    def _targets_first(self) -> Loss:
        return MeanAbsoluteError(reduction=self.reduction)


@dataclass(frozen=True)
class SmoothL1Loss(TorchLoss):
    """``d²/(2·beta)`` if ``|d| < beta``, else ``|d| - beta/2``, with ``d = input - target``.

    Args:
        beta: where the two meet, in the unit of the targets; at least 0. With 0 the loss is
            ``|d|``.

    Raises:
        ArgumentError: ``beta`` is below 0.

    Example:
        >>> print(nx.losses.SmoothL1Loss(beta=2.0)(nx.tensor([1.0, 4.0]), nx.tensor([0.0, 0.0])))
        1.625
    """

    beta: float = field(default=1.0, kw_only=True)

    def _targets_first(self) -> Loss:
        return SmoothL1(self.beta, reduction=self.reduction)


@dataclass(frozen=True)
class HuberLoss(TorchLoss):
    """``d²/2`` if ``|d| ≤ delta``, else ``delta · (|d| - delta/2)``, with ``d = input - target``.

    Args:
        delta: where the two meet, in the unit of the targets; above 0.

    Raises:
        ArgumentError: ``delta`` is not above 0.
    """

    delta: float = field(default=1.0, kw_only=True)

    def _targets_first(self) -> Loss:
        return Huber(self.delta, reduction=self.reduction)


class _OfClasses:
    targets_first: Any
    reduction: Any

    def __call__(self, input: jax.Array, target: jax.Array) -> jax.Array:
        """Return the loss; an example without a batch axis becomes a batch of one."""
        form = self.targets_first
        one = np.ndim(input) == 1 and (np.ndim(target) == 0 or np.shape(target) == np.shape(input))
        if not one:
            return form(target, input)
        losses = form(jnp.asarray(target)[None], jnp.asarray(input)[None])
        return losses[0] if self.reduction == "none" else losses


@dataclass(frozen=True)
class CrossEntropyLoss(_OfClasses, TorchLoss):
    """Cross-entropy of logits, with classes on the second axis.

    ``input``: logits (N, C, ...), or (C,) for one example. ``target``: integer classes (N, ...), or
    probabilities of the shape of ``input``. For classes on the last axis, as the layers here
    return them, use ``SparseCategoricalCrossentropy(from_logits=True)``.

    Args:
        weight: one weight per class, (C,). The mean is divided by the sum of the targets' weights
            for integer classes, by the number of targets for probabilities.
        ignore_index: label of positions to ignore.
        label_smoothing: share of the target spread evenly over all classes, in [0, 1).

    Example:
        >>> print(f"{nx.losses.CrossEntropyLoss()(nx.tensor([[0.0, 0.0]]), nx.tensor([0])):.4f}")
        0.6931
    """

    weight: Any = None
    ignore_index: int = field(default=-100, kw_only=True)
    label_smoothing: float = field(default=0.0, kw_only=True)

    def _targets_first(self) -> Loss:
        return CrossEntropy(
            ignore_index=self.ignore_index,
            label_smoothing=self.label_smoothing,
            weight=self.weight,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class NLLLoss(_OfClasses, TorchLoss):
    """Minus the log-probability of the right class; ``input`` are log-probabilities (N, C, ...).

    Args:
        weight: as for :class:`CrossEntropyLoss`.
        ignore_index: label of positions to ignore.
    """

    weight: Any = None
    ignore_index: int = field(default=-100, kw_only=True)

    def _targets_first(self) -> Loss:
        return CrossEntropy(
            ignore_index=self.ignore_index,
            weight=self.weight,
            normalized=True,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class BCELoss(TorchLoss):
    """Binary cross-entropy of probabilities; logarithms are clipped at -100, as in PyTorch.

    A probability outside [0, 1], such as a logit, gives NaN.

    Args:
        weight: factor of the losses, broadcast to their shape.
    """

    weight: Any = None

    def _targets_first(self) -> Loss:
        return BinaryCrossEntropy(weight=self.weight, reduction=self.reduction)


@dataclass(frozen=True)
class BCEWithLogitsLoss(TorchLoss):
    """Binary cross-entropy of logits.

    Args:
        weight: factor of the losses, broadcast to their shape.
        pos_weight: factor of the losses of positive targets, broadcast to their shape.

    Example:
        >>> loss = nx.losses.BCEWithLogitsLoss(pos_weight=[3.0])
        >>> print(f"{loss(nx.tensor([0.0]), nx.tensor([1.0])):.4f}")
        2.0794
    """

    weight: Any = None
    pos_weight: Any = field(default=None, kw_only=True)

    def _targets_first(self) -> Loss:
        return BinaryCrossEntropy(
            from_logits=True,
            weight=self.weight,
            pos_weight=self.pos_weight,
            reduction=self.reduction,
        )


@dataclass(frozen=True)
class KLDivLoss(TorchLoss):
    """``target · (log(target) - input)``, where ``input`` are log-probabilities.

    Args:
        log_target: whether ``target`` are log-probabilities too.
        reduction: ``"batchmean"`` is the divergence: the sum divided by the number of examples.
            ``"mean"`` divides by the number of elements, as in PyTorch.

    Example:
        >>> loss = nx.losses.KLDivLoss(reduction="batchmean")
        >>> print(f"{loss(nx.log(nx.tensor([[0.5, 0.5]])), nx.tensor([[1.0, 0.0]])):.4f}")
        0.6931
    """

    log_target: bool = field(default=False, kw_only=True)

    def _targets_first(self) -> Loss:
        summed = self.reduction == "batchmean"
        if not summed and self.reduction not in (*REDUCTIONS, None):
            known = (*REDUCTIONS, "batchmean")
            raise unknown_name("reduction of a loss", str(self.reduction), known)
        reduction = "mean" if summed else self.reduction
        return Divergence(self.log_target, summed, reduction=reduction)

"""What an optimiser is here: a frozen description that becomes an optax transformation.

Owns the order in which clipping, weight decay, the update rule and the learning rate are chained.
Does not own any rule (``optax`` has them) nor the training state (``neurenix.train``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import optax

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix.optim.moments import check_floating, held_in

LearningRate = float | optax.Schedule


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(ABC):
    """Base of every optimiser: options that all of them share.

    The chain is: clip by value, clip by norm, L2 decay (if coupled), the rule, decoupled decay,
    the learning rate.

    Args:
        weight_decay: how strongly weights are pulled to 0. Added to the gradient as in PyTorch
            (``SGD``, ``Adam``, …), or to the update and thus independent of the gradient's scale
            (``AdamW``, ``Lion``, ``Lamb``, ``Adafactor``).
        clip_norm: scale all gradients down so that their joint norm is at most this.
        clip_value: clip every gradient to [-clip_value, clip_value].
        decay_mask: a function from the parameters to booleans of the same structure that says
            which ones decay; all by default, as in PyTorch. See :func:`matrices_only`.
        moment_dtype: what moments and other state are held in between steps, such as
            ``"bfloat16"``; as they are computed by default. See :func:`held_in`.
    """

    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None
    decay_mask: Callable[[Any], Any] | None = None
    moment_dtype: jax.typing.DTypeLike | None = None

    # Whether decay is added to the update (AdamW) rather than to the gradient (SGD, Adam).
    _decoupled = False

    def __post_init__(self) -> None:
        """Check the options."""
        rate = self.learning_rate
        if not callable(rate):
            check_number("learning_rate", rate, low=0)
        check_number("weight_decay", self.weight_decay, low=0)
        for name in ("clip_norm", "clip_value"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), low=0, open_low=True)
        for name in ("eps", "momentum", "rho", "alpha", "decay_rate"):
            if hasattr(self, name):
                check_number(name, getattr(self, name), low=0)
        if self.moment_dtype is not None:
            check_floating("moment_dtype", self.moment_dtype)
        for beta in getattr(self, "betas", ()):
            check_number("betas", beta, low=0, high=1)

    @property
    @abstractmethod
    def learning_rate(self) -> LearningRate:
        """Step size, or a function from the step number to it."""

    @abstractmethod
    def rule(self) -> optax.GradientTransformation:
        """Return the update rule alone, without learning rate, decay or clipping."""

    def to_optax(self, *, learning_rate: Any = None) -> optax.GradientTransformation:
        """Return the whole optimiser as an optax transformation.

        Args:
            learning_rate: used instead of the one described, such as a traced scalar under
                ``optax.inject_hyperparams``.

        Example:
            >>> from neurenix.optim import SGD
            >>> tx = SGD(0.1).to_optax()
            >>> updates, _ = tx.update({"w": 1.0}, tx.init({"w": 0.0}), {"w": 0.0})
            >>> print(updates["w"])
            -0.1
        """
        rate = self.learning_rate if learning_rate is None else learning_rate
        steps: list[optax.GradientTransformation] = []
        if self.clip_value is not None:
            steps.append(optax.clip(self.clip_value))
        if self.clip_norm is not None:
            steps.append(optax.clip_by_global_norm(self.clip_norm))
        decay = optax.add_decayed_weights(self.weight_decay, self.decay_mask)
        if self.weight_decay and not self._decoupled:
            steps.append(decay)
        rule = self.rule()
        steps.append(rule if self.moment_dtype is None else held_in(self.moment_dtype, rule))
        if self.weight_decay and self._decoupled:
            steps.append(decay)
        steps.extend(self._finish(rate))
        return optax.chain(*steps)

    def _finish(self, learning_rate: Any) -> list[optax.GradientTransformation]:
        return [optax.scale_by_learning_rate(learning_rate)]


def matrices_only(params: Any) -> Any:
    """Say which parameters decay: those with two axes or more, so no bias and no norm's scale.

    Example:
        >>> import jax.numpy as jnp
        >>> matrices_only({"kernel": jnp.zeros((2, 2)), "bias": jnp.zeros(2)})
        {'bias': False, 'kernel': True}
    """
    return jax.tree.map(lambda leaf: leaf.ndim >= 2, params)


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float | None = None,
    open_low: bool = False,
) -> None:
    """Raise unless ``value`` is a number in [low, high), or (low, high) with ``open_low``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
            return
        raise ArgumentTypeError(
            f"The argument `{name}` must be a number; got {value!r} of type {type(value).__name__}."
        )
    too_low = value <= low if open_low else value < low
    if too_low or value != value or (high is not None and value >= high):
        bound = f"above {low}" if open_low else f"at least {low}"
        bound += f" and below {high}" if high is not None else ""
        raise ArgumentError(f"The argument `{name}` must be {bound}; got {value}.")

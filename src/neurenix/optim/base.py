"""What an optimizer is here: a frozen description that becomes an optax transformation.

Owns the order in which clipping, weight decay, the update rule and the learning rate are chained.
Does not own any rule (``optax`` has them) nor the training state (``neurenix.train``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import optax

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.names import MissingAttributeError, OptionsExplained
from neurenix._migration.optimizers import METHODS_OF_SPEC, OPTIONS
from neurenix.optim.checks import check_eps, check_number, check_rate, checked_mask
from neurenix.optim.moments import check_floating, held_in

LearningRate = float | optax.Schedule

_FROM_0 = ("weight_decay", "momentum", "decay_rate", "initial_accumulator_value")
_ABOVE_0 = ("clip_norm", "clip_value", "eps", "clip_threshold", "trust_coefficient")
_SHARES = ("alpha", "rho")  # of a running mean that is kept: below 1
_OPTIONAL = ("clip_norm", "clip_value")
_VECTORS = ("bias", "scale", "sinks", "slope")  # of one layer; those of several are stacked


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(OptionsExplained, ABC):
    """Base of every optimizer: options that all of them share.

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

    Raises:
        ArgumentTypeError: there is no such option, or it is of another type.
        ArgumentError: an option is out of range; or, where the state is made, ``eps`` is 0 in the
            dtype of a parameter (float16), which the rule computes in without a ``moment_dtype``.
    """

    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None
    decay_mask: Callable[[Any], Any] | None = None
    moment_dtype: jax.typing.DTypeLike | None = None

    # Whether decay is added to the update (AdamW) rather than to the gradient (SGD, Adam).
    _decoupled = False
    migration_options = OPTIONS

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                object.__getattribute__(self, name)  # fails again, as it did
            what = f"{type(self).__name__!r} object"
            raise MissingAttributeError(what, name, lambda: dir(self), METHODS_OF_SPEC)

    def __post_init__(self) -> None:
        """Check the options."""
        check_rate("learning_rate", self.learning_rate)
        for name, value in vars(self).items():
            if value is None and name in _OPTIONAL:
                continue
            if name in _FROM_0 + _ABOVE_0 + _SHARES:
                high = 1 if name in _SHARES else None
                check_number(name, value, low=0, high=high, open_low=name in _ABOVE_0)
            elif name == "betas":
                self._check_betas(value)
        if self.decay_mask is not None and not callable(self.decay_mask):
            raise ArgumentTypeError(
                "The argument `decay_mask` must be a function from the parameters to booleans, "
                f"such as nx.optim.matrices_only; got {type(self.decay_mask).__name__}."
            )
        if self.moment_dtype is not None:
            check_floating("moment_dtype", self.moment_dtype)

    def _check_betas(self, betas: Any) -> None:
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            raise ArgumentError(f"The argument `betas` must be two numbers; got {betas!r}.")
        for beta in betas:
            check_number("betas", beta, low=0, high=1)
        object.__setattr__(self, "betas", tuple(betas))

    @property
    @abstractmethod
    def learning_rate(self) -> LearningRate:
        """Step size, or a function from the step number to it."""

    @abstractmethod
    def rule(self) -> optax.GradientTransformation:
        """Return the update rule alone, without learning rate, decay or clipping."""

    def to_optax(self, *, learning_rate: Any = None) -> optax.GradientTransformation:
        """Return the whole optimizer as an optax transformation.

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
        mask = None if self.decay_mask is None else checked_mask(self.decay_mask)
        decay = optax.add_decayed_weights(self.weight_decay, mask)
        if self.weight_decay and not self._decoupled:
            steps.append(decay)
        rule = self._checked(self.rule())
        steps.append(rule if self.moment_dtype is None else held_in(self.moment_dtype, rule))
        if self.weight_decay and self._decoupled:
            steps.append(decay)
        steps.extend(self._finish(rate))
        return optax.chain(*steps)

    def _checked(self, rule: optax.GradientTransformation) -> optax.GradientTransformation:
        """Return the rule, which refuses parameters in whose dtype its ``eps`` is 0."""
        eps = getattr(self, "eps", None)
        if eps is None or self.moment_dtype is not None:
            return rule

        def init(params: Any) -> Any:
            for leaf in jax.tree.leaves(params):
                check_eps(type(self).__name__, eps, jnp.result_type(leaf))
            return rule.init(params)

        return rule._replace(init=init)

    def _finish(self, learning_rate: Any) -> list[optax.GradientTransformation]:
        return [optax.scale_by_learning_rate(learning_rate)]


def matrices_only(params: Any) -> Any:
    """Say which parameters decay: those with two axes or more, and no bias nor a norm's scale.

    Names count beside axes, because a model may hold one parameter for all of its layers, as those
    of ``nx.models`` do: (L, E) is the bias of L layers.

    Example:
        >>> nx.optim.matrices_only({"kernel": nx.zeros((6, 2, 2)), "bias": nx.zeros((6, 2))})
        {'bias': False, 'kernel': True}
    """

    def decays(path: tuple[Any, ...], leaf: Any) -> bool:
        names = [jax.tree_util.keystr((key,), simple=True) for key in path]
        names = [name for name in names if name != "value" and not name.isdigit()]
        vector = bool(names) and (names[-1] in _VECTORS or names[-1].endswith("_bias"))
        return leaf.ndim >= 2 and not vector

    return jax.tree.map_with_path(decays, params)

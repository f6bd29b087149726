"""The base class of optimizers: a frozen dataclass that builds an optax transformation.

Owns the order in which clipping, weight decay, the update rule and the learning rate are chained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.names import MissingAttributeError, OptionsExplained
from neurenix._migration.optimizers import METHODS_OF_SPEC, OPTIONS
from neurenix.optim.checks import check_number, check_rate, checked_mask
from neurenix.optim.moments import check_floating, held_in

LearningRate = float | optax.Schedule

_FROM_0 = ("weight_decay", "momentum", "decay_rate", "initial_accumulator_value")
_ABOVE_0 = ("clip_norm", "clip_value", "eps", "clip_threshold", "trust_coefficient")
_SHARES = ("alpha", "rho")  # decay of a running mean: must be below 1
_OPTIONAL = ("clip_norm", "clip_value")
_VECTORS = ("bias", "scale", "sinks", "slope")  # one axis per layer; stacked layers add axes


@dataclass(frozen=True, kw_only=True)
class OptimizerSpec(OptionsExplained, ABC):
    """Base of every optimizer: the options that all share.

    The chain is: clip by value, clip by norm, L2 decay (if coupled), the rule, decoupled decay, the
    learning rate.

    Args:
        weight_decay: factor of the decay. It is added to the gradient, as in PyTorch (``SGD``,
            ``Adam``, …), or to the update and thus independent of the gradient's scale (``AdamW``,
            ``Lion``, ``Lamb``, ``Adafactor``).
        clip_norm: maximum joint norm of all gradients.
        clip_value: clip every gradient to [-clip_value, clip_value].
        decay_mask: function from the parameters to booleans of the same structure, True for those
            that decay; all by default, as in PyTorch. See :func:`matrices_only`.
        moment_dtype: dtype in which moments and other state are stored between steps, such as
            ``"bfloat16"``; the dtype they are computed in by default. See :func:`held_in`.

    Raises:
        ArgumentTypeError: unknown option, or an option of another type.
        ArgumentError: an option is out of range. When the state is created without
            ``moment_dtype``: ``eps`` is 0 in the dtype of a parameter (float16).
    """

    weight_decay: float = 0.0
    clip_norm: float | None = None
    clip_value: float | None = None
    decay_mask: Callable[[Any], Any] | None = None
    moment_dtype: jax.typing.DTypeLike | None = None

    # Whether decay is added to the update (AdamW) instead of the gradient (SGD, Adam).
    _decoupled = False
    migration_options = OPTIONS

    if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any attribute

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                object.__getattribute__(self, name)  # raises the original AttributeError
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
        """Return the rule, which raises for parameters in whose dtype its ``eps`` is 0."""
        eps = getattr(self, "eps", None)
        if eps is None or self.moment_dtype is not None:
            return rule

        def init(params: Any) -> Any:
            for leaf in jax.tree.leaves(params):
                _check_eps(type(self).__name__, eps, jnp.result_type(leaf))
            return rule.init(params)

        return rule._replace(init=init)

    def _finish(self, learning_rate: Any) -> list[optax.GradientTransformation]:
        return [optax.scale_by_learning_rate(learning_rate)]


def matrices_only(params: Any) -> Any:
    """Return which parameters decay: those with two or more axes, except biases and norm scales.

    Names are checked as well as axes, because ``nx.models`` stacks the parameters of all layers:
    (L, E) is the bias of L layers.

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


def _check_eps(optimizer: str, eps: Any, dtype: Any) -> None:
    """Check that ``eps`` is not 0 in a parameter's dtype, which many rules compute in.

    Args:
        optimizer: its name.
        eps: added to a divisor; traced scalars are not checked.
        dtype: of the parameter.

    Raises:
        ArgumentError: ``eps`` is 0, so a gradient of 0 would make the parameter NaN.
    """
    kind = jnp.dtype(dtype)
    if isinstance(eps, Tracer) or not jnp.issubdtype(kind, jnp.floating):
        return
    if float(np.asarray(eps).astype(kind)) == 0:
        raise ArgumentError(
            f"{optimizer}'s eps={eps} is 0 in {kind}, the dtype of a parameter, and a gradient of "
            f'0 would make that NaN. Give {optimizer}(moment_dtype="float32"), which computes in '
            "float32, or hold the parameters in float32 or bfloat16."
        )

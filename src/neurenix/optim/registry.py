"""Build an optax transformation from a name, an optimizer or an optax transformation."""

from __future__ import annotations

from typing import Any

import optax

from neurenix._core.errors import ArgumentTypeError, unknown_name
from neurenix.optim import adam, adaptive, sgd
from neurenix.optim.base import LearningRate, OptimizerSpec
from neurenix.optim.extra import check_usable

_CLASSES: tuple[type[OptimizerSpec], ...] = (
    sgd.SGD,
    sgd.Lars,
    adam.Adam,
    adam.AdamW,
    adam.NAdam,
    adam.RAdam,
    adam.Adamax,
    adam.Lamb,
    adam.Lion,
    adaptive.RMSprop,
    adaptive.Adagrad,
    adaptive.Adadelta,
    adaptive.Adafactor,
)
_BY_NAME = {cls.__name__.lower(): cls for cls in _CLASSES}

OptimizerLike = str | OptimizerSpec | type[OptimizerSpec] | optax.GradientTransformation


def spec(optimizer: str | OptimizerSpec | type[OptimizerSpec]) -> OptimizerSpec:
    """Return the optimizer for a name, an optimizer class or an optimizer.

    Raises:
        UnknownNameError: unknown optimizer name; the message suggests similar names.
        ArgumentTypeError: the argument has another type.

    Example:
        >>> nx.optim.spec("adamw").weight_decay
        0.01
    """
    if isinstance(optimizer, OptimizerSpec):
        return optimizer
    if isinstance(optimizer, str):
        if optimizer.lower() not in _BY_NAME:
            raise unknown_name("optimizer", optimizer, _BY_NAME)
        return _BY_NAME[optimizer.lower()]()
    if isinstance(optimizer, type) and issubclass(optimizer, OptimizerSpec):
        return optimizer()
    hint = ""
    if hasattr(optimizer, "gradient_transformation"):  # optax.MultiSteps
        hint = " Give the result of its method gradient_transformation()."
    raise ArgumentTypeError(
        "The argument `optimizer` must be a name, an optimizer of neurenix.optim or an optax "
        f"transformation; got {type(optimizer).__name__}.{hint}"
    )


def get(optimizer: OptimizerLike) -> optax.GradientTransformation:
    """Return the optax transformation for a name, an optimizer or a transformation.

    Raises:
        UnknownNameError: unknown optimizer name; the message suggests similar names.
        ArgumentTypeError: the argument has another type.
        ArgumentError: no training step can use the transformation, such as ``optax.lbfgs``.

    Example:
        >>> import optax
        >>> isinstance(nx.optim.get("adam"), optax.GradientTransformation)
        True
    """
    if isinstance(optimizer, optax.GradientTransformation):
        check_usable(optimizer)
        return optimizer
    return spec(optimizer).to_optax()


def learning_rate_of(optimizer: Any) -> LearningRate | None:
    """Return the learning rate, a number or a schedule; None for an optax transformation.

    Example:
        >>> nx.optim.learning_rate_of("adam")
        0.001
    """
    if isinstance(optimizer, optax.GradientTransformation):
        return None
    return spec(optimizer).learning_rate

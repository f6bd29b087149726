"""The learning rate of an optimizer, and the factor that sets another one.

A rate that is set becomes a factor on the optimizer's own rate, so that setting it compiles
nothing. The trainer and ``nx.Optimizer`` store the factor.
"""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix import optim
from neurenix._core.errors import ArgumentError


class BaseLearningRate:
    """The learning rate of an optimizer's description: a number, a schedule, or hidden.

    Args:
        optimizer: a name, one of ``nx.optim``, or an optax transformation, which hides its rate.

    Attributes:
        schedule: the function from the step to the rate, or None if the rate is not a function.

    Example:
        >>> own = BaseLearningRate(optim.SGD(0.1))
        >>> own.at(0), own.factor(0.05, 0, kept=1.0)
        (0.1, 0.5)
    """

    def __init__(self, optimizer: Any) -> None:
        self._rate = optim.learning_rate_of(optimizer)
        self.schedule = self._rate if callable(self._rate) else None

    def __repr__(self) -> str:
        return f"BaseLearningRate({self._rate})"

    def at(self, step: Any) -> Any:
        """Return the rate at a step: a float, or a traced scalar where the step is one.

        Raises:
            ArgumentError: the rate is hidden in an optax transformation.
        """
        if self._rate is None:
            raise ArgumentError(
                "The learning rate of an optax transformation cannot be read or set. Use an "
                "optimizer of nx.optim, or put a schedule into the transformation."
            )
        rate = self.schedule(step) if self.schedule else self._rate
        return rate if isinstance(rate, Tracer) else float(np.asarray(rate))

    def factor(self, value: Any, step: Any, *, kept: Any) -> Any:
        """Return the factor that makes the rate at ``step`` the ``value``.

        Args:
            value: the new rate.
            step: of the next update.
            kept: the current factor, returned if both rates are 0; in a compiled function, which
                cannot raise, also if only the optimizer's rate is 0.

        Raises:
            ArgumentError: ``value`` is not a valid rate; or the optimizer's own rate is 0, which no
                factor changes, or hidden.
        """
        own = self.at(step)
        if isinstance(value, Tracer) or isinstance(own, Tracer):
            value = jnp.asarray(value, jnp.float32)
            return jnp.where(own > 0, value / jnp.where(own > 0, own, 1), kept)
        try:
            rate = float(value)
        except (TypeError, ValueError):
            rate = math.nan
        if not (math.isfinite(rate) and rate >= 0):
            raise ArgumentError(f"A learning rate is a finite number from 0, got {value!r}.")
        if own > 0 and rate / own <= np.finfo(np.float32).max:
            return rate / own
        if own == rate == 0:
            return kept
        raise ArgumentError(
            f"The learning rate cannot be set to {rate}: the optimizer's own is {own} at step "
            f"{step}, and what is set becomes a factor on it. Build the optimizer with a rate "
            "above 0, or with a schedule that says it all."
        )

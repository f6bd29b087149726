"""Learning-rate schedules as frozen dataclasses.

Each is called with the step number (0 for the first update) and is a traceable optax schedule.

Example:
    >>> warm = WarmupCosine(peak=1e-3, warmup_steps=10, decay_steps=100)
    >>> [round(float(warm(step)), 6) for step in (0, 5, 10, 100)]
    [0.0, 0.0005, 0.001, 0.0]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from neurenix._core.errors import ArgumentError
from neurenix._core.names import OptionsExplained, names_of
from neurenix._migration.optimizers import NAMES, SCHEDULES
from neurenix.optim.checks import check_number, check_rate

Step = int | jax.Array


class _Schedule(OptionsExplained):
    migration_options = SCHEDULES


@dataclass(frozen=True)
class Constant(_Schedule):
    """A constant rate.

    Args:
        value: the rate.
    """

    value: float

    def __post_init__(self) -> None:
        """Check the rate."""
        check_number("value", self.value, low=0)

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        return jnp.asarray(self.value, jnp.float32)


@dataclass(frozen=True)
class CosineDecay(_Schedule):
    """Half a cosine from ``initial`` down to ``alpha · initial``, then constant.

    Loshchilov & Hutter 2016, arXiv:1608.03983.

    Args:
        initial: the rate at step 0.
        decay_steps: step at which the decay ends.
        alpha: the final rate as a share of ``initial``.
    """

    initial: float
    decay_steps: int
    alpha: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("initial", self.initial, low=0)
        check_number("alpha", self.alpha, low=0)
        check_number("decay_steps", self.decay_steps, low=0, open_low=True)

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        schedule = optax.cosine_decay_schedule(self.initial, self.decay_steps, self.alpha)
        return jnp.asarray(schedule(_signed(step)))


@dataclass(frozen=True)
class ExponentialDecay(_Schedule):
    """``initial · decay_rate ** (step / decay_steps)``.

    Args:
        initial: the rate at step 0.
        decay_steps: steps per factor ``decay_rate``.
        decay_rate: the factor, in (0, 1] for a decay.
        staircase: change only every ``decay_steps`` steps.
    """

    initial: float
    decay_steps: int
    decay_rate: float = 0.96
    staircase: bool = False

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("initial", self.initial, low=0)
        check_number("decay_steps", self.decay_steps, low=0, open_low=True)
        check_number("decay_rate", self.decay_rate, low=0, open_low=True)

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        step, length = jnp.asarray(step), self.decay_steps
        periods = _whole_periods(step, length) if self.staircase else step / length
        return self.initial * jnp.power(self.decay_rate, periods)


@dataclass(frozen=True)
class PiecewiseConstant(_Schedule):
    """``values[i]`` from step ``boundaries[i - 1]`` on.

    Args:
        boundaries: increasing step numbers at which the rate changes.
        values: the rates, one more than ``boundaries``.

    Example:
        >>> rate = PiecewiseConstant((10, 20), (1.0, 0.5, 0.1))
        >>> [round(float(rate(step)), 2) for step in (9, 10, 20)]
        [1.0, 0.5, 0.1]
    """

    boundaries: tuple[int, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the options."""
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        object.__setattr__(self, "values", tuple(self.values))
        for value in self.values:
            check_number("values", value, low=0)
        if len(self.values) != len(self.boundaries) + 1:
            raise ArgumentError(
                f"PiecewiseConstant takes one value more than boundaries; got "
                f"{len(self.values)} values and {len(self.boundaries)} boundaries."
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ArgumentError(f"`boundaries` must increase; got {self.boundaries}.")

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        boundaries = jnp.asarray(self.boundaries, jnp.int32)
        return jnp.asarray(self.values, jnp.float32)[jnp.sum(jnp.asarray(step) >= boundaries)]


@dataclass(frozen=True)
class PolynomialDecay(_Schedule):
    """From ``initial`` to ``end`` along ``(1 - step / decay_steps) ** power``; linear by default.

    Args:
        initial: the rate at step 0.
        decay_steps: step at which ``end`` is reached.
        end: the final rate.
        power: the exponent; 1 is linear.
    """

    initial: float
    decay_steps: int
    end: float = 0.0
    power: float = 1.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("initial", self.initial, low=0)
        check_number("end", self.end, low=0)
        check_number("power", self.power, low=0)
        check_number("decay_steps", self.decay_steps, low=0, open_low=True)

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        # 1 - quotient, compiled, can be below 0 at the end, which has no square root.
        left = jnp.maximum(self.decay_steps - _signed(step), 0) / self.decay_steps
        return self.end + (self.initial - self.end) * jnp.power(left, self.power)


@dataclass(frozen=True)
class LinearWarmup(_Schedule):
    """Linear from 0 to ``peak``, then ``after``, by default constant at ``peak``.

    Args:
        peak: the rate at the end of the warm-up.
        warmup_steps: length of the warm-up in steps.
        after: a schedule called with the steps since the warm-up, or a number.
    """

    peak: float
    warmup_steps: int
    after: Callable[[Step], jax.Array] | float | None = None

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("peak", self.peak, low=0)
        check_number("warmup_steps", self.warmup_steps, low=0, open_low=True)
        if self.after is not None:
            check_rate("after", self.after)

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        step = _signed(step)
        rising = self.peak * jnp.minimum(step / self.warmup_steps, 1.0)
        if self.after is None:
            return rising
        since = jnp.maximum(step - self.warmup_steps, 0)
        later = self.after(since) if callable(self.after) else self.after
        return jnp.where(step < self.warmup_steps, rising, later)


@dataclass(frozen=True)
class WarmupCosine(_Schedule):
    """Linear from 0 to ``peak``, then half a cosine down to ``end``.

    Args:
        peak: the highest rate.
        warmup_steps: step at which ``peak`` is reached.
        decay_steps: step at which ``end`` is reached, **counted from step 0**, warm-up included (as
            in optax).
        end: the final rate.
    """

    peak: float
    warmup_steps: int
    decay_steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        """Check the options."""
        check_number("peak", self.peak, low=0)
        check_number("end", self.end, low=0)
        check_number("warmup_steps", self.warmup_steps, low=0, open_low=True)
        check_number("decay_steps", self.decay_steps, low=0, open_low=True)
        if self.decay_steps <= self.warmup_steps:
            raise ArgumentError(
                f"`decay_steps` counts from step 0 and must be above `warmup_steps`; got "
                f"{self.decay_steps} and {self.warmup_steps}."
            )

    def __call__(self, step: Step) -> jax.Array:
        """Return the rate at a step."""
        schedule = optax.warmup_cosine_decay_schedule(
            0.0, self.peak, self.warmup_steps, self.decay_steps, self.end
        )
        return jnp.asarray(schedule(_signed(step)))


def _signed(step: Step) -> jax.Array:
    """Return the step in a dtype that can be compared with, and subtracted from, any count."""
    step = jnp.asarray(step)
    if jnp.issubdtype(step.dtype, jnp.integer) and step.dtype.itemsize <= 4:
        return step.astype(jnp.int32)
    return step


def _whole_periods(step: jax.Array, length: float) -> jax.Array:
    """Return the number of whole periods before a step, as a float.

    The floor of a float quotient would be one too low at some multiples: a compiled program may
    multiply by the rounded reciprocal of ``length``, and a TPU does not round quotients exactly.
    """
    if jnp.issubdtype(step.dtype, jnp.integer) and not isinstance(length, Tracer):
        if float(length).is_integer() and length <= jnp.iinfo(step.dtype).max:
            return (step // int(length)).astype(jnp.float32)
    near = jnp.floor(step / length)  # may be off by one; corrected by multiplication
    near = jnp.where(near * length > step, near - 1, near)
    return jnp.where((near + 1) * length <= step, near + 1, near)


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, [cls.__name__ for cls in _Schedule.__subclasses__()], NAMES)

"""Callbacks that stop training or set the learning rate.

Does not own the base class (``callback.py``) or the callbacks that write files
(``file_callbacks.py``).
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix._core.number_checks import check_number, whole_number
from neurenix.checkpoint.weights import is_held, put_back, variables_held
from neurenix.train.callback import EVENTS, Callback, unknown_event
from neurenix.train.metric_names import direction_of


class Monitor(Callback):
    """Base class of callbacks that compare one number from epoch to epoch.

    Args:
        monitor: a name in the logs, such as ``"val_loss"``.
        mode: ``"min"`` when smaller is better, ``"max"`` when larger is. ``"auto"`` takes the mode
            of the metric (``Metric.direction``), or derives it from the name: smaller is better
            for ``loss``, ``error``, ``mae`` …, larger for ``accuracy``, ``auc``, ``f1`` ….
        min_delta: smallest change that counts as an improvement.

    Attributes:
        best: the best number so far; NaN before the first.
    """

    def __init__(
        self, monitor: str = "val_loss", *, mode: str = "auto", min_delta: float = 0.0
    ) -> None:
        if mode not in ("auto", "min", "max"):
            raise unknown_name("mode", mode, ["auto", "min", "max"])
        check_number("The argument `min_delta`", min_delta)
        self.monitor, self.mode, self.min_delta = monitor, mode, abs(min_delta)
        self._direction: str | None = None
        self.best = math.nan

    def watched(self) -> tuple[str, ...]:
        """Return the name of the monitored number."""
        return (self.monitor,)

    def on_train_begin(self) -> None:
        """Determine the mode, if the callback uses the number.

        Raises:
            ArgumentError: ``mode="auto"``, and neither the metric nor its name implies a mode.
        """
        self._direction = None
        if self.monitor in self.watched():
            self._find_direction()

    def state(self) -> dict[str, Any]:
        """Return the best number."""
        return {"best": self.best}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from the best number of an earlier run."""
        self.best = state["best"]

    def value(self, logs: Mapping[str, float]) -> float:
        """Return the monitored number.

        Raises:
            UnknownNameError: the logs do not contain it.
        """
        if self.monitor not in logs:
            raise unknown_name("number to monitor", self.monitor, logs)
        return float(logs[self.monitor])

    def improved(self, logs: Mapping[str, float]) -> bool:
        """Return whether the number is the best so far, and store it if so; NaN never is."""
        value = self.value(logs)
        if self.is_better(value, self.best):
            self.best = value
            return True
        return False

    def is_better(self, value: float, than: float) -> bool:
        """Return whether ``value`` beats ``than`` by more than ``min_delta``; all beat NaN."""
        sign = -1.0 if self._find_direction() == "min" else 1.0
        than = -sign * math.inf if math.isnan(than) else than
        return sign * (value - than) > self.min_delta

    def _find_direction(self) -> str:
        if self._direction is None:
            trainer = getattr(self, "trainer", None)
            metrics = () if trainer is None else trainer.metrics
            known = self.mode != "auto"
            self._direction = self.mode if known else direction_of(self.monitor, metrics)
        return self._direction


class EarlyStopping(Monitor):
    """Stop when a number has not improved for some epochs.

    Args:
        monitor: see ``Monitor``.
        patience: epochs without improvement before training stops.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        baseline: an epoch counts as an improvement only if it is better than this number.
        restore_best_weights: end with the weights of the best epoch. A ``fit`` that continues
            later starts from the newest weights.
        start_from_epoch: ignore the epochs before this one, counted from 0.

    Attributes:
        stopped_epoch: the epoch after which training stopped, counted from 0, or None. After
            loading a trainer that was stopped, ``fit`` ends at once unless ``patience`` is larger.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 0,
        mode: str = "auto",
        min_delta: float = 0.0,
        baseline: float | None = None,
        restore_best_weights: bool = False,
        start_from_epoch: int = 0,
    ) -> None:
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        if baseline is not None:
            check_number("The argument `baseline`", baseline)
        self.patience = whole_number("The argument `patience`", patience, least=0)
        self.start_from_epoch = whole_number(
            "The argument `start_from_epoch`", start_from_epoch, least=0
        )
        self.baseline, self.restore_best_weights = baseline, restore_best_weights
        self.stopped_epoch: int | None = None
        self._waited = 0
        self._best_weights: dict[str, Any] | None = None
        self._newest_weights: dict[str, Any] | None = None  # where the best ones were put back

    def on_train_begin(self) -> None:
        """Reset for a new run."""
        super().on_train_begin()
        self.best, self._waited, self.stopped_epoch = math.nan, 0, None
        self._best_weights = self._newest_weights = None

    def state(self) -> dict[str, Any]:
        """Return the best number, the epochs since it, and the weights to restore."""
        return super().state() | {
            "waited": self._waited,
            "stopped_epoch": self.stopped_epoch,
            "best_weights": self._best_weights,
            "newest_weights": self._newest_weights,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue an earlier run, from its newest weights where the model holds the best."""
        super().load_state(state)
        self._waited, best, newest = state["waited"], state["best_weights"], state["newest_weights"]
        if newest is not None and is_held(self.model, best):
            put_back(self.model, newest)
        self._best_weights = best if self.restore_best_weights else None
        if state["stopped_epoch"] is not None and self._waited >= max(self.patience, 1):
            self.stopped_epoch = state["stopped_epoch"]
            self.trainer.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare the number, and stop training when the patience is used up."""
        if epoch < self.start_from_epoch:
            return
        if self.improved(logs):
            if self.restore_best_weights:
                self._best_weights = jax.tree.map(jnp.copy, variables_held(self.model))
            if self.baseline is None or self.is_better(self.best, self.baseline):
                self._waited = 0
                return
        self._waited += 1
        if self._waited >= max(self.patience, 1):
            self.stopped_epoch = epoch
            self.trainer.stop_training = True

    def on_train_end(self) -> None:
        """Restore the best weights, if asked for."""
        if self._best_weights is not None:
            self._newest_weights = variables_held(self.model)
            put_back(self.model, jax.tree.map(jnp.copy, self._best_weights))


class LearningRateScheduler(Callback):
    """Set the learning rate before every epoch.

    Args:
        schedule: ``(epoch, learning_rate) -> learning_rate``, or ``epoch -> learning_rate``.

    Raises:
        ArgumentTypeError: ``schedule`` is not a function, or takes other arguments.
    """

    def __init__(self, schedule: Callable[..., float]) -> None:
        if not callable(schedule):
            raise ArgumentTypeError(
                f"LearningRateScheduler: schedule is {schedule!r}, not a function."
            )
        self.schedule = schedule
        self._takes_rate = _takes(schedule, 2)
        if not self._takes_rate and not _takes(schedule, 1):
            raise ArgumentTypeError(
                f"LearningRateScheduler: schedule takes {inspect.signature(schedule)}; it is "
                "called with (epoch, learning_rate), or with the epoch alone."
            )

    def on_epoch_begin(self, epoch: int) -> None:
        """Set the learning rate that the schedule returns.

        Raises:
            ArgumentError: the schedule returned an invalid rate, or the optimizer's rate is 0.
        """
        known = (self.trainer.learning_rate,) if self._takes_rate else ()
        rate = self.schedule(epoch, *known)
        try:
            self.trainer.learning_rate = rate
        except ArgumentError as error:
            raise ArgumentError(
                f"LearningRateScheduler: schedule returned {rate!r} for epoch {epoch}. {error}"
            ) from error


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether ``function`` takes ``count`` arguments; True if it has no signature."""
    try:
        inspect.signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # a function of C without a signature
        return True
    return True


class ReduceLROnPlateau(Monitor):
    """Multiply the learning rate by a factor when a number has stopped improving.

    Args:
        monitor: see ``Monitor``.
        factor: the factor, between 0 and 1.
        patience: epochs without improvement before the rate is reduced.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        cooldown: epochs after a reduction that do not count against ``patience``.
        min_lr: lower bound of the learning rate.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        cooldown: int = 0,
        min_lr: float = 0.0,
    ) -> None:
        check_number("The argument `factor`", factor)
        check_number("The argument `min_lr`", min_lr)
        if not 0 < factor < 1:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be between 0 and 1, got {factor}.")
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.factor, self.min_lr = factor, min_lr
        self.patience = whole_number("The argument `patience`", patience, least=0)
        self.cooldown = whole_number("The argument `cooldown`", cooldown, least=0)
        self._waited = self._cooling = 0

    def on_train_begin(self) -> None:
        """Reset for a new run; the learning rate keeps its value."""
        super().on_train_begin()
        self.best, self._waited, self._cooling = math.nan, 0, 0

    def state(self) -> dict[str, Any]:
        """Return the best number, the epochs since it, and the epochs left of the cooldown."""
        return super().state() | {"waited": self._waited, "cooling": self._cooling}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue an earlier run."""
        super().load_state(state)
        self._waited, self._cooling = state["waited"], state["cooling"]

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare the number, and reduce the rate when the patience is used up."""
        cooling, self._cooling = self._cooling > 0, max(self._cooling - 1, 0)
        if self.improved(logs) or cooling:
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._waited, self._cooling = 0, self.cooldown
            rate = self.trainer.learning_rate
            if rate > self.min_lr:
                self.trainer.learning_rate = max(rate * self.factor, self.min_lr)


class TerminateOnNaN(Callback):
    """End ``fit`` without an error when the loss or a gradient is not finite.

    With or without this callback, the model keeps the weights from before the first such step.
    """


class LambdaCallback(Callback):
    """A callback that calls functions given by the names of its methods.

    Example:
        >>> callback = nx.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if name not in EVENTS:
                raise unknown_event(name)
            setattr(self, name, function)

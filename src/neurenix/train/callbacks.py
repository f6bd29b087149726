"""Callbacks: code of the user's at fixed moments of ``fit``.

Owns the base class and those that decide about training (stop, learning rate). Those that write
files are in ``recorders.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, unknown_name
from neurenix._nnx import nnx

if TYPE_CHECKING:
    from neurenix.train.trainer import Trainer


class Callback:
    """Methods that ``fit`` calls; a subclass overrides those it needs.

    ``logs`` maps names to values as in ``History``. Reading a value in ``on_train_batch_end``
    waits for the device, so look only as often as needed.

    Attributes:
        trainer: the trainer, from ``on_train_begin`` on; set ``trainer.stop_training`` to end.
        model: its module. Its arrays are valid until the next step begins.
    """

    trainer: Trainer

    @property
    def model(self) -> Any:
        """The module that is trained."""
        return self.trainer.module

    def watched(self) -> tuple[str, ...]:
        """Return the names that it needs in the logs of every epoch."""
        return ()

    def on_train_begin(self) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before an epoch."""

    def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
        """After a compiled call; ``step`` counts optimizer steps in the epoch, from 1."""

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """After an epoch and its validation."""

    def on_train_end(self) -> None:
        """After the last epoch, also when training was stopped or failed."""


class Monitor(Callback):
    """A callback that watches one number and knows what better means.

    Args:
        monitor: a name in the logs, such as ``"val_loss"``.
        mode: ``"min"``, ``"max"``, or ``"auto"``: names that contain ``loss`` or ``error`` are
            better when smaller, others when larger.
        min_delta: a smaller change is none.
    """

    def __init__(
        self, monitor: str = "val_loss", *, mode: str = "auto", min_delta: float = 0.0
    ) -> None:
        if mode not in ("auto", "min", "max"):
            raise unknown_name("mode", mode, ["auto", "min", "max"])
        smaller = mode == "min" or (
            mode == "auto" and any(word in monitor for word in ("loss", "error", "perplexity"))
        )
        self.monitor, self.min_delta = monitor, abs(min_delta)
        self._sign = -1.0 if smaller else 1.0
        self.best = math.nan

    def watched(self) -> tuple[str, ...]:
        """Return the name of the number."""
        return (self.monitor,)

    def value(self, logs: Mapping[str, float]) -> float:
        """Return the number watched.

        Raises:
            UnknownNameError: the logs have no such name.
        """
        if self.monitor not in logs:
            raise unknown_name("number to monitor", self.monitor, logs)
        return float(logs[self.monitor])

    def improved(self, logs: Mapping[str, float]) -> bool:
        """Tell whether the number is the best so far, and remember it."""
        value = self.value(logs)
        if math.isnan(self.best) or self._sign * (value - self.best) > self.min_delta:
            self.best = value
            return True
        return False


class EarlyStopping(Monitor):
    """Stop when a number has not improved for some epochs.

    Args:
        monitor: the number.
        patience: epochs without improvement before training stops.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        restore_best_weights: end with the weights of the best epoch.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int = 0,
        mode: str = "auto",
        min_delta: float = 0.0,
        restore_best_weights: bool = False,
    ) -> None:
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.patience, self.restore_best_weights = patience, restore_best_weights
        self.stopped_epoch: int | None = None
        self._waited = 0
        self._weights: Any = None

    def on_train_begin(self) -> None:
        """Forget an earlier run."""
        self.best, self._waited, self.stopped_epoch, self._weights = math.nan, 0, None, None

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare, and stop when patience is over."""
        if self.improved(logs):
            self._waited = 0
            if self.restore_best_weights:
                self._weights = jax.tree.map(jnp.copy, nnx.state(self.model))
            return
        self._waited += 1
        if self._waited >= max(self.patience, 1):
            self.stopped_epoch = epoch
            self.trainer.stop_training = True

    def on_train_end(self) -> None:
        """Put the best weights back."""
        if self._weights is not None:
            nnx.update(self.model, self._weights)
            self._weights = None


class LearningRateScheduler(Callback):
    """Set the learning rate before every epoch.

    Args:
        schedule: ``(epoch, learning_rate) -> learning_rate``.

    Raises:
        ArgumentTypeError: ``schedule`` is no function.
    """

    def __init__(self, schedule: Callable[[int, float], float]) -> None:
        if not callable(schedule):
            raise ArgumentTypeError(
                f"LearningRateScheduler: schedule is {schedule!r}, not a function."
            )
        self.schedule = schedule

    def on_epoch_begin(self, epoch: int) -> None:
        """Ask the schedule.

        Raises:
            ArgumentError: it returned no rate, or the optimizer's own is 0.
        """
        rate = self.schedule(epoch, self.trainer.learning_rate)
        try:
            self.trainer.learning_rate = rate
        except ArgumentError as error:
            raise ArgumentError(
                f"LearningRateScheduler: schedule returned {rate!r} for epoch {epoch}. {error}"
            ) from error


class ReduceLROnPlateau(Monitor):
    """Multiply the learning rate by a factor when a number has stopped improving.

    Args:
        monitor: the number.
        factor: the factor, below 1.
        patience: epochs without improvement before it is applied.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        min_lr: the learning rate is never set below it.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        factor: float = 0.1,
        patience: int = 10,
        mode: str = "auto",
        min_delta: float = 1e-4,
        min_lr: float = 0.0,
    ) -> None:
        if not 0 < factor < 1:
            raise ArgumentError(f"ReduceLROnPlateau: factor must be between 0 and 1, got {factor}.")
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.factor, self.patience, self.min_lr = factor, patience, min_lr
        self._waited = 0

    def on_train_begin(self) -> None:
        """Forget an earlier run; the rate stays as it has become."""
        self.best, self._waited = math.nan, 0

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare, and reduce when patience is over."""
        if self.improved(logs):
            self._waited = 0
            return
        self._waited += 1
        if self._waited >= self.patience:
            self._waited = 0
            rate = self.trainer.learning_rate
            if rate > self.min_lr:
                self.trainer.learning_rate = max(rate * self.factor, self.min_lr)


class TerminateOnNaN(Callback):
    """End ``fit`` quietly when the loss is not finite, instead of raising an error.

    The weights are those before the step with the first loss or gradient that is not finite, with
    this callback and without it.
    """


class LambdaCallback(Callback):
    """A callback made of functions, under the names of the methods.

    Example:
        >>> callback = LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if not hasattr(Callback, name) or not name.startswith("on_"):
                known = [method for method in dir(Callback) if method.startswith("on_")]
                raise unknown_name("moment of a callback", name, known)
            setattr(self, name, function)

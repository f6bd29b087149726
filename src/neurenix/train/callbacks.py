"""Callbacks: code of the user's at fixed moments of ``fit``.

Owns the base class and those that decide about training (stop, learning rate). Those that write
files are in ``file_callbacks.py``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    UnknownNameError,
    unknown_name,
)
from neurenix._core.names import OptionsExplained
from neurenix._core.number_checks import check_number, whole_number
from neurenix.checkpoint.weights import is_held, put_back, variables_held
from neurenix.train.metric_names import direction_of

if TYPE_CHECKING:
    from neurenix.train.trainer import Trainer

_OPTIONS_ELSEWHERE = {
    "dirpath": "path, with the name of the file",
    "filename": "path",
    "filepath": "path",
    "log_dir": "directory",
    "period": "not needed: the file is written after every epoch",
    "save_freq": "not needed: the file is written after every epoch",
    "threshold": "min_delta",
    "verbose": "not needed: model.fit(…, verbose=True) shows what happens",
}


class Callback(OptionsExplained):
    """Methods that ``fit`` calls; a subclass overrides those it needs.

    ``logs`` maps names to values as in ``History``. Reading a value in ``on_train_batch_end``
    waits for the device, so look only as often as needed. Numbers added in ``on_epoch_end`` go to
    the callbacks after this one and into the history.

    At every moment the model holds the newest weights, and what a method sets is what the next
    compiled call goes on with: arrays of the model (clipped or loaded weights), and
    ``trainer.learning_rate``. That call is the next step, or with ``steps_per_execution=K`` the
    next K. Layers are frozen, unfrozen or replaced between two calls of ``fit``.

    A step reuses the memory of the arrays that it changes. Keep copies of them from one method to
    the next, with ``jax.tree.map(jnp.copy, nnx.state(self.model))``.

    A callback that counts or remembers something across epochs says so in ``state`` and takes it
    back in ``load_state``; ``Trainer.save`` and ``Trainer.load`` then carry it. One that does not
    begins anew, and is named, when training goes on in another process.

    Example:
        >>> class Best(nx.callbacks.Callback):
        ...     def __init__(self):
        ...         self.loss = float("inf")
        ...     def on_epoch_end(self, epoch, logs):
        ...         self.loss = min(self.loss, logs["loss"])
        ...     def state(self):
        ...         return {"loss": self.loss}
        ...     def load_state(self, state):
        ...         self.loss = state["loss"]

    Attributes:
        trainer: the trainer, from ``on_train_begin`` on; set ``trainer.stop_training`` to end.
        model: its module. Its arrays are valid until the next step begins.

    Raises:
        UnknownNameError: when a class is made with a method ``on_…`` that ``fit`` never calls.
    """

    trainer: Trainer
    migration_options = _OPTIONS_ELSEWHERE

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith("on_") and name not in _moments() and callable(getattr(cls, name)):
                raise UnknownNameError(f"{cls.__name__}: {unknown_moment(name)}")

    @property
    def model(self) -> Any:
        """The module that is trained."""
        return self.trainer.module

    def watched(self) -> tuple[str, ...]:
        """Return the names that it needs in the logs of every epoch."""
        return ()

    def state(self) -> Any:
        """Return what another callback of this class must know to go on from here.

        It is None, bool, int, float, str, arrays of NumPy or JAX, or lists, tuples and dicts of
        these; it comes back as it was, bit for bit. It is asked for when the trainer is saved, so
        also within ``on_epoch_end``; an ``on_epoch_end`` still to come is made up for later.
        """
        return None

    def load_state(self, state: Any) -> None:
        """Go on from what ``state`` returned, in this process or an earlier one.

        It is called when training goes on, after every ``on_train_begin``.
        """

    def on_train_begin(self) -> None:
        """Before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Before an epoch."""

    def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
        """After a compiled call; ``step`` counts optimizer steps in the epoch, from 1.

        After ``trainer.stop_training = True`` the epoch ends here, with its validation.
        """

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """After an epoch and its validation."""

    def on_train_end(self) -> None:
        """After the last epoch, also when training was stopped or failed."""


def unknown_moment(name: str) -> UnknownNameError:
    """Build the error for a method that ``fit`` never calls."""
    return unknown_name("moment of a callback", name, _moments())


def _moments() -> list[str]:
    return [name for name in dir(Callback) if name.startswith("on_")]


class Monitor(Callback):
    """A callback that watches one number and knows what better means.

    Args:
        monitor: a name in the logs, such as ``"val_loss"``.
        mode: ``"min"`` when smaller is better, ``"max"`` when larger is, or ``"auto"``: what the
            metric of that name says of itself (``Metric.direction``), or else the words of the
            name: ``loss``, ``error``, ``mae`` … are better when smaller, ``accuracy``, ``auc``,
            ``f1`` … when larger.
        min_delta: a smaller change is none.

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
        """Return the name of the number."""
        return (self.monitor,)

    def on_train_begin(self) -> None:
        """Find out what better means, where the number decides anything.

        Raises:
            ArgumentError: with ``mode="auto"``, neither the metric nor the name tells.
        """
        self._direction = None
        if self.monitor in self.watched():
            self._find_direction()

    def state(self) -> dict[str, Any]:
        """Return the best number."""
        return {"best": self.best}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from the best number of an earlier run."""
        self.best = state["best"]

    def value(self, logs: Mapping[str, float]) -> float:
        """Return the number watched.

        Raises:
            UnknownNameError: the logs have no such name.
        """
        if self.monitor not in logs:
            raise unknown_name("number to monitor", self.monitor, logs)
        return float(logs[self.monitor])

    def improved(self, logs: Mapping[str, float]) -> bool:
        """Tell whether the number is the best so far, and remember it; NaN never is."""
        value = self.value(logs)
        if self.is_better(value, self.best):
            self.best = value
            return True
        return False

    def is_better(self, value: float, than: float) -> bool:
        """Tell whether a number is better by more than ``min_delta``; any is, than NaN."""
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
        monitor: the number.
        patience: epochs without improvement before training stops.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        baseline: an epoch that is not better than this counts as one without improvement.
        restore_best_weights: end with the weights of the best epoch. A ``fit`` that goes on later
            goes on from the newest ones.
        start_from_epoch: epochs before this one (numbered from 0) are not looked at.

    Attributes:
        stopped_epoch: the epoch after which it stopped training, from 0, or None. Where a saved
            trainer was stopped, and is loaded with no more patience, ``fit`` ends at once.
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
        """Forget an earlier run."""
        super().on_train_begin()
        self.best, self._waited, self.stopped_epoch = math.nan, 0, None
        self._best_weights = self._newest_weights = None

    def state(self) -> dict[str, Any]:
        """Return the best number, the epochs since, and the weights to restore."""
        return super().state() | {
            "waited": self._waited,
            "stopped_epoch": self.stopped_epoch,
            "best_weights": self._best_weights,
            "newest_weights": self._newest_weights,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from an earlier run: from its newest weights, where the model has its best ones."""
        super().load_state(state)
        self._waited, best, newest = state["waited"], state["best_weights"], state["newest_weights"]
        if newest is not None and is_held(self.model, best):
            put_back(self.model, newest)
        self._best_weights = best if self.restore_best_weights else None
        if state["stopped_epoch"] is not None and self._waited >= max(self.patience, 1):
            self.stopped_epoch = state["stopped_epoch"]
            self.trainer.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare, and stop when patience is over."""
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
        """Put the best weights back."""
        if self._best_weights is not None:
            self._newest_weights = variables_held(self.model)
            put_back(self.model, jax.tree.map(jnp.copy, self._best_weights))


class LearningRateScheduler(Callback):
    """Set the learning rate before every epoch.

    Args:
        schedule: ``(epoch, learning_rate) -> learning_rate``, or ``epoch -> learning_rate``.

    Raises:
        ArgumentTypeError: ``schedule`` is no function, or takes other arguments.
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
        """Ask the schedule.

        Raises:
            ArgumentError: it returned no rate, or the optimizer's own is 0.
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
    """Tell whether ``function`` takes so many arguments; yes where it does not say."""
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
        monitor: the number.
        factor: the factor, below 1.
        patience: epochs without improvement before it is applied.
        mode: see ``Monitor``.
        min_delta: see ``Monitor``.
        cooldown: epochs after a reduction in which none counts as one without improvement.
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
        """Forget an earlier run; the rate stays as it has become."""
        super().on_train_begin()
        self.best, self._waited, self._cooling = math.nan, 0, 0

    def state(self) -> dict[str, Any]:
        """Return the best number, the epochs since, and those left of the cooldown."""
        return super().state() | {"waited": self._waited, "cooling": self._cooling}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from an earlier run."""
        super().load_state(state)
        self._waited, self._cooling = state["waited"], state["cooling"]

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Compare, and reduce when patience is over."""
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
    """End ``fit`` quietly when the loss is not finite, instead of raising an error.

    The weights are those before the step with the first loss or gradient that is not finite, with
    this callback and without it.
    """


class LambdaCallback(Callback):
    """A callback made of functions, under the names of the methods.

    Example:
        >>> callback = nx.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None)
    """

    def __init__(self, **functions: Callable[..., None]) -> None:
        for name, function in functions.items():
            if name not in _moments():
                raise unknown_moment(name)
            setattr(self, name, function)

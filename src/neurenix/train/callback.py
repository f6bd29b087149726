"""The base class of callbacks, and what a callback may use of the trainer.

Does not own the callbacks of this package (``callbacks.py``, ``file_callbacks.py``, ``ema.py``).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from neurenix._core.errors import UnknownNameError, unknown_name
from neurenix._core.names import OptionsExplained
from neurenix.distribute import Strategy

_OTHER_NAMES = {
    "dirpath": "path, with the name of the file",
    "filename": "path",
    "filepath": "path",
    "log_dir": "directory",
    "period": "not needed: the file is written after every epoch",
    "save_freq": "not needed: the file is written after every epoch",
    "threshold": "min_delta",
    "verbose": "not needed: model.fit(…, verbose=True) shows what happens",
}


class CallbackTrainer(Protocol):
    """The trainer as a callback sees it; ``nx.Trainer`` is one."""

    @property
    def stop_training(self) -> bool:
        """Whether ``fit`` ends; set it to True to end it."""
        ...

    @stop_training.setter
    def stop_training(self, value: bool) -> None: ...

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        ...

    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...

    @property
    def steps_made(self) -> int:
        """Optimizer steps made so far."""
        ...

    @steps_made.setter
    def steps_made(self, value: int) -> None: ...

    @property
    def optimizer_state(self) -> Any:
        """The state of the optimizer, as optax has it."""
        ...

    @optimizer_state.setter
    def optimizer_state(self, value: Any) -> None: ...

    @property
    def module(self) -> Any:
        """The module that is trained."""
        ...

    @property
    def strategy(self) -> Strategy:
        """The strategy that places its arrays."""
        ...

    @property
    def metrics(self) -> tuple[Any, ...]:
        """The metrics, under their names in the logs."""
        ...

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """All callbacks of this ``fit``."""
        ...

    def evaluate(self, x: Any, y: Any = None) -> dict[str, float]:
        """Return the mean loss and the metrics over data."""
        ...

    def predict(self, x: Any) -> Any:
        """Return the module's outputs for data."""
        ...

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state of the training to a file."""
        ...

    def load(self, path: str | os.PathLike[str]) -> Any:
        """Read the state of the training from a file."""
        ...


class Callback(OptionsExplained):
    """Base class of callbacks; a subclass overrides the methods that it needs.

    ``logs`` maps names to numbers, as ``History`` does. Reading a number in ``on_train_batch_end``
    waits for the device, so read only as often as needed. Numbers that ``on_epoch_end`` adds reach
    the callbacks after this one and the history.

    In every method the model holds the newest weights. The next compiled call uses what a method
    sets: arrays of the model (clipped or loaded weights) and ``trainer.learning_rate``. That call
    is the next step, or the next K steps with ``steps_per_execution=K``. Freeze, unfreeze or
    replace layers only between two calls of ``fit``.

    A step reuses the memory of the arrays that it changes. To keep arrays from one method to the
    next, copy them: ``jax.tree.map(jnp.copy, nnx.state(self.model))``.

    A callback that counts or remembers something across epochs returns it from ``state`` and takes
    it in ``load_state``; ``Trainer.save`` and ``Trainer.load`` then include it. When training goes
    on in another process, a callback without them starts anew, and a warning names it.

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
        trainer: the trainer, set before ``on_train_begin``.
        model: its module. Its arrays are valid until the next step begins.

    Raises:
        UnknownNameError: a subclass has a method ``on_…`` that ``fit`` never calls.
    """

    trainer: CallbackTrainer
    migration_options = _OTHER_NAMES

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in dir(cls):
            if name.startswith("on_") and name not in EVENTS and callable(getattr(cls, name)):
                raise UnknownNameError(f"{cls.__name__}: {unknown_event(name)}")

    @property
    def model(self) -> Any:
        """The module that is trained."""
        return self.trainer.module

    def watched(self) -> tuple[str, ...]:
        """Return the names that the logs of every epoch must contain."""
        return ()

    def state(self) -> Any:
        """Return what another callback of this class needs to continue from here.

        Allowed are None, bool, int, float, str, NumPy and JAX arrays, and lists, tuples and dicts
        of these. Values are restored bit for bit. ``Trainer.save`` calls this method, also from
        within an ``on_epoch_end``; an ``on_epoch_end`` that is still due runs after loading.
        """
        return None

    def load_state(self, state: Any) -> None:
        """Continue from what ``state`` returned, in this process or an earlier one.

        Called when training continues, after every ``on_train_begin``.
        """

    def on_train_begin(self) -> None:
        """Run before the first epoch."""

    def on_epoch_begin(self, epoch: int) -> None:
        """Run before an epoch."""

    def on_train_batch_end(self, step: int, logs: Mapping[str, float]) -> None:
        """Run after a compiled call; ``step`` counts optimizer steps in the epoch, from 1.

        After ``trainer.stop_training = True`` the epoch ends here, with its validation.
        """

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Run after an epoch and its validation."""

    def on_train_end(self) -> None:
        """Run after the last epoch, also when training was stopped or failed."""


EVENTS = [name for name in vars(Callback) if name.startswith("on_")]


def unknown_event(name: str) -> UnknownNameError:
    """Return the error for a method that ``fit`` never calls."""
    return unknown_name("moment of a callback", name, EVENTS)

"""One call of ``fit``: epochs, validation, callbacks, and what holds when it ends early.

Owns the order of things in a run, and that the module holds valid weights whenever somebody may
look. It does not own the inner loop (``loop.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import DataError, TrainingDivergedError
from neurenix.train.callbacks import Callback, TerminateOnNaN
from neurenix.train.compiled import CompiledStep
from neurenix.train.diagnosis import explain
from neurenix.train.feed import Feed
from neurenix.train.history import History
from neurenix.train.loop import Diverged, EpochRun
from neurenix.train.progress import Progress, make_progress
from neurenix.train.state import TrainState
from neurenix.train.step import StepDefinition

if TYPE_CHECKING:
    from neurenix.train.trainer import Trainer


class Run:
    """One call of ``fit``: what it needs in every epoch."""

    def __init__(
        self,
        trainer: Trainer,
        definition: StepDefinition,
        step: CompiledStep,
        feed: Feed,
        callbacks: list[Callback],
    ) -> None:
        self._trainer, self._definition = trainer, definition
        self._step, self._feed, self._callbacks = step, feed, callbacks
        self._progress = Progress()
        step.train.flatten(trainer.initial_state(self._definition))
        looks = [c for c in callbacks if _overrides(c, "on_train_batch_end")]
        self._epoch_run = EpochRun(
            step,
            trainer.strategy,
            self._definition.log_names,
            self._batch_end if looks else None,
            trainer.check_labels,
        )
        self._looks = looks

    def epochs(
        self,
        epochs: range,
        steps: int | None,
        validate: Callable[..., dict[str, float]] | None,
        verbose: bool | str,
    ) -> History:
        """Run the epochs and return their numbers."""
        trainer, history = self._trainer, History()
        trainer.stop_training = False
        self._progress = make_progress(verbose)
        try:
            self._call("on_train_begin")
            for epoch in epochs:
                logs = self._epoch(epoch, epochs.stop, steps, validate)
                if logs is None:
                    break
                history.append(epoch, logs)
                self._call("on_epoch_end", epoch, logs)
                self._take_over()
                if trainer.stop_training:
                    break
        finally:
            self._sync()
            self._progress.close()
            trainer.steps_made = int(self._state().step)
            self._call("on_train_end")
        return history

    def _epoch(
        self, epoch: int, last: int, steps: int | None, validate: Callable[..., Any] | None
    ) -> dict[str, float] | None:
        trainer, feed = self._trainer, self._feed
        self._call("on_epoch_begin", epoch)
        state = self._state()._replace(**trainer.epoch_start(self._definition))
        leaves = self._step.train.flatten(state)
        self._progress.begin(f"Epoch {epoch + 1}/{last}", steps or feed.steps)
        began = time.perf_counter()
        try:
            chunks = feed.chunks(steps, self._step.steps)
            logs, made = self._epoch_run.run(leaves, chunks, self._progress.advance)
        except Diverged as diverged:
            self._diverged(diverged, epoch)
            return None
        trainer.steps_made += made
        self._sync()
        if validate is not None and not trainer.stop_training:
            logs |= validate(self._definition, self._state())
        self._progress.end(logs, time.perf_counter() - began)
        return logs

    def _diverged(self, diverged: Diverged, epoch: int) -> None:
        state = self._state()
        began, self._trainer.steps_made = self._trainer.steps_made, int(state.step)
        if any(isinstance(callback, TerminateOnNaN) for callback in self._callbacks):
            self._trainer.stop_training = True
            return
        step, batch = int(state.diverged_at), diverged.chunk.batch
        if self._step.steps > 1:
            inside = (step - began) % self._step.steps
            batch = jax.tree.map(lambda leaf: leaf[inside], batch)
        at = f"step {step} (epoch {epoch + 1})"
        kept = "The model keeps the weights of before that step."
        schedule = self._definition.schedule
        if schedule is not None and not np.isfinite(rate := np.asarray(schedule(step))):
            raise TrainingDivergedError(
                f"The learning rate is {rate} at {at}. {kept} Mend the schedule of the optimizer; "
                "the first step has the number 0."
            )
        try:
            model = jax.tree.map(_gathered, (state.parameters, state.model_state))
            local = state._replace(parameters=model[0], model_state=model[1])
            where = explain(self._definition, local, batch)
        except DataError as error:
            raise DataError(f"{error} It is in the batch of {at}. {kept}") from error
        raise TrainingDivergedError(
            f"The loss or a gradient is not finite at {at}. {where} {kept} Lower the learning "
            "rate, clip gradients (clip_norm=1.0), or look at the data of that batch."
        )

    def _state(self) -> TrainState:
        return self._step.train.state

    def _sync(self) -> None:
        self._trainer.keep(self._definition, self._state())

    def _take_over(self) -> None:
        """Take over what a callback has set: arrays of the module, as copies, or all by a fit."""
        state, model = self._state(), self._definition.model

        def own(now: jax.Array, held: jax.Array) -> jax.Array:
            return held if now is held else jax.device_put(jnp.copy(now), held.sharding)

        held = state.parameters, state.model_state
        parameters, model_state = jax.tree.map(own, model.read(constants=held[1]), held)
        state = state._replace(
            parameters=parameters,
            model_state=model_state,
            optimizer=self._trainer.optimizer_state,
        )
        self._step.train.flatten(state)

    def _batch_end(self, step: int, logs: Mapping[str, float]) -> bool:
        self._sync()
        for callback in self._looks:
            callback.on_train_batch_end(step, logs)
        return self._trainer.stop_training

    def _call(self, moment: str, *args: Any) -> None:
        for callback in self._callbacks:
            getattr(callback, moment)(*args)


def _gathered(leaf: jax.Array) -> jax.Array:
    """Return the array as one on the default device, not on those of the strategy."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = jnp.asarray(np.asarray(jax.random.key_data(leaf)))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    return jnp.asarray(np.asarray(leaf))


def _overrides(callback: Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)

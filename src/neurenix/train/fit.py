"""One call of ``fit``: epochs, validation, callbacks, and what holds when it ends early.

Owns the order of things in a run, that the module holds valid weights whenever somebody may look,
and that what a callback sets is trained on. It does not own the inner loop (``epoch.py``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, DataError, ShapeError, TrainingDivergedError
from neurenix._jit.donated_arrays import gone_explained
from neurenix._jit.random_keys import like, numbers_of
from neurenix.train.callback_states import CallbackStates
from neurenix.train.callbacks import Callback, TerminateOnNaN
from neurenix.train.compiled_steps import CompiledStep
from neurenix.train.device_state import Session
from neurenix.train.divergence import explain
from neurenix.train.ema import averaging
from neurenix.train.epoch import Diverged, EpochRun
from neurenix.train.epoch_iterator import Feed
from neurenix.train.history import History
from neurenix.train.module_split import ModuleSplit
from neurenix.train.progress import Progress, make_progress
from neurenix.train.train_state import TrainState
from neurenix.train.trainer_state import Standing

if TYPE_CHECKING:
    from neurenix.train.trainer import Trainer


class HandedOut(NamedTuple):
    """What the module and the trainer hold while callbacks may look at it and set it.

    Attributes:
        state: the state that it is of.
        arrays: those of the module's variables.
        standing: where the trainer says that training stands, a copy.
    """

    state: TrainState
    arrays: list[Any]
    standing: Standing


class Run:
    """One call of ``fit``: what it needs in every epoch."""

    def __init__(
        self,
        trainer: Trainer,
        session: Session,
        step: CompiledStep,
        feed: Feed,
        states: CallbackStates,
    ) -> None:
        self._trainer, self._session = trainer, session
        self._definition, self._standing = session.definition, session.standing
        self._step, self._feed = step, feed
        self._states, self._callbacks = states, states.callbacks
        self._progress = Progress()
        self._out: HandedOut | None = None  # None while steps are made
        self._began = self._standing.steps_made  # before this epoch
        self._emas = averaging(self._callbacks)
        step.train.flatten(session.initial_state(self._emas))
        looks = [c for c in self._callbacks if _overrides(c, "on_train_batch_end")]
        self._epoch_run = EpochRun(
            step,
            session.strategy,
            self._definition.log_names,
            self._batch_end if looks else None,
            session.check.labels,
        )
        self._looks = looks

    def epochs(
        self,
        epochs: range,
        steps: int | None,
        validate: Callable[[TrainState], dict[str, float]] | None,
        verbose: bool | str,
    ) -> History:
        """Run the epochs and return their numbers."""
        trainer, history = self._trainer, History()
        trainer.stop_training = False
        self._progress = make_progress(verbose)
        try:
            self._hand_out(self._standing.steps_made)
            self._call("on_train_begin")
            self._follow_load(epochs.start, steps)
            for epoch in epochs:
                if trainer.stop_training:
                    break
                logs = self._epoch(epoch, epochs.stop, steps, validate)
                if logs is None:
                    break
                self._call("on_epoch_end", epoch, logs)
                history.append(epoch, logs)
        finally:
            with ExitStack() as each:  # one that raises keeps no other from its end
                for callback in reversed(self._callbacks):
                    each.callback(self._end, callback)
                each.callback(self._progress.close)
                each.callback(self._settle)
        return history

    def _follow_load(self, initial_epoch: int, steps: int | None) -> None:
        """Go on within the data where a callback has loaded another place in it."""
        now, feed = self._standing, self._feed
        if (now.passes, now.batches_of_pass) != (feed.passes, feed.batches_of_pass):
            feed.begin_at(*now.begin(initial_epoch, steps))

    def _epoch(
        self,
        epoch: int,
        last: int,
        steps: int | None,
        validate: Callable[[TrainState], dict[str, float]] | None,
    ) -> dict[str, float] | None:
        feed = self._feed
        self._call("on_epoch_begin", epoch)
        state = self._state()._replace(**self._session.epoch_start())
        self._step.train.flatten(state)
        self._progress.begin(f"Epoch {epoch + 1}/{last}", steps or feed.steps)
        self._began, self._out = self._standing.steps_made, None
        began = time.perf_counter()
        try:
            may_fill = self._session.filling.judge(
                "fit",
                self._epoch_run.trial,
                self._definition.forward,
                changes_weights=True,
            )
            per_call, exact = self._step.steps, not self._step.takes_count
            chunks = feed.chunks(steps, per_call, may_fill=may_fill, exact=exact)
            logs, made = self._epoch_run.run(chunks, self._progress.advance)
        except Diverged as diverged:
            self._diverged(diverged, epoch)
            return None
        self._hand_out(self._began + made)
        if validate is not None:
            logs |= validate(self._validated(self._state()))
        self._progress.end(logs, time.perf_counter() - began)
        return logs

    def _diverged(self, diverged: Diverged, epoch: int) -> None:
        state = self._state()
        if any(isinstance(callback, TerminateOnNaN) for callback in self._callbacks):
            self._trainer.stop_training = True
            return
        step, batch = int(state.step), diverged.chunk.batch
        if self._step.steps > 1:
            inside = step - self._began - diverged.before
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

    def _validated(self, state: TrainState) -> TrainState:
        """Return the state to evaluate: with an average for the weights, where that is wanted."""
        for ema, average in zip(self._emas, state.averages, strict=True):
            if "validation" in ema.swap:
                model = ema.rule.put_into(average, (state.parameters, state.model_state))
                return state._replace(parameters=model[0], model_state=model[1])
        return state

    def _state(self) -> TrainState:
        return self._step.train.state

    def _hand_out(self, steps: int) -> None:
        """Make the module and the trainer hold the newest state, of after so many steps."""
        state = self._state()
        self._session.keep(state, self._emas)
        standing, feed = self._standing, self._feed
        standing.steps_made = steps
        standing.passes, standing.batches_of_pass = feed.passes, feed.batches_of_pass
        self._out = self._held_by_trainer(state)

    def _held_by_trainer(self, state: TrainState) -> HandedOut:
        return HandedOut(state, self._definition.model.held(), replace(self._standing))

    def _take_over(self, out: HandedOut) -> None:
        """Go on with what a callback has set: weights, the optimizer's state, rate and step.

        Arrays are taken over as copies: a step gives away those that it trains on.

        Raises:
            ShapeError: a weight was set to one of another shape.
            ArgumentError: the optimizer's state was set to one of another structure, or other
                parameters are to be trained than the compiled step trains.
        """
        model, state = self._definition.model, out.state
        self._out = None  # what cannot be taken over is put back by ``_settle``
        if not model.is_current():
            _check_same(model, ModuleSplit(self._trainer.module))
        held, changed = self._held_by_trainer(state), {}
        now, before = held.standing, out.standing
        if not all(map(is_, held.arrays, out.arrays)):
            old = state.parameters, state.model_state
            new = _owned(model.read(constants=state.model_state), old)
            changed["parameters"], changed["model_state"] = new
        if now.optimizer_state is not before.optimizer_state:
            changed["optimizer"] = _owned_optimizer(now.optimizer_state, state.optimizer)
        averages = tuple(ema.average for ema in self._emas)
        if not all(map(is_, averages, state.averages)):
            changed["averages"] = _owned(averages, state.averages)
        if now.steps_made != before.steps_made:
            changed["step"] = jax.device_put(np.int32(now.steps_made), state.step.sharding)
            self._began += now.steps_made - before.steps_made
        if now.learning_rate_scale != before.learning_rate_scale:
            scale, sharding = now.learning_rate_scale, state.learning_rate_scale.sharding
            changed["learning_rate_scale"] = jax.device_put(np.float32(scale), sharding)
        if changed:
            state = state._replace(**changed)
            self._step.train.flatten(state)
        self._out = held._replace(state=state)

    def _settle(self) -> None:
        """Make the module and the trainer hold what training ends with."""
        if self._out is None:
            self._hand_out(int(self._state().step))
        elif self._standing.steps_made == self._out.standing.steps_made:  # as the host counted
            self._standing.steps_made = int(self._out.state.step)

    def _batch_end(self, step: int, logs: Mapping[str, float]) -> bool:
        self._hand_out(self._began + step)
        for callback in self._looks:
            with gone_explained(f"{type(callback).__name__}.on_train_batch_end"):
                callback.on_train_batch_end(step, logs)
        if self._out is not None:
            with gone_explained("What a callback has set"):
                self._take_over(self._out)
        self._out = None
        return self._trainer.stop_training

    def _call(self, moment: str, *args: Any) -> None:
        ends = moment == "on_epoch_end"
        for number, callback in enumerate(self._callbacks):
            if ends:
                self._states.epoch_ends(number, *args)
            with gone_explained(f"{type(callback).__name__}.{moment}"):
                getattr(callback, moment)(*args)
        if ends:
            self._states.epoch_ended()
        self._states.hand_out()
        if self._out is not None:
            with gone_explained("What a callback has set"):
                self._take_over(self._out)

    def _end(self, callback: Callback) -> None:
        with gone_explained(f"{type(callback).__name__}.on_train_end"):
            callback.on_train_end()


def _check_same(model: ModuleSplit, now: ModuleSplit) -> None:
    """Raise unless a module, some attributes of which were set, still trains the same parameters.

    What else was set is waiting for the next call of ``fit``.
    """
    if not now.same_parameters(model):
        raise ArgumentError(
            "The parameters that are trained became others while fit ran: a callback has frozen, "
            "unfrozen or replaced layers. Do that between two calls of fit."
        )
    if now.same_structure(model):
        model.renew(now)


def _owned(new: Any, held: Any) -> Any:
    """Return arrays like ``held`` with the values of ``new``: copies, but of what is ``held``."""

    def own(now: Any, held: jax.Array) -> jax.Array:
        if now is held:
            return held
        if now.shape != held.shape:
            leaves = jax.tree_util.tree_leaves_with_path(new)
            path = next(path for path, leaf in leaves if leaf is now)[1:]
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ShapeError(
                f"A callback has set {name} to shape {now.shape}, and fit began with {held.shape}."
            )
        copy = jnp.copy(now)
        copy = copy if copy.dtype == held.dtype else copy.astype(held.dtype)
        return jax.device_put(copy, held.sharding)

    return jax.tree.map(own, new, held)


def _owned_optimizer(new: Any, held: Any) -> Any:
    if jax.tree.structure(new) != jax.tree.structure(held):
        raise ArgumentError(
            "The optimizer's state became one of another structure while fit ran: a callback has "
            "set it, or has frozen, unfrozen or replaced layers. Do that between two calls of fit."
        )
    return _owned((new,), (held,))[0]


def _gathered(leaf: jax.Array) -> jax.Array:
    """Return the array as one on the default device, not on those of the strategy."""
    return like(leaf, jnp.asarray(np.asarray(numbers_of(leaf))))


def _overrides(callback: Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)

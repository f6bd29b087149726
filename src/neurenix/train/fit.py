"""One call of ``fit``: epochs, validation, callbacks, and the state after an early end.

The module holds valid weights whenever user code runs, and training uses what a callback sets. Does
not own the inner loop (``epoch.py``).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from operator import is_
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, DataError, ShapeError, TrainingDivergedError
from neurenix._core.output_encoding import shown
from neurenix._jit.donated_arrays import gone_explained
from neurenix._jit.process_arrays import put, uncommitted
from neurenix.train.batch_check import expect_one_part
from neurenix.train.batch_sources import is_arrays, make_dataset
from neurenix.train.callback import Callback
from neurenix.train.callback_states import as_callbacks, check_watched
from neurenix.train.callbacks import TerminateOnNaN
from neurenix.train.divergence import explain
from neurenix.train.ema import averaging
from neurenix.train.epoch import Diverged, EpochRun
from neurenix.train.epoch_iterator import EpochIterator
from neurenix.train.evaluation import validator
from neurenix.train.module_split import ModuleSplit
from neurenix.train.options import FitOptions
from neurenix.train.progress import Progress, make_progress
from neurenix.train.step import StepState
from neurenix.train.trainer_state import DataPosition, TrainerState
from neurenix.train.validation_split import check_arrays, hold_out


class History(Mapping[str, list[float]]):
    """Metric name → its value after each epoch; names of validation metrics begin with ``val_``.

    Values that a callback adds to the logs in ``on_epoch_end`` are included, numbers or not.

    Attributes:
        epochs: the number of each epoch, from 0.

    Example:
        >>> history = nx.History()
        >>> history.append(0, {"loss": 0.5})
        >>> history["loss"], history.history
        ([0.5], {'loss': [0.5]})
    """

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self._rows: dict[str, list[float]] = {}

    @property
    def history(self) -> dict[str, list[float]]:
        """The same as a plain dict, as in Keras."""
        return dict(self._rows)

    def append(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Add the numbers of one epoch."""
        self.epochs.append(epoch)
        for name, value in logs.items():
            try:
                value = float(value)
            except (TypeError, ValueError):  # added by a callback, such as a text or an array
                pass
            self._rows.setdefault(name, []).append(value)

    def __getitem__(self, name: str) -> list[float]:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        numbers = {n: v[-1] for n, v in self._rows.items() if isinstance(v[-1], float)}
        last = ", ".join(f"{name}: {value:.4f}" for name, value in numbers.items())
        return shown(f"History({len(self.epochs)} epochs; last {last})")


class Snapshot(NamedTuple):
    """The values that callbacks can read and set, before they run.

    Attributes:
        state: the step's state.
        arrays: the arrays of the module's variables.
        optimizer: the optimizer's state.
        steps_made: optimizer steps made.
        learning_rate_scale: factor on the learning rate.
    """

    state: StepState
    arrays: list[Any]
    optimizer: Any
    steps_made: int
    learning_rate_scale: float


class FitRun:
    """One call of ``fit``. Making it checks all arguments; ``epochs`` trains.

    Args:
        state: the trainer's state, which the run advances.
        data: inputs and targets.
        batch_size: for arrays.
        steps_per_epoch: optimizer steps of an epoch; None for one pass over the data.
        validation_data: as for ``fit``.
        callbacks: as for ``fit``.
        options: as for ``fit``.

    Attributes:
        callbacks: the callbacks, as a list.
        batch: shapes of inputs, targets and, if the step takes them, weights.
        steps: optimizer steps of an epoch; None if uncertain.
        whole_calls: whether every compiled call makes ``steps_per_execution`` steps.
    """

    def __init__(
        self,
        state: TrainerState,
        data: tuple[Any, Any],
        *,
        batch_size: int | None,
        steps_per_epoch: int | None,
        validation_data: Any,
        callbacks: Any,
        options: FitOptions,
    ) -> None:
        self.callbacks = as_callbacks(callbacks)
        self._state, self._options = state, options
        self._device = device = state.on_devices()
        definition, check = device.definition, device.check
        definition.model.check_trainable()
        (x, y), weights = data, options.sample_weight
        if options.validation_split:
            check_arrays(y is not None or is_arrays(x), validation_data)
            kept, validation_data = hold_out(x, y, weights, options.validation_split)
            x, y, weights = kept
        position = state.position.resumed(options.initial_epoch, steps_per_epoch)
        self._batches = batches = EpochIterator(
            make_dataset(x, y, weights, batch_size, shuffle=options.shuffle),
            replicas=device.strategy.num_replicas_in_sync,
            class_weight=options.class_weight,
            passes=position.passes,
        )
        batches.go_on(position.batches)
        batches.check_end(steps_per_epoch, "steps_per_epoch")
        check.first(batches.first)
        definition.expect_whole_parts(batches.global_batch_size)
        if check.leave_whole(batches):
            expect_one_part(definition.loss, definition.accumulate_steps)
        self._validate = None
        if validation_data is not None:
            size = options.validation_batch_size or batch_size or batches.global_batch_size
            self._validate = validator(device, validation_data, size, options.validation_steps)
        validated, self._names = self._validate is not None, definition.log_names
        check_watched(self.callbacks, self._names, validated=validated)
        self._steps_per_epoch, self.steps = steps_per_epoch, steps_per_epoch or batches.exact_steps
        self._emas = averaging(self.callbacks) if self.callbacks else []
        averages = tuple(ema.rule for ema in self._emas)
        per_call = state.config.options.steps_per_execution
        self._step = device.step(per_call, self.steps, averages)
        self.whole_calls = self._step.call.exact
        self.batch = tuple(part for part in batches.spec if part is not None)
        resumes = options.initial_epoch > 0 and not state.stop_training
        state.callbacks.begin(self.callbacks, goes_on=resumes)
        self._progress = Progress()
        self._snapshot: Snapshot | None = None  # None while steps are made
        self._began = state.steps_made  # before this epoch

    def epochs(self, last: int) -> History:
        """Run the epochs before ``last``, and return their numbers."""
        device, step = self._device, self._step
        step.train.flatten(device.initial_state(self._emas))
        self._looks = [c for c in self.callbacks if _overrides(c, "on_train_batch_end")]
        self._epoch_run = EpochRun(
            step,
            device.strategy,
            self._names,
            self._batch_end if self._looks else None,
            device.check.labels,
            self._batches.process_local,
        )
        try:
            return self._epochs(range(self._options.initial_epoch, last))
        finally:
            self._state.position = self._position()

    def _position(self) -> DataPosition:
        return DataPosition(self._batches.passes, self._batches.batches_of_pass)

    def _epochs(self, epochs: range) -> History:
        state, history = self._state, History()
        state.stop_training = False
        self._progress = make_progress(self._options.verbose)
        try:
            self._hand_out(state.steps_made)
            self._call("on_train_begin")
            self._follow_load()
            for epoch in epochs:
                if state.stop_training:
                    break
                logs = self._epoch(epoch, epochs.stop)
                if logs is None:
                    break
                self._call("on_epoch_end", epoch, logs)
                history.append(epoch, logs)
        finally:
            with ExitStack() as each:  # all run, even if one raises
                for callback in reversed(self.callbacks):
                    each.callback(self._end, callback)
                each.callback(self._progress.close)
                each.callback(self._settle)
        return history

    def _follow_load(self) -> None:
        """Continue at the position in the data that a callback has loaded, if any."""
        if self._state.position != self._position():
            resumed = self._state.position.resumed(
                self._options.initial_epoch, self._steps_per_epoch
            )
            self._batches.begin_at(*resumed)

    def _epoch(self, epoch: int, last: int) -> dict[str, float] | None:
        batches, steps = self._batches, self._steps_per_epoch
        self._call("on_epoch_begin", epoch)
        state = self._step.train.state._replace(**self._device.epoch_start())
        self._step.train.flatten(state)
        self._progress.begin(f"Epoch {epoch + 1}/{last}", self.steps or batches.steps)
        self._began, self._snapshot = self._state.steps_made, None
        began = time.perf_counter()
        try:
            may_fill = self._device.padding.judge(
                "fit",
                self._epoch_run.trial,
                self._device.definition.forward,
                changes_weights=True,
            )
            per_call, exact = self._step.steps, not self._step.takes_count
            chunks = batches.chunks(steps, per_call, may_fill=may_fill, exact=exact)
            logs, made = self._epoch_run.run(chunks, self._progress.advance)
        except Diverged as diverged:
            self._diverged(diverged, epoch)
            return None
        self._hand_out(self._began + made)
        if self._validate is not None:
            logs |= self._validate(self._validated(self._step.train.state))
        self._progress.end(logs, time.perf_counter() - began)
        return logs

    def _diverged(self, diverged: Diverged, epoch: int) -> None:
        state = self._step.train.state
        if any(isinstance(callback, TerminateOnNaN) for callback in self.callbacks):
            self._state.stop_training = True
            return
        step, batch = int(state.step), diverged.chunk.batch
        if self._step.steps > 1:
            inside = step - self._began - diverged.before
            batch = jax.tree.map(lambda leaf: leaf[inside], batch)
        batch = self._batches.whole(batch)
        at = f"step {step} (epoch {epoch + 1})"
        kept = "The model has the weights from before that step."
        schedule = self._device.definition.schedule
        if schedule is not None and not np.isfinite(rate := np.asarray(schedule(step))):
            raise TrainingDivergedError(
                f"The learning rate is {rate} at {at}. {kept} Fix the schedule of the optimizer; "
                "the first step has the number 0."
            )
        try:
            model = jax.tree.map(uncommitted, (state.parameters, state.model_state))
            local = state._replace(parameters=model[0], model_state=model[1])
            where = explain(self._device.definition, local, batch)
        except DataError as error:
            raise DataError(f"{error} The batch is that of {at}. {kept}") from error
        raise TrainingDivergedError(
            f"The loss or a gradient is not finite at {at}. {where} {kept} Lower the learning "
            "rate, clip gradients (clip_norm=1.0), or look at the data of that batch."
        )

    def _validated(self, state: StepState) -> StepState:
        """Return the state to validate; an EMA with ``"validation"`` replaces the weights."""
        for ema, average in zip(self._emas, state.averages, strict=True):
            if "validation" in ema.swap:
                model = ema.rule.put_into(average, (state.parameters, state.model_state))
                return state._replace(parameters=model[0], model_state=model[1])
        return state

    def _hand_out(self, steps: int) -> None:
        """Store the newest arrays, and the number of steps, in the module and the trainer."""
        after = self._step.train.state
        self._device.keep(after, self._emas)
        self._state.steps_made, self._state.position = steps, self._position()
        self._snapshot = self._take_snapshot(after)

    def _take_snapshot(self, after: StepState) -> Snapshot:
        state, arrays = self._state, self._device.definition.model.held()
        return Snapshot(after, arrays, state.optimizer, state.steps_made, state.learning_rate_scale)

    def _take_over(self, before: Snapshot) -> None:
        """Continue with the weights, optimizer state, rate and step that callbacks have set.

        Arrays are copied, because a step donates its arguments.

        Raises:
            ShapeError: the shape of a weight has changed.
            ArgumentError: the structure of the optimizer's state, or the set of trained parameters,
                has changed.
        """
        model, state = self._device.definition.model, before.state
        self._snapshot = None  # ``_settle`` restores what cannot be taken over
        if not model.is_current():
            _check_same(model, ModuleSplit(self._state.module))
        now, changed = self._take_snapshot(state), {}
        if not all(map(is_, now.arrays, before.arrays)):
            old = state.parameters, state.model_state
            new = _owned(model.read(constants=state.model_state), old)
            changed["parameters"], changed["model_state"] = new
        if now.optimizer is not before.optimizer:
            changed["optimizer"] = _owned_optimizer(now.optimizer, state.optimizer)
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
        self._snapshot = now._replace(state=state)

    def _settle(self) -> None:
        """Store the final state in the module and the trainer."""
        if self._snapshot is None:
            self._hand_out(int(self._step.train.state.step))
        elif self._state.steps_made == self._snapshot.steps_made:  # as the host counted
            self._state.steps_made = int(self._snapshot.state.step)

    def _batch_end(self, step: int, logs: Mapping[str, float]) -> bool:
        self._hand_out(self._began + step)
        for callback in self._looks:
            with gone_explained(f"{type(callback).__name__}.on_train_batch_end"):
                callback.on_train_batch_end(step, logs)
        if self._snapshot is not None:
            with gone_explained("What a callback has set"):
                self._take_over(self._snapshot)
        self._snapshot = None
        return self._state.stop_training

    def _call(self, moment: str, *args: Any) -> None:
        ends = moment == "on_epoch_end"
        for number, callback in enumerate(self.callbacks):
            if ends:
                self._state.callbacks.epoch_ends(number, *args)
            with gone_explained(f"{type(callback).__name__}.{moment}"):
                getattr(callback, moment)(*args)
        if ends:
            self._state.callbacks.epoch_ended()
        self._state.callbacks.hand_out()
        if self.callbacks and self._snapshot is not None:
            with gone_explained("What a callback has set"):
                self._take_over(self._snapshot)

    def _end(self, callback: Callback) -> None:
        with gone_explained(f"{type(callback).__name__}.on_train_end"):
            callback.on_train_end()


def _check_same(model: ModuleSplit, now: ModuleSplit) -> None:
    """Raise if the trained parameters of a changed module are others.

    Other changed attributes take effect in the next call of ``fit``.
    """
    if not now.same_parameters(model):
        raise ArgumentError(
            "The set of trained parameters changed while fit ran: a callback has frozen, unfrozen "
            "or replaced layers. Do that between two calls of fit."
        )
    if now.same_structure(model):
        model.renew(now)


def _owned(new: Any, held: Any) -> Any:
    """Return copies of the arrays of ``new`` in the dtypes and shardings of ``held``.

    An array that is in ``held`` is returned unchanged.
    """

    def own(now: Any, held: jax.Array) -> jax.Array:
        if now is held:
            return held
        if now.shape != held.shape:
            leaves = jax.tree_util.tree_leaves_with_path(new)
            path = next(path for path, leaf in leaves if leaf is now)[1:]
            name = jax.tree_util.keystr(path, simple=True, separator=".")
            raise ShapeError(
                f"A callback has set {name} to shape {now.shape}; fit started with {held.shape}."
            )
        copy = jnp.copy(now)
        copy = copy if copy.dtype == held.dtype else copy.astype(held.dtype)
        return put(copy, held.sharding)

    return jax.tree.map(own, new, held)


def _owned_optimizer(new: Any, held: Any) -> Any:
    if jax.tree.structure(new) != jax.tree.structure(held):
        raise ArgumentError(
            "The structure of the optimizer's state changed while fit ran: a callback has set it, "
            "or has frozen, unfrozen or replaced layers. Do that between two calls of fit."
        )
    return _owned((new,), (held,))[0]


def _overrides(callback: Callback, name: str) -> bool:
    return name in vars(callback) or getattr(type(callback), name) is not getattr(Callback, name)

"""``Trainer``: fit, evaluate and predict for any NNX module.

Owns the user's interface, and the order of the checks before anything is compiled. It does not own
what a trainer keeps between calls (``trainer_state.py``), what a call works with
(``device_state.py``), the order of things in a run (``fit.py``), the step (``step.py``) or the data
(``epoch_iterator.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.names import answers
from neurenix._core.number_checks import whole_number
from neurenix._jit import hooks
from neurenix._jit.flat_modules import expect_built
from neurenix._migration.trainer import OF_TRAINER
from neurenix._nnx import nnx
from neurenix.distribute import Strategy
from neurenix.distribute.strategy import strategy_for
from neurenix.metrics import Metric
from neurenix.train.batch_dependence_check import expect_one_part
from neurenix.train.batch_sources import is_arrays, make_dataset, make_inputs
from neurenix.train.callbacks import Callback
from neurenix.train.config import Recipe
from neurenix.train.device_state import Session
from neurenix.train.ema import averaging
from neurenix.train.epoch_iterator import Feed
from neurenix.train.evaluation import Pass, validator
from neurenix.train.fit import Run
from neurenix.train.fit_arguments import as_callbacks, check_options, check_watched, optional_number
from neurenix.train.history import History
from neurenix.train.module_lock import entered
from neurenix.train.options import (
    DEFAULT_FIT_OPTIONS,
    DEFAULT_TRAIN_OPTIONS,
    FIT_OPTIONS,
    FitOptions,
    TrainOptions,
)
from neurenix.train.progress import shown
from neurenix.train.step import expect_callable
from neurenix.train.step_arrays import StepStates
from neurenix.train.step_spec import Described
from neurenix.train.trainer_checkpoint import Resumable
from neurenix.train.trainer_state import Kept
from neurenix.train.validation_split import check_arrays, hold_out


class Trainer(Described, Resumable, StepStates):
    """Trains a module on the devices of a strategy.

    Args:
        module: any NNX module, of ``nx.nn`` or not.
        optimizer: a name, one of ``nx.optim``, or an optax transformation.
        loss: a name, one of ``nx.losses``, or a function ``(y_true, y_pred) -> losses``. Needed by
            ``fit`` and ``evaluate``. For a model of several outputs a dict by output, or a list.
        loss_weights: factors of such losses in their sum, in the same form; 1 by default.
        metrics: names, metrics of ``nx.metrics`` or functions ``(y_true, y_pred)``; a dict by
            output for a model of several. Those of one name are numbered: precision, precision_1.
            Weights of examples and classes count in them, as in Keras's ``weighted_metrics``. A
            function's number for a batch is averaged as ``nx.metrics.FunctionMetric`` says.
        options: how a step is built.

    Raises:
        UnknownNameError: no optimizer, loss or metric has that name.
        ArgumentError: a metric is called as the loss, or as a number of validation, is.
        ArgumentTypeError: ``module`` is no NNX module, or an option does not exist.

    Example:
        >>> import numpy as np
        >>> from flax import nnx
        >>> trainer = nx.Trainer(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), optimizer="sgd", loss="mse")
        >>> history = trainer.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2, verbose=False)
        >>> len(history["loss"])
        2
    """

    @answers(OF_TRAINER)
    def __init__(
        self,
        module: nnx.Module,
        *,
        optimizer: Any = "adam",
        loss: Any = None,
        loss_weights: Any = None,
        metrics: Any = (),
        options: TrainOptions = DEFAULT_TRAIN_OPTIONS,
    ) -> None:
        expect_built(module)
        if not isinstance(module, nnx.Module):
            raise ArgumentTypeError(
                f"Trainer: module is {type(module).__name__}, expected a module (nnx.Module)."
            )
        expect_callable(module)
        self._options = options
        self.stop_training = False
        self._kept = Kept(module, Recipe.of(optimizer, loss, loss_weights, metrics, options))

    @property
    def module(self) -> nnx.Module:
        """The module that it trains, and no other: another one takes another trainer."""
        return self._kept.module

    @property
    def options(self) -> TrainOptions:
        """How a step is built."""
        return self._options

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step; setting it compiles nothing.

        Set in ``on_train_batch_end`` it holds from the next compiled call on, which is the next
        step, or with ``steps_per_execution=K`` the next K. With a schedule it is the schedule's
        value times the factor that setting has put on it.

        Raises:
            ArgumentError: the optimizer is an optax transformation, which hides its rate; the
                value set is no rate; or the optimizer's own rate is 0, which no factor changes.
        """
        own, standing = self._kept.recipe.own_rate, self._kept.standing
        return own.at(standing.steps_made) * standing.learning_rate_scale

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        own, standing = self._kept.recipe.own_rate, self._kept.standing
        kept = standing.learning_rate_scale
        standing.learning_rate_scale = own.factor(value, standing.steps_made, kept=kept)

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, under the names that the logs have. The numbers are not in them."""
        return self._kept.recipe.metrics

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks of the latest ``fit``."""
        return tuple(self._kept.callbacks.callbacks)

    @entered
    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Callback | Iterable[Callback] | None = (),
        options: FitOptions = DEFAULT_FIT_OPTIONS,
        **more: Any,
    ) -> History:
        """Train the module.

        Args:
            x: inputs (N, …) with ``y``, in a tuple for a model of several; or a dataset, or any
                iterable of batches.
            y: targets (N, …).
            epochs: number of the last epoch; the first is ``options.initial_epoch``.
            batch_size: examples of one step over all replicas, for arrays; 32 by default. The last
                batch is filled up and masked, so that no example is lost and the step compiles
                once. Where the module, tried with different added rows, computes something else
                for the others (a ``flax.nnx.BatchNorm``, a mean over the batch), the batch is
                computed as it is instead, which compiles the step once more and is said once.
            steps_per_epoch: optimizer steps of an epoch; needed when the data never ends.
            validation_data: evaluated after every epoch: a dataset, ``(x, y)`` or
                ``(x, y, sample_weight)``.
            callbacks: called in order; one alone will do.
            options: sample and class weights, shuffling, progress.
            more: fields of ``FitOptions`` by themselves, such as ``verbose=0``; they come before
                those of ``options``.

        Returns:
            the numbers of every epoch.

        Raises:
            DataError: empty, ragged or mismatched data; labels out of range.
            ShapeError: the model does not take inputs of this shape, or the loss these targets.
            TrainingDivergedError: the loss, a gradient or the learning rate is not finite. The
                module then has the weights of before that step.
            UnknownNameError: a callback watches a number that the logs will not have.
            NotCompiledError: the trainer has no loss.
            ModuleInUseError: another thread trains, evaluates or predicts with the module.
            OutOfMemoryError: the step takes more memory than there is.
            ArgumentError: an option cannot be used; the loss or a metric couples the examples
                (``FunctionLoss``) and a batch would be filled up, weighted or taken in parts.
            ArgumentTypeError: an option does not exist.
        """
        check_options("fit", more, FIT_OPTIONS)
        options = dataclasses.replace(options, **more)
        epochs = whole_number("epochs", epochs)
        batch_size = optional_number("batch_size", batch_size)
        steps_per_epoch = optional_number("steps_per_epoch", steps_per_epoch)
        if options.initial_epoch >= epochs:
            raise ArgumentError(
                f"initial_epoch={options.initial_epoch} leaves nothing to do: epochs={epochs} is "
                "the number of the last epoch, not how many to add."
            )
        called = as_callbacks(callbacks)
        session, standing = self._session(), self._kept.standing
        definition, check = session.definition, session.check
        definition.model.check_trainable()
        weights = options.sample_weight
        if options.validation_split:
            check_arrays(y is not None or is_arrays(x), validation_data)
            kept, validation_data = hold_out(x, y, weights, options.validation_split)
            x, y, weights = kept
        dataset = make_dataset(x, y, weights, batch_size, shuffle=options.shuffle)
        passes, within = standing.begin(options.initial_epoch, steps_per_epoch)
        feed = Feed(
            dataset,
            replicas=session.strategy.num_replicas_in_sync,
            class_weight=options.class_weight,
            passes=passes,
        )
        feed.go_on(within)
        feed.check_end(steps_per_epoch, "steps_per_epoch")
        check.first(feed.first)
        definition.expect_whole_parts(feed.batch_size)
        if check.leave_whole(feed):
            expect_one_part(definition.loss, definition.accumulate_steps)
        validate = validator(session, validation_data, batch_size or feed.batch_size, options)
        check_watched(called, definition.log_names, validated=validate is not None)
        for callback in called:
            callback.trainer = self
        steps = steps_per_epoch or feed.exact_steps
        averages = tuple(ema.rule for ema in averaging(called))
        step = session.step(self.options.steps_per_execution, steps, averages)
        states = self._kept.callbacks
        states.begin(called, goes_on=options.initial_epoch > 0 and not self.stop_training)
        run = Run(self, session, step, feed, states)
        spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), feed.first)
        batch = tuple(part for part in spec if part is not None)
        hooks.first_step(self, batch, steps, whole_calls=step.call.exact)
        try:
            to_do = range(options.initial_epoch, epochs)
            return run.epochs(to_do, steps_per_epoch, validate, options.verbose)
        finally:
            standing.passes, standing.batches_of_pass = feed.passes, feed.batches_of_pass

    @entered
    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        sample_weight: Any = None,
        verbose: bool | str = False,
    ) -> dict[str, float]:
        """Return the mean loss and the metrics over data, in evaluation mode, by name.

        A dict also where there are metrics: ``loss, accuracy = evaluate(x, y)`` would be its two
        names. Write ``logs = evaluate(x, y)`` and ``logs["accuracy"]``.

        Args:
            x: inputs with ``y``, or a dataset.
            y: targets.
            batch_size: for arrays; 32 by default.
            steps: batches; None for all.
            sample_weight: weight of each example, shape (N,), for arrays.
            verbose: show progress: True, ``"auto"`` on a terminal only, or False.

        Raises:
            DataError: as ``fit``.
            NotCompiledError: the trainer has no loss.
            ArgumentError: the loss or a metric couples examples, as for ``fit``.
        """
        steps, batch_size = _evaluation_counts(steps, batch_size)
        dataset = make_dataset(x, y, sample_weight, batch_size, shuffle=False)
        session = self._session()
        feed = Feed(dataset, replicas=session.strategy.num_replicas_in_sync, weighted=True)
        feed.check_end(steps, "steps")
        session.check.first(feed.first)
        session.check.leave_whole(feed)
        model = session.model()
        with shown(verbose, "Evaluating", steps or feed.steps) as progress:
            return Pass(session, model, feed, steps, progress).logs()

    @entered
    def predict(
        self,
        x: Any,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        verbose: bool | str = False,
    ) -> Any:
        """Return the module's outputs for data, in evaluation mode, as NumPy arrays (N, …).

        Args:
            x: inputs, in a tuple or, by name, a dict for a model of several; or a dataset, or any
                iterable of batches, whose targets are ignored.
            batch_size: for arrays; 32 by default.
            steps: batches; None for all.
            verbose: as for ``evaluate``.

        Raises:
            DataError: the data is empty or ragged; a list of arrays may be several inputs or
                several batches; numbers that an embedding has no row for give NaN.
            ShapeError: the model does not take inputs of this shape, does not return one output
                for each example, or returns other shapes for other batches.
        """
        steps, batch_size = _evaluation_counts(steps, batch_size)
        dataset = make_inputs(x, batch_size, self.module)
        session = self._session()
        feed = Feed(dataset, replicas=session.strategy.num_replicas_in_sync, weighted=True)
        feed.check_end(steps, "steps")
        model = session.model()
        with shown(verbose, "Predicting", steps or feed.steps) as progress:
            return Pass(session, model, feed, steps, progress).outputs()

    @property
    def strategy(self) -> Strategy:
        """The strategy: the one given, that of a scope, or the device of the parameters.

        Scopes count in the order of that in which the trainer was made, that of this call, and that
        in which the module was made.
        """
        scoped = self._scoped_strategy()
        if scoped is not None:
            return scoped
        array = self._kept.prepared().definition.model.first_array()
        return strategy_for(array if isinstance(array, jax.Array) else jnp.zeros(()))

    def _session(self) -> Session:
        """Return what the call that begins works with."""
        prepared = self._kept.prepared()
        model = prepared.definition.model
        model.check_arrays()
        strategy = self.strategy
        placement = strategy.placement(model.weights(), self.model_rules())
        return Session(prepared, self._kept.standing, strategy, placement)


def _evaluation_counts(steps: int | None, batch_size: int | None) -> tuple[int | None, int | None]:
    return optional_number("steps", steps), optional_number("batch_size", batch_size)

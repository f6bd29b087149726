"""``Trainer``: fit, evaluate and predict for any NNX module.

Owns the user's interface, what a trainer keeps between calls, and the checks before anything is
compiled. It does not own the order of things in a run (``run.py``), the step (``step.py``) or the
data (``feed.py``).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix import losses, optim
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    NotCompiledError,
)
from neurenix._foreign.coupling import Coupling
from neurenix._functions.binding import apart
from neurenix._nnx import nnx
from neurenix.compiler import intercept
from neurenix.distribute import Strategy, get_strategy
from neurenix.distribute.placement import Placement
from neurenix.distribute.strategy import strategy_for
from neurenix.metrics import get as get_metric
from neurenix.train.arguments import (
    as_callbacks,
    check_options,
    check_watched,
    optional_number,
    whole_number,
)
from neurenix.train.batch import Batch
from neurenix.train.batch_check import BatchCheck
from neurenix.train.callbacks import Callback
from neurenix.train.compiled import CompiledEvaluation, CompiledStep
from neurenix.train.coupling import expect_one_part
from neurenix.train.described import Described
from neurenix.train.evaluation import Pass
from neurenix.train.feed import Feed
from neurenix.train.history import History
from neurenix.train.holdout import check_arrays, hold_out
from neurenix.train.inputs import (
    is_arrays,
    make_dataset,
    make_inputs,
    make_validation_dataset,
)
from neurenix.train.learning_rate import OwnRate
from neurenix.train.metric_names import named_apart
from neurenix.train.options import (
    DEFAULT_FIT_OPTIONS,
    DEFAULT_TRAIN_OPTIONS,
    FIT_OPTIONS,
    FitOptions,
    TrainOptions,
)
from neurenix.train.outputs import as_loss, as_metrics, follow_loss, losses_of_outputs
from neurenix.train.progress import Progress, shown
from neurenix.train.resume import Resumable
from neurenix.train.run import Run
from neurenix.train.split import ModuleSplit
from neurenix.train.state import TrainState, counters
from neurenix.train.step import StepDefinition, bind_metrics


class Trainer(Described, Resumable):
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
        ArgumentTypeError: ``module`` is no NNX module.

    Example:
        >>> from flax import nnx
        >>> trainer = Trainer(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), optimizer="sgd", loss="mse")
        >>> history = trainer.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=2)
        >>> len(history["loss"])
        2
    """

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
        if not isinstance(module, nnx.Module):
            raise ArgumentTypeError(
                f"Trainer: module is {type(module).__name__}, expected a module (nnx.Module)."
            )
        self.module = module
        self.options = options
        self.stop_training = False
        self._own_rate = OwnRate(optimizer)
        self._optimizer = optim.get(optimizer)
        self._loss = as_loss(loss, loss_weights)
        given = as_metrics(metrics)
        self._metrics = named_apart([*losses_of_outputs(self._loss, given), *given])
        follow_loss(self._metrics, self._loss)
        self._strategy = options.strategy or get_strategy()
        self._definition: StepDefinition | None = None
        self._evaluation: CompiledEvaluation | None = None
        self._step: CompiledStep | None = None
        self.optimizer_state: Any = None
        self._check = BatchCheck()
        self._state_sharding: Any = None
        self._placement: Placement | None = None
        self.steps_made = 0
        self._passes = 0
        self._learning_rate_scale = 1.0

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
        return self._own_rate.at(self.steps_made) * self._learning_rate_scale

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        kept = self._learning_rate_scale
        self._learning_rate_scale = self._own_rate.factor(value, self.steps_made, kept=kept)

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
                once.
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
        definition, strategy = self.defined(), self._resolve()
        definition.model.check_trainable()
        weights = options.sample_weight
        if options.validation_split:
            check_arrays(y is not None or is_arrays(x), validation_data)
            kept, validation_data = hold_out(x, y, weights, options.validation_split)
            x, y, weights = kept
        dataset = make_dataset(x, y, weights, batch_size, shuffle=options.shuffle)
        feed = Feed(
            dataset,
            replicas=strategy.num_replicas_in_sync,
            class_weight=options.class_weight,
            passes=max(self._passes, options.initial_epoch),
        )
        _check_end(feed, steps_per_epoch, "steps_per_epoch")
        self._check.first(definition, self._loss_needed(), feed.first)
        if self._leave_whole(feed, definition):
            expect_one_part(self._loss_needed(), definition.accumulate_steps)
        validate = self._validator(validation_data, batch_size or feed.batch_size, options)
        check_watched(called, definition.log_names, validated=validate is not None)
        for callback in called:
            callback.trainer = self
        step = self._compiled_step(definition, steps_per_epoch or feed.exact_steps, strategy)
        run = Run(self, definition, step, feed, called)
        spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), feed.first)
        intercept.first_step(self, spec.x, spec.y)
        try:
            to_do = range(options.initial_epoch, epochs)
            return run.epochs(to_do, steps_per_epoch, validate, options.verbose)
        finally:
            self._passes = feed.passes

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
        strategy = self._resolve()
        feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
        _check_end(feed, steps, "steps")
        definition = self.defined()
        self._check.first(definition, self._loss_needed(), feed.first)
        self._leave_whole(feed, definition)
        model = self.on_devices(definition.model.read())
        with shown(verbose, "Evaluating", steps or feed.steps) as progress:
            return self._evaluate(definition, model, feed, steps, progress)

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
        strategy = self._resolve()
        feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
        _check_end(feed, steps, "steps")
        definition = self.defined()
        model = self.on_devices(definition.model.read())
        compiled = self._compiled_evaluation(definition)
        with shown(verbose, "Predicting", steps or feed.steps) as progress:
            return Pass(definition, compiled, model, feed, strategy, steps, progress).outputs()

    @property
    def strategy(self) -> Strategy:
        """The strategy: the one given, that of a scope, or the device of the parameters.

        Scopes count in the order of that in which the trainer was made, that of this call, and that
        in which the module was made.
        """
        scoped = self.scoped_strategy()
        if scoped is not None:
            return scoped
        array = self.defined().model.first_array()
        return strategy_for(array if isinstance(array, jax.Array) else jnp.zeros(()))

    def _resolve(self) -> Strategy:
        """Return the strategy of the call that begins, and remember where it keeps state."""
        self.defined().model.check_arrays()
        strategy = self.strategy
        self._state_sharding = strategy.state_sharding
        self._placement = strategy.placement(self.defined().model.weights(), self.model_rules())
        return strategy

    def _loss_needed(self) -> losses.Loss:
        if self._loss is None:
            raise NotCompiledError(
                'There is no loss. Name one: model.compile(optimizer="adam", loss="…") or '
                'Trainer(module, loss="…").'
            )
        return self._loss

    def defined(self) -> StepDefinition:
        """Return the step definition, made anew when the module's structure has changed.

        The optimizer's state and the count of steps are kept while the parameters have the paths,
        shapes and dtypes that they had; otherwise both begin anew.
        """
        known = self._definition
        if known is not None and known.model.is_current():
            return known
        split = ModuleSplit(self.module)
        if known is None or not split.same_structure(known.model):
            structure, _ = bind_metrics([get_metric(metric) for metric in self._metrics])
            self._definition = StepDefinition(
                model=split,
                loss=self._loss or losses.get("mse"),
                optimizer=self._optimizer,
                schedule=self._own_rate.schedule,
                metrics=structure,
                metric_names=tuple(metric.name for metric in self._metrics),
                accumulate_steps=self.options.accumulate_steps,
                compute_dtype=self.options.compute_dtype,
                check_gradients=self.options.check_gradients,
                remat=self.options.remat,
            )
            self._step = self._evaluation = None
            if known is not None and not split.same_parameters(known.model):
                self.optimizer_state, self.steps_made = None, 0
            return self._definition
        known.model.renew(split)
        return known

    def _leave_whole(self, feed: Feed, definition: StepDefinition) -> Coupling:
        loss = self._loss_needed()
        of_loss, of_metrics = self._check.coupling(definition, loss, self._metrics, feed.first)
        if of_loss:
            feed.keep_whole(f"loss {loss.name}", of_loss)
        for name, coupling in of_metrics.items():
            feed.keep_whole(f"metric {name} (a class of nx.metrics takes any batch)", coupling)
        return of_loss

    def check_labels(self, batch: Batch, steps: int) -> None:
        """Check the targets of a host batch, of ``steps`` batches stacked, against the loss."""
        if self._definition is not None:
            self._check.labels(self._definition, self._loss_needed(), batch, steps)

    def _compiled_step(
        self, definition: StepDefinition, steps: int | None, strategy: Strategy
    ) -> CompiledStep:
        per_call = self.options.steps_per_execution
        exact = steps is not None and steps % per_call == 0
        known, sharding = self._step, strategy.state_sharding
        if known is None or known.exact != exact or known.sharding != sharding:
            known = CompiledStep(definition, steps=per_call, exact=exact, sharding=sharding)
            self._step = known
        return known

    def _compiled_evaluation(self, definition: StepDefinition) -> CompiledEvaluation:
        sharding = self._state_sharding
        if self._evaluation is None or self._evaluation.sharding != sharding:
            self._evaluation = CompiledEvaluation(definition, sharding)
        return self._evaluation

    def on_devices(self, tree: Any) -> Any:
        """Put a tree of arrays where the strategy keeps state."""
        if self._placement is not None:
            return jax.device_put(tree, self._placement.shardings(tree))
        return jax.device_put(tree, self._state_sharding)

    def initial_state(self, definition: StepDefinition) -> TrainState:
        """Return the state to train on, in buffers that nobody else holds."""
        own = self.on_devices(_copied(definition.model.read()))
        definition.model.write(*own)  # the old arrays can go before the optimizer's are made
        optimizer = self.optimizer_state
        if optimizer is None:
            optimizer = jax.jit(definition.optimizer.init)(own[0])
        # An optimizer may keep the parameters themselves, which then would be given away twice.
        leaves, treedef = jax.tree.flatten((own, self.on_devices(optimizer)))
        (parameters, model_state), optimizer = jax.tree.unflatten(treedef, apart(leaves))
        return TrainState(
            parameters=parameters,
            model_state=model_state,
            optimizer=optimizer,
            **self.epoch_start(definition),
            step=self.on_devices(np.int32(self.steps_made)),
            diverged_at=self.on_devices(counters()["diverged_at"]),
        )

    def epoch_start(self, definition: StepDefinition) -> dict[str, Any]:
        """Return the fields of the state that begin anew with every epoch."""
        _, first = bind_metrics([get_metric(metric) for metric in self._metrics])
        return self.on_devices(
            {
                "metrics": _copied(first),
                "totals": counters()["totals"],
                "learning_rate_scale": np.float32(self._learning_rate_scale),
            }
        )

    def keep(self, definition: StepDefinition, state: TrainState) -> None:
        """Make the module and the trainer hold the state's arrays."""
        definition.model.write(state.parameters, state.model_state)
        self.optimizer_state = state.optimizer

    def _validator(
        self, data: Any, batch_size: int, options: FitOptions
    ) -> Callable[[StepDefinition, TrainState], dict[str, float]] | None:
        if data is None:
            return None
        size, strategy = options.validation_batch_size or batch_size, self.strategy
        try:
            dataset = make_validation_dataset(data, size)
            feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
            self._check.check(self.defined(), self._loss_needed(), feed.first)
            self._leave_whole(feed, self.defined())
        except (ArgumentError, ArgumentTypeError) as error:
            raise type(error)(f"validation_data: {error}") from error
        _check_end(feed, options.validation_steps, "validation_steps")

        def validate(definition: StepDefinition, state: TrainState) -> dict[str, float]:
            model = (state.parameters, state.model_state)
            steps = options.validation_steps
            logs = self._evaluate(definition, model, feed, steps, Progress())
            return {f"val_{name}": value for name, value in logs.items()}

        return validate

    def _evaluate(
        self,
        definition: StepDefinition,
        model: Any,
        feed: Feed,
        steps: int | None,
        progress: Progress,
    ) -> dict[str, float]:
        compiled, start = self._compiled_evaluation(definition), self.epoch_start(definition)
        sums = (start["totals"], start["metrics"])
        over = Pass(definition, compiled, model, feed, self.strategy, steps, progress)
        return over.logs(sums, definition.log_names, self.check_labels)


@jax.jit
def _copied(tree: Any) -> Any:
    """Copy every array in one compiled call; one by one, each shape is compiled by itself."""
    return jax.tree.map(jnp.copy, tree)


def _check_end(feed: Feed, steps: int | None, name: str) -> None:
    if steps is None and feed.endless:
        raise ArgumentError(f"The data never ends (it is repeated): say how many, with {name}.")


def _evaluation_counts(steps: int | None, batch_size: int | None) -> tuple[int | None, int | None]:
    return optional_number("steps", steps), optional_number("batch_size", batch_size)

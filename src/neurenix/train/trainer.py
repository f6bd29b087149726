"""``Trainer``: fit, evaluate and predict for any NNX module.

Owns the user's interface, what a trainer keeps between calls, and the checks before anything is
compiled. It does not own the order of things in a run (``run.py``), the step (``step.py``) or the
data (``feed.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
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
from neurenix._nnx import nnx
from neurenix.compiler import intercept
from neurenix.data import Dataset
from neurenix.distribute import Strategy, get_strategy
from neurenix.distribute.strategy import strategy_for
from neurenix.metrics import get as get_metric
from neurenix.train.batch import Batch
from neurenix.train.callbacks import Callback
from neurenix.train.compiled import CompiledEvaluation, CompiledStep
from neurenix.train.feed import Feed, make_dataset
from neurenix.train.history import History
from neurenix.train.loop import MAX_IN_FLIGHT, to_devices
from neurenix.train.options import (
    DEFAULT_FIT_OPTIONS,
    DEFAULT_TRAIN_OPTIONS,
    FitOptions,
    TrainOptions,
)
from neurenix.train.program import StepProgram, describe_step
from neurenix.train.run import Run
from neurenix.train.split import ModuleSplit
from neurenix.train.state import TrainState, counters
from neurenix.train.step import StepDefinition, bind_metrics


class Trainer:
    """Trains a module on the devices of a strategy.

    Args:
        module: any NNX module, of ``nx.nn`` or not.
        optimizer: a name, one of ``nx.optim``, or an optax transformation.
        loss: a name, one of ``nx.losses``, or a function ``(y_true, y_pred) -> losses``. Needed by
            ``fit`` and ``evaluate``.
        metrics: names or metrics of ``nx.metrics``.
        options: how a step is built.

    Raises:
        UnknownNameError: no optimizer, loss or metric has that name.
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
        metrics: Sequence[Any] = (),
        options: TrainOptions = DEFAULT_TRAIN_OPTIONS,
    ) -> None:
        if not isinstance(module, nnx.Module):
            raise ArgumentTypeError(
                f"Trainer: module is {type(module).__name__}, expected a module (nnx.Module)."
            )
        self.module = module
        self.options = options
        self.stop_training = False
        self._base_learning_rate = optim.learning_rate_of(optimizer)
        self._optimizer = optim.get(optimizer)
        self._loss = None if loss is None else losses.get(loss)
        self._metrics = [get_metric(metric) for metric in _listed(metrics)]
        self._strategy = options.strategy or get_strategy()
        self._definition: StepDefinition | None = None
        self._evaluation: CompiledEvaluation | None = None
        self._step: CompiledStep | None = None
        self._optimizer_state: Any = None
        self._output_specs: dict[Any, Any] = {}
        self._state_sharding: Any = None
        self._output_shape: tuple[int, ...] | None = None
        self.steps_made = 0
        self._learning_rate_scale = 1.0

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step; setting it compiles nothing.

        With a schedule it is the schedule's value times the factor that setting has put on it.

        Raises:
            ArgumentError: the optimizer is an optax transformation, which hides its rate.
        """
        base = self._base_rate()
        return base * self._learning_rate_scale

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate_scale = value / self._base_rate()

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 1,
        batch_size: int | None = None,
        steps_per_epoch: int | None = None,
        validation_data: Any = None,
        callbacks: Iterable[Callback] = (),
        options: FitOptions = DEFAULT_FIT_OPTIONS,
    ) -> History:
        """Train the module.

        Args:
            x: inputs (N, …) with ``y``; or a dataset, or any iterable of batches.
            y: targets (N, …).
            epochs: number of the last epoch; the first is ``options.initial_epoch``.
            batch_size: examples of one step over all replicas, for arrays; 32 by default. The last
                batch is filled up and masked, so that no example is lost and the step compiles
                once.
            steps_per_epoch: optimizer steps of an epoch; needed when the data never ends.
            validation_data: evaluated after every epoch, as ``x`` or ``(x, y)``.
            callbacks: called in order.
            options: sample and class weights, shuffling, progress.

        Returns:
            the numbers of every epoch.

        Raises:
            DataError: empty, ragged or mismatched data; labels out of range.
            ShapeError: the model does not take inputs of this shape, or the loss these targets.
            TrainingDivergedError: the loss or a gradient is not finite. The module then has the
                weights of before that step.
            NotCompiledError: the trainer has no loss.
        """
        _check_counts(epochs=epochs, steps_per_epoch=steps_per_epoch, batch_size=batch_size)
        definition, strategy = self.defined(), self._resolve()
        dataset = make_dataset(x, y, options.sample_weight, batch_size, shuffle=options.shuffle)
        feed = Feed(
            dataset, replicas=strategy.num_replicas_in_sync, class_weight=options.class_weight
        )
        steps = self._steps_of(feed, steps_per_epoch)
        self._prepare(definition, feed.first)
        callbacks = list(callbacks)
        for callback in callbacks:
            callback.trainer = self
        step = self._compiled_step(definition, steps or feed.steps, strategy)
        run = Run(self, definition, step, feed, callbacks)
        spec = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), feed.first)
        intercept.first_step(self, spec.x, spec.y)
        validate = self._validator(validation_data, batch_size or feed.batch_size, options)
        return run.epochs(range(options.initial_epoch, epochs), steps, validate, options.verbose)

    def evaluate(
        self,
        x: Any,
        y: Any = None,
        *,
        batch_size: int | None = None,
        steps: int | None = None,
        sample_weight: Any = None,
    ) -> dict[str, float]:
        """Return the mean loss and the metrics over data, in evaluation mode.

        Args:
            x: inputs with ``y``, or a dataset.
            y: targets.
            batch_size: for arrays; 32 by default.
            steps: batches; None for all.
            sample_weight: weight of each example, shape (N,), for arrays.

        Raises:
            DataError: as ``fit``.
            NotCompiledError: the trainer has no loss.
        """
        dataset = make_dataset(x, y, sample_weight, batch_size, shuffle=False)
        strategy = self._resolve()
        feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
        _check_end(feed, dataset, steps, "steps")
        definition = self._prepare(self.defined(), feed.first)
        model = self.on_devices(definition.model.read())
        return self._evaluate(definition, model, feed, strategy, steps)

    def predict(self, x: Any, *, batch_size: int | None = None, steps: int | None = None) -> Any:
        """Return the module's outputs for data, in evaluation mode, as NumPy arrays (N, …).

        Args:
            x: inputs, or a dataset, whose targets are ignored.
            batch_size: for arrays; 32 by default.
            steps: batches; None for all.
        """
        dataset = make_dataset(x, None, None, batch_size, shuffle=False)
        strategy = self._resolve()
        feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
        _check_end(feed, dataset, steps, "steps")
        definition = self.defined()
        model = self.on_devices(definition.model.read())
        compiled = self._compiled_evaluation(definition)
        outputs = []
        for chunk in feed.chunks(steps, 1):
            placed = to_devices(chunk.batch.x, strategy, stacked=False)
            output = compiled.predict(model, placed)
            outputs.append(jax.tree.map(lambda leaf, n=chunk.examples: leaf[:n], output))
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *outputs)

    def step_program(self, mesh: Any, x: Any, y: Any = None) -> StepProgram:
        """Return the step that ``fit`` runs, described for a mesh that need not exist.

        Args:
            mesh: with the axis ``"data"``; ``jax.sharding.AbstractMesh`` will do.
            x: ``jax.ShapeDtypeStruct`` (or a tree) of the inputs of one global batch.
            y: the same of the targets; by default what the loss takes.
        """
        definition = self.defined()
        if y is None:
            y = self._loss_needed().target_spec(self._output_spec(definition, x))
        values, first = bind_metrics([get_metric(metric) for metric in self._metrics])
        del values
        return describe_step(definition, definition.model.read(), first, Batch(x, y), mesh)

    @property
    def strategy(self) -> Strategy:
        """The strategy: the one given, that of the scope, or the device of the parameters."""
        if self._strategy is not None:
            return self._strategy
        scoped = get_strategy()
        if scoped is not None:
            return scoped
        leaves = jax.tree.leaves(nnx.state(self.module, nnx.Param))
        if leaves and len(leaves[0].sharding.device_set) == 1:
            return strategy_for(leaves[0])
        raise ArgumentError(
            "The parameters lie on several devices and no strategy says how: train inside of "
            "strategy.scope(), or give TrainOptions(strategy=…)."
        )

    def _resolve(self) -> Strategy:
        """Return the strategy of the call that begins, and remember where it keeps state."""
        strategy = self.strategy
        self._state_sharding = strategy.state_sharding
        return strategy

    def _base_rate(self) -> float:
        base = self._base_learning_rate
        if base is None:
            raise ArgumentError(
                "The learning rate of an optax transformation cannot be read or set. Use an "
                "optimizer of nx.optim, or put a schedule into the transformation."
            )
        return float(np.asarray(base(self.steps_made) if callable(base) else base))

    def _loss_needed(self) -> losses.Loss:
        if self._loss is None:
            raise NotCompiledError(
                'There is no loss. Name one: model.compile(optimizer="adam", loss="…") or '
                'Trainer(module, loss="…").'
            )
        return self._loss

    def defined(self) -> StepDefinition:
        """Return the step definition, made anew when the module's structure has changed."""
        split = ModuleSplit(self.module)
        if self._definition is None or not split.same_structure(self._definition.model):
            structure, _ = bind_metrics([get_metric(metric) for metric in self._metrics])
            self._definition = StepDefinition(
                model=split,
                loss=self._loss or losses.get("mse"),
                optimizer=self._optimizer,
                metrics=structure,
                metric_names=tuple(metric.name for metric in self._metrics),
                accumulate_steps=self.options.accumulate_steps,
                compute_dtype=self.options.compute_dtype,
                check_gradients=self.options.check_gradients,
            )
            self._step = self._evaluation = self._optimizer_state = None
        return self._definition

    def _prepare(self, definition: StepDefinition, first: Batch) -> StepDefinition:
        """Check one batch against model and loss, before anything is compiled."""
        loss = self._loss_needed()
        if first.y is None:
            raise ArgumentError(
                "There are no targets: give y, or batches of (x, y), or dicts with a 'label'."
            )
        x, y = first.x, first.y
        output = self._output_spec(definition, x)
        self._output_shape = getattr(output, "shape", None)
        if isinstance(y, (np.ndarray, jax.Array)) and self._output_shape is not None:
            loss.validate(np.asarray(y), self._output_shape)
        return definition

    def _output_spec(self, definition: StepDefinition, x: Any) -> Any:
        leaves, treedef = jax.tree.flatten(x)
        key = (treedef, *((leaf.shape, leaf.dtype) for leaf in leaves))
        known = self._output_specs
        if known.get("of") is not definition:
            known.clear()
            known["of"] = definition
        if key not in known:
            known[key] = jax.eval_shape(definition.predict, definition.model.read(), x)
        return known[key]

    def check_labels(self, batch: Batch, steps: int) -> None:
        """Check the targets of a host batch, of ``steps`` batches stacked, against the loss."""
        y = batch.y
        if self._output_shape is None or not isinstance(y, np.ndarray):
            return
        if steps > 1:
            y = y.reshape(-1, *y.shape[2:])
        self._loss_needed().validate(y, (len(y), *self._output_shape[1:]))

    def _steps_of(self, feed: Feed, steps_per_epoch: int | None) -> int | None:
        if steps_per_epoch is None and feed.steps is None and feed.uniform:
            raise ArgumentError(
                "The data never ends (it is repeated), so an epoch needs a length: give "
                "steps_per_epoch."
            )
        return steps_per_epoch

    def _compiled_step(
        self, definition: StepDefinition, steps: int | None, strategy: Strategy
    ) -> CompiledStep:
        per_call = self.options.steps_per_execution
        exact = steps is not None and steps % per_call == 0
        known, sharding = self._step, strategy.state_sharding
        if known is None or known.exact < exact or known.sharding != sharding:
            self._step = CompiledStep(definition, steps=per_call, exact=exact, sharding=sharding)
        elif not exact and known.exact:
            self._step = CompiledStep(definition, steps=per_call, exact=False, sharding=sharding)
        assert self._step is not None  # noqa: S101  for the type checker
        return self._step

    def _compiled_evaluation(self, definition: StepDefinition) -> CompiledEvaluation:
        sharding = self._state_sharding
        if self._evaluation is None or self._evaluation.sharding != sharding:
            self._evaluation = CompiledEvaluation(definition, sharding)
        return self._evaluation

    def on_devices(self, tree: Any) -> Any:
        """Put a tree of arrays where the strategy keeps state."""
        return jax.device_put(tree, self._state_sharding)

    def initial_state(self, definition: StepDefinition) -> TrainState:
        """Return the state to train on, in buffers that nobody else holds."""
        own = self.on_devices(jax.tree.map(jnp.copy, definition.model.read()))
        definition.model.write(*own)
        parameters, model_state = own
        if self._optimizer_state is None:
            self._optimizer_state = definition.optimizer.init(parameters)
        return TrainState(
            parameters=parameters,
            model_state=model_state,
            optimizer=self.on_devices(jax.tree.map(jnp.copy, self._optimizer_state)),
            **self.epoch_start(definition),
            step=self.on_devices(jnp.int32(self.steps_made)),
            diverged_at=self.on_devices(counters()["diverged_at"]),
        )

    def epoch_start(self, definition: StepDefinition) -> dict[str, Any]:
        """Return the fields of the state that begin anew with every epoch."""
        _, first = bind_metrics([get_metric(metric) for metric in self._metrics])
        return self.on_devices(
            {
                "metrics": jax.tree.map(jnp.copy, first),
                "totals": counters()["totals"],
                "learning_rate_scale": jnp.float32(self._learning_rate_scale),
            }
        )

    def keep(self, definition: StepDefinition, state: TrainState) -> None:
        """Make the module and the trainer hold the state's arrays."""
        definition.model.write(state.parameters, state.model_state)
        self._optimizer_state = state.optimizer

    def _validator(
        self, data: Any, batch_size: int, options: FitOptions
    ) -> Callable[[StepDefinition, TrainState], dict[str, float]] | None:
        if data is None:
            return None
        size = options.validation_batch_size or batch_size
        if isinstance(data, tuple):
            x, y, weight = (*data, None, None)[:3]
            dataset = make_dataset(x, y, weight, size, shuffle=False)
        else:
            dataset = make_dataset(data, None, None, None, shuffle=False)
        strategy = self.strategy
        feed = Feed(dataset, replicas=strategy.num_replicas_in_sync, weighted=True)
        _check_end(feed, dataset, options.validation_steps, "validation_steps")

        def validate(definition: StepDefinition, state: TrainState) -> dict[str, float]:
            model = (state.parameters, state.model_state)
            logs = self._evaluate(definition, model, feed, strategy, options.validation_steps)
            return {f"val_{name}": value for name, value in logs.items()}

        return validate

    def _evaluate(
        self,
        definition: StepDefinition,
        model: Any,
        feed: Feed,
        strategy: Strategy,
        steps: int | None,
    ) -> dict[str, float]:
        compiled = self._compiled_evaluation(definition).evaluate
        start = self.epoch_start(definition)
        leaves, logs = compiled.flatten((start["totals"], start["metrics"])), None
        in_flight: deque[Any] = deque()
        for chunk in feed.chunks(steps, 1):
            self.check_labels(chunk.batch, 1)
            batch = to_devices(chunk.batch, strategy, stacked=False)
            leaves, logs = compiled(leaves, model, batch)
            in_flight.append(logs)
            if len(in_flight) > MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
        feed.rewind()
        return dict(zip(definition.log_names, map(float, np.asarray(logs)[1:]), strict=True))


def _listed(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Sequence) else list(value)


def _check_end(feed: Feed, dataset: Any, steps: int | None, name: str) -> None:
    if steps is None and feed.steps is None and isinstance(dataset, Dataset):
        raise ArgumentError(f"The data never ends (it is repeated): say how many, with {name}.")


def _check_counts(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ArgumentError(f"{name} must be a whole number from 1, got {value!r}.")

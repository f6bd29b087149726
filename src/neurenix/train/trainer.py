"""``Trainer``: fit, evaluate and predict for any NNX module.

Owns the user's interface. Does not own what a trainer keeps between calls (``trainer_state.py``),
the order of a run and its checks (``fit.py``, ``evaluation.py``), the step (``step.py``) or the
data (``epoch_iterator.py``).
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from typing import Any, Self

from neurenix import optim
from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.names import answers
from neurenix._core.number_checks import optional_number, whole_number
from neurenix._jit import hooks
from neurenix._jit.flat_modules import expect_built
from neurenix._migration.trainer import OF_TRAINER
from neurenix._nnx import nnx
from neurenix.distribute import Strategy
from neurenix.distribute.rules import ShardingRules
from neurenix.metrics import Metric
from neurenix.train import trainer_checkpoint
from neurenix.train.batch import Batch
from neurenix.train.batch_sources import make_dataset, make_inputs
from neurenix.train.callback import Callback
from neurenix.train.evaluation import evaluate_dataset, predict_dataset
from neurenix.train.fit import FitRun, History
from neurenix.train.module_lock import entered
from neurenix.train.module_split import expect_callable
from neurenix.train.options import (
    DEFAULT_FIT_OPTIONS,
    DEFAULT_TRAIN_OPTIONS,
    FIT_OPTIONS,
    REMATS,
    FitOptions,
    TrainOptions,
    check_options,
)
from neurenix.train.step_spec import StepProgram, sharding_rules, step_program
from neurenix.train.trainer_state import TrainConfig, TrainerState


class Trainer:
    """Trains a module on the devices of a strategy.

    Args:
        module: any NNX module, of ``nx.nn`` or not.
        optimizer: a name, one of ``nx.optim``, or an optax transformation.
        loss: a name, one of ``nx.losses``, or a function ``(y_true, y_pred) -> losses``. Needed by
            ``fit`` and ``evaluate``. For a model of several outputs a dict by output, or a list.
        loss_weights: factors of such losses in their sum, in the same form; 1 by default.
        metrics: names, metrics of ``nx.metrics`` or functions ``(y_true, y_pred)``; a dict by
            output for a model of several. Equal names are numbered: precision, precision_1.
            Weights of examples and classes apply, as to Keras's ``weighted_metrics``. Results of
            a function are averaged over batches, see ``nx.metrics.FunctionMetric``.
        options: how a step is built.

    Raises:
        UnknownNameError: no optimizer, loss or metric has that name.
        ArgumentError: a metric has the name of the loss or of a validation metric.
        ArgumentTypeError: ``module`` is not an NNX module, or an option does not exist.

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
        config = TrainConfig.of(optimizer, loss, loss_weights, metrics, options)
        self._state = TrainerState(module, config)

    @property
    def state(self) -> TrainerState:
        """Everything that the trainer keeps between calls, which ``fit`` advances."""
        return self._state

    @property
    def module(self) -> nnx.Module:
        """The module that is trained. It cannot be replaced: make another trainer."""
        return self._state.module

    @property
    def options(self) -> TrainOptions:
        """How a step is built."""
        return self._state.config.options

    @property
    def strategy(self) -> Strategy:
        """The strategy of the options or of a scope, or one for the devices of the parameters.

        The first that exists counts: the strategy of the options, the scope in which the trainer
        was made, the current scope, the scope in which the module was made.
        """
        return self._state.strategy()

    @property
    def stop_training(self) -> bool:
        """Whether ``fit`` stops after this epoch. Callbacks set it."""
        return self._state.stop_training

    @stop_training.setter
    def stop_training(self, value: bool) -> None:
        self._state.stop_training = value

    @property
    def steps_made(self) -> int:
        """Optimizer steps made, without those that diverged."""
        return self._state.steps_made

    @steps_made.setter
    def steps_made(self, value: int) -> None:
        self._state.steps_made = value

    @property
    def optimizer_state(self) -> Any:
        """The state of the optax transformation; None before the first step."""
        return self._state.optimizer

    @optimizer_state.setter
    def optimizer_state(self, value: Any) -> None:
        self._state.optimizer = value

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step. Setting it compiles nothing.

        A rate that is set in ``on_train_batch_end`` holds from the next compiled call on: for the
        next step, or with ``steps_per_execution=K`` the next K. With a schedule, it is the value
        of the schedule times a constant factor, which setting the rate changes.

        Raises:
            ArgumentError: the optimizer is an optax transformation, whose rate is unknown; the
                value is not a valid rate; or the optimizer's own rate is 0.
        """
        state = self._state
        return state.config.learning_rate.at(state.steps_made) * state.learning_rate_scale

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        state = self._state
        state.learning_rate_scale = state.config.learning_rate.factor(
            value, state.steps_made, kept=state.learning_rate_scale
        )

    @property
    def metrics(self) -> tuple[Metric, ...]:
        """The metrics, with their names in the logs. They hold no values."""
        return self._state.config.metrics

    @property
    def callbacks(self) -> tuple[Callback, ...]:
        """The callbacks of the latest ``fit``."""
        return tuple(self._state.callbacks.callbacks)

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
                batch is padded and masked, so that no example is lost and the step compiles once.
                If padding changes the results of the other examples (a ``flax.nnx.BatchNorm``, a
                mean over the batch), which is found by a trial, the batch is not padded: the step
                compiles once more, and a line on standard error says so.
            steps_per_epoch: optimizer steps of an epoch; needed for endless data.
            validation_data: evaluated after every epoch: a dataset, ``(x, y)`` or
                ``(x, y, sample_weight)``.
            callbacks: one callback, or several that are called in order.
            options: sample and class weights, shuffling, progress.
            more: fields of ``FitOptions``, such as ``verbose=0``; they override ``options``.

        Returns:
            the logs of every epoch.

        Raises:
            DataError: empty, ragged or mismatched data; labels out of range.
            ShapeError: the model does not take inputs of this shape, or the loss these targets.
            TrainingDivergedError: the loss, a gradient or the learning rate is not finite. The
                module then has the weights from before that step.
            UnknownNameError: a callback monitors a number that the logs will not have.
            NotCompiledError: the trainer has no loss.
            ModuleInUseError: another thread trains, evaluates or predicts with the module.
            OutOfMemoryError: the step needs more memory than there is.
            ArgumentError: an option cannot be used; or the loss or a metric couples the examples
                (``FunctionLoss``) and a batch needs padding, has weights or is split into parts.
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
        run = FitRun(
            self._state,
            (x, y),
            batch_size=batch_size,
            steps_per_epoch=steps_per_epoch,
            validation_data=validation_data,
            callbacks=callbacks,
            options=options,
        )
        for callback in run.callbacks:
            callback.trainer = self
        if hooks.on_first_step is not None:
            hooks.on_first_step(self, run.batch, run.steps, run.whole_calls)
        return run.epochs(epochs)

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

        Unlike Keras, the result is always a dict: ``loss, accuracy = evaluate(x, y)`` would unpack
        its names. Write ``logs = evaluate(x, y)`` and ``logs["accuracy"]``.

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
        steps, batch_size = (
            optional_number("steps", steps),
            optional_number("batch_size", batch_size),
        )
        dataset = make_dataset(x, y, sample_weight, batch_size, shuffle=False)
        return evaluate_dataset(self._state, dataset, steps, verbose)

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
            DataError: the data is empty or ragged; a list of arrays is ambiguous (several inputs or
                several batches); an embedding has no row for an index.
            ShapeError: the model does not take inputs of this shape, does not return one output
                for each example, or returns different shapes for different batches.
        """
        steps, batch_size = (
            optional_number("steps", steps),
            optional_number("batch_size", batch_size),
        )
        dataset = make_inputs(x, batch_size, self.module)
        return predict_dataset(self._state, dataset, steps, verbose)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the whole state to a safetensors file, atomically.

        With several processes, all of them call it: process 0 writes, and the others wait.

        The file holds the module's parameters, other state and random streams, the optimizer's
        state, the number of steps and the place in the data, the learning rate if it was set, and
        the states of the callbacks of the latest ``fit`` (``Callback.state``).

        Args:
            path: the file. Missing folders are created.

        Raises:
            CheckpointError: the file cannot be written.
            ArgumentError: the module is abstract, or its arrays were deleted.
            ArgumentTypeError: the state of a callback has a value of an unsupported type.

        Example:
            >>> import tempfile
            >>> from neurenix import Trainer, nn
            >>> x, y = np.ones((8, 2)), np.ones((8, 1))
            >>> trainer = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> again = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = trainer.fit(x, y, epochs=1, verbose=False)
            ...     trainer.save(f"{folder}/trainer.safetensors")
            ...     _ = again.load(f"{folder}/trainer.safetensors")
            >>> history = again.fit(x, y, epochs=2, initial_epoch=1, verbose=False)
            >>> trainer.steps_made, again.steps_made, history.epochs
            (1, 2, [1])
        """
        trainer_checkpoint.save(self._state, path)

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Read a file of ``save`` into the trainer and its module. Nothing changes on an error.

        ``fit`` with ``initial_epoch`` then continues as if it had not ended, with the same
        schedules and the same order of shuffled data (given the same ``nx.seed``). With
        ``steps_per_epoch`` it continues within a pass over the data, except over a generator,
        which the caller advances. A file that was written within an epoch of one whole pass
        continues with the next pass. A callback can load in ``on_train_begin``. The callbacks of
        the next ``fit`` receive the saved states of callbacks with their class and ``monitor``; a
        warning names each callback that cannot continue.

        Args:
            path: the file.

        Returns:
            The trainer itself.

        Raises:
            CheckpointError: the file is absent, damaged, not written by ``save``, or of another
                model or optimizer; the differences are named.
            ArgumentError: the module is abstract, or its arrays were deleted.
        """
        trainer_checkpoint.load(self._state, path)
        return self

    def step_state(self) -> Any:
        """Return copies of all arrays that a training step takes and returns.

        A step compiled by ``nx.compile_for`` or ``neurenix compile`` takes them with a batch: a
        dict of ``x``, ``y`` and, if it was compiled with weights, ``weight``. Their first axis is
        K for a model with ``steps_per_execution=K``. Random keys are stored as integers.

        Raises:
            ArgumentError: the module is abstract, or its arrays were deleted.

        Example:
            >>> import neurenix as nx
            >>> model = nx.nn.Linear(3, 1).compile("adam", "mse")
            >>> artefact = nx.compile_for(model, on="cpu", path="fit.nxc", input_shape=(8, 3))
            >>> step, state = nx.load_compiled("fit.nxc"), model.trainer.step_state()
            >>> for _ in range(3):
            ...     state, logs = step(state, {"x": nx.ones((8, 3)), "y": nx.ones((8, 1))})
            >>> model.trainer.take_step_state(state)
            >>> model.trainer.steps_made
            3
        """
        return trainer_checkpoint.step_state(self._state)

    def take_step_state(self, state: Any) -> None:
        """Store the state that a step returned in the module and the trainer.

        ``fit``, ``evaluate`` and ``save`` continue from it.

        Args:
            state: the result of ``step_state``, or of a step that was given it.

        Raises:
            ArgumentTypeError: an array is missing, unknown, or not an array.
            ArgumentError: an array was donated to a step.
            ShapeError: an array has another shape.
        """
        trainer_checkpoint.take_step_state(self._state, state)

    def step_program(
        self, mesh: Any, x: Any, y: Any = None, weight: Any = None, *, whole_calls: bool = True
    ) -> StepProgram:
        """Return the program of the step that ``fit`` runs, on a mesh whose devices may be absent.

        It includes the moving averages (``EMA``) of the callbacks of the latest ``fit``.

        Args:
            mesh: with the axis names of a strategy, such as a ``jax.sharding.AbstractMesh``.
            x: ``jax.ShapeDtypeStruct`` (or a tree) of the inputs of one global batch.
            y: the same for the targets; by default what the loss takes.
            weight: the same for the weights. ``fit`` adds weights to every batch if it pads the
                last one or the user gives weights.
            whole_calls: whether ``steps_per_execution`` divides the steps of an epoch.
        """
        return step_program(self._state, mesh, Batch(x, y, weight), whole_calls=whole_calls)

    def variant(self, *, moment_dtype: Any = None, **options: Any) -> Self:
        """Return a trainer of the same module with other options, for comparisons.

        Args:
            moment_dtype: dtype of the optimizer's state (``nx.optim.held_in``).
            **options: fields of ``TrainOptions`` to change.
        """
        config, optimizer = self._state.config, self._state.config.optimizer
        module: Any = self._state.module
        if moment_dtype is not None:
            optimizer = optim.held_in(moment_dtype, optimizer)
        own = hasattr(module, "with_remat") and options.get("remat") not in REMATS[1:]
        if "remat" in options and own:  # a policy of the model
            module, options["remat"] = module.with_remat(options["remat"]), "none"
        return type(self)(
            module,
            optimizer=optimizer,
            loss=config.loss,
            metrics=list(config.metrics),
            options=dataclasses.replace(self.options, strategy=config.strategy, **options),
        )

    def mesh_axes(self, num_devices: int) -> dict[str, int] | None:
        """Return the mesh axes of the strategy for ``num_devices``; None without a strategy."""
        strategy = self._state.scoped_strategy()
        return None if strategy is None else strategy.mesh_axes(num_devices)

    def rules(self) -> ShardingRules | None:
        """Return the rules that shard the parameters: the strategy's, or else the module's."""
        return sharding_rules(self._state)

    def model_rules(self) -> ShardingRules | None:
        """Return the sharding rules of the module, if it has any."""
        return self._state.module_rules()

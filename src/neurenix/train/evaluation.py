"""One pass over data in evaluation mode: sums of loss and metrics, or the outputs.

Owns the host's loop of ``evaluate``, ``predict`` and validation, and the search for a batch that
makes a layer return NaN. Does not own the compiled functions (``compiled_steps.py``), the devices
(``trainer_state.py``) or the data (``epoch_iterator.py``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix.train.batch import Batch
from neurenix.train.batch_sources import make_validation_dataset
from neurenix.train.epoch import calls_in_flight, numbers_here, to_devices
from neurenix.train.epoch_iterator import Chunk, EpochIterator
from neurenix.train.progress import Progress, shown
from neurenix.train.step import StepState
from neurenix.train.trainer_state import DeviceState, TrainerState


@dataclass
class EvaluationPass:
    """One pass over data.

    Attributes:
        device: the trainer's state on the devices.
        model: parameters and other state, on the devices.
        batches: the data.
        steps: batches; None for all.
        progress: shows the progress.
    """

    device: DeviceState
    model: Any
    batches: EpochIterator
    steps: int | None
    progress: Progress

    def logs(self) -> dict[str, float]:
        """Return the mean loss and the metrics.

        Raises:
            DataError: a layer refuses the values of a batch, so that the loss is NaN; or a target
                is out of range.
        """
        names, start = self.device.definition.log_names, self.device.epoch_start()
        began, evaluate = time.perf_counter(), self.device.evaluation().evaluate
        leaves, vector = evaluate.flatten((start["totals"], start["metrics"])), None
        in_flight = _InFlight(self, lambda vector: np.isnan(np.asarray(vector)[1]))
        for chunk in self._chunks("evaluate", self._totals_of):
            self.device.check.labels(chunk.batch, 1)
            batch = self._placed(chunk.batch)
            leaves, vector = evaluate(leaves, self.model, batch)
            in_flight.add(chunk.batch.x, vector)
            self.progress.advance(1, vector, names)
        in_flight.end()
        self.batches.rewind()
        logs = dict(zip(names, map(float, np.asarray(vector)[1:]), strict=True))
        self.progress.end(logs, time.perf_counter() - began)
        return logs

    def outputs(self) -> Any:
        """Return the outputs for all examples, NumPy arrays (N, …), on every process.

        If each process has a share of the batches, each batch starts with that of process 0.

        Raises:
            DataError: a layer refuses the values of a batch, so that an output is NaN.
            ShapeError: the model does not return one output for each example, or batches have
                outputs of different shapes.
        """
        began, predict = time.perf_counter(), self.device.evaluation().predict
        found: list[Any] = []  # on the host: the devices hold outputs of few batches

        def has_nan(output: Any) -> bool:
            return any(map(_has_nan, jax.tree.leaves(output)))

        def keep(output: Any) -> None:
            found.append(jax.tree.map(np.asarray, output))

        in_flight = _InFlight(self, has_nan, keep)
        for chunk in self._chunks("predict", self._outputs_of):
            output = predict(self.model, self._placed(chunk.batch.x))
            rows, size = self.batches.rows_of(chunk), self.batches.whole_size(chunk)
            jax.tree.map(lambda leaf, n=size: _check_examples(leaf.shape, n), output)
            output = jax.tree.map(lambda leaf, rows=rows: leaf[rows], output)
            in_flight.add(chunk.batch.x, output)
            self.progress.advance(1, None, ())
        in_flight.end()
        joined = jax.tree.map(lambda *leaves: _joined(leaves), *found)
        self.progress.end({}, time.perf_counter() - began)
        return joined

    def _placed(self, batch: Any) -> Any:
        local = self.batches.process_local
        return to_devices(batch, self.device.strategy, stacked=False, process_local=local)

    def _chunks(
        self, program: str, attempt: Callable[[Batch], list[np.ndarray]]
    ) -> Iterator[Chunk]:
        definition = self.device.definition
        may_fill = self.device.padding.judge(
            program,
            lambda: nullcontext(attempt),
            definition.predict,
        )
        return self.batches.chunks(self.steps, 1, over_the_end=False, may_fill=may_fill)

    def _totals_of(self, batch: Batch) -> list[np.ndarray]:
        """Return the sums over one batch, for a trial with other padding rows."""
        start, evaluate = self.device.epoch_start(), self.device.evaluation().evaluate
        leaves = jax.tree.leaves((start["totals"], start["metrics"]))
        return list(map(numbers_here, evaluate(leaves, self.model, self._placed(batch))[0]))

    def _outputs_of(self, batch: Batch) -> list[np.ndarray]:
        """Return the outputs for the examples of one batch, for a trial."""
        outputs = jax.tree.leaves(
            self.device.evaluation().predict(self.model, self._placed(batch.x))
        )
        weight = self.batches.whole(batch.weight)
        examples = np.asarray(Batch(None, weight=weight).examples_and_weight()[0])
        return [
            np.asarray(leaf)[examples] if leaf.shape[:1] == examples.shape else np.asarray(leaf)
            for leaf in outputs
        ]


def evaluate_dataset(
    state: TrainerState, dataset: Any, steps: int | None, verbose: bool | str
) -> dict[str, float]:
    """Return the mean loss and the metrics over a dataset; see ``Trainer.evaluate``."""
    device = state.on_devices()
    batches = _batches(device, dataset)
    batches.check_end(steps, "steps")
    device.check.first(batches.first)
    device.check.leave_whole(batches)
    model = device.model()
    with shown(verbose, "Evaluating", steps or batches.steps) as progress:
        return EvaluationPass(device, model, batches, steps, progress).logs()


def predict_dataset(
    state: TrainerState, dataset: Any, steps: int | None, verbose: bool | str
) -> Any:
    """Return the outputs for a dataset; see ``Trainer.predict``."""
    device = state.on_devices()
    batches = _batches(device, dataset)
    batches.check_end(steps, "steps")
    model = device.model()
    with shown(verbose, "Predicting", steps or batches.steps) as progress:
        return EvaluationPass(device, model, batches, steps, progress).outputs()


def _batches(device: DeviceState, dataset: Any) -> EpochIterator:
    return EpochIterator(dataset, replicas=device.strategy.num_replicas_in_sync, weighted=True)


def validator(
    device: DeviceState, data: Any, batch_size: int, steps: int | None
) -> Callable[[StepState], dict[str, float]]:
    """Return a function that evaluates ``validation_data`` with a state.

    Args:
        device: the state of the call of ``fit``.
        data: the argument of ``fit``.
        batch_size: for arrays.
        steps: batches; None for all.

    Raises:
        ArgumentError, ArgumentTypeError, DataError, ShapeError: as ``fit``.
    """
    try:
        dataset = make_validation_dataset(data, batch_size)
        batches = _batches(device, dataset)
        device.check.check(batches.first)
        device.check.leave_whole(batches)
    except (ArgumentError, ArgumentTypeError) as error:
        raise type(error)(f"validation_data: {error}") from error
    batches.check_end(steps, "validation_steps")

    def validate(state: StepState) -> dict[str, float]:
        model = (state.parameters, state.model_state)
        logs = EvaluationPass(device, model, batches, steps, Progress()).logs()
        return {f"val_{name}": value for name, value in logs.items()}

    return validate


class _InFlight:
    """A queue of pending results and their inputs: limits their number and finds NaN.

    Args:
        over: the pass.
        is_nan: returns whether a result is NaN.
        take: called with every result in order, when it is ready.
    """

    def __init__(
        self,
        over: EvaluationPass,
        is_nan: Callable[[Any], bool],
        take: Callable[[Any], None] = lambda result: None,
    ) -> None:
        self._over, self._is_nan, self._take = over, is_nan, take
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._number, self._explained = 0, False

    def add(self, x: Any, result: Any) -> None:
        """Add the result of the next batch; wait for the oldest one if there are too many."""
        self._waiting.append((x, result))
        if len(self._waiting) > calls_in_flight(x, self._over.device.strategy):
            self._look()

    def end(self) -> None:
        """Wait for all results."""
        while self._waiting:
            self._look()

    def _look(self) -> None:
        x, result = self._waiting.popleft()
        jax.block_until_ready(result)
        if not self._explained and _has_integers(x) and self._is_nan(result):
            self._explained = True
            self._explain(x)
        self._take(result)
        self._number += 1

    def _explain(self, x: Any) -> None:
        """Call the model uncompiled, where a layer can check the values of its input."""
        try:
            self._over.device.definition.predict(self._over.model, self._over.batches.whole(x))
        except DataError as error:
            raise DataError(f"{error} It is in the batch {self._number} of the data.") from error


def _has_integers(tree: Any) -> bool:
    return any(np.issubdtype(leaf.dtype, np.integer) for leaf in jax.tree.leaves(tree))


def _has_nan(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.inexact) and bool(jnp.isnan(leaf).any())


def _check_examples(shape: tuple[int, ...], examples: int) -> None:
    if shape[:1] != (examples,):
        raise ShapeError(
            f"The model returns shape {shape} for a batch of {examples} examples; predict needs "
            "one output for each example, (N, …). Call the module itself for anything else."
        )


def _joined(leaves: tuple[np.ndarray, ...]) -> np.ndarray:
    shapes = {leaf.shape[1:] for leaf in leaves}
    if len(shapes) > 1:
        shown = ", ".join(f"(N, {', '.join(map(str, shape))})" for shape in sorted(shapes)[:3])
        raise ShapeError(
            f"Batches of the data have outputs of different shapes, {shown}, which do not make one "
            "array. Pad the inputs to one length, or call predict for each batch."
        )
    return np.concatenate(leaves)

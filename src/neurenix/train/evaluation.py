"""One pass over data in evaluation mode: sums of loss and metrics, or the outputs.

Owns the host's loop of ``evaluate``, ``predict`` and validation, and the search for the batch whose
numbers a layer refuses. It does not own the compiled functions (``compiled.py``) nor the data
(``feed.py``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import DataError, ShapeError
from neurenix.distribute import Strategy
from neurenix.train.batch import Batch
from neurenix.train.compiled import CompiledEvaluation
from neurenix.train.feed import Feed
from neurenix.train.loop import calls_in_flight, to_devices
from neurenix.train.progress import Progress
from neurenix.train.step import StepDefinition


@dataclass
class Pass:
    """The parts that one pass needs.

    Attributes:
        definition: what is computed.
        compiled: the compiled functions.
        model: parameters and other state, on the devices.
        feed: the data.
        strategy: where batches go.
        steps: batches; None for all.
        progress: what shows it.
    """

    definition: StepDefinition
    compiled: CompiledEvaluation
    model: Any
    feed: Feed
    strategy: Strategy
    steps: int | None
    progress: Progress

    def logs(
        self, sums: Any, names: tuple[str, ...], check: Callable[[Batch, int], None]
    ) -> dict[str, float]:
        """Return the numbers of the pass.

        Args:
            sums: totals and metrics, all zero.
            names: of the numbers, in the order of the logs.
            check: called with every batch on the host.

        Raises:
            DataError: the loss is NaN, because a layer does not take the numbers of a batch.
        """
        began, evaluate = time.perf_counter(), self.compiled.evaluate
        leaves, vector = evaluate.flatten(sums), None
        in_flight = _InFlight(self, lambda vector: np.isnan(np.asarray(vector)[1]))
        for chunk in self.feed.chunks(self.steps, 1):
            check(chunk.batch, 1)
            batch = to_devices(chunk.batch, self.strategy, stacked=False)
            leaves, vector = evaluate(leaves, self.model, batch)
            in_flight.add(chunk.batch.x, vector)
            self.progress.advance(1, vector, names)
        in_flight.end()
        self.feed.rewind()
        logs = dict(zip(names, map(float, np.asarray(vector)[1:]), strict=True))
        self.progress.end(logs, time.perf_counter() - began)
        return logs

    def outputs(self) -> Any:
        """Return the outputs for all examples, NumPy arrays (N, …).

        Raises:
            DataError: an output is NaN, because a layer does not take the numbers of a batch.
            ShapeError: the model does not return one output for each example, or batches have
                outputs of different shapes.
        """
        began = time.perf_counter()
        found: list[Any] = []  # on the host: the devices hold outputs of few batches

        def has_nan(output: Any) -> bool:
            return any(map(_has_nan, jax.tree.leaves(output)))

        def keep(output: Any) -> None:
            found.append(jax.tree.map(np.asarray, output))

        in_flight = _InFlight(self, has_nan, keep)
        for chunk in self.feed.chunks(self.steps, 1):
            placed = to_devices(chunk.batch.x, self.strategy, stacked=False)
            output = self.compiled.predict(self.model, placed)
            size = len(jax.tree.leaves(chunk.batch.x)[0])
            jax.tree.map(lambda leaf, n=size: _check_examples(leaf.shape, n), output)
            output = jax.tree.map(lambda leaf, n=chunk.examples: leaf[:n], output)
            in_flight.add(chunk.batch.x, output)
            self.progress.advance(1, None, ())
        in_flight.end()
        joined = jax.tree.map(lambda *leaves: _joined(leaves), *found)
        self.progress.end({}, time.perf_counter() - began)
        return joined


class _InFlight:
    """Results that may not be there yet, with their inputs: a bound on them, and a look for NaN.

    Args:
        over: the pass.
        is_nan: tells whether a result is not a number.
        take: is given every result in turn, once it is there.
    """

    def __init__(
        self,
        over: Pass,
        is_nan: Callable[[Any], bool],
        take: Callable[[Any], None] = lambda result: None,
    ) -> None:
        self._over, self._is_nan, self._take = over, is_nan, take
        self._waiting: deque[tuple[Any, Any]] = deque()
        self._number, self._explained = 0, False

    def add(self, x: Any, result: Any) -> None:
        """Take the result of the next batch, and wait for an older one when there are many."""
        self._waiting.append((x, result))
        if len(self._waiting) > calls_in_flight(x, self._over.strategy):
            self._look()

    def end(self) -> None:
        """Wait for all."""
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
        """Call the model outside of a compiled program, where a layer can refuse its input."""
        try:
            self._over.definition.predict(self._over.model, x)
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

"""One pass over data in evaluation mode: sums of loss and metrics, or the outputs.

Owns the host's loop of ``evaluate``, ``predict`` and validation. It does not own the compiled
functions (``compiled.py``) nor the data (``feed.py``).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ShapeError
from neurenix.distribute import Strategy
from neurenix.train.batch import Batch
from neurenix.train.compiled import CompiledEvaluation
from neurenix.train.feed import Feed
from neurenix.train.loop import MAX_IN_FLIGHT, to_devices
from neurenix.train.progress import Progress


@dataclass
class Pass:
    """The parts that one pass needs.

    Attributes:
        compiled: the compiled functions.
        model: parameters and other state, on the devices.
        feed: the data.
        strategy: where batches go.
        steps: batches; None for all.
        progress: what shows it.
    """

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
        """
        began, evaluate = time.perf_counter(), self.compiled.evaluate
        leaves, vector = evaluate.flatten(sums), None
        in_flight: deque[Any] = deque()
        for chunk in self.feed.chunks(self.steps, 1):
            check(chunk.batch, 1)
            batch = to_devices(chunk.batch, self.strategy, stacked=False)
            leaves, vector = evaluate(leaves, self.model, batch)
            in_flight.append(vector)
            if len(in_flight) > MAX_IN_FLIGHT:
                in_flight.popleft().block_until_ready()
            self.progress.advance(1, vector, names)
        self.feed.rewind()
        logs = dict(zip(names, map(float, np.asarray(vector)[1:]), strict=True))
        self.progress.end(logs, time.perf_counter() - began)
        return logs

    def outputs(self) -> Any:
        """Return the outputs for all examples, NumPy arrays (N, …).

        Raises:
            ShapeError: the model does not return one output for each example, or batches have
                outputs of different shapes.
        """
        began, found = time.perf_counter(), []
        for chunk in self.feed.chunks(self.steps, 1):
            placed = to_devices(chunk.batch.x, self.strategy, stacked=False)
            output = self.compiled.predict(self.model, placed)
            size = len(jax.tree.leaves(chunk.batch.x)[0])
            jax.tree.map(lambda leaf, n=size: _check_examples(leaf.shape, n), output)
            found.append(jax.tree.map(lambda leaf, n=chunk.examples: leaf[:n], output))
            self.progress.advance(1, None, ())
        joined = jax.tree.map(lambda *leaves: _joined(leaves), *found)
        self.progress.end({}, time.perf_counter() - began)
        return joined


def _check_examples(shape: tuple[int, ...], examples: int) -> None:
    if shape[:1] != (examples,):
        raise ShapeError(
            f"The model returns shape {shape} for a batch of {examples} examples; predict needs "
            "one output for each example, (N, …). Call the module itself for anything else."
        )


def _joined(leaves: tuple[jax.Array, ...]) -> np.ndarray:
    shapes = {leaf.shape[1:] for leaf in leaves}
    if len(shapes) > 1:
        shown = ", ".join(f"(N, {', '.join(map(str, shape))})" for shape in sorted(shapes)[:3])
        raise ShapeError(
            f"Batches of the data have outputs of different shapes, {shown}, which do not make one "
            "array. Pad the inputs to one length, or call predict for each batch."
        )
    return np.concatenate(leaves)

"""Batches on their way to the replicas.

Owns the placement of host batches, one or many at a time. It does not own reading, shuffling or
batching (``neurenix.data``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from neurenix._core.errors import ShapeError
from neurenix.distribute.mesh import place
from neurenix.distribute.values import PerReplica, stack_replicas

if TYPE_CHECKING:
    from neurenix.distribute.strategy import Strategy


@dataclass(frozen=True)
class InputContext:
    """What a dataset function needs to know of where it runs.

    Attributes:
        num_input_pipelines: processes that read data, each for its own devices.
        input_pipeline_id: number of this one, from 0.
        num_replicas_in_sync: replicas over all processes.
    """

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int

    def per_replica_batch_size(self, global_batch_size: int) -> int:
        """Return ``global_batch_size`` divided by the replicas.

        Raises:
            ShapeError: it does not divide.

        Example:
            >>> InputContext(1, 0, 8).per_replica_batch_size(200)
            25
        """
        size, rest = divmod(global_batch_size, self.num_replicas_in_sync)
        if rest or size == 0:
            raise ShapeError(
                f"A global batch of {global_batch_size} does not divide by "
                f"{self.num_replicas_in_sync} replicas: use a multiple of "
                f"{self.num_replicas_in_sync}."
            )
        return size


class DistributedDataset:
    """A dataset whose every batch is split over the replicas, as global arrays."""

    def __init__(self, dataset: Iterable[Any], strategy: Strategy) -> None:
        self._dataset = dataset
        self._strategy = strategy

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(iter(self._dataset), self._strategy)

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]  # raises TypeError as len() should


class DistributedIterator(Iterator[Any]):
    """Yields global batches; ``next_stacked`` takes many at once for ``nx.multi_step``."""

    def __init__(self, iterator: Iterator[Any], strategy: Strategy) -> None:
        self._iterator = iterator
        self._strategy = strategy

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._check(batch, axis=0)
        return place(batch, self._strategy.batch_sharding())

    def next_stacked(self, steps: int) -> Any:
        """Return the next ``steps`` batches as one tree of arrays (steps, batch, …).

        Raises:
            StopIteration: fewer than ``steps`` batches are left.
        """
        batch = stacked(self._iterator, steps)
        self._check(batch, axis=1)
        return place(batch, self._strategy.batch_sharding(leading=1))

    def _check(self, batch: Any, *, axis: int) -> None:
        for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
            size = np.shape(leaf)[axis]
            if size % self._strategy.num_replicas_in_sync:
                raise ShapeError(
                    f"batch{jax.tree_util.keystr(path)} has {size} examples, which do not divide "
                    f"by {self._strategy.num_replicas_in_sync} replicas. Choose a batch size that "
                    "divides, and batch(…, drop_remainder=True) when the last batch is smaller "
                    "(fit pads and masks it instead)."
                )


class PerReplicaDataset:
    """A dataset of per-replica batches, dealt out to the replicas in turn."""

    def __init__(self, dataset: Iterable[Any], strategy: Strategy) -> None:
        self._dataset = dataset
        self._strategy = strategy

    def __iter__(self) -> Iterator[PerReplica]:
        iterator = iter(self._dataset)
        replicas = self._strategy.num_replicas_in_sync
        sharding = self._strategy.batch_sharding()
        while True:
            batches = [batch for _, batch in zip(range(replicas), iterator, strict=False)]
            if len(batches) < replicas:
                return
            yield stack_replicas(batches, sharding)


def stacked(iterator: Iterator[Any], steps: int) -> Any:
    """Take ``steps`` batches from ``iterator`` as one tree of arrays (steps, batch, …).

    Uses the iterator's own ``next_stacked`` where it has one: it gathers all in one go.

    Raises:
        StopIteration: fewer than ``steps`` batches are left.
        ShapeError: the batches have different shapes.
    """
    own = getattr(iterator, "next_stacked", None)
    if own is not None:
        return own(steps)
    batches = [batch for _, batch in zip(range(steps), iterator, strict=False)]
    if len(batches) < steps:
        raise StopIteration
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    except ValueError as error:
        raise ShapeError(
            f"{steps} batches in a row do not have the same shapes ({error}): batch with "
            "drop_remainder=True to run them in one compiled call."
        ) from error

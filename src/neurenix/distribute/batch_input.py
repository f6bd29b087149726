"""Batches on their way to the replicas.

Owns the placement of host batches, one or many at a time. It does not own reading, shuffling or
batching (``neurenix.data``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentTypeError, DataError, ShapeError
from neurenix._jax import process_allgather
from neurenix.distribute.mesh import place
from neurenix.distribute.values import PerReplica, stack_replicas


class BatchPlacement(Protocol):
    """How many shares a batch has, and where they lie; a strategy is one."""

    @property
    def num_replicas_in_sync(self) -> int:
        """Shares of a batch."""
        ...

    def batch_sharding(self, *, leading: int = 0) -> jax.sharding.Sharding:
        """Where a batch lies: axis number ``leading`` split over the replicas."""
        ...


def per_replica_batch_size(global_batch_size: int, replicas: int) -> int:
    """Return ``global_batch_size`` divided by ``replicas``.

    Raises:
        ShapeError: it does not divide.

    Example:
        >>> per_replica_batch_size(200, 8)
        25
    """
    size, rest = divmod(global_batch_size, replicas)
    if rest or size == 0:
        raise ShapeError(
            f"A global batch of {global_batch_size} does not divide by {replicas} replicas. Use a "
            f"multiple of {replicas}; batch(…, drop_remainder=True) drops a last batch that is "
            "smaller, and fit pads and masks it."
        )
    return size


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
        """Return this process's share for one replica; see ``per_replica_batch_size``."""
        return per_replica_batch_size(global_batch_size, self.num_replicas_in_sync)


class DistributedDataset:
    """A dataset whose every batch is split over the replicas, as global arrays.

    Raises:
        ArgumentTypeError: the dataset is one batch.
    """

    def __init__(self, dataset: Iterable[Any], placement: BatchPlacement) -> None:
        self._dataset = _expect_batches(dataset)
        self._placement = placement

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(iter(self._dataset), self._placement)

    def __len__(self) -> int:
        return len(self._dataset)  # type: ignore[arg-type]  # raises TypeError as len() should


class DistributedIterator(Iterator[Any]):
    """Yields global batches; ``next_stacked`` takes many at once for ``nx.multi_step``."""

    def __init__(self, iterator: Iterator[Any], placement: BatchPlacement) -> None:
        self._iterator = iterator
        self._placement = placement

    def __next__(self) -> Any:
        batch = next(self._iterator)
        self._check(batch, axis=0)
        if not hasattr(self._iterator, "next_stacked"):
            batch = owned(batch)
        return place(batch, self._placement.batch_sharding())

    def next_stacked(self, steps: int) -> Any:
        """Return the next ``steps`` batches as one tree of arrays (steps, batch, …).

        Raises:
            DataError: fewer than ``steps`` batches are left.
        """
        batch = stacked(self._iterator, steps)
        self._check(batch, axis=1)
        return place(batch, self._placement.batch_sharding(leading=1))

    def _check(self, batch: Any, *, axis: int) -> None:
        for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]:
            shape = np.shape(leaf)
            if len(shape) <= axis:
                raise ShapeError(
                    f"batch{jax.tree_util.keystr(path)} is a single number, which cannot be split "
                    "over the replicas: the first axis of every array of a batch is that of its "
                    "examples. Give what all examples share to the function by itself."
                )
            size = shape[axis]
            if size % self._placement.num_replicas_in_sync:
                raise ShapeError(
                    f"batch{jax.tree_util.keystr(path)} has {size} examples, which do not divide "
                    f"by {self._placement.num_replicas_in_sync} replicas. Choose a batch size that "
                    "divides, and batch(…, drop_remainder=True) when the last batch is smaller "
                    "(fit pads and masks it instead)."
                )


class PerReplicaDataset:
    """A dataset of per-replica batches, dealt out to the replicas of this process in turn.

    Raises:
        ArgumentTypeError: the dataset is one batch.
        DataError: when iterated, some replicas would have no last batch: at once where the dataset
            tells its length, else at its end.
    """

    def __init__(self, dataset: Iterable[Any], placement: BatchPlacement) -> None:
        self._dataset = _expect_batches(dataset)
        self._placement = placement

    def __iter__(self) -> Iterator[PerReplica]:
        sharding = self._placement.batch_sharding()
        return (stack_replicas(batches, sharding) for batches in self._dealt())

    def global_batches(self) -> Iterable[Any]:
        """Return the batches of all replicas, end to end on the host, as ``fit`` takes them.

        Like the function's dataset, they can be gone through again unless that is an iterator.

        Raises:
            ShapeError: when iterated, the replicas' batches do not go end to end.
        """
        if isinstance(self._dataset, Iterator):
            return map(self._of_all, self._dealt())
        return _GlobalBatches(self)

    def _of_all(self, batches: list[Any]) -> Any:
        """Return the replicas' batches end to end, those of other processes included."""
        batch = _end_to_end(batches)
        if self._placement.batch_sharding().is_fully_addressable:
            return batch
        return process_allgather(batch, tiled=True)

    def _dealt(self) -> Iterator[list[Any]]:
        iterator = iter(self._dataset)
        replicas = self._placement.num_replicas_in_sync
        if not self._placement.batch_sharding().is_fully_addressable:
            replicas //= jax.process_count()
        self._check(_length(self._dataset), replicas)
        taken = 0
        while True:
            batches = [owned(one) for _, one in zip(range(replicas), iterator, strict=False)]
            taken += len(batches)
            if len(batches) < replicas:
                self._check(taken, replicas)
                return
            yield batches

    @staticmethod
    def _check(count: int, replicas: int) -> None:
        if count % replicas:
            raise DataError(
                f"The function's dataset has {count} batches for {replicas} replicas: "
                f"{replicas - count % replicas} of them would have no last batch. Drop the rest "
                f"with .take({count - count % replicas}) after .batch(…), .repeat() before it, or "
                "choose a batch size that divides."
            )


class _GlobalBatches:
    """The batches of all replicas; as a dataset that is gone through anew at each epoch."""

    def __init__(self, dataset: PerReplicaDataset) -> None:
        self._dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return map(self._dataset._of_all, self._dataset._dealt())


def _end_to_end(batches: list[Any]) -> Any:
    try:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    except ValueError as error:
        raise ShapeError(
            f"The replicas' batches do not go end to end ({error}). They are alike but for the "
            "number of their examples, which are the first axis of every array."
        ) from error


def _expect_batches(dataset: Any) -> Any:
    """Return what goes through batches; a batch itself would be taken apart, entry by entry."""
    one_batch = isinstance(dataset, (tuple, Mapping)) or hasattr(dataset, "shape")
    if one_batch or not hasattr(dataset, "__iter__"):
        raise ArgumentTypeError(
            f"A dataset goes through batches; got a {type(dataset).__name__}. For one batch give a "
            "list of it, [(x, y)]; to make batches of arrays, "
            "nx.data.Dataset.from_arrays(x, y).batch(global_batch_size)."
        )
    return dataset


def _length(dataset: Any) -> int:
    try:
        return len(dataset)
    except (TypeError, DataError):  # a generator, or a dataset without an end
        return 0


def stacked(iterator: Iterator[Any], steps: int) -> Any:
    """Take ``steps`` batches from ``iterator`` as one tree of arrays (steps, batch, …).

    Uses the iterator's own ``next_stacked`` where it has one: it gathers all in one go.

    Raises:
        DataError: fewer than ``steps`` batches are left.
        ShapeError: the batches have different shapes.
    """
    own = getattr(iterator, "next_stacked", None)
    if own is not None:
        try:
            batch = own(steps)
            found = len(jax.tree.leaves(batch)[0])
        except StopIteration:
            found = 0
    else:
        batches = [owned(batch) for _, batch in zip(range(steps), iterator, strict=False)]
        found = len(batches)
    if found < steps:
        raise DataError(
            f"{steps} batches were to run in one compiled call, and the data ended (or a smaller "
            f"last batch came) after {found}. Repeat the dataset, or batch with "
            "drop_remainder=True and take a number of steps that divides its length."
        )
    if own is not None:
        return batch
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
    except ValueError as error:
        raise ShapeError(
            f"{steps} batches in a row do not have the same shapes ({error}): batch with "
            "drop_remainder=True to run them in one compiled call."
        ) from error

"""Place batches on the replicas, for custom loops and for ``fit``.

Owns the placement of host batches, one or many at a time, and how batches are dealt out to replicas
and processes. It does not own reading, shuffling or batching (``neurenix.data``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DataError, ShapeError
from neurenix.data import BatchIterator, BatchSource, StreamIterator
from neurenix.data.batch_iterator import next_exactly
from neurenix.data.stream import StreamDataset, as_batch_source
from neurenix.distribute.values import PerReplica, stack_replicas


class BatchPlacement(Protocol):
    """The number of replicas and the sharding of a batch; a strategy is one."""

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, over all processes."""
        ...

    def batch_sharding(self, *, leading: int = 0) -> jax.sharding.Sharding:
        """Return the sharding that splits axis number ``leading`` over the replicas."""
        ...


def place_batch(
    batch: Any, placement: BatchPlacement, *, leading: int = 0, process_local: bool = False
) -> Any:
    """Split a host batch over the replicas, asynchronously; nothing is sent between processes.

    Args:
        batch: a tree of arrays.
        placement: the replicas.
        leading: the axis to split; 1 for stacked batches.
        process_local: whether ``batch`` is this process's share, and not the whole batch.
    """
    sharding = placement.batch_sharding(leading=leading)
    if sharding.is_fully_addressable:
        return jax.device_put(batch, sharding)

    def put(leaf: Any) -> jax.Array:
        if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
            return jax.device_put(leaf, sharding)
        array = np.asarray(leaf)
        array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
        shape = None if process_local else array.shape
        return jax.make_array_from_process_local_data(sharding, array, shape)

    return jax.tree.map(put, batch)


def replicas_per_process(placement: BatchPlacement) -> int:
    """Return how many replicas have their devices in this process.

    Raises:
        ArgumentError: a replica has devices in several processes, so no process has its own.
    """
    replicas, sharding = placement.num_replicas_in_sync, placement.batch_sharding()
    if sharding.is_fully_addressable:
        return replicas
    places = sharding.addressable_devices_indices_map((replicas,)).values()
    here = len({index[0].indices(replicas)[0] for index in places if index is not None})
    if here * jax.process_count() != replicas:
        raise ArgumentError(
            f"{replicas} replicas do not divide over {jax.process_count()} processes: this one has "
            f"devices of {here}. Give every process whole batches, by strategy.distribute, or make "
            'the axes "data" and "fsdp" of the mesh a multiple of the processes.'
        )
    return here


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

    Attributes:
        dataset: the dataset given.

    Raises:
        ArgumentTypeError: the dataset is one batch.
    """

    def __init__(self, dataset: Iterable[Any], placement: BatchPlacement) -> None:
        self.dataset = dataset
        self._epochs = _Epochs(dataset)
        self._placement = placement

    def __iter__(self) -> DistributedIterator:
        return DistributedIterator(self._epochs.following(), self._placement)

    def __len__(self) -> int:
        return len(self.dataset)  # type: ignore[arg-type]  # raises TypeError as len() should


class DistributedIterator(Iterator[Any]):
    """A ``BatchIterator`` of global arrays; ``nx.multi_step`` takes many batches of it at once."""

    def __init__(self, iterator: BatchIterator, placement: BatchPlacement) -> None:
        self._iterator = iterator
        self._placement = placement

    def __next__(self) -> Any:
        return self._placed(next(self._iterator), axis=0)

    def next_stacked(self, count: int) -> Any:
        """Return up to ``count`` batches as one tree of arrays (k, batch, …).

        Fewer come before a batch of another shape and at the end; see ``BatchIterator``.
        """
        return self._placed(self._iterator.next_stacked(count), axis=1)

    def skip(self, count: int) -> None:
        """Skip the next ``count`` batches, or as many as are left."""
        self._iterator.skip(count)

    def get_state(self) -> dict[str, Any]:
        """Return the position in the dataset."""
        return self._iterator.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position that ``get_state`` returned; raises as the dataset's iterator."""
        self._iterator.set_state(state)

    def _placed(self, batch: Any, *, axis: int) -> Any:
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
        return place_batch(batch, self._placement, leading=axis)


class PerReplicaDataset:
    """A dataset of per-replica batches, dealt out to the replicas of this process in turn.

    Raises:
        ArgumentTypeError: the dataset is one batch.
        DataError: when iterated, some replicas would have no last batch: at once where the length
            of the dataset is known, else at its end.
    """

    def __init__(self, dataset: Iterable[Any], placement: BatchPlacement) -> None:
        self._dataset = dataset
        self._epochs = _Epochs(dataset)
        self._placement = placement

    def __iter__(self) -> Iterator[PerReplica]:
        sharding, replicas = self._placement.batch_sharding(), replicas_per_process(self._placement)
        _check_dealt(_length(self._dataset), replicas)
        following = self._epochs.following()
        return _Dealt(following, replicas, lambda batches: stack_replicas(batches, sharding))

    def process_batches(self) -> ProcessBatches:
        """Return the batches of this process's replicas, concatenated, as ``fit`` takes them."""
        local = not self._placement.batch_sharding().is_fully_addressable
        source = as_batch_source(self._dataset)
        return ProcessBatches(source, replicas_per_process(self._placement), process_local=local)


class ProcessBatches:
    """A ``BatchSource`` of per-replica batches, those of this process's replicas concatenated.

    Args:
        source: the per-replica batches.
        replicas: those of this process.
        process_local: whether other processes have replicas, too.
    """

    def __init__(self, source: BatchSource, replicas: int, *, process_local: bool) -> None:
        self._source, self._replicas = source, replicas
        self.process_local = process_local
        self.read_once, self.endless = source.read_once, source.endless
        self.batches_are_whole = source.batches_are_whole
        self.cardinality_is_exact = source.cardinality_is_exact

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch of this process."""
        size = self._source.batch_size
        return None if size is None else size * self._replicas

    @property
    def cardinality(self) -> int | None:
        """Batches of one epoch; raises ``DataError`` if some replicas have no last batch."""
        count = self._source.cardinality
        if count is None:
            return None
        if self.cardinality_is_exact:
            _check_dealt(count, self._replicas)
        return count // self._replicas

    def iterator(self, *, epoch: int = 0) -> BatchIterator:
        """Return an iterator from the beginning of an epoch."""
        return self._concatenated(self._source.iterator(epoch=epoch))

    def __iter__(self) -> BatchIterator:
        """Return an iterator of the following epoch."""
        return self._concatenated(iter(self._source))

    def _concatenated(self, iterator: BatchIterator) -> BatchIterator:
        dealt = _Dealt(iterator, self._replicas, _concatenate)
        return StreamIterator(lambda: dealt, can_restart=False)


class _Dealt(Iterator[Any]):
    """What ``combine`` makes of each group of so many batches."""

    def __init__(
        self, iterator: BatchIterator, replicas: int, combine: Callable[[list[Any]], Any]
    ) -> None:
        self._iterator, self._replicas, self._combine = iterator, replicas, combine
        self._taken = 0

    def __next__(self) -> Any:
        batches = list(itertools.islice(self._iterator, self._replicas))
        self._taken += len(batches)
        _check_dealt(self._taken, self._replicas)
        if not batches:
            raise StopIteration
        return self._combine(batches)

    def get_state(self) -> dict[str, Any]:
        return {"taken": self._taken, "source": self._iterator.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        self._iterator.set_state(state["source"])
        self._taken = state["taken"]


class _Epochs:
    """The iterators of a dataset for a custom loop; of a generator, one that goes on."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = _expect_batches(dataset)
        self._only: BatchIterator | None = dataset if isinstance(dataset, BatchIterator) else None

    def following(self) -> BatchIterator:
        if self._only is not None:
            return self._only
        source = as_batch_source(self._dataset, convert=False)
        if not source.read_once:
            return iter(source)
        self._only = source.iterator()
        return self._only


def _check_dealt(count: int, replicas: int) -> None:
    if count % replicas:
        raise DataError(
            f"The function's dataset has {count} batches for {replicas} replicas: "
            f"{replicas - count % replicas} of them would have no last batch. Drop the rest "
            f"with .take({count - count % replicas}) after .batch(…), .repeat() before it, or "
            "choose a batch size that divides."
        )


def _concatenate(batches: list[Any]) -> Any:
    try:
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
    except ValueError as error:
        raise ShapeError(
            f"The replicas' batches cannot be concatenated ({error}). They may differ only in the "
            "number of their examples, the first axis of every array."
        ) from error


def _expect_batches(dataset: Any) -> Any:
    """Return a dataset of batches; a batch itself would be taken apart, entry by entry."""
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

    Raises:
        DataError: fewer than ``steps`` batches of one shape are left.
    """
    if not isinstance(iterator, BatchIterator):
        iterator = StreamDataset(iterator, convert=False).iterator()
    return next_exactly(iterator, steps)

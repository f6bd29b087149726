"""``Dataset``: arrays that are shuffled, repeated, mapped, batched and sharded without a copy.

Owns the methods that users chain and their errors, and the position of an iterator. Does not own
how the order is computed and batches are read (``neurenix.data.order``).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import numpy as np

from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix._migration.tf_data import ToldOfClass, no_attribute, of_element
from neurenix.data.columns import Columns, as_columns
from neurenix.data.order import (
    MOST_PLACES,
    Batching,
    Order,
    Plan,
    Repeated,
    Sequential,
    Sharded,
    Shuffled,
    Skipped,
    Taken,
)
from neurenix.data.stream import StreamDataset
from neurenix.random import current_seed


class Dataset(metaclass=ToldOfClass):
    """A ``BatchSource`` of arrays: examples, their order and their batches.

    Every method returns a new dataset on the same arrays. Before ``batch`` the methods apply to
    rows, after it to batches: ``take(3)`` takes three rows or three batches. Iterating yields
    NumPy arrays, in an order that depends only on the seeds and the epoch: the first ``iter()`` of
    a dataset is epoch 0, the second epoch 1 …; ``iterator(epoch=…)`` chooses one.

    Attributes:
        cardinality_is_exact: True.
        read_once: False.
        process_local: False: each process that reads the dataset yields the same batches.

    Example:
        >>> data = nx.data.Dataset.from_arrays([[1.0], [2.0], [3.0]], [0, 1, 0]).batch(2)
        >>> for x, y in data:
        ...     print(x.tolist(), y)
        [[1.0], [2.0]] [0 1]
        [[3.0]] [0]
    """

    cardinality_is_exact: bool = True
    read_once: bool = False
    process_local: bool = False

    def __init__(self, plan: Plan, *others: object) -> None:
        if others or not isinstance(plan, Plan):
            raise ArgumentTypeError(
                "Dataset(…) takes no data itself: write Dataset.from_arrays(x, y)."
            )
        self._plan = plan
        self._epochs = itertools.count()

    @classmethod
    def from_arrays(cls, x: Any, y: Any = None, *, sample_weight: Any = None) -> Dataset:
        """Make a dataset of arrays that have the same number of rows.

        64-bit numbers become 32-bit, except those of a ``jax.Array``, which keeps its dtype. Arrays
        that need no conversion are not copied.

        Args:
            x: array-like of shape ``(rows, …)``, or a dict (or tuple) of such.
            y: targets, likewise; an element is then the pair ``(x, y)``.
            sample_weight: of shape ``(rows,)``; an element is then ``(x, y, sample_weight)``.

        Raises:
            DataError: no rows, different numbers of rows, ragged lists, object or text arrays.

        Example:
            >>> nx.data.Dataset.from_arrays({"image": np.zeros((3, 8, 8, 1))}).element_spec
            {'image': ShapeDtypeStruct(shape=(8, 8, 1), dtype=float32)}
        """
        named = [("x", x), ("y", y), ("sample_weight", sample_weight)]
        if sample_weight is not None and y is None:
            raise DataError(
                "sample_weight needs y beside it; without targets, give a dict of both."
            )
        given = [(name, value) for name, value in named if value is not None or name == "x"]
        # One by one, so that a message names the argument.
        checked = [as_columns(value, name) for name, value in given]
        for (name, _), columns in zip(given, checked, strict=True):
            if columns.rows != checked[0].rows:
                raise DataError(
                    f"x and {name} need the same number of rows (examples): "
                    f"x has {checked[0].rows}, {name} has {columns.rows}."
                )
        if len(checked) == 1:
            return cls(Plan(checked[0], Sequential(checked[0].rows)))
        joined = tuple(columns.structure.unflatten(columns.leaves) for columns in checked)
        leaves, structure = jax.tree.flatten(joined)
        columns = Columns(tuple(leaves), structure, checked[0].rows)
        return cls(Plan(columns, Sequential(columns.rows)))

    @staticmethod
    def from_grain(source: Any) -> StreamDataset:
        """Read a grain pipeline that yields batches; its own state is saved and restored.

        Args:
            source: a batched ``grain.MapDataset`` or ``grain.IterDataset``.

        Example:
            >>> import grain
            >>> pipeline = grain.MapDataset.source([1.0, 2.0, 3.0, 4.0]).batch(2)
            >>> len(list(nx.data.Dataset.from_grain(pipeline)))
            2
        """
        return StreamDataset(source)

    def _reordered(self, make: Callable[[Order], Order]) -> Dataset:
        plan = self._plan
        if plan.batch_order is None:
            return Dataset(dataclasses.replace(plan, order=make(plan.order)))
        return Dataset(dataclasses.replace(plan, batch_order=make(plan.batch_order)))

    def shuffle(self, *buffer: Any, seed: int | None = None, **options: Any) -> Dataset:
        """Read all rows in a random order, another one each epoch.

        Args:
            buffer: not accepted. Unlike ``tf.data``, all rows are shuffled, without a buffer.
            seed: 0 or more; the same seed gives the same orders (with the same NumPy). By default
                that of ``nx.seed``, or 0 if it was not called.
            options: not accepted; the error explains those of ``tf.data``.

        Raises:
            ArgumentTypeError: anything but a seed is given.
            DataError: the dataset is endless: shuffle before ``repeat``.

        Example:
            >>> data = nx.data.Dataset.from_arrays(np.arange(8)).shuffle(seed=1)
            >>> first, second = list(data), list(data)
            >>> sorted(first) == sorted(second) == list(range(8)), first == second
            (True, False)
        """
        if buffer or options:
            given = ", ".join([*map(repr, buffer), *(f"{k}={v!r}" for k, v in options.items())])
            raise ArgumentTypeError(
                f"shuffle({given}): the only option is a seed, by name: .shuffle(seed=0). No "
                "buffer is needed, all rows are shuffled, in a new order each epoch."
            )
        seed = current_seed() if seed is None else seed
        _at_least(0, "seed", seed)
        if self._plan.outer.infinite:
            raise DataError(
                "An endless dataset cannot be shuffled: call shuffle() before repeat()."
            )
        return self._reordered(lambda order: Shuffled(order, seed))

    def repeat(self, count: int | None = None) -> Dataset:
        """Read the dataset ``count`` times as one epoch, or endlessly.

        Args:
            count: 1 or more; None for an endless dataset.

        Raises:
            DataError: ``count`` is below 1, or an epoch would have more than 2**48 rows.

        Example:
            >>> len(nx.data.Dataset.from_arrays(np.zeros(10)).repeat(3))
            30
        """
        if count is not None:
            _at_least(1, "count", count)
        if self._plan.outer.infinite:
            return self
        if count is not None and count * self._plan.outer.size > MOST_PLACES:
            raise DataError(f"count={count} is more than an epoch holds: repeat() is for ever.")
        return self._reordered(lambda order: Repeated(order, count))

    def take(self, count: int) -> Dataset:
        """Read only the first ``count`` rows (after ``batch``: batches) of each epoch.

        Raises:
            DataError: ``count`` is below 1.

        Example:
            >>> list(nx.data.Dataset.from_arrays([5, 6, 7]).repeat().take(4))
            [np.int32(5), np.int32(6), np.int32(7), np.int32(5)]
        """
        _at_least(1, "count", count)
        return self._reordered(lambda order: Taken(order, min(count, order.size)))

    def skip(self, count: int) -> Dataset:
        """Leave out the first ``count`` rows (after ``batch``: batches) of each epoch.

        Skip before ``shuffle`` to hold out the rows that ``take`` takes.

        Raises:
            DataError: ``count`` is below 0, or nothing would be left.

        Example:
            >>> [int(row) for row in nx.data.Dataset.from_arrays([5, 6, 7]).skip(1)]
            [6, 7]
        """
        _at_least(0, "count", count)
        if count >= self._plan.outer.size:
            raise DataError(f"skip({count}) leaves nothing of {self!r}.")
        return self._reordered(lambda order: Skipped(order, count))

    def shard(self, index: int, count: int) -> Dataset:
        """Read every ``count``-th row from the row ``index`` on: one process's share of the data.

        After ``shuffle`` with the same seed in every process, each epoch has other shards.

        Args:
            index: of this shard, ``0 <= index < count``.
            count: the number of shards.

        Raises:
            ArgumentTypeError: ``index`` or ``count`` is not an integer.
            DataError: ``index`` is out of range, or the shard would be empty.

        Example:
            >>> [int(row) for row in nx.data.Dataset.from_arrays(np.arange(7)).shard(1, 3)]
            [1, 4]
        """
        _at_least(1, "count", count)
        _at_least(0, "index", index)
        if index >= count:
            raise DataError(f"index must be from 0 to {count - 1} for {count} shards: {index}.")
        if index >= self._plan.outer.size:
            raise DataError(f"Shard {index} of {count} is empty: {self!r}.")
        return self._reordered(lambda order: Sharded(order, index, count))

    def map(self, function: Callable[..., Any], **options: Any) -> Dataset:
        """Apply a pure function to every row, or after ``batch`` to every batch.

        A function of a batch is called once per batch and is as fast as its NumPy; a function of
        a row is called once per row.

        Args:
            function: takes and returns arrays in dicts or tuples, always of the same shapes. It
                takes a pair or triple as one argument, or its parts: ``lambda x, y: …``. 64-bit
                numbers that it returns become 32-bit, as in ``from_arrays``.
            options: not accepted; the error explains those of ``tf.data``.

        Raises:
            ArgumentTypeError: ``function`` is not callable, there are options, or, when rows are
                read, it takes other arguments.
            DataError: when rows are read, it returns None, something other than numbers, or an
                integer that does not fit into 32 bits.

        Example:
            >>> data = nx.data.Dataset.from_arrays({"x": np.ones((4, 2))}).batch(2)
            >>> data.map(lambda batch: batch["x"] * 2).element_spec
            ShapeDtypeStruct(shape=(2, 2), dtype=float32)
        """
        if options:
            given = ", ".join(f"{name}={value!r}" for name, value in options.items())
            raise ArgumentTypeError(
                f"map(…, {given}): the only argument is a function; leave the rest out. Elements "
                "are mapped in order; a function of whole batches, after batch(), is faster."
            )
        plan, function = self._plan, of_element(function)
        if plan.batching is None:
            maps = (*plan.element_maps, function)
            return Dataset(dataclasses.replace(plan, element_maps=maps))
        return Dataset(dataclasses.replace(plan, batch_maps=(*plan.batch_maps, function)))

    def batch(self, batch_size: int, *, drop_remainder: bool = False) -> Dataset:
        """Read rows in groups.

        Args:
            batch_size: rows in a batch, over all devices and processes that read this dataset.
            drop_remainder: leave out the last rows that do not fill a batch.

        Raises:
            DataError: the size is below 1, the dataset is batched already, or
                ``drop_remainder`` would leave nothing.

        Example:
            >>> len(nx.data.Dataset.from_arrays(np.zeros(10)).batch(4))
            3
        """
        _at_least(1, "batch_size", batch_size)
        plan = self._plan
        if plan.batching is not None:
            raise DataError(f"Already batched, {plan.batching.batch_size} rows a batch.")
        batching = Batching(plan.order, batch_size, drop_remainder)
        if batching.size == 0:
            raise DataError(
                f"{plan.order.size} rows do not fill one batch of {batch_size}, and "
                "drop_remainder=True leaves none. Take a smaller batch, or drop_remainder=False."
            )
        return Dataset(dataclasses.replace(plan, batching=batching, batch_order=batching))

    @property
    def batch_size(self) -> int | None:
        """Rows in a batch, before functions of batches; ``None`` when there are no batches."""
        return None if self._plan.batching is None else self._plan.batching.batch_size

    @property
    def batches_are_whole(self) -> bool | None:
        """Whether every batch has ``batch_size`` rows, so that none needs padding.

        ``None`` where that is unknown: a function of batches may return fewer rows, or more.
        """
        plan = self._plan
        if plan.batching is None or not plan.batching.all_whole:
            return False
        return None if plan.batch_maps else True

    @property
    def cardinality(self) -> int | None:
        """Batches (or rows, when not batched) of one epoch; ``None`` when endless."""
        return None if self._plan.outer.infinite else self._plan.outer.size

    @property
    def endless(self) -> bool:
        """Whether an epoch never ends, as after ``repeat()``."""
        return self._plan.outer.infinite

    def __len__(self) -> int:
        """Return ``cardinality``; endless datasets raise ``DataError``."""
        if self._plan.outer.infinite:
            raise DataError("An endless dataset has no length; give steps_per_epoch, or take(n).")
        return self._plan.outer.size

    def __bool__(self) -> bool:
        """Return True: no dataset is empty."""
        return True

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shapes and dtypes of what iterating yields first, as ``jax.ShapeDtypeStruct``."""

        def spec_of(leaf: Any) -> jax.ShapeDtypeStruct:
            array = np.asarray(leaf)
            return jax.ShapeDtypeStruct(array.shape, array.dtype)

        return jax.tree.map(spec_of, next(self.iterator()))

    def iterator(self, *, epoch: int = 0) -> DatasetIterator:
        """Return an iterator of one epoch, whose position can be saved and restored.

        Args:
            epoch: 0 or more; shuffled datasets have another order in each.

        Raises:
            DataError: ``epoch`` is negative.
        """
        _at_least(0, "epoch", epoch)
        return DatasetIterator(self._plan, epoch=epoch)

    def __iter__(self) -> DatasetIterator:
        """Return an iterator of the next epoch, counted from 0 for each dataset."""
        return self.iterator(epoch=next(self._epochs))

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            raise no_attribute(name, [known for known in dir(type(self)) if known[0] != "_"])

    def __repr__(self) -> str:
        batched = "" if self.batch_size is None else f", batch_size={self.batch_size}"
        return f"Dataset(rows={self._plan.columns.rows}{batched}, cardinality={self.cardinality})"


class DatasetIterator(Iterator[Any]):
    """A ``BatchIterator`` of one epoch of a ``Dataset``; endless if the dataset is.

    Example:
        >>> from neurenix.data import Dataset
        >>> iterator = Dataset.from_arrays([10, 11, 12, 13]).batch(2).iterator()
        >>> state = iterator.get_state()
        >>> next(iterator)
        array([10, 11], dtype=int32)
        >>> iterator.set_state(state)
        >>> next(iterator)
        array([10, 11], dtype=int32)
    """

    def __init__(self, plan: Plan, *, epoch: int = 0) -> None:
        self._plan = plan
        self._size = plan.outer.size
        self._epoch = int(epoch)
        self._position = 0

    @property
    def position(self) -> int:
        """How many batches of this epoch have been read."""
        return self._position

    def __next__(self) -> Any:
        """Return the next batch: fresh arrays of shape ``(batch_size, …)``."""
        position = self._position
        if position >= self._size:
            raise StopIteration
        item = self._plan.item(self._epoch, position)
        self._position = position + 1
        return item

    def skip(self, count: int) -> None:
        """Skip the next ``count`` batches, or as many as are left, without reading them."""
        self._position = min(self._position + count, self._size)

    def next_stacked(self, count: int) -> Any:
        """Return the next batches stacked, for several steps in one compiled call.

        Fewer than ``count`` batches are returned at the end of the data, and before a batch of
        another size: a partial last one, or one that a function of ``map`` made. The first axis
        has the number of batches.

        Args:
            count: the most batches to return, 1 or more.

        Returns:
            Fresh arrays of shape ``(k, batch_size, …)`` with ``1 <= k <= count``, the same as
            ``k`` calls of ``next``.

        Raises:
            StopIteration: no batch is left.
            DataError: ``count`` is not positive.

        Example:
            >>> from neurenix.data import Dataset
            >>> iterator = Dataset.from_arrays(list(range(7))).batch(2).iterator()
            >>> iterator.next_stacked(10)
            array([[0, 1],
                   [2, 3],
                   [4, 5]], dtype=int32)
            >>> iterator.next_stacked(10)
            array([[6]], dtype=int32)
        """
        if count < 1:
            raise DataError(f"count must be 1 or more, found {count}.")
        count = min(count, self._size - self._position)
        if count <= 0:
            raise StopIteration
        places = np.arange(self._position, self._position + count)
        stacked = self._plan.stacked(self._epoch, places)
        self._position += len(jax.tree.leaves(stacked)[0])
        return stacked

    def get_state(self) -> dict[str, Any]:
        """Return the position, as numbers and text that JSON can hold."""
        return {
            "epoch": self._epoch,
            "position": self._position,
            "order": self._plan.fingerprint(),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to the position of an iterator of the same dataset.

        Args:
            state: what ``get_state`` returned, in this process or another.

        Raises:
            DataError: the state belongs to a dataset with other rows, order or batch size.
        """
        missing = {"epoch", "position", "order"} - set(state)
        if missing:
            raise DataError(
                f"This is not the state of a dataset iterator: it lacks {sorted(missing)}."
            )
        if state["order"] != self._plan.fingerprint():
            raise DataError(
                "The state belongs to a dataset that is read in another order.\n"
                f"  state:   {state['order']}\n  dataset: {self._plan.fingerprint()}"
            )
        self._epoch, self._position = int(state["epoch"]), int(state["position"])


def _at_least(least: int, name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise ArgumentTypeError(f"{name} must be an integer, found {value!r}.")
    if value < least:
        raise DataError(f"{name} must be {least} or more, found {value}.")

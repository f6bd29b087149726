"""The order of a dataset, computed from positions, and the rows and batches at a position.

No order stores a list of what it yields: it maps positions to positions of the order below it,
thousands at a time. A position is an epoch and a place in that epoch: a repeated order gives each
repetition an epoch of the order below, a shuffled order depends on the epoch, and both numbers are
an iterator's whole state. An infinite order has 2**48 places. ``Plan`` reads, maps and batches the
rows in this order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import numpy as np
import numpy.typing as npt

from neurenix._core.errors import DataError
from neurenix._core.keys import keys_explained
from neurenix.data.batch_iterator import shapes_of, stack
from neurenix.data.columns import WIDE, Columns, as_numbers

Numbers = npt.NDArray[np.int64]

MOST_PLACES = 2**48
"""The size of an endless order: enough for 200 places a millisecond for 44 years."""

EPOCHS = 2**62
"""Epochs are counted modulo this number, so that their arithmetic fits in 64 bits."""

EPOCH_STRIDE = 0x1E3779B97F4A7C15
"""Epochs of the order below between the starts of two endless epochs.

An odd number near ``EPOCHS`` divided by the golden ratio, so that the epochs of nested endless
orders start far apart (Knuth, The Art of Computer Programming 3, 6.4).
"""


class Order(Protocol):
    """A sequence of rows, epoch after epoch."""

    @property
    def size(self) -> int:
        """Rows of one epoch; about ``MOST_PLACES``, the maximum, if endless."""
        ...

    @property
    def infinite(self) -> bool:
        """Whether an epoch never ends."""
        ...

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the source's epoch and row for each place.

        Args:
            epochs: from 0 to ``EPOCHS - 1``, of a shape that broadcasts to that of ``places``; the
                returned epochs have this shape, too.
            places: positions within the epochs, from 0 to ``size - 1``.
        """
        ...


def rows_of(order: Order, epoch: int, places: Numbers) -> Numbers:
    """Return the source's rows at places of one epoch, in the shape of ``places``.

    Example:
        >>> rows_of(Taken(Sequential(10), 3), 0, np.arange(3))
        array([0, 1, 2])
    """
    return order.locate(np.full_like(places, epoch % EPOCHS), places)[1]


@dataclass(frozen=True)
class Sequential:
    """The rows ``0 … size - 1`` in order.

    Example:
        >>> rows_of(Sequential(3), 0, np.arange(3))
        array([0, 1, 2])
    """

    size: int
    infinite: bool = False

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the places."""
        return epochs, places


class _Permutations:
    """A cache of the permutations of one order; holds the two used last.

    Each order has its own: in a shared cache, datasets that are read alternately would evict each
    other's permutations at every batch. A copy of an order starts with an empty cache.
    """

    def __init__(self) -> None:
        self.of = functools.lru_cache(maxsize=2)(_permutation)

    def __reduce__(self) -> tuple[type[_Permutations], tuple[()]]:
        return _Permutations, ()


@dataclass(frozen=True)
class Shuffled:
    """Another order's rows, in a new random order each epoch.

    An epoch's permutation takes 8 bytes a row; the two used last are cached.

    Example:
        >>> order = Shuffled(Sequential(4), seed=0)
        >>> first, second = (rows_of(order, epoch, np.arange(4)) for epoch in range(2))
        >>> sorted(first.tolist()) == sorted(second.tolist()) == [0, 1, 2, 3]
        True
    """

    inner: Order
    seed: int
    infinite: bool = False
    _permutations: _Permutations = field(
        default_factory=_Permutations, init=False, repr=False, compare=False
    )

    @property
    def size(self) -> int:
        """Rows of the inner order."""
        return self.inner.size

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the rows at shuffled places of the same epochs."""
        size, permutation_of = self.inner.size, self._permutations.of
        first = int(epochs.flat[0])
        if (epochs == first).all():
            return self.inner.locate(epochs, permutation_of(self.seed, first, size)[places])
        shuffled, epochs = np.empty_like(places), np.broadcast_to(epochs, places.shape)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            shuffled[chosen] = permutation_of(self.seed, int(epoch), size)[places[chosen]]
        return self.inner.locate(epochs, shuffled)


def _permutation(seed: int, epoch: int, size: int) -> Numbers:
    permutation = np.random.default_rng((seed, epoch)).permutation(size)
    permutation.flags.writeable = False
    return permutation


@dataclass(frozen=True)
class Repeated:
    """``count`` epochs of another order as one; endless if ``count`` is None.

    Example:
        >>> Repeated(Sequential(2), 3).size, Repeated(Sequential(2), None).infinite
        (6, True)
    """

    inner: Order
    count: int | None

    @property
    def size(self) -> int:
        """Rows of all repetitions."""
        return MOST_PLACES if self.count is None else self.inner.size * self.count

    @property
    def infinite(self) -> bool:
        """Whether it is endless."""
        return self.count is None

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the inner order's rows; each repetition is another epoch of it."""
        size = self.inner.size
        passes: Any = int(places.min()) // size
        if passes != int(places.max()) // size:  # rarely of several repetitions
            passes = places // size
        places = places - passes * size
        stride = EPOCH_STRIDE if self.count is None else self.count
        # An overflow gives the product modulo 2**64, which EPOCHS divides.
        return self.inner.locate((epochs * stride + passes) % EPOCHS, places)


@dataclass(frozen=True)
class Taken:
    """The first ``count`` rows of each epoch of another order.

    Example:
        >>> rows_of(Taken(Sequential(10), 3), 1, np.arange(3))
        array([0, 1, 2])
    """

    inner: Order
    count: int
    infinite: bool = False

    @property
    def size(self) -> int:
        """The rows taken."""
        return self.count

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the inner order's rows at the same places."""
        return self.inner.locate(epochs, places)


@dataclass(frozen=True)
class Skipped:
    """Each epoch of another order without its first ``count`` rows.

    Example:
        >>> rows_of(Skipped(Sequential(3), 1), 0, np.arange(2))
        array([1, 2])
    """

    inner: Order
    count: int

    @property
    def size(self) -> int:
        """The rows left."""
        return self.inner.size - self.count

    @property
    def infinite(self) -> bool:
        """Whether the inner order never ends."""
        return self.inner.infinite

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the inner order's rows after the skipped ones."""
        return self.inner.locate(epochs, places + self.count)


@dataclass(frozen=True)
class Sharded:
    """Rows ``index``, ``index + count``, ``index + 2 * count`` … of another order.

    Example:
        >>> rows_of(Sharded(Sequential(7), 1, 3), 0, np.arange(2))
        array([1, 4])
    """

    inner: Order
    index: int
    count: int

    @property
    def size(self) -> int:
        """The rows of this shard; shards differ by at most one row."""
        return (self.inner.size - self.index + self.count - 1) // self.count

    @property
    def infinite(self) -> bool:
        """Whether the inner order never ends."""
        return self.inner.infinite

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return every ``count``-th row of the inner order."""
        return self.inner.locate(epochs, places * self.count + self.index)


@dataclass(frozen=True)
class Batching:
    """Groups of ``batch_size`` rows of another order: the rows of this order are batches.

    A batch has rows of two epochs if the inner order was repeated before batching.

    Example:
        >>> batching = Batching(Sequential(5), 2, drop_remainder=False)
        >>> batching.size, batching.members(0, 2)
        (3, array([4]))
    """

    inner: Order
    batch_size: int
    drop_remainder: bool

    @property
    def size(self) -> int:
        """Batches of one epoch."""
        whole, rest = divmod(self.inner.size, self.batch_size)
        return whole + (rest > 0 and not self.drop_remainder and not self.inner.infinite)

    @property
    def infinite(self) -> bool:
        """Whether the batches never end."""
        return self.inner.infinite

    @property
    def all_whole(self) -> bool:
        """Whether every batch has ``batch_size`` rows."""
        return self.drop_remainder or self.infinite or self.inner.size % self.batch_size == 0

    def locate(self, epochs: Numbers, places: Numbers) -> tuple[Numbers, Numbers]:
        """Return the places; ``members`` returns the rows of a batch."""
        return epochs, places

    def is_partial(self, places: Numbers) -> npt.NDArray[np.bool_]:
        """Return which batches of an epoch have fewer than ``batch_size`` rows."""
        return (places + 1) * self.batch_size > self.inner.size

    def members(self, epoch: int, place: int) -> Numbers:
        """Return the source's rows of one batch, shape ``(batch_size,)`` or fewer for the last."""
        start = place * self.batch_size
        stop = min(start + self.batch_size, self.inner.size)
        return rows_of(self.inner, epoch, np.arange(start, stop))

    def members_of_whole(self, epochs: Numbers, places: Numbers) -> Numbers:
        """Return the source's rows of ``k`` whole batches, shape ``(k, batch_size)``."""
        rows = places[:, None] * self.batch_size + np.arange(self.batch_size)
        return self.inner.locate(epochs[:, None], rows)[1]


@dataclass(frozen=True)
class Plan:
    """The steps of a dataset's iterators: gather rows in an order, map, batch, map batches.

    Args:
        columns: the arrays.
        order: of the rows.
        element_maps: functions of one row.
        batching: groups rows into batches; None for single rows.
        batch_order: the order of the batches; ``batching`` itself by default.
        batch_maps: functions of one batch.
    """

    columns: Columns
    order: Order
    element_maps: tuple[Callable[[Any], Any], ...] = ()
    batching: Batching | None = None
    batch_order: Order | None = None
    batch_maps: tuple[Callable[[Any], Any], ...] = ()

    @property
    def outer(self) -> Order:
        """The order of the iterator's items: batches, or rows without batching."""
        return self.batch_order or self.order

    def item(self, epoch: int, place: int) -> Any:
        """Return the batch (or row) at a place of an epoch."""
        epochs, places = self.outer.locate(np.array([epoch % EPOCHS]), np.array([place]))
        if self.batching is None:
            return self._read(places[0])
        members = self.batching.members(int(epochs[0]), int(places[0]))
        return self._mapped(self._read(members), int(places[0]))

    def stacked(self, epoch: int, places: Numbers) -> Any:
        """Return several items of an epoch stacked along a new first axis, ``(k, batch_size, …)``.

        Stops before a batch of another size.
        """
        epochs, numbers = self.outer.locate(np.full_like(places, epoch % EPOCHS), places)
        if self.batching is None:
            return self._read(numbers)
        partial = np.flatnonzero(self.batching.is_partial(numbers))
        if partial.size and partial[0] == 0:
            members = self.batching.members(int(epochs[0]), int(numbers[0]))
            read = self._mapped(self._read(members), int(numbers[0]))
            return jax.tree.map(lambda leaf: np.asarray(leaf)[None], read)
        whole = slice(partial[0] if partial.size else None)
        read = self._read(self.batching.members_of_whole(epochs[whole], numbers[whole]))
        if not self.batch_maps:
            return read
        batches: list[Any] = []
        for place, number in enumerate(numbers[whole]):
            batch = self._mapped(_part(read, place), int(number))
            if batches and shapes_of(batch) != shapes_of(batches[0]):
                break
            batches.append(batch)
        return stack(batches, "batches")

    def _read(self, rows: Numbers) -> Any:
        if not self.element_maps:
            return self._gather(rows)
        elements = [
            self._applied(self.element_maps, self._gather(row), f"row {row}")
            for row in rows.reshape(-1)
        ]
        if rows.ndim == 0:
            return elements[0]
        read = stack(elements, "rows")
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), read)

    def _gather(self, rows: Numbers | np.int64) -> Any:
        """Return a fresh copy of some rows, ``(*rows.shape, …)`` for each array."""
        taken = [leaf.take(rows, axis=0) for leaf in self.columns.leaves]
        return self.columns.structure.unflatten(taken)

    def _mapped(self, batch: Any, place: int) -> Any:
        if not self.batch_maps:
            return batch
        return self._applied(self.batch_maps, batch, f"batch {place}")

    def _applied(self, functions: tuple[Callable[[Any], Any], ...], item: Any, which: str) -> Any:
        """Return the result of the functions for an item, converted as by ``as_columns``."""
        for function in functions:
            item = function(item)
            if item is None:
                raise DataError(f"map() returned None for {which}: is a return missing?")
        name = f"The result of map() for {which}"
        # Only a jax.Array has 64 bits here, by the user's choice; results then keep theirs, too.
        narrow = not any(leaf.dtype in WIDE for leaf in self.columns.leaves)

        def number(leaf: Any) -> Any:
            return leaf if isinstance(leaf, jax.Array) else as_numbers(leaf, name, narrow=narrow)

        with keys_explained(item):
            return jax.tree.map(number, item)

    def fingerprint(self) -> str:
        """Return a text that differs where the order of the items differs."""
        order = f"{self.columns.rows} rows, {self.outer!r}"
        return order if self.batching is None else f"{order}, {self.batching!r}"


def _part(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)

"""Which row comes when: shuffling, repeating, taking and sharding as arithmetic on positions.

Owns the order of a dataset, and nothing of its contents. No order holds a list of what it yields:
each maps positions to positions of the order below it, thousands at a time.

A position counts on over the epochs: row ``p`` of epoch ``e`` of an order of ``size`` rows is at
``e * size + p``. So a repeated order is the order itself, a shuffled one can tell the epoch from
the position, and an iterator's whole state is one number. An infinite order is one of about 2**48
positions, which nobody reaches the end of.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

INFINITE_POSITIONS = 2**48
"""About as many positions as an endless order has: 200 a millisecond for 44 years."""


class Order(Protocol):
    """A sequence of rows, epoch after epoch."""

    @property
    def size(self) -> int:
        """Rows of one epoch; about ``INFINITE_POSITIONS`` when endless."""
        ...

    @property
    def infinite(self) -> bool:
        """Whether an epoch never ends."""
        ...

    def rows(self, positions: Positions) -> Positions:
        """Return the source's row at each position, in the shape of ``positions``."""
        ...


@dataclass(frozen=True)
class Sequential:
    """The rows ``0 … size - 1`` as they stand.

    Example:
        >>> Sequential(3).rows(np.arange(5))
        array([0, 1, 2, 0, 1])
    """

    size: int
    infinite: bool = False

    def rows(self, positions: Positions) -> Positions:
        """Return each position within its epoch."""
        return positions % self.size


class _Permutations:
    """The permutations of one order, of which the two last used are kept.

    Each order has its own: of one store for all, datasets that are read in turn would push each
    other's out at every batch. A copy of an order starts without any.
    """

    def __init__(self) -> None:
        self.of = functools.lru_cache(maxsize=2)(_permutation)

    def __reduce__(self) -> tuple[type[_Permutations], tuple[()]]:
        return _Permutations, ()


@dataclass(frozen=True)
class Shuffled:
    """Another order's rows, in a new random order each epoch.

    An epoch's permutation takes 8 bytes a row; the two last used are kept with the order.

    Example:
        >>> order = Shuffled(Sequential(4), seed=0)
        >>> first, second = order.rows(np.arange(8)).reshape(2, 4)
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
        """As many rows as without shuffling."""
        return self.inner.size

    def rows(self, positions: Positions) -> Positions:
        """Return the rows at shuffled positions of the same epoch."""
        size, permutation_of = self.inner.size, self._permutations.of
        first, last = int(positions.min()) // size, int(positions.max()) // size
        if first == last:
            start = first * size
            return self.inner.rows(
                permutation_of(self.seed, first, size)[positions - start] + start
            )
        epochs, places = np.divmod(positions, size)
        shuffled = np.empty_like(positions)
        for epoch in range(first, last + 1):
            chosen = epochs == epoch
            shuffled[chosen] = permutation_of(self.seed, epoch, size)[places[chosen]] + epoch * size
        return self.inner.rows(shuffled)


def _permutation(seed: int, epoch: int, size: int) -> Positions:
    permutation = np.random.default_rng((seed, epoch)).permutation(size)
    permutation.flags.writeable = False
    return permutation


@dataclass(frozen=True)
class Repeated:
    """Another order's epochs, ``count`` of them as one; ``None`` for ever.

    Example:
        >>> Repeated(Sequential(2), 3).size, Repeated(Sequential(2), None).infinite
        (6, True)
    """

    inner: Order
    count: int | None

    @property
    def size(self) -> int:
        """Rows of all repetitions."""
        inner = self.inner.size
        return inner * (self.count if self.count is not None else INFINITE_POSITIONS // inner)

    @property
    def infinite(self) -> bool:
        """Whether it repeats for ever."""
        return self.count is None

    def rows(self, positions: Positions) -> Positions:
        """Return the inner order's rows: a repetition is one more of its epochs."""
        return self.inner.rows(positions)


@dataclass(frozen=True)
class Taken:
    """The first ``count`` rows of each epoch of another order.

    Example:
        >>> Taken(Sequential(10), 3).rows(np.arange(4))
        array([0, 1, 2, 0])
    """

    inner: Order
    count: int
    infinite: bool = False

    @property
    def size(self) -> int:
        """The rows taken."""
        return self.count

    def rows(self, positions: Positions) -> Positions:
        """Return the inner order's rows, what was not taken skipped."""
        epochs, places = np.divmod(positions, self.count)
        return self.inner.rows(epochs * self.inner.size + places)


@dataclass(frozen=True)
class Skipped:
    """Each epoch of another order without its first ``count`` rows.

    Example:
        >>> Skipped(Sequential(3), 1).rows(np.arange(4))
        array([1, 2, 1, 2])
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

    def rows(self, positions: Positions) -> Positions:
        """Return the inner order's rows, from the first that is left in each epoch."""
        epochs, places = np.divmod(positions, self.size)
        return self.inner.rows(epochs * self.inner.size + self.count + places)


@dataclass(frozen=True)
class Sharded:
    """Rows ``index``, ``index + count``, ``index + 2 * count`` … of another order.

    Example:
        >>> Sharded(Sequential(7), 1, 3).rows(np.arange(2))
        array([1, 4])
    """

    inner: Order
    index: int
    count: int

    @property
    def size(self) -> int:
        """The rows of this shard: shards differ by one row at most."""
        return (self.inner.size - self.index + self.count - 1) // self.count

    @property
    def infinite(self) -> bool:
        """Whether the inner order never ends."""
        return self.inner.infinite

    def rows(self, positions: Positions) -> Positions:
        """Return every ``count``-th row of the inner order."""
        epochs, places = np.divmod(positions, self.size)
        return self.inner.rows(epochs * self.inner.size + places * self.count + self.index)


@dataclass(frozen=True)
class Batching:
    """Rows in groups of ``batch_size``: the rows of this order are batches.

    A batch may hold rows of two epochs when the order below was repeated before it was batched.

    Example:
        >>> batching = Batching(Sequential(5), 2, drop_remainder=False)
        >>> batching.size, batching.members(2)
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

    def rows(self, positions: Positions) -> Positions:
        """Return the positions themselves: ``members`` tells the rows of a batch."""
        return positions

    def is_partial(self, batch: int) -> bool:
        """Return whether the batch at a position has fewer than ``batch_size`` rows."""
        place = batch % self.size
        return (place + 1) * self.batch_size > self.inner.size

    def members(self, batch: int) -> Positions:
        """Return the source's rows of one batch, shape ``(batch_size,)`` or fewer for the last."""
        epoch, place = divmod(batch, self.size)
        start = place * self.batch_size
        stop = min(start + self.batch_size, self.inner.size)
        offset = epoch * self.inner.size
        return self.inner.rows(np.arange(offset + start, offset + stop))

    def members_of_whole(self, batches: Positions) -> Positions:
        """Return the source's rows of ``k`` whole batches, shape ``(k, batch_size)``."""
        epochs, places = np.divmod(batches, self.size)
        starts = epochs * self.inner.size + places * self.batch_size
        return self.inner.rows(starts[:, None] + np.arange(self.batch_size))

"""The protocol of everything that yields batches: ``BatchSource`` and ``BatchIterator``.

``fit``, ``evaluate``, ``predict`` and ``strategy.distribute`` read data through these two alone.
``as_batch_source`` (``neurenix.data.stream``) makes a source of any other iterable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np

from neurenix._core.errors import DataError


@runtime_checkable
class BatchIterator(Protocol):
    """The batches of one epoch, in order, from a position that can be saved and restored.

    A batch is a tree of host arrays with a common first axis. Reading is deterministic: iterators
    of one source with equal states yield equal batches. The state is small, holds only what JSON
    can, and does not depend on how many workers or hosts read.
    """

    def __iter__(self) -> Iterator[Any]:
        """Return the iterator itself."""
        ...

    def __next__(self) -> Any:
        """Return the next batch; raise ``StopIteration`` at the end of the epoch."""
        ...

    def next_stacked(self, count: int) -> Any:
        """Return up to ``count`` batches of one shape, stacked along a new first axis.

        Equal to ``k`` calls of ``next`` with ``1 <= k <= count``. Fewer than ``count`` come before
        a batch of another shape and at the end of the epoch.

        Raises:
            StopIteration: no batch is left.
            DataError: ``count`` is below 1.
        """
        ...

    def skip(self, count: int) -> None:
        """Advance by ``count`` batches, or to the end; without reading them where possible."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the position: that of the next batch, even if the iterator has read ahead."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to a position that ``get_state`` of an iterator of the same source returned.

        Raises:
            DataError: the state belongs to another source, or the source cannot be read again.
        """
        ...


@runtime_checkable
class BatchSource(Protocol):
    """Batches, epoch after epoch; ``Dataset`` and ``StreamDataset`` are such sources."""

    @property
    def batch_size(self) -> int | None:
        """Rows of a full batch, before functions of batches; ``None`` if unknown or unbatched."""
        ...

    @property
    def batches_are_whole(self) -> bool | None:
        """Whether every batch has ``batch_size`` rows; ``None`` if unknown."""
        ...

    @property
    def cardinality(self) -> int | None:
        """Batches of one epoch; ``None`` if unknown or endless."""
        ...

    @property
    def cardinality_is_exact(self) -> bool:
        """Whether ``cardinality`` is certain; a loader may yield fewer than its ``len``."""
        ...

    @property
    def endless(self) -> bool:
        """Whether an epoch is known never to end."""
        ...

    @property
    def read_once(self) -> bool:
        """Whether only one epoch can be read, as of a generator."""
        ...

    @property
    def process_local(self) -> bool:
        """Whether each JAX process yields its own share of a batch, and not the whole batch.

        All processes then yield as many batches, and shares of one size.
        """
        ...

    def iterator(self, *, epoch: int = 0) -> BatchIterator:
        """Return an iterator from the beginning of an epoch, which may decide the order."""
        ...

    def __iter__(self) -> BatchIterator:
        """Return an iterator of the epoch after that of the last call."""
        ...


def next_exactly(iterator: BatchIterator, count: int) -> Any:
    """Return ``count`` batches stacked, for a compiled call of ``count`` steps.

    Raises:
        DataError: fewer are left, or a batch of another shape comes before.

    Example:
        >>> from neurenix.data import Dataset
        >>> next_exactly(Dataset.from_arrays([1, 2, 3, 4]).batch(2).iterator(), 2)
        array([[1, 2],
               [3, 4]], dtype=int32)
    """
    try:
        batch = iterator.next_stacked(count)
        found = len(jax.tree.leaves(batch)[0])
    except StopIteration:
        batch, found = None, 0
    if found < count:
        raise DataError(
            f"{count} batches were to run in one compiled call, and the data ended (or a batch of "
            f"another shape came) after {found}. Repeat the dataset, or batch with "
            "drop_remainder=True and take a number of steps that divides its length."
        )
    return batch


def shapes_of(batch: Any) -> list[tuple[int, ...]]:
    """Return the shape of each array of a tree."""
    return [np.shape(leaf) for leaf in jax.tree.leaves(batch)]


def stack(items: Sequence[Any], what: str) -> Any:
    """Stack trees of arrays leaf by leaf along a new first axis.

    Raises:
        DataError: they differ in structure or shape.

    Example:
        >>> stack([{"a": 1}, {"a": 2}], "rows")["a"]
        array([1, 2])
    """
    try:
        return jax.tree.map(lambda *leaves: np.stack(leaves), *items)
    except ValueError as error:
        raise DataError(
            f"map() returned {what} that differ and cannot be stacked: {error}"
        ) from error

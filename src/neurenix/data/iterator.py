"""Read the batches of a ``Dataset``, one or many at once, from any position.

Owns the position; it does not own the order (``neurenix.data.order``) nor the transfer to devices
(``neurenix.train``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import DataError
from neurenix._core.keys import keys_explained
from neurenix.data.batch_iterator import shapes_of, stack
from neurenix.data.columns import WIDE, Columns, as_numbers
from neurenix.data.order import EPOCHS, Batching, Numbers, Order


@dataclass(frozen=True)
class Plan:
    """What a dataset's iterators do: gather rows in an order, map them, batch them, map batches.

    Args:
        columns: the arrays.
        order: of the rows.
        element_maps: functions of one row.
        batching: how rows make batches, or ``None`` for single rows.
        batch_order: of the batches; ``batching`` itself when they are in no other order.
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
        """The order of what the iterator yields: batches, or rows when they are not batched."""
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

        Fewer than asked are returned when a batch of another size stands in the way.
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
            return self.columns.gather(rows)
        elements = [
            self._applied(self.element_maps, self.columns.gather(row), f"row {row}")
            for row in rows.reshape(-1)
        ]
        if rows.ndim == 0:
            return elements[0]
        read = stack(elements, "rows")
        return jax.tree.map(lambda leaf: leaf.reshape(*rows.shape, *leaf.shape[1:]), read)

    def _mapped(self, batch: Any, place: int) -> Any:
        if not self.batch_maps:
            return batch
        return self._applied(self.batch_maps, batch, f"batch {place}")

    def _applied(self, functions: tuple[Callable[[Any], Any], ...], item: Any, which: str) -> Any:
        """Return what the functions make of an item: numbers, as ``as_columns`` has them."""
        for function in functions:
            item = function(item)
            if item is None:
                raise DataError(f"map() returned None for {which}: is a return missing?")
        name = f"The result of map() for {which}"
        # Only arrays of JAX are wide here, whose type was chosen: so is that of what they become.
        narrow = not any(leaf.dtype in WIDE for leaf in self.columns.leaves)

        def number(leaf: Any) -> Any:
            return leaf if isinstance(leaf, jax.Array) else as_numbers(leaf, name, narrow=narrow)

        with keys_explained(item):
            return jax.tree.map(number, item)

    def fingerprint(self) -> str:
        """Return a text that differs where the order of the items differs."""
        order = f"{self.columns.rows} rows, {self.outer!r}"
        return order if self.batching is None else f"{order}, {self.batching!r}"


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


def _part(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)

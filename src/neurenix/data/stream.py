"""Batches of other sources: a grain pipeline, a list of batches, a loader of another library.

Owns reading and resuming. The source itself shuffles and batches (``neurenix.data.dataset`` does so
for arrays).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix._core.libraries import library_of
from neurenix._migration.tf_data import no_stream_attribute
from neurenix.data.batch_iterator import BatchSource, shapes_of, stack
from neurenix.data.columns import as_array

# grain reports 2**63 rows, divided by the batch size, for an endless dataset. 2**40 batches of a
# millisecond take 35 years.
_ENDLESS = 2**40


def as_batch_source(data: Any, *, convert: bool = True) -> BatchSource:
    """Return ``data`` itself if it is a ``BatchSource``, else a ``StreamDataset`` of it.

    Example:
        >>> as_batch_source([np.zeros((2, 3)), np.ones((2, 3))]).cardinality
        2
    """
    return data if isinstance(data, BatchSource) else StreamDataset(data, convert=convert)


class StreamDataset:
    """Any iterable of batches as a ``BatchSource``.

    A batch is an array, a dict, or a pair ``(x, y)`` or triple ``(x, y, sample_weight)``, whose
    last entries may be None; lists of arrays, as loaders yield them, count as tuples. 64-bit
    numbers become 32-bit, except in a ``jax.Array``. A source with a ``len`` has a cardinality.
    NumPy arrays are copied, because a generator may refill them; those of a list and of the loaders
    of PyTorch and grain need no copy.

    Args:
        source: a grain ``MapDataset`` or ``IterDataset`` that is batched, any iterable of batches,
            or an object with ``len`` and ``[index]``, as Keras's ``PyDataset``, whose
            ``on_epoch_end`` is called after the last batch. An iterator or a generator can be read
            once only.
        convert: False yields a copy of each batch without conversion, of any structure.

    Attributes:
        process_local: False: each process that reads the source gets whole batches.

    Raises:
        ArgumentTypeError: the source cannot be iterated, or is a torch ``Dataset``, whose items are
            single examples.
        DataError: its length is 0.

    Example:
        >>> import numpy as np
        >>> data = nx.data.StreamDataset([(np.ones((2, 3)), np.zeros(2))])
        >>> data.element_spec[0]
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    process_local: bool = False

    def __init__(self, source: Iterable[Any], *, convert: bool = True) -> None:
        if _is_of_examples(source):
            raise ArgumentTypeError(
                f"{type(source).__name__} is a torch Dataset, which is not batched: its items are "
                "single examples. Give it to a torch DataLoader, DataLoader(dataset, "
                "batch_size=32), or give its arrays."
            )
        self._length = _length_of(source)
        # grain's MapDataset has no iterator with a state; what it turns into has.
        to_iter_dataset = getattr(source, "to_iter_dataset", None)
        self._source: Any = to_iter_dataset() if callable(to_iter_dataset) else source
        self._indexed = _is_indexed(self._source)
        if not self._indexed and not isinstance(self._source, Iterable):
            raise ArgumentTypeError(
                f"A dataset must be iterable; found {type(source).__name__}. "
                "Call the function that makes the generator, or give its result as a list."
            )
        self._convert = convert
        # Loaders of torch and grain yield new arrays.
        self._copies = not convert or not (
            isinstance(source, list | tuple) or library_of(source, ("torch.utils.data", "grain"))
        )
        self._read_once = isinstance(source, Iterator)
        self._spec: Any = None
        self._kept: StreamIterator | None = None
        self._read = False
        if self._length == 0 and convert:
            raise DataError("The dataset is empty: its source has length 0.")

    @property
    def batch_size(self) -> None:
        """``None``: unknown, the source may yield batches of several sizes."""
        return None

    @property
    def batches_are_whole(self) -> None:
        """``None``: unknown."""
        return None

    @property
    def cardinality(self) -> int | None:
        """Batches of one epoch; None if unknown or endless."""
        return None if self.endless else self._length

    @property
    def cardinality_is_exact(self) -> bool:
        """Whether ``cardinality`` is certain, as for a list, a tuple or an indexed source."""
        return self._indexed or isinstance(self._source, list | tuple)

    @property
    def endless(self) -> bool:
        """Whether the source reports that it is endless, as a repeated grain dataset."""
        return self._length is not None and self._length >= _ENDLESS

    @property
    def source(self) -> Iterable[Any]:
        """The iterable of batches: the source, or for grain the iterable made from it."""
        return self._source

    @property
    def read_once(self) -> bool:
        """Whether the source is an iterator, which can be read once only."""
        return self._read_once

    @property
    def element_spec(self) -> Any:
        """Shapes and dtypes of the first batch, as ``jax.ShapeDtypeStruct``."""
        if self._spec is None:
            iterator = self.iterator()
            try:
                first = iterator.peek()
            except StopIteration:
                raise DataError("The dataset is empty: its source yields no batch.") from None
            self._spec = jax.tree.map(
                lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), first
            )
            if self._read_once:
                self._kept = iterator  # what was read to look at it must not be lost
        return self._spec

    def iterator(self, *, epoch: int = 0) -> StreamIterator:
        """Return an iterator from the source's beginning.

        Args:
            epoch: ignored: the source decides its own order.

        Raises:
            DataError: the source can be read once only, and was read.
        """
        del epoch
        if self._kept is not None:
            kept, self._kept = self._kept, None
            return kept
        if self._read_once and self._read:
            raise DataError(
                "This dataset was made from an iterator, which can be read once only. For several "
                "epochs give something that can be iterated again: a list, a loader, a dataset."
            )
        self._read = True
        begin = functools.partial(_by_index if self._indexed else iter, self._source)
        return StreamIterator(begin, can_restart=not self._read_once, prepare=self._prepared)

    def _prepared(self, batch: Any) -> Any:
        batch = _as_batch(batch) if self._convert else batch
        return owned(batch) if self._copies else batch

    def __iter__(self) -> StreamIterator:
        """Return an iterator from the source's beginning."""
        return self.iterator()

    def __len__(self) -> int:
        """Return ``cardinality``; raise ``ArgumentTypeError`` if there is none."""
        if self.cardinality is None:
            why = "never ends" if self.endless else "does not say how many batches it has"
            raise ArgumentTypeError(
                f"This dataset has no length: its source ({type(self._source).__name__}) {why}."
            )
        return self.cardinality

    def __bool__(self) -> bool:
        """Return True, whether the length is known or not."""
        return True

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __getattr__(self, name: str) -> NoReturn:
            raise no_stream_attribute(name, [known for known in dir(type(self)) if known[0] != "_"])

    def __repr__(self) -> str:
        return f"StreamDataset({type(self._source).__name__}, cardinality={self.cardinality})"


class StreamIterator(Iterator[Any]):
    """A ``BatchIterator`` over any iterator; its state is the iterator's, or the batches read.

    Args:
        begin: returns the iterator from its start. Its ``get_state`` and ``set_state`` are used if
            it has them.
        can_restart: whether ``begin`` can be called again.
        prepare: converts an item of the iterator to a batch.

    Example:
        >>> import numpy as np
        >>> iterator = nx.data.StreamDataset([np.zeros(2), np.ones(2)]).iterator()
        >>> _ = next(iterator)
        >>> state = iterator.get_state()
        >>> next(iterator), iterator.set_state(state), next(iterator)
        (array([1., 1.], dtype=float32), None, array([1., 1.], dtype=float32))
    """

    def __init__(
        self,
        begin: Callable[[], Iterator[Any]],
        *,
        can_restart: bool,
        prepare: Callable[[Any], Any] = lambda batch: batch,
    ) -> None:
        self._begin, self._can_restart, self._prepare = begin, can_restart, prepare
        self._inner = begin()
        self._position = 0
        self._ahead: list[tuple[Any, Any]] = []  # one batch looked at, and the state before it

    @property
    def position(self) -> int:
        """The number of batches read."""
        return self._position

    def _inner_state(self) -> Any:
        get_state = getattr(self._inner, "get_state", None)
        return get_state() if callable(get_state) else None

    def peek(self) -> Any:
        """Return the next batch, which ``next`` will return again.

        Raises:
            StopIteration: no batch is left.
        """
        if not self._ahead:
            state = self._inner_state()
            self._ahead.append((self._prepare(next(self._inner)), state))
        return self._ahead[0][0]

    def skip(self, count: int) -> None:
        """Skip ``count`` batches, or all that are left, by reading them."""
        for _ in range(count):
            if next(self, None) is None:
                return

    def __next__(self) -> Any:
        """Return the next batch."""
        batch = self.peek()
        self._ahead.clear()
        self._position += 1
        return batch

    def next_stacked(self, count: int) -> Any:
        """Return up to ``count`` batches of one shape, stacked; see ``BatchIterator``.

        Raises:
            StopIteration: no batch is left.
            DataError: ``count`` is not positive.
        """
        if count < 1:
            raise DataError(f"count must be 1 or more, found {count}.")
        batches = [next(self)]
        while len(batches) < count:
            try:
                following = self.peek()
            except StopIteration:
                break
            if shapes_of(following) != shapes_of(batches[0]):
                break
            batches.append(next(self))
        return stack(batches, "batches")

    def get_state(self) -> dict[str, Any]:
        """Return the position of the next batch."""
        inner = self._ahead[0][1] if self._ahead else self._inner_state()
        return {"position": self._position, "source": inner}

    def set_state(self, state: dict[str, Any]) -> None:
        """Move to the position of an iterator of the same source.

        A source with a state, such as grain's, is set directly; another is read again from its
        start to this position.

        Raises:
            DataError: the state is of another kind, or the source can be read once only.
        """
        missing = {"position", "source"} - set(state)
        if missing:
            raise DataError(f"This is not the state of a stream: it lacks {sorted(missing)}.")
        set_state = getattr(self._inner, "set_state", None)
        if state["source"] is not None and callable(set_state):
            set_state(state["source"])
        elif self._can_restart:
            self._inner = self._begin()
            for skipped in range(state["position"]):
                if next(self._inner, _END) is _END:
                    raise DataError(
                        f"The state is at batch {state['position']}, and the source ends after "
                        f"{skipped}."
                    )
        else:
            raise DataError("An iterator cannot be read again from its beginning: give a list.")
        self._ahead.clear()
        self._position = int(state["position"])


_END = object()


def _by_index(batches: Any) -> Iterator[Any]:
    """Yield the batches of an object that has ``len`` and ``[index]``; Keras's then reshuffle."""
    for index in range(len(batches)):
        yield batches[index]
    on_epoch_end = getattr(batches, "on_epoch_end", None)
    if callable(on_epoch_end):
        on_epoch_end()


def _is_indexed(source: Any) -> bool:
    if isinstance(source, type) or hasattr(source, "__iter__"):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _is_of_examples(source: Any) -> bool:
    """Return whether it is a map-style ``Dataset`` of torch, without importing torch."""
    bases = {base.__name__ for base in type(source).__mro__ if _is_of_torch_data(base)}
    return "Dataset" in bases and "IterableDataset" not in bases


def _is_of_torch_data(base: type) -> bool:
    return f"{base.__module__}.".startswith("torch.utils.data.")


def _length_of(source: Any) -> int | None:
    """Return its ``len``; None if it raises, as for a loader of a torch ``IterableDataset``."""
    if not isinstance(source, Sized):
        return None
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def _as_batch(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {key: _as_batch(value) for key, value in batch.items()}
    if isinstance(batch, tuple | list):
        parts = _without_last_nones(batch)
        if _are_parts(parts):
            return tuple(_as_part(part, place) for place, part in enumerate(parts))
    return batch if isinstance(batch, jax.Array) else as_array(batch, _NAME)


_NAME = "a batch of the dataset"


def _without_last_nones(parts: tuple[Any, ...] | list[Any]) -> tuple[Any, ...]:
    """Return ``(x, y)`` for ``(x, y, None)``."""
    count = len(parts)
    while count > 1 and parts[count - 1] is None:
        count -= 1
    return tuple(parts[:count])


def _are_parts(parts: tuple[Any, ...]) -> bool:
    """Return whether a sequence is the parts of a batch, rather than the rows of one array."""
    known = [_is_array_like(part) for part in parts]
    if not known or all(known):
        return bool(known)
    others = all(
        fine or part is None or isinstance(part, list)
        for fine, part in zip(known, parts, strict=True)
    )
    return any(known) and others and len(parts) <= 3


def _as_part(part: Any, place: int) -> Any:
    if _is_array_like(part):
        return _as_batch(part)
    return as_array(part, f"{_NAME}, at place {place},")


def _is_array_like(part: Any) -> bool:
    return hasattr(part, "shape") or isinstance(part, dict | tuple)

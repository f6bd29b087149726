"""Batches from elsewhere: a grain pipeline, a list of batches, a loader of another library.

Owns reading and resuming what others yield; it does not own shuffling and batching, which the
source has done already (``neurenix.data.dataset`` does them for arrays).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix._core.libraries import library_of
from neurenix._migration.tf_data import no_stream_attribute
from neurenix.data.columns import as_array
from neurenix.data.iterator import shapes_of, stack

# grain says 2**63 rows where it has no end, divided by those of a batch: 2**40 batches, one in a
# millisecond, take 35 years.
_ENDLESS = 2**40


class StreamDataset:
    """Any iterable of batches, with the reading interface of ``Dataset``.

    A batch is an array, a dict, or a pair ``(x, y)`` or triple ``(x, y, sample_weight)``, whose
    last entries may be None; lists of arrays, as loaders yield them, count as tuples. Numbers of 64
    bits become those of 32, but for a ``jax.Array``. A source that knows its ``len`` has a
    cardinality.
    A batch is as it was when the source yielded it: NumPy arrays are copied, for a generator may
    fill the same ones again; those of a list and of the loaders of PyTorch and grain need no copy.

    Args:
        source: a grain ``MapDataset`` or ``IterDataset`` that is batched, or any iterable of
            batches. An iterator or a generator can be read once only.

    Raises:
        ArgumentTypeError: the source cannot be iterated.

    Example:
        >>> import numpy as np
        >>> data = nx.data.StreamDataset([(np.ones((2, 3)), np.zeros(2))])
        >>> data.element_spec[0]
        ShapeDtypeStruct(shape=(2, 3), dtype=float32)
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self._length = _length_of(source)
        # grain's MapDataset has no iterator with a state; what it turns into has.
        to_iter_dataset = getattr(source, "to_iter_dataset", None)
        readable: object = to_iter_dataset() if callable(to_iter_dataset) else source
        if not isinstance(readable, Iterable):
            raise ArgumentTypeError(
                f"A dataset must be iterable; found {type(source).__name__}. "
                "Call the function that makes the generator, or give its result as a list."
            )
        self._source: Iterable[Any] = readable
        self._read_once = isinstance(source, Iterator)
        self._spec: Any = None
        self._kept: StreamIterator | None = None
        self._read = False
        if self._length == 0:
            raise DataError("The dataset is empty: its source has length 0.")

    @property
    def batch_size(self) -> None:
        """``None``: the source decides, and need not keep to one."""
        return None

    @property
    def cardinality(self) -> int | None:
        """Batches of one epoch; ``None`` when the source does not know, or is endless."""
        return None if self.endless else self._length

    @property
    def endless(self) -> bool:
        """Whether the source says that it never ends, as a repeated grain dataset does."""
        return self._length is not None and self._length >= _ENDLESS

    @property
    def source(self) -> Iterable[Any]:
        """What yields the batches: the source given, or the iterable that grain makes of it."""
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
            epoch: of no consequence here: a source of others decides its own order.

        Raises:
            DataError: the source can be read once only, and was.
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
        return StreamIterator(self._source, can_restart=not self._read_once)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator from the source's beginning."""
        return self.iterator()

    def __len__(self) -> int:
        """Return ``cardinality``; raise ``ArgumentTypeError`` where there is none."""
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
    """Batches of a source, with a state: the source's own, or the number of batches read.

    Example:
        >>> import numpy as np
        >>> iterator = nx.data.StreamDataset([np.zeros(2), np.ones(2)]).iterator()
        >>> _ = next(iterator)
        >>> state = iterator.get_state()
        >>> next(iterator), iterator.set_state(state), next(iterator)
        (array([1., 1.], dtype=float32), None, array([1., 1.], dtype=float32))
    """

    def __init__(self, source: Iterable[Any], *, can_restart: bool) -> None:
        self._source = source
        self._can_restart = can_restart
        self._inner = iter(source)
        self._refilled = not (
            isinstance(source, list | tuple) or library_of(source, _MAKE_THEIR_OWN)
        )
        self._position = 0
        self._ahead: list[tuple[Any, Any]] = []  # one batch looked at, and the state before it

    @property
    def position(self) -> int:
        """How many batches have been read."""
        return self._position

    def _inner_state(self) -> Any:
        get_state = getattr(self._inner, "get_state", None)
        return get_state() if callable(get_state) else None

    def peek(self) -> Any:
        """Return the next batch and leave it to be read.

        Raises:
            StopIteration: there is none.
        """
        if not self._ahead:
            state = self._inner_state()
            batch = _as_batch(next(self._inner))
            self._ahead.append((owned(batch) if self._refilled else batch, state))
        return self._ahead[0][0]

    def skip(self, count: int) -> None:
        """Read ``count`` batches, or as many as there are, and drop them."""
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
        """Return up to ``count`` batches of one shape, stacked; see ``DatasetIterator``.

        Raises:
            StopIteration: there is no batch left.
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
        """Return where this iterator is."""
        inner = self._ahead[0][1] if self._ahead else self._inner_state()
        return {"position": self._position, "source": inner}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to where an iterator of the same source was.

        A source with a state of its own, as grain's have, is set at once; another is read again
        from its beginning up to there.

        Raises:
            DataError: the state is of another kind, or the source can be read once only.
        """
        missing = {"position", "source"} - set(state)
        if missing:
            raise DataError(f"This is no state of a stream: it lacks {sorted(missing)}.")
        set_state = getattr(self._inner, "set_state", None)
        if state["source"] is not None and callable(set_state):
            set_state(state["source"])
        elif self._can_restart:
            self._inner = iter(self._source)
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
# Their loaders yield new arrays.
_MAKE_THEIR_OWN = ("torch.utils.data", "grain")


def _length_of(source: Any) -> int | None:
    """Return its ``len``; None where it does not know, as a loader of a torch ``IterableDataset``.

    Such sources have a ``__len__`` that raises.
    """
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
    """Return ``(x, y)`` for ``(x, y, None)``: no weights are as good as none given."""
    count = len(parts)
    while count > 1 and parts[count - 1] is None:
        count -= 1
    return tuple(parts[:count])


def _are_parts(parts: tuple[Any, ...]) -> bool:
    """Tell the parts of a batch, of which some may be lists, from the rows of one array."""
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

"""What is known of a source of batches before it is read: its length, and how often it can be.

Owns the reading of objects that are indexed and not iterated, as Keras's ``PyDataset`` is. It does
not own reading and resuming (``neurenix.data.stream``).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neurenix._core.errors import ArgumentTypeError
from neurenix.data import Dataset, StreamDataset
from neurenix.distribute import PerReplicaDataset


class Indexed:
    """The batches of an object that has ``len`` and ``[index]``, as an iterable.

    Its ``on_epoch_end`` is called after the last batch, where it has one: Keras's reshuffle there.

    Example:
        >>> list(Indexed("ab"))
        ['a', 'b']
    """

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __len__(self) -> int:
        """Return how many batches there are."""
        return len(self._batches)

    def __iter__(self) -> Iterator[Any]:
        """Yield them in order."""
        for index in range(len(self._batches)):
            yield self._batches[index]
        on_epoch_end = getattr(self._batches, "on_epoch_end", None)
        if callable(on_epoch_end):
            on_epoch_end()


def stream_of(source: Any) -> StreamDataset:
    """Return the batches of any iterable, or of an object that is indexed.

    Raises:
        ArgumentTypeError: it is neither, or a torch ``Dataset``, whose items are single examples.
        DataError: its length is 0.
    """
    if _is_of_examples(source):
        raise ArgumentTypeError(
            f"{type(source).__name__} is a torch Dataset, which is not batched: its items are "
            "single examples. Give it to a torch DataLoader, DataLoader(dataset, batch_size=32), "
            "or give its arrays."
        )
    if isinstance(source, PerReplicaDataset):
        source = source.global_batches()  # fit deals them out again, each share to its replica
    return StreamDataset(Indexed(source) if _is_indexed(source) else source)


def _is_indexed(source: Any) -> bool:
    if isinstance(source, type) or hasattr(source, "__iter__"):
        return False
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _is_of_examples(source: Any) -> bool:
    """Tell whether it is a map-style ``Dataset`` of torch, which need not be loaded for that."""
    bases = {base.__name__ for base in type(source).__mro__ if _is_of_torch_data(base)}
    return "Dataset" in bases and "IterableDataset" not in bases


def _is_of_torch_data(base: type) -> bool:
    return f"{base.__module__}.".startswith("torch.utils.data.")


def exact_length(dataset: Dataset | StreamDataset) -> int | None:
    """Return how many batches one pass has, or None when it is unknown, endless or hearsay.

    A loader of another library may yield more or fewer batches than its ``len`` says.
    """
    if isinstance(dataset, Dataset) or isinstance(dataset.source, (list, tuple, Indexed)):
        return dataset.cardinality
    return None


def read_once(dataset: Dataset | StreamDataset) -> bool:
    """Tell whether the dataset is an iterator, which can be read once only."""
    return isinstance(dataset, StreamDataset) and dataset.read_once

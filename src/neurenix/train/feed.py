"""Batches for the loop: their number, their one size, and K of them at a time.

Owns how data that a user gives becomes batches of one shape, so that a step compiles once. It does
not own shuffling and gathering (``neurenix.data``), nor placement on devices (the trainer).
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix import random
from neurenix._core.errors import ArgumentError, DataError, ShapeError
from neurenix._foreign.coupling import Coupling
from neurenix.data import Dataset, StreamDataset
from neurenix.data.columns import as_array
from neurenix.train.batch import Batch, as_batch, named_inputs, num_examples, pad
from neurenix.train.sources import exact_length, read_once, stream_of
from neurenix.train.weighing import checked_weights, class_table, weighed

DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Chunk:
    """What one compiled call takes.

    Attributes:
        batch: one batch, or K stacked ones, (K, N, …).
        count: batches of it that count; the rest fills up.
        examples: examples of it that count.
    """

    batch: Batch
    count: int
    examples: int


class Feed:
    """Batches of one size from a dataset.

    Args:
        dataset: yields batches.
        replicas: every batch is filled up to a multiple of it.
        class_weight: class index → weight.
        weighted: give every batch weights, so that batches that need none run the same program.
        passes: passes over the data made before: shuffled data goes on with the order of the next.

    Attributes:
        passes: the same, with those begun here.

    Raises:
        DataError: the dataset is empty.
    """

    def __init__(
        self,
        dataset: Dataset | StreamDataset,
        *,
        replicas: int = 1,
        class_weight: Mapping[int, float] | None = None,
        weighted: bool = False,
        passes: int = 0,
    ) -> None:
        self._dataset = dataset
        self._class_weight = class_table(class_weight)
        self._iterator: Iterator[Any] | None = None
        self._held: list[Batch] = []
        self._read_once = read_once(dataset)
        self._left_whole: list[tuple[str, Coupling]] = []
        self._taken = self._taken_before = 0
        self._asked: int | None = None
        self.passes = passes
        first = self._peek()
        size = num_examples(first)
        if isinstance(dataset, Dataset) and dataset.batch_size:
            size = dataset.batch_size
        self.batch_size = -(-size // replicas) * replicas
        self.uniform = self.batch_size == size and _is_uniform(dataset)
        self.weighted = weighted or not self.uniform or first.weight is not None
        self.first = self._sized(first)

    @property
    def steps(self) -> int | None:
        """Batches of one pass, or None when unknown or endless."""
        return self._dataset.cardinality

    @property
    def exact_steps(self) -> int | None:
        """Batches of one pass where that is certain; None for what a foreign loader says."""
        return exact_length(self._dataset)

    @property
    def endless(self) -> bool:
        """Whether the data is known never to end."""
        return self._dataset.endless

    def keep_whole(self, what: str, coupling: Coupling) -> None:
        """Fill no batch up, for a loss or a metric that couples examples.

        Args:
            what: the loss or the metric, by name.
            coupling: how. What is one number for a whole batch takes no weights either.

        Raises:
            ArgumentError: batches have weights, or one must be filled up. Of data whose sizes are
                not known beforehand, that is found when the batch is met.
        """
        self._left_whole.append((what, coupling))
        if coupling is Coupling.WHOLE:
            self.weighted = False
        if isinstance(self._dataset, Dataset) and not self.uniform:
            raise _not_whole("A batch must be filled up here", what, coupling)
        self.first = self._sized(self._held[0])

    def chunks(self, steps: int | None, per_chunk: int) -> Iterator[Chunk]:
        """Yield the batches of one epoch.

        Args:
            steps: batches of the epoch, going on from where the last one ended and over the
                data's end; None for one pass.
            per_chunk: K; 1 yields single batches.
        """
        if self._iterator is None and not self._held:
            self._start()
        left = self._asked = steps
        self._taken_before = self._taken
        while left is None or left > 0:
            wanted = per_chunk if left is None else min(per_chunk, left)
            chunk = self._next(wanted, per_chunk, may_end=left is None)
            if chunk is None:
                return
            yield chunk
            left = None if left is None else left - chunk.count

    def rewind(self) -> None:
        """Begin the next epoch at the data's beginning; what can be read once goes on instead."""
        if self._read_once:
            return
        self._iterator = None
        self._held.clear()

    def _next(self, wanted: int, capacity: int, *, may_end: bool) -> Chunk | None:
        if capacity > 1 and self.uniform and not self._held and wanted == capacity:
            whole = self._next_stacked(wanted)
            if whole is not None:
                return whole
        batches = []
        while len(batches) < wanted:
            batch = self._take(may_end=may_end)
            if batch is None:
                break
            batches.append(batch)
        if not batches:
            return None
        examples = sum(map(num_examples, batches))
        sized = [self._sized(batch) for batch in batches]
        if capacity == 1:
            return Chunk(sized[0], 1, examples)
        filled = sized + [sized[-1]] * (capacity - len(sized))
        return Chunk(_stack(filled), len(sized), examples)

    def _next_stacked(self, count: int) -> Chunk | None:
        gather = getattr(self._iterator, "next_stacked", None)
        if gather is None:
            return None
        try:
            element = gather(count)
        except StopIteration:
            self._iterator = None
            return None
        batch = weighed(as_batch(element), self._class_weight, axes=2)
        found = len(jax.tree.leaves(batch)[0])
        if found < count:  # the end of the data: single batches go on from here
            self._held = [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(found)]
            return None
        return Chunk(batch, count, count * self.batch_size)

    def _take(self, *, may_end: bool) -> Batch | None:
        batch = self._held.pop(0) if self._held else self._following(may_end=may_end)
        self._taken += batch is not None
        return batch

    def _following(self, *, may_end: bool) -> Batch | None:
        if self._iterator is None:
            if may_end:
                return None
            self._start()
        element = next(self._iterator, None)  # type: ignore[arg-type]  # _start set it
        if element is not None:
            return weighed(as_batch(element), self._class_weight)
        self._iterator = None
        if may_end:
            return None
        if self._read_once:
            raise self._ended()
        return self._take_from_start()

    def _ended(self) -> DataError:
        now = self._taken - self._taken_before
        in_all = f" ({self._taken} in all)" if self._taken_before else ""
        return DataError(
            f"The data ended after {now} batches of the {self._asked} asked for{in_all}. It is an "
            "iterator, which can be read once: ask for fewer steps, or give what can be read "
            "again (a list, a loader, a dataset)."
        )

    def _take_from_start(self) -> Batch:
        self._start()
        element = next(self._iterator, None)  # type: ignore[arg-type]  # _start set it
        if element is None:
            raise DataError(
                f"The data is empty: iterating {self._dataset!r} yields no batch. A generator can "
                "be read once; for several epochs give a dataset or a list."
            )
        return weighed(as_batch(element), self._class_weight)

    def _start(self) -> None:
        self._iterator = self._dataset.iterator(epoch=self.passes)
        self.passes += 1

    def _peek(self) -> Batch:
        batch = self._take_from_start()
        self._held.append(batch)
        return batch

    def _sized(self, batch: Batch) -> Batch:
        count = num_examples(batch)
        if count > self.batch_size:
            raise ShapeError(
                f"A batch has {count} examples where the first had {self.batch_size} or fewer. "
                "Batches must not grow: give the largest first, or one size."
            )
        for what, coupling in self._left_whole:
            if batch.weight is not None and coupling is Coupling.WHOLE:
                raise _not_whole("There are weights here", what, coupling)
            if count < self.batch_size:
                filled = f"A batch of {count} would be filled up to {self.batch_size}"
                raise _not_whole(filled, what, coupling)
        if not self.weighted:
            return batch
        return pad(batch, self.batch_size)


def _not_whole(met: str, what: str, coupling: Coupling) -> ArgumentError:
    whole = (
        "Use whole batches (a batch_size that divides the number of examples and is a multiple of "
        "the replicas, or drop_remainder=True of Dataset.batch)"
    )
    if coupling is Coupling.ROWS:
        return ArgumentError(
            f"{met}, and the {what} gives each example a number that is made of others of its "
            f"batch too: examples that are added would change it. {whole}."
        )
    return ArgumentError(
        f"{met}, and the {what} is one number for a whole batch that is not the mean over its "
        f"examples: weighted, or with examples added, it would be another function. {whole} "
        "without weights, or return one number for each example."
    )


def make_dataset(
    x: Any, y: Any, sample_weight: Any, batch_size: int | None, *, shuffle: bool
) -> Dataset | StreamDataset:
    """Return batches from what ``fit`` was given: arrays, a dataset, or any iterable of batches.

    Arrays are shuffled by the seed of ``nx.seed``, and nothing is drawn from its stream.

    Raises:
        DataError: ``x`` and ``y`` do not match, or are ragged, or empty.
        ArgumentError: a batch size for data that is batched already.
    """
    if y is None and not is_arrays(x):
        dataset = x if isinstance(x, (Dataset, StreamDataset)) else stream_of(x)
        if isinstance(dataset, Dataset) and dataset.batch_size is None:
            dataset = dataset.batch(batch_size or DEFAULT_BATCH_SIZE)
        elif batch_size is not None:
            raise ArgumentError(
                f"batch_size={batch_size} was given with a dataset that is batched already. Leave "
                "it out, or give arrays."
            )
        if sample_weight is not None:
            raise ArgumentError("sample_weight goes with arrays; a dataset yields (x, y, weight).")
        return dataset
    if y is None and isinstance(x, tuple):
        x = (x,)  # not (x, y): the inputs of a model that takes several
    check_lists(x, y)
    dataset = Dataset.from_arrays(x, y, w=_host_weights(sample_weight))
    if shuffle:
        dataset = dataset.shuffle(seed=random.current_seed())
    return dataset.batch(batch_size or DEFAULT_BATCH_SIZE)


def make_inputs(x: Any, batch_size: int | None, module: Any) -> Dataset | StreamDataset:
    """Return batches to predict for; a dict of arrays is inputs by name, of which none is lost.

    Args:
        x: as for ``make_dataset``.
        batch_size: for arrays.
        module: what will be called, whose parameters tell inputs from targets.

    Raises:
        DataError: as ``make_dataset``; or a list of arrays that may be inputs as well as batches.
        ArgumentError: as ``make_dataset``.
    """
    if isinstance(x, dict) and is_arrays(x):
        x = named_inputs(x, inspect.signature(module).parameters)
    _check_batches(x, module)
    if isinstance(x, dict):  # in a tuple, so that no name is read as that of the targets
        return Dataset.from_arrays((x,)).batch(batch_size or DEFAULT_BATCH_SIZE)
    return make_dataset(x, None, None, batch_size, shuffle=False)


def make_validation_dataset(data: Any, batch_size: int) -> Dataset | StreamDataset:
    """Return batches from ``validation_data``: (x, y), (x, y, sample_weight), or a dataset.

    Raises:
        ArgumentError: a tuple of another length.
        DataError: as ``make_dataset``.
    """
    if isinstance(data, tuple) or _is_pair_in_list(data):
        if not 2 <= len(data) <= 3:
            raise ArgumentError(
                "It is (x, y), (x, y, sample_weight) or a dataset, got a tuple of "
                f"{len(data)}. There are no targets without y."
            )
        x, y, weight = (*data, None)[:3]
        return make_dataset(x, y, weight, batch_size, shuffle=False)
    unbatched = isinstance(data, Dataset) and data.batch_size is None
    size = batch_size if unbatched or _is_array_like(data) else None
    return make_dataset(data, None, None, size, shuffle=False)


def is_arrays(x: Any) -> bool:
    """Tell whether ``x`` is the inputs of all examples, and not a source of batches."""
    return _is_array_like(x) or _is_several(x)


def _is_pair_in_list(data: Any) -> bool:
    return isinstance(data, list) and 2 <= len(data) <= 3 and _is_array_like(data[0])


def _is_array_like(x: Any) -> bool:
    if isinstance(x, (np.ndarray, jax.Array)) or hasattr(x, "__array__"):
        return True
    if isinstance(x, dict):
        return all(map(_is_array_like, x.values()))
    return isinstance(x, list) and bool(x) and isinstance(x[0], (int, float, list))


def check_lists(x: Any, y: Any) -> None:
    """Refuse lists of whole inputs or targets, as Keras takes them: here their items are rows.

    Raises:
        DataError: each item of one of them has as many rows as the other has.
    """
    for name, one, other, advice in (
        ("x", x, y, "Several inputs of a model go in a tuple: fit((a, b), y)."),
        ("y", y, x, "Targets of several outputs go in a tuple: fit(x, (a, b))."),
    ):
        rows, count = _rows_of_each(one), _rows(other)
        if rows is not None and rows in (count, _rows_of_each(other)) and len(one) != count:
            beside = "y" if name == "x" else "x"
            raise DataError(
                f"{name} is a list of {len(one)} arrays, each with the {rows} rows that {beside} "
                f"has. {advice} The items of a list are its rows."
            )


def _check_batches(x: Any, module: Any) -> None:
    """Refuse a list of arrays that are batches of one size or the inputs of ``module``."""
    rows = _rows_of_each(x)
    if rows is None:
        return
    try:
        inspect.signature(module).bind(*x)
    except TypeError:
        return
    raise DataError(
        f"x is a list of {len(x)} arrays of {rows} rows each, which may be {len(x)} inputs of "
        f"{type(module).__name__} or {len(x)} batches. Give inputs in a tuple, predict((a, b)); "
        "and batches one after the other, predict(iter([a, b]))."
    )


def _rows_of_each(parts: Any) -> int | None:
    """Return how many rows each of several arrays in a list has, or None for anything else."""
    if not isinstance(parts, list) or len(parts) < 2:
        return None
    if not all(hasattr(part, "__array__") for part in parts):
        return None
    sizes = {np.shape(part)[:1] for part in parts}
    return next(iter(sizes.pop()), None) if len(sizes) == 1 else None


def _rows(tree: Any) -> int | None:
    """Return the rows of arrays, or of a list of rows; None where there are none to count."""
    if isinstance(tree, list):
        return len(tree)
    shape = next((np.shape(leaf) for leaf in jax.tree.leaves(tree)), ())
    return shape[0] if shape else None


def _is_several(x: Any) -> bool:
    return isinstance(x, tuple) and bool(x) and all(map(_is_array_like, x))


def _host_weights(weights: Any) -> Any:
    if weights is None:
        return None
    weights = as_array(weights, "sample_weight")
    return checked_weights(weights[:, 0] if weights.shape[1:] == (1,) else weights)


def _is_uniform(dataset: Dataset | StreamDataset) -> bool:
    return isinstance(dataset, Dataset) and dataset.batches_are_whole


def _stack(batches: list[Batch]) -> Batch:
    shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch)) for batch in batches}
    if len(shapes) > 1:
        raise ShapeError(
            "steps_per_execution > 1 needs batches of one shape, found several: "
            f"{sorted(shapes)[:3]}. Pad to one length, or use steps_per_execution=1."
        )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

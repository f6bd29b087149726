"""Batches for the training loop, in one shape, one or K at a time.

Pads batches to one size, so that a step compiles once. Does not own how user data becomes batches
(``batch_sources.py``), shuffling and gathering (``neurenix.data``) or placement on devices
(``epoch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ArgumentError, DataError, ShapeError
from neurenix._processes import concatenated
from neurenix._user_functions.batch_dependence import Coupling
from neurenix.data import BatchIterator, BatchSource
from neurenix.train.batch import Batch, as_batch, class_table, num_examples, pad, weighed


@dataclass(frozen=True)
class Chunk:
    """The data of one compiled call.

    Attributes:
        batch: one batch, or K stacked ones, (K, N, …).
        count: number of batches, without those added as padding.
        examples: number of examples, without padding rows.
    """

    batch: Batch
    count: int
    examples: int


class EpochIterator:
    """Batches of one size from a ``BatchSource``, for one or more epochs.

    Args:
        dataset: yields batches.
        replicas: every batch is padded to a multiple of it, over all processes.
        class_weight: class index → weight.
        weighted: give every batch weights, so that all batches use the same program.
        passes: passes made before; shuffled data continues with the order of the next pass.

    Attributes:
        passes: the same, plus those started here.
        batches_of_pass: batches taken from the current pass.
        batch_size: rows of a batch, of this process only if each one has a share.
        process_local: whether each process has its own share of every batch.

    Raises:
        DataError: the dataset is empty.
    """

    def __init__(
        self,
        dataset: BatchSource,
        *,
        replicas: int = 1,
        class_weight: Mapping[int, float] | None = None,
        weighted: bool = False,
        passes: int = 0,
    ) -> None:
        self._dataset = dataset
        self._class_weight = class_table(class_weight)
        self._iterator: BatchIterator | None = None
        self._held: list[Batch] = []
        self._left_whole: list[tuple[str, Coupling]] = []
        self._taken = self._taken_before = 0
        self._asked: int | None = None
        self._goes_over = True
        self._may_fill: Callable[[Batch, int], bool] = _always
        self.passes, self.batches_of_pass = passes, 0
        self.process_local = dataset.process_local
        self._shares = jax.process_count() if self.process_local else 1
        first = self._peek()
        size, whole = num_examples(first), dataset.batches_are_whole
        # A function of batches may have changed the number of rows.
        size = max(size, dataset.batch_size or 0)
        replicas //= self._shares
        self.batch_size = -(-size // replicas) * replicas
        self.uniform = self.batch_size == size and whole is True
        self._some_are_filled = whole is False or self.batch_size != size
        self.weighted = weighted or not self.uniform or first.weight is not None
        self.first = self._sized(first)

    @property
    def global_batch_size(self) -> int:
        """Rows of a batch over all processes."""
        return self.batch_size * self._shares

    @property
    def spec(self) -> Batch:
        """Shapes and dtypes of a batch over all processes."""
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (leaf.shape[0] * self._shares, *leaf.shape[1:]), leaf.dtype
            ),
            self.first,
        )

    def whole(self, batch: Any) -> Any:
        """Return a host batch with the shares of all processes; collective if there are shares."""
        return concatenated(batch) if self._shares > 1 else batch

    def whole_size(self, chunk: Chunk) -> int:
        """Return the rows of a single batch over all processes."""
        return num_examples(chunk.batch) * self._shares

    def rows_of(self, chunk: Chunk) -> Any:
        """Return the index of the examples, without padding rows, in a whole single batch."""
        size, shares = num_examples(chunk.batch), self._shares
        if shares == 1 or chunk.examples == size:
            return slice(chunk.examples * shares)
        return np.arange(size * shares).reshape(shares, size)[:, : chunk.examples].reshape(-1)

    @property
    def steps(self) -> int | None:
        """Batches of one pass, or None when unknown or endless."""
        return self._dataset.cardinality

    @property
    def exact_steps(self) -> int | None:
        """Batches of one pass if certain; None if it is only a loader's ``len``."""
        return self._dataset.cardinality if self._dataset.cardinality_is_exact else None

    @property
    def endless(self) -> bool:
        """Whether the data is known never to end."""
        return self._dataset.endless

    def check_end(self, steps: int | None, name: str) -> None:
        """Raise ArgumentError if the data never ends and the argument ``name`` is None."""
        if steps is None and self.endless:
            raise ArgumentError(f"The data never ends (it is repeated): say how many, with {name}.")

    def keep_whole(self, what: str, coupling: Coupling) -> None:
        """Pad no batch, for a loss or a metric that couples examples.

        Args:
            what: the loss or the metric, by name.
            coupling: how. One number for a whole batch does not allow weights either.

        Raises:
            ArgumentError: batches have weights, or one needs padding. If batch sizes are unknown,
                it is raised later, for the batch.
        """
        self._left_whole.append((what, coupling))
        if coupling is Coupling.SCALAR:
            self.weighted = False
        if self._dataset.batch_size is not None and self._some_are_filled:
            raise _not_whole("A batch must be filled up here", what, coupling)
        self.first = self._sized(self._held[0])

    def chunks(
        self,
        steps: int | None,
        per_chunk: int,
        *,
        over_the_end: bool = True,
        may_fill: Callable[[Batch, int], bool] | None = None,
        exact: bool = False,
    ) -> Iterator[Chunk]:
        """Yield the batches of one epoch.

        Args:
            steps: batches of the epoch, from where the last one ended; None for one pass.
            per_chunk: K; 1 yields single batches.
            over_the_end: whether to continue at the start of the data after its end.
            may_fill: returns whether a smaller batch may be padded to the size of the others; by
                default each may. Otherwise it is yielded alone and unpadded.
            exact: whether the call makes a step for each batch; then no batches are added to K.

        Raises:
            DataError: the data ended before ``steps`` batches.
        """
        self._goes_over, self._may_fill = over_the_end, may_fill or _always
        if self._iterator is None and not self._held:
            self._start()
        left = self._asked = steps
        self._taken_before = self._taken
        while left is None or left > 0:
            wanted = per_chunk if left is None else min(per_chunk, left)
            chunk = self._next(wanted, per_chunk, may_end=left is None, exact=exact)
            if chunk is None:
                return
            yield chunk
            left = None if left is None else left - chunk.count

    def go_on(self, batches: int) -> None:
        """Skip the first batches of the current pass, which were trained on before.

        Data that can be read once is not skipped: it continues by itself.
        """
        if batches and self._iterator is not None and not self._dataset.read_once:
            self._held.clear()
            self._iterator.skip(batches - 1)  # the first was read by __init__
            self.batches_of_pass = batches

    def begin_at(self, passes: int, batches: int) -> None:
        """Move to a pass and a batch in it; data that can be read once continues instead."""
        if self._dataset.read_once:
            return
        self._held.clear()
        self.passes = passes
        iterator = self._start()
        if batches:
            iterator.skip(batches)
            self.batches_of_pass = batches

    def rewind(self) -> None:
        """Start the next epoch with a new pass; data that can be read once continues instead."""
        if self._dataset.read_once:
            return
        self._iterator = None
        self._held.clear()

    def _next(self, wanted: int, capacity: int, *, may_end: bool, exact: bool) -> Chunk | None:
        if capacity > 1 and self.uniform and wanted == capacity > len(self._held):
            whole = self._next_stacked(wanted)
            if whole is not None:
                return whole
        batches = []
        while len(batches) < wanted:
            batch = self._take(may_end=may_end)
            if batch is None:
                break
            if self._stays_alone(batch):
                if batches:
                    self._put_back(batch)
                    break
                alone = pad(batch, num_examples(batch)) if self.weighted else batch
                return Chunk(alone if capacity == 1 else _stack([alone]), 1, num_examples(batch))
            batches.append(batch)
        if not batches:
            return None
        examples = sum(map(num_examples, batches))
        sized = [self._sized(batch) for batch in batches]
        if capacity == 1:
            return Chunk(sized[0], 1, examples)
        filled = sized if exact else sized + [sized[-1]] * (capacity - len(sized))
        return Chunk(_stack(filled), len(sized), examples)

    def _next_stacked(self, count: int) -> Chunk | None:
        if self._iterator is None:
            return None
        wanted = count - len(self._held)
        try:
            element = self._iterator.next_stacked(wanted)
        except StopIteration:
            return None
        batch = weighed(as_batch(element), self._class_weight, axes=2)
        found = len(jax.tree.leaves(batch)[0])
        if found < wanted or not all(_goes_with(held, batch) for held in self._held):
            # Such as at the end of the data; single batches follow.
            self._held += [jax.tree.map(lambda leaf, i=i: leaf[i], batch) for i in range(found)]
            return None
        if self._held:  # the first batch, read by __init__
            whole = jax.tree.map(lambda *parts: np.concatenate(parts), _stack(self._held), batch)
            batch, self._held = whole, []
        self.batches_of_pass += count
        return Chunk(batch, count, count * self.batch_size)

    def _stays_alone(self, batch: Batch) -> bool:
        """Return whether a batch needs padding and must not be padded."""
        if num_examples(batch) >= self.batch_size or self._left_whole:
            return False
        return not self._may_fill(batch, self.batch_size)

    def _put_back(self, batch: Batch) -> None:
        self._held.insert(0, batch)
        self._taken -= 1
        self.batches_of_pass -= 1

    def _take(self, *, may_end: bool) -> Batch | None:
        batch = self._held.pop(0) if self._held else self._following(may_end=may_end)
        self._taken += batch is not None
        self.batches_of_pass += batch is not None
        return batch

    def _following(self, *, may_end: bool) -> Batch | None:
        iterator = self._iterator
        if iterator is None:
            if may_end:
                return None
            iterator = self._start()
        element = next(iterator, _END)
        if element is not _END:
            return weighed(as_batch(element), self._class_weight)
        self._iterator = None
        if may_end:
            return None
        if self._dataset.read_once or not self._goes_over:
            raise self._ended()
        return self._take_from_start()

    def _ended(self) -> DataError:
        now = self._taken - self._taken_before
        in_all = (
            f" ({self._taken} in all)" if self._taken_before and self._dataset.read_once else ""
        )
        ended = f"The data ended after {now} batches of the {self._asked} asked for{in_all}."
        if not self._dataset.read_once:
            return DataError(
                f"{ended} One pass is made over it: ask for fewer steps, or leave their number out."
            )
        return DataError(
            f"{ended} It is an iterator, which can be read once: ask for fewer steps, or give data "
            "that can be read again (a list, a loader, a dataset)."
        )

    def _take_from_start(self) -> Batch:
        element = next(self._start(), _END)
        if element is _END:
            raise DataError(
                f"The data is empty: iterating {self._dataset!r} yields no batch. A generator can "
                "be read once; for several epochs give a dataset or a list."
            )
        return weighed(as_batch(element), self._class_weight)

    def _start(self) -> BatchIterator:
        self._iterator = self._dataset.iterator(epoch=self.passes)
        self.passes, self.batches_of_pass = self.passes + 1, 0
        return self._iterator

    def _peek(self) -> Batch:
        batch = self._take_from_start()
        self._held.append(batch)
        return batch

    def _sized(self, batch: Batch) -> Batch:
        count = num_examples(batch)
        if count > self.batch_size:
            raise ShapeError(
                f"A batch has {count} examples, and the first ones were filled up to "
                f"{self.batch_size}. Batches must not grow: give the largest first, or one size."
            )
        for what, coupling in self._left_whole:
            if batch.weight is not None and coupling is Coupling.SCALAR:
                raise _not_whole("There are weights here", what, coupling)
            if count < self.batch_size:
                filled = f"A batch of {count} would be filled up to {self.batch_size}"
                raise _not_whole(filled, what, coupling)
        if not self.weighted:
            return batch
        return pad(batch, self.batch_size)


_END = object()


def _always(batch: Batch, size: int) -> bool:
    return True


def _not_whole(met: str, what: str, coupling: Coupling) -> ArgumentError:
    whole = (
        "Use whole batches (a batch_size that divides the number of examples and is a multiple of "
        "the replicas, or drop_remainder=True of Dataset.batch)"
    )
    if coupling is Coupling.PER_EXAMPLE:
        return ArgumentError(
            f"{met}, and the {what} gives each example a number that depends on others of its "
            f"batch: added examples would change it. {whole}."
        )
    return ArgumentError(
        f"{met}, and the {what} is one number for a whole batch that is not the mean over its "
        f"examples: weights or added examples would change it. {whole} "
        "without weights, or return one number for each example."
    )


def _goes_with(single: Batch, stacked: Batch) -> bool:
    """Return whether a single batch has the shapes of the stacked ones."""
    if jax.tree.structure(single) != jax.tree.structure(stacked):
        return False
    pairs = zip(jax.tree.leaves(single), jax.tree.leaves(stacked), strict=True)
    return all(np.shape(one) == np.shape(several)[1:] for one, several in pairs)


def _stack(batches: list[Batch]) -> Batch:
    shapes = {tuple(np.shape(leaf) for leaf in jax.tree.leaves(batch)) for batch in batches}
    if len(shapes) > 1:
        raise ShapeError(
            "steps_per_execution > 1 needs batches of one shape, found several: "
            f"{sorted(shapes)[:3]}. Pad to one length, or use steps_per_execution=1."
        )
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)

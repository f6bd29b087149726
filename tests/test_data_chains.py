"""Chains of a dataset's methods, drawn at random and read over several epochs as plain lists are.

The lists are the definition: an epoch of a chain is made of the epochs of what it was called on.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from neurenix._core.errors import DataError
from neurenix.data import Dataset
from neurenix.data.order import EPOCH_STRIDE, EPOCHS

pytestmark = pytest.mark.pure

READ = 25
Epochs = Callable[[int], Iterator[Any]]


def repeated(inner: Epochs, count: int | None) -> Epochs:
    stride = EPOCH_STRIDE if count is None else count

    def epoch(number: int) -> Iterator[Any]:
        passes = itertools.count() if count is None else range(count)
        return itertools.chain.from_iterable(inner((number * stride + p) % EPOCHS) for p in passes)

    return epoch


def shuffled(inner: Epochs, seed: int) -> Epochs:
    def epoch(number: int) -> Iterator[Any]:
        items = list(inner(number))
        return (items[i] for i in np.random.default_rng((seed, number)).permutation(len(items)))

    return epoch


def batched(inner: Epochs, size: int, drop: bool) -> Epochs:
    def epoch(number: int) -> Iterator[Any]:
        items = inner(number)
        while batch := list(itertools.islice(items, size)):
            if not drop or len(batch) == size:
                yield batch

    return epoch


def sliced(inner: Epochs, *bounds: int | None) -> Epochs:
    return lambda number: itertools.islice(inner(number), *bounds)


def drawn(draw: random.Random) -> tuple[list[str], Dataset, Epochs]:
    """Return a chain: its methods, the dataset, and the lists it stands for."""
    rows = draw.randint(1, 9)
    data, lists, names = Dataset.from_arrays(np.arange(rows)), lambda number: iter(range(rows)), []
    for _ in range(draw.randint(1, 7)):
        name = draw.choice(["take", "skip", "shard", "repeat", "endless", "shuffle", "batch"])
        count, index, drop = draw.randint(1, 6), draw.randint(0, 3), draw.random() < 0.5
        try:
            if name == "take":
                data, lists = data.take(count), sliced(lists, count)
            elif name == "skip":
                data, lists = data.skip(index), sliced(lists, index, None)
            elif name == "shard":
                data, lists = data.shard(0, count), sliced(lists, 0, None, count)
            elif name == "shuffle":
                data, lists = data.shuffle(seed=index), shuffled(lists, index)
            elif name == "batch":
                data = data.batch(count, drop_remainder=drop)
                lists = batched(lists, count, drop)
            elif not data.endless:
                times = None if name == "endless" else count
                data, lists = data.repeat(times), repeated(lists, times)
        except DataError:  # nothing would be left, it is batched already, or endless
            continue
        names.append(name)
    return names, data, lists


def some(items: Iterator[Any], most: int = READ) -> list[Any]:
    return [np.asarray(item).tolist() for item in itertools.islice(items, most)]


@pytest.mark.parametrize("seed", range(8))
def test_chains_are_read_as_lists_are_in_every_epoch(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(60):
        names, data, lists = drawn(draw)
        for epoch in (0, 1, 2, 5, 10**9):
            expected = some(lists(epoch))
            assert some(data.iterator(epoch=epoch)) == expected, (names, epoch)
            if data.cardinality is not None and len(expected) < READ:
                assert len(data) == len(expected), names
            iterator, stacked = data.iterator(epoch=epoch), []
            while len(stacked) < len(expected):
                stacked += [item.tolist() for item in iterator.next_stacked(draw.randint(1, 4))]
            assert stacked[: len(expected)] == expected, (names, epoch)
            iterator, read = data.iterator(epoch=epoch), draw.randint(0, len(expected))
            some(iterator, read)
            resumed = data.iterator()
            resumed.set_state(json.loads(json.dumps(iterator.get_state())))
            assert some(resumed, len(expected) - read) == expected[read:], (names, epoch)


def test_what_is_taken_of_an_endless_order_is_repeated_with_another_order_each_time() -> None:
    data = Dataset.from_arrays(np.arange(100)).shuffle(seed=0).repeat().batch(50).take(2).repeat()
    orders = [
        np.concatenate(batches).tolist()
        for epoch in range(3)
        for batches in zip(*[itertools.islice(data.iterator(epoch=epoch), 6)] * 2, strict=True)
    ]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({*map(tuple, orders)}) == 9


@pytest.mark.parametrize("rows", [3, 10**6])
def test_a_small_part_of_many_rows_is_repeated_for_ever(rows: int) -> None:
    data = Dataset.from_arrays(np.arange(rows)).shuffle(seed=0).take(1).repeat().batch(2)
    assert all(0 <= row < rows for batch in some(data.iterator(epoch=3)) for row in batch)


def test_an_epoch_of_more_rows_than_can_be_counted_is_refused() -> None:
    with pytest.raises(DataError, match=r"count=1000000000000000.* repeat\(\) is for ever"):
        Dataset.from_arrays(np.arange(3)).repeat(10**15)

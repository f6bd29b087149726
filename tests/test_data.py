"""Datasets: what is read, in which order, how it is resumed, and what is refused."""

from __future__ import annotations

import copy
import json
import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from itertools import takewhile
from typing import Any

import grain
import jax
import numpy as np
import pytest

from neurenix import random
from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix.data import BatchIterator, BatchSource, Dataset, StreamDataset, digits
from neurenix.data.order import Sequential, Shuffled, rows_of
from neurenix.distribute.batch_input import ProcessBatches

pytestmark = pytest.mark.pure

ROWS = 11


def rows(count: int = ROWS) -> Dataset:
    return Dataset.from_arrays({"x": np.arange(count) * 10.0, "y": np.arange(count)})


CHAINS: dict[str, Callable[[Dataset], Dataset]] = {
    "rows": lambda d: d,
    "batched": lambda d: d.batch(3),
    "dropped": lambda d: d.batch(3, drop_remainder=True),
    "shuffled": lambda d: d.shuffle(seed=1).batch(3),
    "repeated then batched": lambda d: d.shuffle(seed=1).repeat(3).batch(4),
    "batched then repeated": lambda d: d.shuffle(seed=1).batch(4).repeat(3),
    "endless": lambda d: d.shuffle(seed=2).repeat().batch(4, drop_remainder=True),
    "endless batches": lambda d: d.shuffle(seed=2).batch(4).repeat(),
    "shards": lambda d: d.shuffle(seed=3).shard(1, 2).repeat(2).batch(2),
    "shuffled repetitions": lambda d: d.repeat(3).shuffle(seed=4).batch(5),
    "shuffled batches": lambda d: d.batch(2).shuffle(seed=5),
    "sharded batches": lambda d: d.batch(2).shard(0, 2).repeat(2),
    "taken": lambda d: d.shuffle(seed=6).take(7).repeat(2).batch(3).take(4),
    "skipped": lambda d: d.skip(2).shuffle(seed=6).repeat(2).batch(3).skip(1),
    "skipped and endless": lambda d: d.shuffle(seed=6).repeat().skip(5).batch(3),
    "mapped rows": lambda d: d.map(lambda r: {"x": r["x"] + 1, "y": r["y"]}).shuffle().batch(3),
    "mapped batches": lambda d: d.batch(3).map(lambda b: {"x": b["x"] - 1, "y": b["y"]}),
}


def read(dataset: Dataset, epoch: int = 0, most: int = 20) -> list[Any]:
    return [item for item, _ in zip(dataset.iterator(epoch=epoch), range(most), strict=False)]


def same(left: Any, right: Any) -> bool:
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


@pytest.mark.parametrize("name", CHAINS)
def test_rows_stay_together_and_the_length_is_true(name: str) -> None:
    dataset = CHAINS[name](rows())
    offset = {"mapped rows": 1, "mapped batches": -1}.get(name, 0)
    items = read(dataset)
    for item in items:
        np.testing.assert_array_equal(item["x"], item["y"] * 10 + offset)
    if dataset.cardinality is None:
        assert len(items) == 20
        with pytest.raises(DataError, match="steps_per_epoch"):
            len(dataset)
    else:
        assert len(items) == len(dataset) == dataset.cardinality


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("epoch", [0, 2])
def test_an_iterator_restored_at_every_step_goes_on_the_same(name: str, epoch: int) -> None:
    dataset = CHAINS[name](rows())
    expected = read(dataset, epoch)
    iterator = dataset.iterator(epoch=epoch)
    for step in range(len(expected)):
        state = json.loads(json.dumps(iterator.get_state()))
        fresh = CHAINS[name](rows()).iterator()
        fresh.set_state(state)
        for want in expected[step:]:
            assert same(next(fresh), want)
        assert same(next(iterator), expected[step])


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("count", [1, 2, 3, 100])
def test_stacked_batches_are_the_single_ones(name: str, count: int) -> None:
    dataset = CHAINS[name](rows())
    expected = read(dataset)
    iterator = dataset.iterator()
    position = 0
    while position < len(expected):
        stacked = iterator.next_stacked(count)
        taken = len(jax.tree.leaves(stacked)[0])
        sizes = [len(np.atleast_1d(one["y"])) for one in expected[position : position + count]]
        whole = len(list(takewhile(sizes[0].__eq__, sizes)))
        goes_on = dataset.cardinality is None and position + whole == len(expected)
        assert whole <= taken <= (count if goes_on else whole)
        for k, want in enumerate(expected[position : position + taken]):
            assert same(jax.tree.map(lambda leaf, k=k: leaf[k], stacked), want)
        position += taken
        assert iterator.position == position
    if dataset.cardinality is not None:
        with pytest.raises(StopIteration):
            iterator.next_stacked(count)


def labels(items: list[Any]) -> list[int]:
    return np.concatenate([np.atleast_1d(item["y"]) for item in items]).tolist()


@pytest.mark.parametrize(
    ("name", "times"), [("shuffled", 1), ("repeated then batched", 3), ("shuffled repetitions", 3)]
)
def test_every_row_comes_as_often_as_asked(name: str, times: int) -> None:
    for epoch in range(3):
        assert Counter(labels(read(CHAINS[name](rows()), epoch))) == {
            row: times for row in range(ROWS)
        }


def test_each_epoch_has_its_own_order_and_the_seed_decides_it() -> None:
    shuffled = rows(100).shuffle(seed=7)
    orders = [labels(read(shuffled, epoch, 100)) for epoch in range(3)]
    assert orders[0] != orders[1] != orders[2]
    assert [labels(list(shuffled)) for _ in range(3)] == orders  # iter() counts the epochs
    repeated = labels(read(shuffled.repeat(3), 0, 300))
    assert repeated == sum(orders, [])
    assert labels(read(rows(100).shuffle(seed=7), 0, 100)) == orders[0]
    assert labels(read(rows(100).shuffle(seed=8), 0, 100)) != orders[0]


def test_shuffled_datasets_that_are_read_in_turn_are_shuffled_once_an_epoch(monkeypatch) -> None:
    shuffles: list[Any] = []
    generator = np.random.default_rng
    monkeypatch.setattr(
        np.random, "default_rng", lambda of: (shuffles.append(of), generator(of))[1]
    )
    chained = rows().shuffle(seed=3)
    datasets = [rows().shuffle(seed=seed).batch(2) for seed in range(3)]
    datasets += [chained.batch(2), chained.batch(2).map(lambda batch: batch)]
    for batches in zip(*datasets, strict=True):
        assert len(batches) == 5
    assert Counter(shuffles) == {(seed, 0): 1 for seed in range(4)}


def test_an_order_keeps_two_permutations_however_many_epochs_are_read() -> None:
    size = 100_000
    order = Shuffled(Sequential(size), seed=0)
    tracemalloc.start()
    try:
        for epoch in range(6):
            rows_of(order, epoch, np.arange(3))
        held, _ = tracemalloc.get_traced_memory()
        del order
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 8 * size < held < 3 * 8 * size and left < 8 * size


def test_orders_are_the_same_whatever_was_read_of_them() -> None:
    one, other = (Shuffled(Sequential(9), seed=4) for _ in range(2))
    first = rows_of(one, 1, np.arange(9))
    assert one == other and hash(one) == hash(other) and repr(one) == repr(other)
    for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert again == one and np.array_equal(rows_of(again, 1, np.arange(9)), first)


def test_a_shuffle_without_a_seed_follows_the_seed_of_the_process() -> None:
    def read_rows(data: Dataset) -> list[float]:
        return [float(row["x"]) for row in data]

    orders = {}
    for seed in (7, 0):  # 0 last: what every process begins with
        random.seed(seed)
        orders[seed] = read_rows(rows().shuffle())
        assert orders[seed] == read_rows(rows().shuffle(seed=seed))
    assert orders[0] != orders[7]


@pytest.mark.parametrize(
    "shuffle",
    [
        lambda d: d.shuffle(1000),
        lambda d: d.shuffle(1000, 42),
        lambda d: d.shuffle(buffer_size=1000),
        lambda d: d.shuffle(seed=1, reshuffle_each_iteration=True),
    ],
)
def test_shuffling_needs_no_buffer(shuffle: Callable[[Dataset], Dataset]) -> None:
    with pytest.raises(ArgumentTypeError, match=r"No buffer is needed, all rows") as told:
        shuffle(rows())
    assert ".shuffle(seed=0)" in str(told.value)


def test_endless_datasets_differ_from_epoch_to_epoch_as_well() -> None:
    endless = rows(100).shuffle(seed=7).repeat()
    first, second = (labels(read(endless, epoch, 100)) for epoch in range(2))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    far = endless.iterator(epoch=10**9)
    assert 0 <= int(next(far)["y"]) < 100


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_are_disjoint_and_complete_in_every_epoch(count: int) -> None:
    shuffled = rows().shuffle(seed=9)
    for epoch in range(3):
        shards = [labels(read(shuffled.shard(index, count), epoch)) for index in range(count)]
        assert sorted(sum(shards, [])) == list(range(ROWS))
        assert max(map(len, shards)) - min(map(len, shards)) <= 1


def test_what_is_taken_and_what_is_skipped_are_all() -> None:
    ordered = rows().shuffle(seed=1)
    for epoch in range(2):
        taken, left = (labels(read(part, epoch)) for part in (ordered.take(4), ordered.skip(4)))
        assert taken + left == labels(read(ordered, epoch))
    assert labels(read(rows().skip(0))) == list(range(ROWS))
    assert labels(read(rows().batch(4).skip(1))) == list(range(4, ROWS))


PAIRS = Dataset.from_arrays([[1.0], [2.0]], [3, 4])


@pytest.mark.parametrize(
    "function",
    [lambda x, y: (x * 2, y), lambda pair: (pair[0] * 2, pair[1]), lambda pair, k=2: (
        pair[0] * k, pair[1])],
    ids=["parts", "whole", "whole and a default"],
)  # fmt: skip
@pytest.mark.parametrize("first", ["map", "batch"])
def test_a_function_takes_an_element_whole_or_in_parts(function: Any, first: str) -> None:
    mapped = PAIRS.map(function).batch(2) if first == "map" else PAIRS.batch(2).map(function)
    (x, y), *_ = mapped
    assert (x.tolist(), y.tolist()) == ([[2.0], [4.0]], [3, 4])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: next(iter(PAIRS.map(lambda x, y, w: x))), r"\(x, y, w\).*element of 2 parts"),
        (lambda: next(iter(rows().map(lambda x, y: x))), r"\(x, y\) does not.*one part"),
        (lambda: rows().map(3), "map.. takes a function, found 3"),
    ],
)
def test_a_function_of_other_arguments_is_told(make: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("name", "way"),
    [("filter", r"x\[keep\]"), ("cache", "leave it out"), ("prefetch", "reads ahead"),
     ("unbatch", r"batch\(\) out"), ("zip", "together"), ("batchs", "Did you mean 'batch'")],
)  # fmt: skip
def test_what_tf_data_has_and_a_dataset_has_not_names_the_way(name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=f"no '{name}'.*{way}"):
        getattr(rows(), name)
    assert not hasattr(rows(), name)


def test_a_dataset_can_be_copied() -> None:
    dataset = rows().shuffle(seed=1).batch(3)
    assert labels(read(copy.copy(dataset))) == labels(read(dataset))


def test_batches_are_fresh_arrays() -> None:
    dataset = rows().batch(ROWS)
    next(iter(dataset))["x"][:] = -1
    assert next(iter(dataset))["x"][1] == 10


def test_arguments_shape_the_elements() -> None:
    x, y, w = np.zeros((4, 2)), np.arange(4), np.ones(4)
    assert read(Dataset.from_arrays(x).batch(2))[0].shape == (2, 2)
    assert [a.shape for a in read(Dataset.from_arrays(x, y).batch(2))[0]] == [(2, 2), (2,)]
    both = read(Dataset.from_arrays({"a": x, "b": x}, y, sample_weight=w).batch(2))[0]
    assert [jax.tree.map(np.shape, part) for part in both] == [
        {"a": (2, 2), "b": (2, 2)},
        (2,),
        (2,),
    ]


def test_wide_numbers_become_32_bits_once() -> None:
    spec = Dataset.from_arrays(
        {"f": np.zeros(3), "i": np.arange(3), "u": np.zeros(3, np.uint8), "b": np.zeros(3, bool)}
    ).element_spec
    assert {name: leaf.dtype.name for name, leaf in spec.items()} == {
        "f": "float32", "i": "int32", "u": "uint8", "b": "bool",
    }  # fmt: skip
    same_array = np.zeros((3, 2), np.float32)
    columns = Dataset.from_arrays(same_array)._plan.columns
    assert columns.leaves[0] is same_array


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset.from_arrays([[1, 2], [3]]), r"x is ragged: row 0 has length 2.*length 1"),
        (lambda: Dataset.from_arrays([[[1], [2]], [[3], [4, 5]]]), r"x is ragged"),
        (lambda: Dataset.from_arrays([1, 2], [[1], [2, 3]]), r"y is ragged"),
        (lambda: Dataset.from_arrays(np.array([{}, {}])), r"x holds Python objects"),
        (lambda: Dataset.from_arrays({"a": ["b", "c"]}), r"x\['a'\] holds text"),
        (lambda: Dataset.from_arrays(np.zeros((0, 3))), r"x is empty: it has shape \(0, 3\)"),
        (lambda: Dataset.from_arrays({}), r"x holds no array"),
        (lambda: Dataset.from_arrays(None), r"x is None"),
        (lambda: Dataset.from_arrays(3.0), r"x is the single number 3.0"),
        (lambda: Dataset.from_arrays(np.zeros(3), np.zeros(4)), r"x has 3, y has 4"),
        (
            lambda: Dataset.from_arrays(np.zeros(3), np.zeros(3), sample_weight=np.zeros(2)),
            r"x has 3, sample_weight has 2",
        ),
        (lambda: Dataset.from_arrays({"a": np.zeros(3), "b": np.zeros(2)}), r"x\['b'\] has 2"),
        (lambda: Dataset.from_arrays(np.zeros(3), sample_weight=np.zeros(3)), r"needs y beside it"),
        (lambda: Dataset.from_arrays([2**40]), r"do not fit into int32"),
        (lambda: rows().batch(0), r"batch_size must be 1 or more, found 0"),
        (lambda: rows().batch(12, drop_remainder=True), r"11 rows do not fill one batch of 12"),
        (lambda: rows().batch(2).batch(2), r"Already batched, 2 rows"),
        (lambda: rows().repeat().shuffle(seed=0), r"shuffle\(\) before repeat\(\)"),
        (lambda: rows().shuffle(seed=-1), r"seed must be 0 or more"),
        (lambda: rows().repeat(0), r"count must be 1 or more"),
        (lambda: rows().take(0), r"count must be 1 or more"),
        (lambda: rows().skip(-1), r"count must be 0 or more"),
        (lambda: rows().batch(4).skip(3), r"skip\(3\) leaves nothing of Dataset\(rows=11"),
        (lambda: rows().shard(3, 3), r"index must be from 0 to 2"),
        (lambda: rows(2).shard(2, 3), r"Shard 2 of 3 is empty"),
        (lambda: rows().iterator(epoch=-1), r"epoch must be 0 or more"),
        (lambda: rows().iterator().next_stacked(0), r"count must be 1 or more"),
        (lambda: rows().batch(4).iterator().set_state({}), r"lacks \['epoch', 'order'"),
        (
            lambda: rows().batch(4).iterator().set_state(rows().batch(3).iterator().get_state()),
            r"another order",
        ),
        (
            lambda: next(iter(rows().map(lambda r: np.zeros(int(r["y"]))).batch(3))),
            r"map\(\) returned rows that differ",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_name(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        make()


@pytest.mark.parametrize("size", [2.0, "2", True])
def test_sizes_are_integers(size: Any) -> None:
    with pytest.raises(ArgumentTypeError, match="batch_size must be an integer"):
        rows().batch(size)


def test_numbers_of_64_bits_fit_into_32_from_end_to_end() -> None:
    edges = [-(2**31), 2**31 - 1]
    assert next(iter(Dataset.from_arrays(edges).batch(2))).tolist() == edges
    with pytest.raises(DataError, match="-1099511627776 to 0, which do not fit"):
        Dataset.from_arrays([-(2**40), 0])


def test_skipping_ends_where_the_data_ends() -> None:
    iterator = rows(4).iterator()
    iterator.skip(9)
    assert iterator.position == 4


def test_digits_are_those_of_scikit_learn_with_their_labels() -> None:
    from sklearn.datasets import load_digits

    pixels, targets = load_digits(return_X_y=True)
    known = dict(zip((row.astype(np.float32).tobytes() for row in pixels), targets, strict=True))
    seen = []
    for part in digits():
        (batch,) = part.batch(2000)
        found = [(image * 16).reshape(64).tobytes() for image in batch["image"]]
        assert [known[one] for one in found] == batch["label"].tolist()
        seen += found
    assert sorted(seen) == sorted(known)


def test_digits_are_split_the_same_way_always() -> None:
    train, test = digits()
    (everything,), (held_out,) = list(train.batch(2000)), list(test.batch(2000))
    assert everything["image"].shape == (1437, 8, 8, 1)
    assert held_out["image"].shape == (360, 8, 8, 1)
    assert everything["image"].dtype == np.float32
    assert everything["label"].dtype == np.int32
    assert everything["image"].min() == 0.0
    assert everything["image"].max() == 1.0
    assert set(np.unique(held_out["label"])) == set(range(10))
    again, _ = digits()
    assert same(next(iter(again.batch(2000))), everything)


def grain_pipeline() -> Any:
    source = grain.MapDataset.source(np.arange(20, dtype=np.int64))
    return source.shuffle(seed=1).map(lambda row: {"y": row}).batch(3)


SOURCES: dict[str, Callable[[], StreamDataset]] = {
    "grain map": lambda: Dataset.from_grain(grain_pipeline()),
    "grain iter": lambda: Dataset.from_grain(grain_pipeline().to_iter_dataset()),
    "list": lambda: StreamDataset([{"y": np.arange(n, n + 3)} for n in range(0, 20, 3)]),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_stream_restored_at_every_step_goes_on_the_same(name: str) -> None:
    expected = list(SOURCES[name]())
    assert len(expected) == 7
    assert expected[0]["y"].dtype == np.int32
    for looked_ahead in (False, True):
        iterator = SOURCES[name]().iterator()
        for step, want in enumerate(expected):
            if looked_ahead:
                iterator.peek()
            fresh = SOURCES[name]().iterator()
            fresh.set_state(iterator.get_state())
            for following in expected[step:]:
                assert same(next(fresh), following)
            assert same(next(iterator), want)


@pytest.mark.parametrize("name", SOURCES)
def test_a_stream_is_stacked_up_to_a_batch_of_another_shape(name: str) -> None:
    expected = list(SOURCES[name]())
    iterator = SOURCES[name]().iterator()
    stacks = [iterator.next_stacked(4)["y"] for _ in range(2 if name == "list" else 3)]
    # The last batch of grain has two rows; those of the list are of one size.
    assert [len(stacked) for stacked in stacks] == ([4, 3] if name == "list" else [4, 2, 1])
    with pytest.raises(StopIteration):
        iterator.next_stacked(4)
    read_back = [batch for stacked in stacks for batch in stacked]
    for batch, want in zip(read_back, expected, strict=True):
        np.testing.assert_array_equal(batch, want["y"])


BATCHES: dict[str, Callable[[], Any]] = {
    **SOURCES,
    "arrays": lambda: Dataset.from_arrays(np.arange(20)).shuffle(seed=1).batch(3),
    "indexed": lambda: StreamDataset(Indexed([np.arange(n, n + 3) for n in range(5)])),  # type: ignore[arg-type]
    "replicas": lambda: ProcessBatches(
        Dataset.from_arrays(np.arange(48)).shuffle(seed=1).batch(2), 8, process_local=False
    ),
}


class Indexed:
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index]


@pytest.mark.parametrize("name", BATCHES)
def test_every_source_of_batches_keeps_the_protocol(name: str) -> None:
    source = BATCHES[name]()
    assert isinstance(source, BatchSource) and isinstance(iter(source), BatchIterator)
    assert not source.endless and not source.read_once and not source.process_local
    every = list(BATCHES[name]().iterator(epoch=1))
    assert source.cardinality in (len(every), None)
    for skipped in range(len(every) + 1):
        iterator, other = source.iterator(epoch=1), source.iterator(epoch=1)
        iterator.skip(skipped)
        assert iter(iterator) is iterator
        other.set_state(json.loads(json.dumps(iterator.get_state())))
        left, stacked = every[skipped:], []
        while len(stacked) < len(left):
            several = other.next_stacked(2)
            count = len(jax.tree.leaves(several)[0])
            assert 1 <= count <= 2
            stacked += [jax.tree.map(lambda leaf, n=n: leaf[n], several) for n in range(count)]
        for want, found, again in zip(left, iterator, stacked, strict=True):
            assert same(found, want) and same(again, want)
        for ended in (lambda i=iterator: next(i), lambda o=other: o.next_stacked(1)):
            with pytest.raises(StopIteration):
                ended()


@pytest.mark.parametrize("first", ["batch", "repeat"])
def test_a_pipeline_of_grain_that_never_ends_is_known_for_one(first: str) -> None:
    source = grain.MapDataset.source(np.arange(8.0))
    pipeline = source.batch(4).repeat() if first == "batch" else source.repeat().batch(4)
    data = Dataset.from_grain(pipeline)
    assert data.endless and data.cardinality is None
    with pytest.raises(ArgumentTypeError, match="never ends"):
        len(data)
    assert not Dataset.from_grain(source.repeat(3).batch(4)).endless


def test_an_iterator_given_cannot_go_back() -> None:
    iterator = StreamDataset(iter([X, X])).iterator()
    with pytest.raises(DataError, match="cannot be read again"):
        iterator.set_state(iterator.get_state())
    with pytest.raises(DataError, match="not the state of a stream"):
        iterator.set_state({"position": 1})


def test_looking_at_a_generator_loses_nothing_and_it_is_read_once() -> None:
    data = StreamDataset([np.ones((2, 3)) * n, np.zeros(2)] for n in range(3))
    assert data.element_spec[0].shape == (2, 3)
    assert data.cardinality is None
    assert [batch[0][0, 0] for batch in data] == [0, 1, 2]
    with pytest.raises(DataError, match="read once only"):
        iter(data)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: StreamDataset([]), DataError, "length 0"),
        (lambda: StreamDataset(iter(())).element_spec, DataError, "yields no batch"),
        (lambda: StreamDataset(3), ArgumentTypeError, "must be iterable; found int"),
        (lambda: next(iter(StreamDataset([["a", "b"]]))), DataError, "holds text"),
        (
            lambda: (
                StreamDataset([np.zeros(2)]).iterator().set_state({"position": 3, "source": None})
            ),
            DataError,
            "ends after 1",
        ),
    ],
)
def test_streams_refuse_what_they_cannot_read(
    make: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make()


X, Y = np.ones((2, 3)), np.zeros(2)


@pytest.mark.parametrize("batch", [(X, Y, None), [X, Y, None], (X, [0.0, 0.0]), [X, [0, 0], None]])
def test_a_batch_without_weights_may_say_so(batch: Any) -> None:
    found = next(iter(StreamDataset([batch])))
    assert isinstance(found, tuple)
    assert [part.shape for part in found] == [(2, 3), (2,)]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        ((X, ["cat", "dog"]), "at place 1, holds text.*encode"),
        ((X, ["cat", "dog"], None), "at place 1, holds text"),
        ((X, None, Y), "at place 1, is None"),
        ((None, Y), "at place 0, is None"),
        ((X, [[1], [2, 3]]), "at place 1, is ragged"),
    ],
    ids=["labels of text", "and no weights", "no targets", "no inputs", "ragged targets"],
)
def test_the_part_of_a_batch_that_cannot_be_read_is_named(batch: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        next(iter(StreamDataset([batch])))


def test_rows_of_lists_are_one_array() -> None:
    assert next(iter(StreamDataset([([1, 2], [3, 4])]))).shape == (2, 2)
    assert next(iter(StreamDataset([[[1, 2], [3, 4], [5, 6]]]))).shape == (3, 2)

"""What a user of ``tf.data`` tries first: constructors, options, lengths, and what is told."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix.data import Dataset, StreamDataset

pytestmark = pytest.mark.pure

X = np.zeros((4, 2), np.float32)
ROWS = Dataset.from_arrays(X)


def generated() -> StreamDataset:
    return StreamDataset(batch for batch in [X, X])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset(X), r"takes no data itself: write Dataset.from_arrays\(x, y\)"),
        (lambda: Dataset(X, X), r"write Dataset.from_arrays\(x, y\)"),
        (lambda: ROWS.shard(0.5, 2), "index must be an integer, found 0.5"),
        (lambda: ROWS.shard("0", 2), "index must be an integer, found '0'"),
        (lambda: ROWS.shard(0, 2.0), "count must be an integer, found 2.0"),
        (lambda: ROWS.map(abs, num_parallel_calls=4), "num_parallel_calls=4.*leave the rest out"),
        (lambda: len(generated()), "no length: its source .generator. does not say"),
    ],
)
def test_what_cannot_be_taken_names_the_way(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        make()


def test_an_index_below_zero_is_no_shard() -> None:
    with pytest.raises(DataError, match="index must be 0 or more"):
        ROWS.shard(-1, 2)


@pytest.mark.parametrize("owner", [Dataset, ROWS])
@pytest.mark.parametrize(
    ("name", "way"),
    [("from_tensor_slices", r"Dataset\.from_arrays\(x, y\)"), ("from_generator", "iterable of"),
     ("zip", "together"), ("range", r"np\.arange"), ("window", "sliding_window_view"),
     ("interleave", "concatenate"), ("with_options", "leave it out"),
     ("from_array", "Did you mean 'from_arrays'")],
)  # fmt: skip
def test_the_class_and_a_dataset_name_the_way(owner: Any, name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=f"no '{name}'.*{way}"):
        getattr(owner, name)
    assert not hasattr(owner, name)


@pytest.mark.parametrize(
    ("name", "way"),
    [("map", "generator that changes them"), ("shuffle", r"Dataset\.from_arrays"),
     ("batchsize", "Did you mean 'batch_size'")],
)  # fmt: skip
def test_a_stream_names_the_way(name: str, way: str) -> None:
    with pytest.raises(AttributeError, match=f"A StreamDataset has no '{name}'.*{way}"):
        getattr(generated(), name)


def test_datasets_are_true_and_streams_have_the_length_of_their_source() -> None:
    assert all([ROWS, ROWS.repeat(), generated()])
    assert len(StreamDataset([X, X, X])) == 3
    assert len(list(generated())) == 2
    for again in (copy.copy, lambda data: pickle.loads(pickle.dumps(data))):
        assert len(again(StreamDataset([X, X]))) == 2

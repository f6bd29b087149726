"""Data for training: datasets in arrays, grain pipelines, and the digits of scikit-learn.

``BatchSource`` and ``BatchIterator`` are the protocol that all of them speak.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix.data.batch_iterator import BatchIterator, BatchSource
from neurenix.data.dataset import Dataset, DatasetIterator
from neurenix.data.digits import digits
from neurenix.data.stream import StreamDataset, StreamIterator

__all__ = [
    "BatchIterator",
    "BatchSource",
    "Dataset",
    "DatasetIterator",
    "StreamDataset",
    "StreamIterator",
    "digits",
]

# What other libraries call what is called otherwise here.
_ARRAYS = "data.Dataset.from_arrays(x, y)"
_AS_IT_IS = "not needed: model.fit takes it, or any iterable of batches, as it is"
_ELSEWHERE = {
    "DataLoader": f"{_ARRAYS}.shuffle().batch(size); model.fit takes a DataLoader of PyTorch too",
    "IterDataset": _AS_IT_IS,
    "IterableDataset": _AS_IT_IS,
    "MapDataset": _AS_IT_IS,
    "TensorDataset": _ARRAYS,
    "datasets": "data.digits; others are arrays of your own, data.Dataset.from_arrays",
    "from_generator": "model.fit, which takes an iterable of batches as it is",
    "from_tensor_slices": _ARRAYS,
    "load_digits": "data.digits",
}

if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = names_of(__name__, __all__, _ELSEWHERE)

"""Data for training: datasets in arrays, grain pipelines, and the digits of scikit-learn."""

from __future__ import annotations

from neurenix.data.dataset import Dataset
from neurenix.data.digits import digits
from neurenix.data.iterator import DatasetIterator
from neurenix.data.stream import StreamDataset, StreamIterator

__all__ = ["Dataset", "DatasetIterator", "StreamDataset", "StreamIterator", "digits"]

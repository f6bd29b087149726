"""Facts about TPUs: generations, slice names and topologies, prices, published runs. No JAX here.

Every number has a source. Attached devices are in ``neurenix.device``.

    >>> from neurenix import chips
    >>> chips.resolve("v5p-256").num_chips
    128
    >>> chips.generation("v6e").peak_flops_per_second["bfloat16"]
    918000000000000.0
"""

from neurenix.chips._generation_data import (
    DCN_BYTES_PER_SECOND_PER_HOST,
    ICI_HOP_SECONDS,
    VMEM_BANDWIDTH_OVER_HBM,
)
from neurenix.chips.generations import GENERATIONS, Generation, generation, generation_of_kind
from neurenix.chips.prices import Price, price
from neurenix.chips.published import PublishedRun, nearest_run, published_runs
from neurenix.chips.slices import Slice, known_slices, resolve
from neurenix.chips.tiles import mxu_multiple, padded_bytes, sublanes

__all__ = [
    "DCN_BYTES_PER_SECOND_PER_HOST",
    "GENERATIONS",
    "Generation",
    "ICI_HOP_SECONDS",
    "Price",
    "PublishedRun",
    "Slice",
    "VMEM_BANDWIDTH_OVER_HBM",
    "generation",
    "generation_of_kind",
    "known_slices",
    "mxu_multiple",
    "nearest_run",
    "padded_bytes",
    "price",
    "published_runs",
    "resolve",
    "sublanes",
]

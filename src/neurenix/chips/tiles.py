"""How TPU memory tiles and pads arrays: lanes, sublanes, matrix unit.

These are heuristics before compilation. Results of the compiler (``neurenix.compiler``) take
precedence, because XLA may choose smaller tiles for small arrays.

Sources: ``jax/_src/tpu_info.py::get_sublane_tiling`` (called a heuristic there),
``docs/pallas/tpu/details.rst``, and arrays compiled with libtpu 0.0.42.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neurenix.chips.generations import Generation

LANES = 128  # of a vector register; also the side of the matrix unit before v6e
SUBLANES = 8


def sublanes(generation: Generation, dtype_bits: int) -> int:
    """Return the number of rows per tile, along the second-to-last axis of an array.

    Before tpu7x: 8 for dtypes of 16 and 32 bits, 8 · (32 / bits) for narrower ones. From tpu7x on:
    8 · (32 / bits) for all.

    Example:
        >>> from neurenix.chips import generation, sublanes
        >>> sublanes(generation("v5e"), 16), sublanes(generation("tpu7x"), 16)
        (8, 16)
    """
    packing = max(1, 32 // dtype_bits)
    if generation.name != "tpu7x" and dtype_bits >= 16:
        return SUBLANES
    return SUBLANES * packing


def padded_bytes(generation: Generation, shape: Sequence[int], *, dtype_bits: int) -> int:
    """Return the size of an array in HBM, padded to whole tiles, in row-major layout, in bytes.

    Args:
        generation: the TPU generation.
        shape: of the array, any rank.
        dtype_bits: size of one element, in bits.

    Example:
        >>> from neurenix.chips import generation, padded_bytes
        >>> padded_bytes(generation("v5e"), (1000, 7), dtype_bits=16)  # logically 14 000
        256000
    """
    sizes = list(shape)
    if not sizes:
        return max(1, dtype_bits // 8)
    if len(sizes) == 1:
        tile = LANES * max(1, 32 // dtype_bits)
        sizes[0] = -(-sizes[0] // tile) * tile
    else:
        rows = sublanes(generation, dtype_bits)
        sizes[-1] = -(-sizes[-1] // LANES) * LANES
        sizes[-2] = -(-sizes[-2] // rows) * rows
    return prod(sizes) * dtype_bits // 8


def mxu_multiple(generation: Generation) -> int:
    """Return the size whose multiples fill the matrix unit: 128 up to v5p, 256 on v6e and tpu7x.

    Example:
        >>> from neurenix.chips import generation, mxu_multiple
        >>> mxu_multiple(generation("v6e"))
        256
    """
    return generation.mxu[1]

"""How TPU memory tiles and pads arrays: lanes, sublanes, matrix unit.

Owns the rules of thumb that hold before a compiler has spoken; what the compiler decides for one
program (``neurenix.compiler``) goes before them, since XLA may choose smaller tiles for small
arrays.

Sources: ``jax/_src/tpu_info.py::get_sublane_tiling`` (called a heuristic there),
``docs/pallas/tpu/details.rst``, and arrays compiled with libtpu 0.0.42.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from neurenix.chips.generations import Generation

LANES = 128  # of a vector register, and the side of the matrix unit before v6e
SUBLANES = 8


def sublanes(generation: Generation, dtype_bits: int) -> int:
    """Rows to which the second-to-last dimension of an array is tiled.

    Before tpu7x 8 for types of 16 and 32 bits and 8 x (32 / bits) for narrower ones; from tpu7x on
    8 x (32 / bits) for all.

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
    """Bytes that an array takes in HBM once padded to whole tiles, in its row-major layout.

    Args:
        generation: whose tiles.
        shape: of the array, any rank.
        dtype_bits: of one element.

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
    """Size whose multiples fill the matrix unit: 128 up to v5p, 256 on v6e and tpu7x.

    Example:
        >>> from neurenix.chips import generation, mxu_multiple
        >>> mxu_multiple(generation("v6e"))
        256
    """
    return generation.mxu[1]

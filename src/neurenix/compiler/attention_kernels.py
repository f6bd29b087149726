"""What JAX's own TPU attention kernels compute, for those that state no cost.

Owns the FLOPs of splash attention by the kernel's name and shapes. It does not own how fast a
kernel is (``calibration``).

Products of a block of queries with a block of keys, each 2 T S D, or 2 T S C with values of another
size: forward two (scores, output); the gradient of queries three (scores again, of the weights, of
the queries); that of keys and values four; of all in one kernel five. That one gives the gradient
of the queries in parts, one for each block of keys, an array with one axis more than the queries.
A sliding window is known by the scope ``window_…`` in which ``nn.splash`` calls the kernel.
(``jax/experimental/pallas/ops/tpu/splash_attention``, jax 0.10.2.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from neurenix.compiler.hlo import Computation, Instruction

# How many there are of 2 T S D, and of 2 T S C.
_PRODUCTS = {"fwd": (1, 1), "dq": (2, 1), "dkv": (2, 2), "all": (3, 2)}
# Of the model, scores that the backward pass computes again left out: twice the forward pass.
_MODEL_PRODUCTS = {"fwd": (1, 1), "dq": (1, 0), "dkv": (1, 2), "all": (2, 2)}
_NAME = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_WINDOW = re.compile(r"\bwindow_(\d+)\b")
_BLOCK = re.compile(r'block_(q|kv)(?:_dkv|_dq)?\\?\\?": (\d+)')


def attention_cost(
    computation: Computation, instruction: Instruction, moved_bytes: int
) -> tuple[float, float] | None:
    """Return FLOPs and bytes of a splash attention kernel; None for every other kernel.

    Under a mask that is computed from positions (the kernel then takes them, as int32 of rank 2)
    those blocks are counted of which a causal mask, and a window, leave something.
    """
    found = _NAME.search(instruction.name) or _NAME.search(instruction.op_name)
    if found is None:
        return None
    operands = [
        shape
        for name in instruction.operands
        if (operand := computation.by_name.get(name)) is not None
        for shape in operand.shapes[:1]
    ]
    arrays = [shape.sizes for shape in operands if len(shape.sizes) >= 3 and "s" != shape.dtype[0]]
    if len(arrays) < 3:
        return None
    query, key = arrays[0], arrays[1]
    kernel = _kernel(found[1], query, [shape.sizes for shape in instruction.shapes])
    share = 1.0
    if any(shape.dtype == "s32" and len(shape.sizes) == 2 for shape in operands):
        blocks = {axis: int(size) for axis, size in _BLOCK.findall(instruction.attributes)}
        sizes = blocks.get("q", 128), blocks.get("kv", 128)
        share = _causal_share(query[-2], key[-2], *sizes, window_of(instruction.op_name))
    return _flops(_PRODUCTS[kernel], arrays) * share, float(moved_bytes)


def attention_model_flops(
    name: str,
    operands: Sequence[tuple[str, tuple[int, ...]]],
    results: Sequence[tuple[int, ...]] = (),
    window: int | None = None,
) -> float | None:
    """Return the FLOPs of a splash attention kernel as MFU counts them; None for other kernels.

    A causal mask leaves half of the products, a window what lies in it, and what the backward pass
    computes again is left out.

    Args:
        name: of the kernel.
        operands: dtype and shape of each.
        results: shape of each.
        window: keys that a query sees; None for all up to its own.

    Example:
        >>> operands = [("bfloat16", (8, 512, 128)), ("bfloat16", (2, 512, 128)),
        ...             ("bfloat16", (2, 512, 128)), ("int32", (512, 128))]
        >>> attention_model_flops("splash_mha_fwd", operands)
        536870912.0
    """
    found = _NAME.search(name)
    arrays = [shape for dtype, shape in operands if "int" not in dtype]
    if found is None or len(arrays) < 3:
        return None
    kernel = _kernel(found[1], arrays[0], results)
    share = 0.5 if any("int" in dtype and len(shape) == 2 for dtype, shape in operands) else 1.0
    if window is not None:
        share = _causal_share(arrays[0][-2], arrays[1][-2], 1, 1, window)
    return _flops(_MODEL_PRODUCTS[kernel], arrays) * share


def window_of(scope: str) -> int | None:
    """Return the window that the name of a scope tells of, or None.

    Example:
        >>> window_of("jit(step)/window_1024/splash_mha_fwd")
        1024
    """
    found = _WINDOW.search(scope)
    return None if found is None else int(found[1])


def _flops(products: tuple[int, int], arrays: Sequence[Sequence[int]]) -> float:
    """Return the FLOPs of products of whole queries, keys and values, the first three arrays."""
    query, key, value = arrays[:3]
    of_scores, of_values = products
    depth = of_scores * query[-1] + of_values * value[-1]
    return 2.0 * math.prod(query[:-1]) * key[-2] * depth


def _kernel(named: str, query: Sequence[int], results: Sequence[Sequence[int]]) -> str:
    parts = any(len(shape) > len(query) for shape in results)
    return "all" if named == "dkv" and parts else named


def _causal_share(
    queries: int, keys: int, block_q: int, block_kv: int, window: int | None = None
) -> float:
    """Return the share of blocks in which some query may look at some key.

    Example:
        >>> _causal_share(1024, 1024, 512, 256)
        0.75
        >>> _causal_share(1024, 1024, 512, 256, window=256)
        0.625
    """
    first = np.arange(0, queries, block_q)
    last = np.minimum(first + block_q, queries)  # behind it, as of the keys below
    columns = math.ceil(keys / block_kv)
    end = np.minimum(columns, -(-last // block_kv))
    start = 0 if window is None else np.maximum(first - window + 1, 0) // block_kv
    return float(np.sum(np.maximum(end - start, 0))) / (len(first) * columns)

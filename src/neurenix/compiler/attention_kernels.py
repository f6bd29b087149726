"""What JAX's own TPU attention kernels compute, for those that state no cost.

Owns the FLOPs of splash attention by the kernel's name and shapes. It does not own how fast a
kernel is (``calibration``).

Products of a block of queries with a block of keys, each 2 T S D: forward two (scores, output);
the gradient of queries three (scores again, of the weights, of the queries); that of keys and
values four; of all in one kernel five. That one gives the gradient of the queries in parts, one
for each block of keys, an array with one axis more than the queries.
(``jax/experimental/pallas/ops/tpu/splash_attention``, jax 0.10.2.)
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from neurenix.compiler.hlo import Computation, Instruction

_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4, "all": 5}
# Of the model, scores that the backward pass computes again left out: twice the forward pass.
_MODEL_PRODUCTS = {"fwd": 2, "dq": 1, "dkv": 3, "all": 4}
_NAME = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_BLOCK = re.compile(r'block_(q|kv)(?:_dkv|_dq)?\\?\\?": (\d+)')


def attention_cost(
    computation: Computation, instruction: Instruction, moved_bytes: int
) -> tuple[float, float] | None:
    """Return FLOPs and bytes of a splash attention kernel; None for every other kernel.

    Under a mask that is computed from positions (the kernel then takes them, as int32 of rank 2)
    those blocks are counted of which a causal mask leaves something.
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
    if len(arrays) < 2:
        return None
    query, key = arrays[0], arrays[1]
    kernel = _kernel(found[1], query, [shape.sizes for shape in instruction.shapes])
    share = 1.0
    if any(shape.dtype == "s32" and len(shape.sizes) == 2 for shape in operands):
        blocks = {axis: int(size) for axis, size in _BLOCK.findall(instruction.attributes)}
        share = _causal_share(query[-2], key[-2], blocks.get("q", 128), blocks.get("kv", 128))
    flops = _PRODUCTS[kernel] * 2.0 * math.prod(query) * key[-2] * share
    return flops, float(moved_bytes)


def attention_model_flops(
    name: str,
    operands: Sequence[tuple[str, tuple[int, ...]]],
    results: Sequence[tuple[int, ...]] = (),
) -> float | None:
    """Return the FLOPs of a splash attention kernel as MFU counts them; None for other kernels.

    A causal mask leaves half of the products, and what the backward pass computes again is left
    out.

    Args:
        name: of the kernel.
        operands: dtype and shape of each.
        results: shape of each.

    Example:
        >>> operands = [("bfloat16", (8, 512, 128)), ("bfloat16", (2, 512, 128)),
        ...             ("bfloat16", (2, 512, 128)), ("int32", (512, 128))]
        >>> attention_model_flops("splash_mha_fwd", operands)
        536870912.0
    """
    found = _NAME.search(name)
    arrays = [shape for dtype, shape in operands if "int" not in dtype]
    if found is None or len(arrays) < 2:
        return None
    kernel = _kernel(found[1], arrays[0], results)
    share = 0.5 if any("int" in dtype and len(shape) == 2 for dtype, shape in operands) else 1.0
    return _MODEL_PRODUCTS[kernel] * 2.0 * math.prod(arrays[0]) * arrays[1][-2] * share


def _kernel(named: str, query: Sequence[int], results: Sequence[Sequence[int]]) -> str:
    parts = any(len(shape) > len(query) for shape in results)
    return "all" if named == "dkv" and parts else named


def _causal_share(queries: int, keys: int, block_q: int, block_kv: int) -> float:
    """Return the share of blocks in which some query may look at some key.

    Example:
        >>> _causal_share(1024, 1024, 512, 256)
        0.75
    """
    rows, columns = math.ceil(queries / block_q), math.ceil(keys / block_kv)
    kept = sum(min(columns, math.ceil((row + 1) * block_q / block_kv)) for row in range(rows))
    return kept / (rows * columns)

"""What JAX's own TPU attention kernels compute, for those that state no cost.

Owns the FLOPs of splash attention by the kernel's name and shapes. It does not own how fast a
kernel is (``calibration``).

Products of a block of queries with a block of keys, each 2 T S D: forward two (scores, output);
the gradient of queries three (scores again, of the weights, of the queries); that of keys and
values four; fused, five. (``jax/experimental/pallas/ops/tpu/splash_attention``, jax 0.10.2.)
"""

from __future__ import annotations

import math
import re

from neurenix.compiler.hlo import Computation, Instruction

_PRODUCTS = {"fwd": 2, "dq": 3, "dkv": 4}
_NAME = re.compile(r"splash_m[hq]a_(fwd|dq|dkv)")
_BLOCK = re.compile(r'block_q\\?\\?": (\d+)')
_FUSED = re.compile(r'use_fused_bwd_kernel\\?\\?": true')


def attention_cost(
    computation: Computation, instruction: Instruction, moved_bytes: int
) -> tuple[float, float] | None:
    """Return FLOPs and bytes of a splash attention kernel; None for every other kernel.

    Under a mask that leaves out blocks (the kernel then takes a table of small integers for each
    block) half of the blocks and the diagonal are counted, as a causal mask has it.
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
    products = _PRODUCTS[found[1]]
    if products == _PRODUCTS["dkv"] and _FUSED.search(instruction.attributes):
        products += 1
    share = 1.0
    if any(shape.dtype in ("s8", "s32") and len(shape.sizes) == 3 for shape in operands):
        block = _BLOCK.search(instruction.attributes)
        share = (1 + (int(block[1]) if block else 128) / query[-2]) / 2
    flops = products * 2.0 * math.prod(query) * key[-2] * share
    return flops, float(moved_bytes)

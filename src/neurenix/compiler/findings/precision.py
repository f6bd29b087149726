"""Decide whether advice on bfloat16 or on kernels applies to a program and a chip."""

from __future__ import annotations

import jax.numpy as jnp

from neurenix import chips
from neurenix.chips import Generation
from neurenix.compiler.operations import Operation
from neurenix.compiler.program import Program


def is_wide_float(dtype: str) -> bool:
    """Whether a dtype is a float of more than 16 bits.

    Example:
        >>> is_wide_float("float32"), is_wide_float("bfloat16"), is_wide_float("int32")
        (True, False, False)
    """
    return jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize > 2


def is_narrow(program: Program) -> bool:
    """Return whether a program computes in bfloat16 or less: most FLOPs of its products.

    Without products the arguments decide: none may be a wide float.
    """
    products = program.traits.products
    if products:
        narrow = sum(p.flops for p in products if not any(map(is_wide_float, p.dtypes)))
        return narrow > sum(p.flops for p in products) / 2
    return not any(is_wide_float(leaf.dtype) for leaf in program.leaves)


def moves_wide(operation: Operation) -> bool:
    """Return whether an exchange has float32 arrays, which bfloat16 would halve."""
    return "f32[" in operation.shape or "f64[" in operation.shape


def takes_bfloat16(generation: Generation) -> bool:
    """Return whether a generation's kernels multiply bfloat16; XLA does on all.

    Example:
        >>> takes_bfloat16(chips.generation("v3")), takes_bfloat16(chips.generation("v4"))
        (False, True)
    """
    return "bfloat16" in generation.matmul_types


def has_roomier(generation: Generation) -> bool:
    """Return whether devices of another generation have more memory.

    Example:
        >>> has_roomier(chips.generation("v5e")), has_roomier(chips.generation("v5p"))
        (True, False)
    """
    most = max(other.hbm_bytes_per_device for other in chips.GENERATIONS.values())
    return generation.hbm_bytes_per_device < most

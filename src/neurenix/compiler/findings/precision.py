"""What types a program computes in, and what is advised of them on a chip.

Owns whether advice to compute in bfloat16, or to take a kernel, holds for a program and a
generation. The rules that give it are in the modules of their subjects.
"""

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
    """Whether a program computes in bfloat16 or less already: most FLOPs of its products.

    Of a program without products the arguments decide, of which none may be a wide float.
    """
    products = program.traits.products
    if products:
        narrow = sum(p.flops for p in products if not any(map(is_wide_float, p.dtypes)))
        return narrow > sum(p.flops for p in products) / 2
    return not any(is_wide_float(leaf.dtype) for leaf in program.leaves)


def moves_wide(operation: Operation) -> bool:
    """Whether an exchange has arrays of float32, so that bfloat16 would be less to send."""
    return "f32[" in operation.shape or "f64[" in operation.shape


def takes_bfloat16(generation: Generation) -> bool:
    """Whether kernels of a generation multiply bfloat16; XLA does so on every one.

    Example:
        >>> takes_bfloat16(chips.generation("v3")), takes_bfloat16(chips.generation("v4"))
        (False, True)
    """
    return "bfloat16" in generation.matmul_types


def has_roomier(generation: Generation) -> bool:
    """Whether devices of another generation have more memory.

    Example:
        >>> has_roomier(chips.generation("v5e")), has_roomier(chips.generation("v5p"))
        (True, False)
    """
    most = max(other.hbm_bytes_per_device for other in chips.GENERATIONS.values())
    return generation.hbm_bytes_per_device < most

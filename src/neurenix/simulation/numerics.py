"""Matrix multiplications that round as on a TPU.

Owns the lowering of ``dot_general`` and ``conv_general_dilated`` for the CPU while a slice is
simulated with ``numerics="tpu"``. On a TPU a float32 multiplication of default precision is done in
one pass of the matrix unit: the operands are rounded to bfloat16, the products summed in float32. A
CPU ignores the precision and computes in float32.

The rounding is a ``reduce_precision`` and not a pair of casts, which XLA may remove. Programs that
are lowered for a real TPU are not touched, nor operations of ``HIGH`` or ``HIGHEST`` precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from neurenix._cpu import channels_last
from neurenix._jax import cpu_lowering

_BFLOAT16_EXPONENT_BITS = 8
_BFLOAT16_MANTISSA_BITS = 7

_exact = {
    lax.dot_general_p: cpu_lowering(lax.dot_general_p),
    lax.conv_general_dilated_p: channels_last,
}


def use_tpu_numerics(on: bool) -> None:
    """Lower the matrix operations of the CPU with, or again without, a TPU's rounding.

    What JAX has compiled already stays as it is.
    """
    for primitive, exact in _exact.items():
        mlir.register_lowering(primitive, _rounding(exact) if on else exact, platform="cpu")


def _rounding(exact_rule: Callable[..., Any]) -> Callable[..., Any]:
    def lower(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
        if _is_default(params["precision"]):
            lhs, rhs = (
                _round(operand) if aval.dtype == np.float32 else operand
                for operand, aval in zip((lhs, rhs), ctx.avals_in, strict=True)
            )
        return exact_rule(ctx, lhs, rhs, **params)

    return lower


def _is_default(precision: Any) -> bool:
    if isinstance(precision, tuple):
        return all(_is_default(side) for side in precision)
    return precision is None or precision == jax.lax.Precision.DEFAULT


def _round(operand: Any) -> Any:
    return stablehlo.reduce_precision(
        operand,
        mlir.i32_attr(_BFLOAT16_EXPONENT_BITS),
        mlir.i32_attr(_BFLOAT16_MANTISSA_BITS),
    )

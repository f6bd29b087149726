"""Round matrix multiplications on the CPU as a TPU does.

Replaces the CPU lowering of ``dot_general`` and ``conv_general_dilated`` while a slice is simulated
with ``numerics="tpu"``. A TPU computes a float32 multiplication of default precision in one pass of
the matrix unit: operands are rounded to bfloat16, products are summed in float32. A CPU ignores the
precision and computes in float32.

Rounding uses ``reduce_precision``, because XLA may remove a pair of casts. Programs lowered for a
real TPU and operations of ``HIGH`` or ``HIGHEST`` precision are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from neurenix import _cpu
from neurenix._cpu import convolution
from neurenix._jax import (
    convolution_primitive,
    needed_cpu_lowering,
    product_primitive,
    replace_cpu_lowering,
    round_operand,
    set_cpu_lowering,
)

_BFLOAT16_EXPONENT_BITS = 8
_BFLOAT16_MANTISSA_BITS = 7

_exact: dict[Any, Callable[..., Any]] = {}  # the rules that were replaced


def use_tpu_numerics(on: bool) -> None:
    """Switch a TPU's rounding of CPU matrix operations on or off.

    Programs that are already compiled do not change.

    Raises:
        IncompatibleVersionError: this version of JAX hides how it lowers an operation.
    """
    if _cpu.is_tuned():
        replace_cpu_lowering(*convolution.LOWERING)
    if on and not _exact:
        rules = {p: needed_cpu_lowering(p) for p in (product_primitive, convolution_primitive)}
        _exact.update(rules)
        for primitive, exact in rules.items():
            set_cpu_lowering(primitive, _rounding(exact))
    elif not on:
        while _exact:
            set_cpu_lowering(*_exact.popitem())


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
    return round_operand(operand, _BFLOAT16_EXPONENT_BITS, _BFLOAT16_MANTISSA_BITS)

"""Lower convolutions for the CPU so that they are as fast inside a loop as outside.

XLA's CPU compiler converts a convolution to the layout of its fast kernel (channels last) in the
entry computation only. The gradient of a convolution has another layout, so a training step inside
``lax.scan`` falls back to plain loops: the digits CNN took 150 ms a step instead of 13 with jax
0.10.2, and 198 instead of 14 with 0.12.0.1 (two cores). Here the layout is changed when JAX lowers
the operation. Results differ by float32 rounding at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from neurenix._jax import convolution_primitive, cpu_lowering, lowering_of

_primitive: Any = convolution_primitive
_standard: Any = cpu_lowering(_primitive)


def channels_last(ctx: Any, lhs: Any, rhs: Any, **params: Any) -> Any:
    """Lower a convolution of any layout as transposes around one with channels last."""
    numbers = params["dimension_numbers"]
    wanted = _wanted(len(numbers.lhs_spec))
    if numbers == wanted or params["batch_group_count"] != 1:
        return _standard(ctx, lhs, rhs, **params)
    batch, feature, *space = numbers.lhs_spec
    outward, inward, *window = numbers.rhs_spec
    out_batch, out_feature, *out_space = numbers.out_spec
    inputs, kernel = (batch, *space, feature), (*window, inward, outward)
    back = np.argsort((out_batch, *out_space, out_feature))

    def convolve(lhs: Any, rhs: Any) -> Any:
        out = _primitive.bind(
            lax.transpose(lhs, inputs),
            lax.transpose(rhs, kernel),
            **{**params, "dimension_numbers": wanted},
        )
        return lax.transpose(out, back)

    return lowering_of(convolve)(ctx, lhs, rhs)


LOWERING = _primitive, _standard, channels_last
"""The arguments of ``replace_cpu_lowering``."""


def _wanted(rank: int) -> lax.ConvDimensionNumbers:
    space = range(1, rank - 1)
    return lax.ConvDimensionNumbers(
        (0, rank - 1, *space), (rank - 1, rank - 2, *range(rank - 2)), (0, rank - 1, *space)
    )

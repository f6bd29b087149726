"""Convolutions on the CPU that are as fast inside a loop as outside.

XLA's CPU compiler turns a convolution into the form that its fast kernel takes (channels last), but
in the entry computation only. The gradient of a convolution has another form, so a training step
inside ``lax.scan`` falls back to plain loops. The digits CNN took 150 ms a step in place of 13 with
jax 0.10.2, and 198 in place of 14 with 0.12.0.1 (two cores). Here the form is changed when JAX
lowers the operation, for the CPU only. Owns that lowering; results differ by float32 rounding at
most.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.interpreters import mlir

from neurenix._jax import cpu_lowering

_primitive = lax.conv_general_dilated_p
_standard = cpu_lowering(_primitive)


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

    return mlir.lower_fun(convolve, multiple_results=False)(ctx, lhs, rhs)


def use_channels_last() -> None:
    """Lower the CPU's convolutions so from now on, unless somebody has set a rule of their own."""
    if cpu_lowering(_primitive) is _standard:
        mlir.register_lowering(_primitive, channels_last, platform="cpu")


def _wanted(rank: int) -> lax.ConvDimensionNumbers:
    space = range(1, rank - 1)
    return lax.ConvDimensionNumbers(
        (0, rank - 1, *space), (rank - 1, rank - 2, *range(rank - 2)), (0, rank - 1, *space)
    )

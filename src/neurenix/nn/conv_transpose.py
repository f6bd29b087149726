"""Transposed convolutions over channels-last inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx
from neurenix.nn._checks import expect_channels, per_axis
from neurenix.nn._parameters import (
    fan_in_uniform,
    parameter_dtype,
    promote_to_input,
    rngs_or_default,
)
from neurenix.nn.conv import SpatialLayer, checked_channels, one_stride

_SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


class _ConvTranspose(SpatialLayer):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        *,
        strides: int | Sequence[int] | None = None,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        in_channels, out_channels, groups = checked_channels(in_channels, out_channels, groups)
        count = self._spatial
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis("kernel_size", kernel_size, count, low=1)
        self.stride = one_stride(stride, strides, count)
        self.padding = per_axis("padding", padding, count, low=0)
        self.output_padding = per_axis("output_padding", output_padding, count, low=0)
        self.dilation = per_axis("dilation", dilation, count, low=1)
        for extra, step, gap in zip(self.output_padding, self.stride, self.dilation, strict=True):
            if extra >= max(step, gap):
                raise ArgumentError(
                    f"`output_padding` = {self.output_padding} must be below `stride` or "
                    f"`dilation` on every axis."
                )
        rngs, dtype = rngs_or_default(rngs), parameter_dtype(dtype)
        # PyTorch computes the fan-in from the stored weight, which gives the output channels.
        init = fan_in_uniform(out_channels // groups * math.prod(self.kernel_size))
        shape = (*self.kernel_size, in_channels // groups, out_channels)
        self.kernel = nnx.Param(init(rngs.params(), shape, dtype))
        values = init(rngs.params(), (out_channels,), dtype) if bias else None
        self.bias = nnx.data(None) if values is None else nnx.Param(values)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the transposed convolution; raises ShapeError for another rank or channels."""
        name = type(self).__name__
        expect_channels(name, x, spatial=self._spatial, channels=self.in_channels)
        bias = None if self.bias is None else self.bias[...]
        x, kernel, bias = promote_to_input((x, self.kernel[...], bias))
        letters = _SPATIAL[self._spatial]
        reach = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
        sides = zip(reach, self.padding, self.output_padding, strict=True)
        y = lax.conv_general_dilated(
            x,
            jnp.flip(kernel, range(self._spatial)),
            window_strides=(1,) * self._spatial,
            padding=[(r - p, r - p + extra) for r, p, extra in sides],
            lhs_dilation=self.stride,
            rhs_dilation=self.dilation,
            dimension_numbers=(f"N{letters}C", f"{letters}IO", f"N{letters}C"),
            feature_group_count=self.groups,
        )
        return y if bias is None else y + bias


class ConvTranspose1d(_ConvTranspose, spatial=1):
    """Transposed convolution of (N, L, in_channels); arguments as for :class:`ConvTranspose2d`."""


class ConvTranspose2d(_ConvTranspose, spatial=2):
    """Transposed convolution: (N, H, W, in_channels) → (N, H', W', out_channels).

    H' = (H - 1) · stride - 2 · padding + dilation · (kernel - 1) + output_padding + 1, as in
    PyTorch. Initial values as in PyTorch: U(-1/√f, 1/√f) with
    f = kernel height · width · out_channels / groups.

    Args:
        in_channels: channels of the input, its last axis.
        out_channels: channels of the output.
        kernel_size: one number, or (height, width).
        stride: one number or two.
        padding: rows and columns removed from both sides of the output.
        strides: TensorFlow's name for ``stride``.
        output_padding: rows and columns added at the end; must be below stride or dilation.
        dilation: spacing between kernel elements.
        groups: number of groups the channels are split into.
        bias: whether to add a bias.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process by default.

    Attributes:
        kernel: (height, width, in_channels / groups, out_channels), not flipped: entry (i, j) is
            PyTorch's ``weight[..., i, j]``.
        bias: (out_channels,) or None.

    Example:
        >>> nn.ConvTranspose2d(8, 4, 2, stride=2)(nx.ones((1, 5, 5, 8))).shape
        (1, 10, 10, 4)
    """


class ConvTranspose3d(_ConvTranspose, spatial=3):
    """Transposed convolution of volumes; arguments as for :class:`ConvTranspose2d`."""

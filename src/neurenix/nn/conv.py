"""Convolutions over channels-last inputs: Conv1d, Conv2d, Conv3d, DepthwiseConv2d.

Transposed convolutions are in ``conv_transpose``.

Letters: ``N`` batch, ``D H W L`` spatial axes, ``C`` channels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, cast

import jax

from neurenix._core.errors import ArgumentError, ShapeError, unknown_name
from neurenix._nnx import nnx
from neurenix.nn._checks import expect_channels, per_axis, positive
from neurenix.nn._parameters import (
    fan_in_uniform,
    parameter_dtype,
    promote_to_input,
    rngs_or_default,
)
from neurenix.nn.module import Module

_PADDINGS = ("valid", "same", "causal", "circular", "reflect")


def checked_channels(in_channels: int, out_channels: int, groups: int) -> tuple[int, int, int]:
    """Return the three numbers; raise ArgumentError unless ``groups`` divides the other two."""
    in_channels, out_channels, groups = positive(
        in_channels=in_channels, out_channels=out_channels, groups=groups
    )
    if in_channels % groups or out_channels % groups:
        raise ArgumentError(
            f"`groups` = {groups} must divide `in_channels` = {in_channels} and "
            f"`out_channels` = {out_channels}."
        )
    return in_channels, out_channels, groups


class SpatialLayer(Module):
    """A layer with a number of spatial axes, of the class: ``class Conv2d(…, spatial=2)``."""

    _spatial: ClassVar[int]

    def __init_subclass__(cls, *, spatial: int | None = None, **options: Any) -> None:
        """Set the number of axes; without ``spatial`` it is that of the base class."""
        super().__init_subclass__(**options)
        if spatial is not None:
            cls._spatial = spatial


class _Conv(SpatialLayer, nnx.Conv):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        *,
        strides: int | Sequence[int] | None = None,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        in_channels, out_channels, groups = checked_channels(in_channels, out_channels, groups)
        kernel = per_axis("kernel_size", kernel_size, self._spatial, low=1)
        init = fan_in_uniform(math.prod(kernel) * in_channels // groups)
        nnx.Conv.__init__(
            self,
            in_channels,
            out_channels,
            kernel,
            one_stride(stride, strides, self._spatial),
            padding=conv_padding(padding, self._spatial),
            kernel_dilation=per_axis("dilation", dilation, self._spatial, low=1),
            feature_group_count=groups,
            use_bias=bias,
            param_dtype=parameter_dtype(dtype),
            kernel_init=init,
            bias_init=init,
            promote_dtype=promote_to_input,
            rngs=rngs_or_default(rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the convolution of ``x``; raises ShapeError for another rank or channel count."""
        name = type(self).__name__
        expect_channels(name, x, spatial=self._spatial, channels=self.in_features)
        self._expect_room(name, x)
        return super().__call__(x)

    def _expect_room(self, name: str, x: jax.Array) -> None:
        if isinstance(self.padding, str) and self.padding != "VALID":
            return  # these modes pad as much as the kernel needs
        padded, padding = x.shape[1:-1], self.padding
        if not isinstance(padding, str):
            pairs = cast("Sequence[tuple[int, int]]", padding)
            padded = tuple(n + sum(pair) for n, pair in zip(padded, pairs, strict=True))
        dilation = cast("Sequence[int]", self.kernel_dilation)
        kernel = cast("Sequence[int]", self.kernel_size)
        reach = tuple(d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True))
        if any(n < r for n, r in zip(padded, reach, strict=True)):
            raise ShapeError(
                f"{name} has a kernel that spans {reach}, larger than its input: shape "
                f'{x.shape}, {padded} with padding. Use a smaller kernel, or padding="same".'
            )


class Conv1d(_Conv, spatial=1):
    """Convolution over one axis: (N, L, in_channels) → (N, L', out_channels).

    Arguments, initial values and errors as for :class:`Conv2d`. ``padding="causal"`` also pads,
    with zeros before the sequence only.

    Example:
        >>> nn.Conv1d(3, 8, 5, padding="causal")(nx.ones((2, 10, 3))).shape
        (2, 10, 8)
    """


class Conv2d(_Conv, spatial=2):
    """Convolution over images: (N, H, W, in_channels) → (N, H', W', out_channels).

    Initial values as in PyTorch: kernel and bias from U(-1/√f, 1/√f) with
    f = kernel height · width · in_channels / groups. Computes in the dtype of its input.

    Args:
        in_channels: channels of the input, its last axis.
        out_channels: channels of the output.
        kernel_size: one number, or (height, width).
        stride: one number or two.
        padding: zeros on both sides: one number or two. Or a mode: ``"valid"`` (no padding),
            ``"same"`` (output size ceil(size / stride), as in TensorFlow), ``"circular"``,
            ``"reflect"``.
        strides: TensorFlow's name for ``stride``.
        dilation: spacing between kernel elements.
        groups: number of groups the channels are split into.
        bias: whether to add a bias.
        dtype: of the parameters; float32 by default.
        rngs: random streams; those of the process by default.

    Attributes:
        kernel: (height, width, in_channels / groups, out_channels); PyTorch's is
            (out, in / groups, height, width).
        bias: (out_channels,) or None.

    Raises:
        ShapeError: the input has another rank or channel count (the message recognises NCHW), or
            is smaller than the dilated kernel.

    Example:
        >>> nn.Conv2d(1, 32, 3)(nx.ones((4, 8, 8, 1))).shape
        (4, 6, 6, 32)
    """


class Conv3d(_Conv, spatial=3):
    """Convolution over volumes: (N, D, H, W, in_channels) → (N, D', H', W', out_channels).

    Arguments, initial values and errors as for :class:`Conv2d`.
    """


class DepthwiseConv2d(Conv2d):
    """One convolution per channel: (N, H, W, C) → (N, H', W', C · multiplier).

    Args:
        in_channels: channels C of the input.
        kernel_size: one number, or (height, width).
        stride: one number or two.
        padding: as for :class:`Conv2d`.
        multiplier: output channels per input channel; input channel c gives output channels
            c · multiplier … (c + 1) · multiplier - 1.
        strides, dilation, bias, dtype, rngs: as for :class:`Conv2d`.

    Example:
        >>> nn.DepthwiseConv2d(16, 3, padding=1)(nx.ones((4, 8, 8, 16))).shape
        (4, 8, 8, 16)
    """

    def __init__(
        self,
        in_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        *,
        multiplier: int = 1,
        strides: int | Sequence[int] | None = None,
        dilation: int | Sequence[int] = 1,
        bias: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        in_channels, multiplier = positive(in_channels=in_channels, multiplier=multiplier)
        super().__init__(
            in_channels,
            in_channels * multiplier,
            kernel_size,
            stride,
            padding,
            strides=strides,
            dilation=dilation,
            groups=in_channels,
            bias=bias,
            dtype=dtype,
            rngs=rngs,
        )


def one_stride(stride, strides, spatial: int) -> tuple[int, ...]:
    """Return strides per axis from ``stride`` (PyTorch) or ``strides`` (TensorFlow).

    Raises:
        ArgumentError: both are given.
    """
    if strides is not None and stride != 1:
        raise ArgumentError("Give either `stride` or `strides`; they mean the same.")
    return per_axis("stride", stride if strides is None else strides, spatial, low=1)


def conv_padding(padding: int | Sequence[int] | str, spatial: int):
    """Return padding in Flax's form: an upper-case name, or (before, after) per axis."""
    if not isinstance(padding, str):
        return tuple((p, p) for p in per_axis("padding", padding, spatial, low=0))
    known = _PADDINGS if spatial == 1 else tuple(p for p in _PADDINGS if p != "causal")
    if padding.lower() not in known:
        raise unknown_name("padding", padding, known)
    return padding.upper()

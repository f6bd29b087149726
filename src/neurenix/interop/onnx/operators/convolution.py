"""Convolutions over channels-first inputs of any rank; XLA chooses the memory order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.registry import operator

__all__ = ["padding"]


def padding(
    sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
    pads: Sequence[int] | None, auto_pad: str,
) -> list[tuple[int, int]]:  # fmt: skip
    """Return (before, after) for each spatial axis, as ``pads`` or ``auto_pad`` say."""
    rank = len(sizes)
    if auto_pad in ("NOTSET", ""):
        given = list(pads) if pads else [0] * (2 * rank)
        return list(zip(given[:rank], given[rank:], strict=True))
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ConversionError(f"auto_pad is {auto_pad!r}.")
    found = []
    for size, k, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        whole = max((-(-size // stride) - 1) * stride + dilation * (k - 1) + 1 - size, 0)
        less, more = whole // 2, whole - whole // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found


def _dimensions(rank: int) -> lax.ConvDimensionNumbers:
    axes = tuple(range(rank + 2))
    return lax.ConvDimensionNumbers(axes, axes, axes)


def _bias(bias: Any, rank: int) -> Any:
    return bias.reshape(-1, *(1,) * rank)


@operator("Conv")
def conv(
    x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None, pads=None,
    strides=None,
):  # fmt: skip
    rank = w.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    result = lax.conv_general_dilated(
        x,
        w,
        strides,
        padding(x.shape[2:], w.shape[2:], strides, dilations, pads, auto_pad),
        rhs_dilation=dilations,
        dimension_numbers=_dimensions(rank),
        feature_group_count=group,
    )
    return result if b is None else result + _bias(b, rank)


@operator("ConvTranspose")
def conv_transpose(
    x, w, b=None, *, auto_pad="NOTSET", dilations=None, group=1, kernel_shape=None,
    output_padding=None, output_shape=None, pads=None, strides=None,
):  # fmt: skip
    rank = w.ndim - 2
    strides, dilations = strides or [1] * rank, dilations or [1] * rank
    extra = output_padding or [0] * rank
    reach = [d * (k - 1) for k, d in zip(w.shape[2:], dilations, strict=True)]
    full = [
        s * (size - 1) + more + r + 1
        for size, s, more, r in zip(x.shape[2:], strides, extra, reach, strict=True)
    ]
    cut = _transposed_pads(full, x.shape[2:], strides, pads, auto_pad, output_shape)
    # The gradient of a convolution: the kernel turned round, its channels exchanged by group.
    kernel = jnp.flip(w, tuple(range(2, 2 + rank)))
    grouped = kernel.reshape(group, w.shape[0] // group, *w.shape[1:])
    kernel = jnp.swapaxes(grouped, 1, 2).reshape(-1, w.shape[0] // group, *w.shape[2:])
    result = lax.conv_general_dilated(
        x,
        kernel,
        (1,) * rank,
        [
            (r - low, r - high + more)
            for r, (low, high), more in zip(reach, cut, extra, strict=True)
        ],
        lhs_dilation=strides,
        rhs_dilation=dilations,
        dimension_numbers=_dimensions(rank),
        feature_group_count=group,
    )
    return result if b is None else result + _bias(b, rank)


def _transposed_pads(
    full: Sequence[int], sizes: Sequence[int], strides: Sequence[int], pads: Sequence[int] | None,
    auto_pad: str, output_shape: Sequence[int] | None,
) -> list[tuple[int, int]]:  # fmt: skip
    rank = len(full)
    if output_shape is None and auto_pad in ("NOTSET", "", "VALID"):
        given = list(pads) if pads and auto_pad != "VALID" else [0] * (2 * rank)
        return list(zip(given[:rank], given[rank:], strict=True))
    wanted = (
        list(output_shape)[-rank:]
        if output_shape is not None
        else [size * stride for size, stride in zip(sizes, strides, strict=True)]
    )
    found = []
    for whole, size in zip(full, wanted, strict=True):
        cut = whole - size
        less, more = cut // 2, cut - cut // 2
        found.append((less, more) if auto_pad == "SAME_UPPER" else (more, less))
    return found

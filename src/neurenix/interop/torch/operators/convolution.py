"""Convolutions over channels-first inputs, as PyTorch has them; XLA chooses the memory order."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any


def _each(value: Any, rank: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * rank
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _dimensions(rank: int) -> tuple[str, str, str]:
    spatial = "HWD"[:rank]
    return f"NC{spatial}", f"OI{spatial}", f"NC{spatial}"


def _add_bias(result: Array, bias: Array | None, rank: int) -> Array:
    return result if bias is None else result + bias.reshape((-1,) + (1,) * rank)


@operator("conv1d", "conv2d", "conv3d", product=True)
def convolve(
    input: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0,
    dilation: Any = 1, groups: int = 1,
) -> Array:  # fmt: skip
    rank = weight.ndim - 2
    single = input.ndim == rank + 1  # no batch
    x = input[None] if single else input
    pads = padding.upper() if isinstance(padding, str) else [(p, p) for p in _each(padding, rank)]
    result = lax.conv_general_dilated(
        x,
        weight,
        _each(stride, rank),
        pads,
        rhs_dilation=_each(dilation, rank),
        dimension_numbers=_dimensions(rank),
        feature_group_count=groups,
    )
    result = _add_bias(result, bias, rank)
    return result[0] if single else result


@operator("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", product=True)
def convolve_transposed(
    input: Array, weight: Array, bias: Any = None, stride: Any = 1, padding: Any = 0,
    output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Array:  # fmt: skip
    rank = weight.ndim - 2
    single = input.ndim == rank + 1
    x = input[None] if single else input
    inner = jnp.flip(weight, tuple(range(2, 2 + rank)))
    shape = inner.shape
    grouped = inner.reshape(groups, shape[0] // groups, *shape[1:])
    kernel = jnp.swapaxes(grouped, 1, 2).reshape(groups * shape[1], shape[0] // groups, *shape[2:])
    reach = [
        (d * (k - 1) - p, d * (k - 1) - p + more)
        for d, k, p, more in zip(
            _each(dilation, rank), shape[2:], _each(padding, rank), _each(output_padding, rank),
            strict=True,
        )
    ]  # fmt: skip
    result = lax.conv_general_dilated(
        x,
        kernel,
        (1,) * rank,
        reach,
        lhs_dilation=_each(stride, rank),
        rhs_dilation=_each(dilation, rank),
        dimension_numbers=_dimensions(rank),
        feature_group_count=groups,
    )
    result = _add_bias(result, bias, rank)
    return result[0] if single else result


@operator("conv_tbc", product=True)
def convolve_time_first(x: Array, weight: Array, bias: Array, pad: int = 0) -> Array:
    """Convolve x (T, N, C) with weight (K, C, O)."""
    dimensions = ("WNC", "WIO", "WNC")
    result = lax.conv_general_dilated(x, weight, (1,), [(pad, pad)], dimension_numbers=dimensions)
    return result + bias


@operator("convolution", product=True)
def convolution(
    input: Array, weight: Array, bias: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> Array:  # fmt: skip
    if transposed:
        return convolve_transposed(
            input, weight, bias, stride, padding, output_padding, groups, dilation
        )
    return convolve(input, weight, bias, stride, padding, dilation, groups)


@operator("im2col")
def im2col(x: Array, kernel_size: Any, dilation: Any, padding: Any, stride: Any) -> Array:
    """Return patches (N, C · kernel, L): what ``nn.Unfold`` does."""
    patches = lax.conv_general_dilated_patches(
        x,
        _each(kernel_size, 2),
        _each(stride, 2),
        [(p, p) for p in _each(padding, 2)],
        rhs_dilation=_each(dilation, 2),
    )
    return patches.reshape(*patches.shape[:2], -1)


@operator("col2im")
def col2im(
    x: Array, output_size: Any, kernel_size: Any, dilation: Any, padding: Any, stride: Any
) -> Array:
    """Return the sum of overlapping patches: the transpose of ``im2col``, ``nn.Fold``."""
    kernel = _each(kernel_size, 2)
    channels = x.shape[1] // (kernel[0] * kernel[1])
    image = jnp.zeros((x.shape[0], channels, *output_size), x.dtype)
    _, transpose = jax.vjp(lambda i: im2col(i, kernel_size, dilation, padding, stride), image)
    return transpose(x)[0]

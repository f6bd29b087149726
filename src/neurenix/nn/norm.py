"""Normalisation within an example: LayerNorm, RMSNorm, GroupNorm.

BatchNorm, which has running statistics, is in ``batch_norm``. Statistics are computed in float32 or
wider; the result has the dtype of the input.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix._nnx import nnx
from neurenix.nn._checks import expect_array, expect_features, positive
from neurenix.nn._parameters import parameter_dtype
from neurenix.nn.module import Module

FLOAT32_EPSILON = float(jnp.finfo(jnp.float32).eps)


class LayerNorm(Module):
    """``(x - mean) / √(var + eps) · scale + bias`` over the last axes.

    Args:
        normalized_shape: size of the last axis, or sizes of the last axes.
        eps: added to the (biased) variance.
        elementwise_affine: whether to learn ``scale`` (starts at 1) and ``bias`` (at 0).
        bias: whether to learn the bias.
        dtype: of the parameters; float32 by default.

    Example:
        >>> nn.LayerNorm(4)(nx.ones((2, 4))).shape
        (2, 4)
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        *,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
    ) -> None:
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        affine, shape = elementwise_affine, self.normalized_shape
        kind, with_bias = parameter_dtype(dtype), affine and bias
        self.scale = nnx.Param(jnp.ones(shape, kind)) if affine else nnx.data(None)
        self.bias = nnx.Param(jnp.zeros(shape, kind)) if with_bias else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised; raises ShapeError if its last axes differ."""
        wide = _wide_checked("LayerNorm", x, self.normalized_shape)
        axes = tuple(range(x.ndim - len(self.normalized_shape), x.ndim))
        centred = wide - jnp.mean(wide, axis=axes, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=axes, keepdims=True)
        return affine(centred * lax.rsqrt(variance + self.eps), self.scale, self.bias, x)


class RMSNorm(Module):
    """``x / √(mean(x²) + eps) · scale`` over the last axes (Zhang & Sennrich 2019).

    Args:
        normalized_shape: size of the last axis, or sizes of the last axes.
        eps: added to the mean square; float32's epsilon, 1.2e-7, by default. (PyTorch uses the
            epsilon of the input's dtype.)
        elementwise_affine: whether to learn ``scale`` (starts at 1).
        dtype: of the parameters; float32 by default.

    Example:
        >>> nn.RMSNorm(4)(nx.ones((2, 4))).shape
        (2, 4)
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = FLOAT32_EPSILON,
        *,
        elementwise_affine: bool = True,
        dtype: jax.typing.DTypeLike | None = None,
    ) -> None:
        self.normalized_shape = _sizes(normalized_shape)
        self.eps = eps
        ones = jnp.ones(self.normalized_shape, parameter_dtype(dtype))
        self.scale = nnx.Param(ones) if elementwise_affine else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised; raises ShapeError if its last axes differ."""
        wide = _wide_checked("RMSNorm", x, self.normalized_shape)
        axes = tuple(range(x.ndim - len(self.normalized_shape), x.ndim))
        square = jnp.mean(jnp.square(wide), axis=axes, keepdims=True)
        return affine(wide * lax.rsqrt(square + self.eps), self.scale, None, x)


class GroupNorm(Module):
    """Normalise groups of channels over all spatial axes: (N, ..., C) → the same shape.

    Args:
        num_groups: number of groups the channels are split into; must divide ``num_channels``.
        num_channels: channels C, the last axis.
        eps: added to the (biased) variance.
        affine: whether to learn ``scale`` (starts at 1) and ``bias`` (at 0), each (C,).
        dtype: of the parameters; float32 by default.

    Example:
        >>> nn.GroupNorm(2, 8)(nx.ones((4, 5, 5, 8))).shape
        (4, 5, 5, 8)
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        dtype: jax.typing.DTypeLike | None = None,
    ) -> None:
        num_groups, num_channels = positive(num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ArgumentError(
                f"`num_groups` = {num_groups} must divide `num_channels` = {num_channels}."
            )
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        dtype = parameter_dtype(dtype)
        self.scale = nnx.Param(jnp.ones(num_channels, dtype)) if affine else nnx.data(None)
        self.bias = nnx.Param(jnp.zeros(num_channels, dtype)) if affine else nnx.data(None)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` normalised; raises ShapeError for another channel count."""
        expect_features("GroupNorm", x, self.num_channels, channels=True)
        if x.ndim < 2:
            raise ShapeError(f"GroupNorm takes (N, ..., C); its input has shape {x.shape}.")
        groups = widen(x).reshape(*x.shape[:-1], self.num_groups, -1)
        axes = (*range(1, x.ndim - 1), x.ndim)
        centred = groups - jnp.mean(groups, axis=axes, keepdims=True)
        variance = jnp.mean(jnp.square(centred), axis=axes, keepdims=True)
        normal = (centred * lax.rsqrt(variance + self.eps)).reshape(x.shape)
        return affine(normal, self.scale, self.bias, x)


def widen(x: jax.Array) -> jax.Array:
    """Cast half precision and integers to float32; keep wider floats."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def affine(
    normal: jax.Array, scale: nnx.Param | None, bias: nnx.Param | None, x: jax.Array
) -> jax.Array:
    """Scale and shift in the dtype of ``normal``, then cast to the dtype of the input ``x``."""
    if scale is not None:
        normal = normal * scale[...].astype(normal.dtype)
    if bias is not None:
        normal = normal + bias[...].astype(normal.dtype)
    return normal.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.floating) else normal


def _sizes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    given = normalized_shape if isinstance(normalized_shape, Sequence) else (normalized_shape,)
    return tuple(positive(normalized_shape=size)[0] for size in given)


def _wide_checked(layer: str, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    expect_array(layer, x)
    if x.shape[x.ndim - len(shape) :] != shape or x.ndim < len(shape):
        raise ShapeError(f"{layer} takes (..., {', '.join(map(str, shape))}); got shape {x.shape}.")
    return widen(x)

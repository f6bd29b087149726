"""Fourier transforms, which ``torch.fft``, ``torch.stft`` and ``torch.istft`` come down to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from neurenix.interop.torch.registry import operator

Array = Any


def _scaled(result: Array, sizes: Sequence[int], normalization: int) -> Array:
    """Divide by nothing, by the root of the number of values (1), or by that number (2)."""
    count = math.prod(sizes)
    return result / {0: 1, 1: count**0.5, 2: count}[normalization] if normalization else result


@operator("_fft_r2c")
def of_real(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    transform = jnp.fft.rfftn if onesided else jnp.fft.fftn
    return _scaled(transform(x, axes=tuple(dim)), [x.shape[axis] for axis in dim], normalization)


@operator("_fft_c2c")
def of_complex(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    axes = tuple(dim)
    found = jnp.fft.fftn(x, axes=axes) if forward else jnp.fft.ifftn(x, axes=axes, norm="forward")
    return _scaled(found, [x.shape[axis] for axis in dim], normalization)


@operator("_fft_c2r")
def to_real(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    sizes = [*(x.shape[axis] for axis in dim[:-1]), last_dim_size]
    found = jnp.fft.irfftn(x, s=sizes, axes=tuple(dim), norm="forward")
    return _scaled(found, sizes, normalization)


@operator("_conj", "_conj_physical")
def conjugate(x: Array) -> Array:
    return jnp.conj(x)


@operator("_neg_view")
def negative(x: Array) -> Array:
    return -x

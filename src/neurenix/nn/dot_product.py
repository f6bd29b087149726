"""Scaled dot-product attention, by the fused kernel of the device that has one.

Owns the choice of implementation; the TPU's kernel is called in ``splash``, the layer with its
projections is in ``multihead``.

Where the trace knows which devices its mesh has, the choice falls at once. Otherwise it falls when
the program is lowered for a platform: the traced program carries every implementation that fits
its shapes, and the platform takes its own.

=========  =========================================  ==============================================
platform   implementation                             when
=========  =========================================  ==============================================
TPU        Pallas splash attention (ships with JAX)   no ``mask``; T and S multiples of 128; head
                                                      size up to 128 or a multiple of it; the trace
                                                      knows its mesh (``jax.set_mesh``), because a
                                                      kernel is not split over devices by itself;
                                                      on v2 and v3 float32 only
CUDA       cuDNN flash attention                      no ``mask``; bfloat16 or float16; head size a
                                                      multiple of 8, up to 128; compute capability
                                                      8.0 or above
any        XLA                                        otherwise
=========  =========================================  ==============================================
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as named

from neurenix._core.errors import ShapeError
from neurenix.device import DeviceType, devices
from neurenix.nn import splash


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    causal: bool = False,
    checkpoint_name: str | None = None,
) -> jax.Array:
    """Return ``softmax(query · keyᵀ / √D) · value``, the softmax in float32.

    Letters: ``N`` batch, ``T`` queries, ``S`` keys, ``H`` heads, ``K`` heads of keys (divides H),
    ``D`` size of a head.

    Args:
        query: (N, T, H, D).
        key: (N, S, K, D), of the same dtype.
        value: (N, S, K, D), of the same dtype.
        mask: booleans, True where a query may look at a key; (T, S), (N, T, S) or
            (N, H or 1, T, S). (PyTorch's layer, unlike its function, means the opposite.)
        causal: whether query t may only look at keys 0 … t.
        checkpoint_name: for policies of ``jax.checkpoint``: the name of the result, and of what
            else a fused kernel needs for its gradient.

    Returns:
        (N, T, H, D), the dtype of ``query``.

    Raises:
        ShapeError: the shapes do not go together.

    Example:
        >>> x = jnp.ones((2, 5, 4, 8))
        >>> dot_product_attention(x, x, x, causal=True).shape
        (2, 5, 4, 8)
    """
    _check(query, key, value)
    mask = None if mask is None else four_axes(mask, query, key)
    kind = _known_kind()
    fits_tpu = mask is None and splash.fits(query, key, kind or "")
    kernel = functools.partial(splash.attention, causal=causal, checkpoint_name=checkpoint_name)
    if fits_tpu and kind is not None and kind.startswith("TPU"):
        return kernel(query, key, value)
    branches: dict[str, Callable[..., jax.Array]] = {}
    if fits_tpu and kind is None:
        branches["tpu"] = kernel
    if mask is None and _cudnn_fits(query):
        branches["cuda"] = functools.partial(
            jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn"
        )

    def plain(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
        out = jax.nn.dot_product_attention(
            query, key, value, mask=mask, is_causal=causal, implementation="xla"
        )
        return out if checkpoint_name is None else named(out, checkpoint_name)

    if not branches:
        return plain(query, key, value)
    # A branch not taken still leaves room for what its gradient would keep, T x S weights here.
    default = jax.checkpoint(plain) if "tpu" in branches else plain
    return lax.platform_dependent(query, key, value, default=default, **branches)


def four_axes(mask: jax.Array, query: jax.Array, key: jax.Array) -> jax.Array:
    """Return a mask as (N or 1, H or 1, T, S).

    Raises:
        ShapeError: the mask has another shape, or is not boolean.
    """
    batch, queries, heads, _ = query.shape
    keys = key.shape[1]
    shape = mask.shape
    if mask.ndim == 2:
        mask = mask[None, None]
    elif mask.ndim == 3:
        mask = mask[:, None]
    wanted = (batch, heads, queries, keys)
    fits = mask.ndim == 4 and all(
        m in ((n, 1) if axis < 2 else (n,))
        for axis, (m, n) in enumerate(zip(mask.shape, wanted, strict=True))
    )
    if not fits or mask.dtype != jnp.bool_:
        raise ShapeError(
            f"An attention mask is boolean, {(queries, keys)}, {(batch, queries, keys)} or "
            f"{wanted}; got {mask.dtype}, shape {shape}."
        )
    return mask


def _check(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    if query.ndim != 4 or key.ndim != 4 or key.shape != value.shape:
        raise ShapeError(f"Attention takes (N, T, H, D) and twice (N, S, K, D); got {shapes}.")
    same = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
    if not same or query.shape[2] % key.shape[2]:
        raise ShapeError(
            f"Queries and keys must agree in N and D, and the heads of keys divide those of "
            f"queries; got {shapes}."
        )


def _known_kind() -> str | None:
    """Return what kind the devices of the mesh are, such as ``"TPU v5 lite"``, where known."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else device.device_kind


def _cudnn_fits(query: jax.Array) -> bool:
    size = query.shape[3]
    if query.dtype not in (jnp.bfloat16, jnp.float16) or size % 8 or size > 128:
        return False
    found = devices(DeviceType.CUDA)
    return bool(found) and all(
        float(device.jax_device.compute_capability) >= 8.0 for device in found
    )

"""Scaled dot-product attention, by the fused kernel of the device that has one.

Owns the choice of implementation; the layer with its projections is in ``multihead``.

The choice falls when a program is lowered for a platform, not when it is written: one traced
program carries every implementation that fits its shapes, and the platform takes its own.

=========  =========================================  ==============================================
platform   implementation                             when
=========  =========================================  ==============================================
TPU        Pallas flash attention (ships with JAX)    no ``mask``; T and S multiples of 128; head
                                                      size up to 128 or a multiple of it; the trace
                                                      knows its mesh (``jax.set_mesh``), because a
                                                      kernel is not split over devices by itself
CUDA       cuDNN flash attention                      no ``mask``; bfloat16 or float16; head size a
                                                      multiple of 8, up to 128; compute capability
                                                      8.0 or above
any        XLA                                        otherwise
=========  =========================================  ==============================================
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas.ops.tpu import flash_attention as tpu_flash
from jax.sharding import PartitionSpec

from neurenix._core.errors import ShapeError
from neurenix.device import DeviceType, devices

_BLOCK = 128  # rows of queries and keys that the TPU kernel takes at least
_LARGEST_BLOCK = 512


def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    causal: bool = False,
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
    branches = {}
    if mask is None and _tpu_kernel_fits(query, key):
        branches["tpu"] = functools.partial(_tpu_kernel, causal=causal)
    if mask is None and _cudnn_fits(query):
        branches["cuda"] = functools.partial(
            jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn"
        )
    plain = functools.partial(
        jax.nn.dot_product_attention, mask=mask, is_causal=causal, implementation="xla"
    )
    if not branches:
        return plain(query, key, value)
    return lax.platform_dependent(query, key, value, default=plain, **branches)


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


def _tpu_kernel_fits(query: jax.Array, key: jax.Array) -> bool:
    size = query.shape[3]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or (mesh.manual_axes and set(mesh.manual_axes) != set(mesh.axis_names)):
        return False
    replicas = 1 if mesh.manual_axes else mesh.size
    return (
        all(length % _BLOCK == 0 for length in (query.shape[1], key.shape[1]))
        and (size <= _BLOCK or size % _BLOCK == 0)
        and query.shape[0] % replicas == 0
        and query.dtype in (jnp.bfloat16, jnp.float32)
    )


def _tpu_kernel(query: jax.Array, key: jax.Array, value: jax.Array, *, causal: bool) -> jax.Array:
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = (jnp.repeat(x, groups, axis=2) for x in (key, value))
    kernel = functools.partial(
        tpu_flash.flash_attention,
        causal=causal,
        sm_scale=1 / math.sqrt(query.shape[3]),
        block_sizes=_block_sizes(query.shape[1], key.shape[1]),
    )
    mesh = jax.sharding.get_abstract_mesh()
    if not mesh.manual_axes:  # inside shard_map every device has its share already
        batch = PartitionSpec(mesh.axis_names)
        kernel = jax.shard_map(kernel, in_specs=batch, out_specs=batch, check_vma=False)
    heads_first = [x.swapaxes(1, 2) for x in (query, key, value)]
    return kernel(*heads_first).swapaxes(1, 2)


def _block_sizes(queries: int, keys: int) -> tpu_flash.BlockSizes:
    q, k = _largest_block(queries), _largest_block(keys)
    return tpu_flash.BlockSizes(
        block_q=q,
        block_k_major=k,
        block_k=k,
        block_b=1,
        block_q_major_dkv=q,
        block_k_major_dkv=k,
        block_k_dkv=k,
        block_q_dkv=q,
        block_k_major_dq=k,
        block_k_dq=k,
        block_q_dq=q,
    )


def _largest_block(length: int) -> int:
    block = _LARGEST_BLOCK
    while length % block:
        block //= 2
    return block


def _cudnn_fits(query: jax.Array) -> bool:
    size = query.shape[3]
    if query.dtype not in (jnp.bfloat16, jnp.float16) or size % 8 or size > 128:
        return False
    found = devices(DeviceType.CUDA)
    return bool(found) and all(
        float(device.jax_device.compute_capability) >= 8.0 for device in found
    )

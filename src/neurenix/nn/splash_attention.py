"""The TPU's attention kernel, Pallas splash attention, on a mesh of devices.

Owns when the kernel fits, its block sizes and how heads and batch are sharded. The kernel skips
blocks that a causal mask or a window masks out, and supports fewer key heads than query heads.
``dot_product`` chooses between kernels.
"""

from __future__ import annotations

import functools
import math
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, PartitionSpec

from neurenix._jax import has_splash_attention, splash_attention
from neurenix.chips.tiles import LANES  # rows of queries and keys that the kernel takes at least

_QUERIES, _KEYS = 1024, 512  # of a block at most
_PARTS = 4  # at most, in which the backward pass writes the gradient of the queries
_HEADS_AXIS = "tensor"
# Kernels have no bfloat16 products there: libtpu 0.0.42.1 answers E2001, "Unsupported matmul RHS".
WITHOUT_BFLOAT16 = ("TPU v2", "TPU v3")


def fits(query: jax.Array, key: jax.Array, value: jax.Array, kind: str = "") -> bool:
    """Return whether the kernel supports these shapes on the mesh known while tracing.

    False where this version of JAX has no such kernel.

    Args:
        query: (N, T, H, D).
        key: (N, S, K, D).
        value: (N, S, K, C).
        kind: device kind, if known.
    """
    if kind in WITHOUT_BFLOAT16 and query.dtype != jnp.float32:
        return False
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or (mesh.manual_axes and set(mesh.manual_axes) != set(mesh.axis_names)):
        return False
    batch, heads = _axes(mesh, query, key)
    parts = math.prod(mesh.shape[name] for name in (*batch, *heads))
    return (
        all(length % LANES == 0 for length in (query.shape[1], key.shape[1]))
        and all(x.shape[3] <= LANES or x.shape[3] % (LANES // 2) == 0 for x in (query, value))
        and (bool(mesh.manual_axes) or parts == mesh.size)
        and query.dtype in (jnp.bfloat16, jnp.float32)
        and has_splash_attention()  # last: it loads Pallas
    )


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None = None,
    *,
    causal: bool,
    window: int | None = None,
    softcap: float | None = None,
    checkpoint_name: str | None = None,
) -> jax.Array:
    """Return attention of (N, T, H, D) over (N, S, K, D) and (N, S, K, C).

    Arguments as for ``dot_product_attention``. The batch is sharded over the mesh, heads over its
    axis ``"tensor"``.
    """
    mesh = jax.sharding.get_abstract_mesh()
    batch, heads = _axes(mesh, query, key)
    local_heads = query.shape[2] // math.prod(mesh.shape[name] for name in heads)
    shape = (query.shape[1], key.shape[1])
    kernels, masks = splash_attention()

    def local(query: jax.Array, key: jax.Array, value: jax.Array, *sinks: jax.Array) -> Any:
        kernel = kernels.make_splash_mha(
            masks.MultiHeadMask([_mask(masks, shape, causal, window)] * local_heads),
            block_sizes=kernels.BlockSizes(**_block_sizes(*shape, query.shape[-1], window)),
            head_shards=1,
            q_seq_shards=1,
            attn_logits_soft_cap=softcap,
            residual_checkpoint_name=checkpoint_name,
        )
        of_heads = kernel if not sinks else functools.partial(kernel, sinks=sinks[0])
        # The scope name tells the compiler's reports which part of the product is computed.
        with nullcontext() if window is None else jax.named_scope(f"window_{window}"):
            return jax.vmap(of_heads)(query, key, value)

    arrays = [x.swapaxes(1, 2) for x in (query / math.sqrt(query.shape[3]), key, value)]
    if sinks is not None:  # their gradient in the kernel has the dtype of the queries
        arrays.append(sinks.astype(query.dtype))
    if mesh.manual_axes:  # inside shard_map, arrays are already local
        return local(*arrays).swapaxes(1, 2)
    spec = PartitionSpec(batch or None, heads or None)
    specs = (spec, spec, spec, PartitionSpec(heads or None))[: len(arrays)]
    divided = jax.shard_map(local, in_specs=specs, out_specs=spec, check_vma=False)
    return divided(*arrays).swapaxes(1, 2)


def _mask(masks: Any, shape: tuple[int, int], causal: bool, window: int | None) -> Any:
    if window is not None:
        return masks.LocalMask(shape, (window - 1, 0 if causal else window - 1), 0)
    return masks.CausalMask(shape) if causal else masks.FullMask(shape)


def _axes(
    mesh: AbstractMesh, query: jax.Array, key: jax.Array
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the mesh axes that shard the batch and the heads."""
    if mesh.manual_axes:
        return (), ()
    heads: tuple[str, ...] = ()
    if _HEADS_AXIS in mesh.axis_names:
        size = mesh.shape[_HEADS_AXIS]
        if query.shape[2] % size == 0 and key.shape[2] % size == 0:
            heads = (_HEADS_AXIS,)
    batch = tuple(name for name in mesh.axis_names if name not in heads)
    if query.shape[0] % math.prod(mesh.shape[name] for name in batch):
        batch = ()
    return batch, heads


def _block_sizes(queries: int, keys: int, size: int, window: int | None) -> dict[str, Any]:
    q, k = _largest(queries, _QUERIES), _largest(keys, _KEYS)
    # For large heads, one kernel for all gradients would need more than 16 MiB of VMEM; with a
    # window, it would step through the empty blocks.
    if size > LANES or window is not None:
        return dict(
            block_q=q,
            block_kv=k,
            block_q_dkv=q,
            block_kv_dkv=k,
            block_q_dq=q,
            block_kv_dq=k,
        )
    blocks = keys // k
    whole = range(math.ceil(blocks / _PARTS), blocks + 1)
    return dict(
        block_q=q,
        block_kv=k,
        block_q_dkv=q,
        block_kv_dkv=k * next(part for part in whole if blocks % part == 0),
        block_kv_dkv_compute=k,
        use_fused_bwd_kernel=True,  # five products a block in place of seven
    )


def _largest(length: int, block: int) -> int:
    while length % block:
        block //= 2
    return block

"""The product of groups of rows, each with a matrix of its own, and its gradients.

Owns which kernels take them. The product itself is ``jax.lax.ragged_dot``, for which the TPU's
compiler has a kernel. For the gradient of the matrices libtpu 0.0.42 has none, and multiplies all
rows for each group, with masks: eight times the work of the product for eight groups (0.0.50 has
one). On a TPU the gradients are the kernels of Megablox (Gale et al. 2022, MegaBlocks; Pallas
kernels that ship with JAX), which take each row once, and the matrices without transposing them.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._jax import grouped_products
from neurenix._jit.target_device import traced_kind
from neurenix.chips import Generation
from neurenix.chips.generations import generation_of_kind
from neurenix.nn.splash_attention import WITHOUT_BFLOAT16

_ROWS = (1024, 512, 256, 128)  # of a tile
_WIDE_BYTES = 2048  # of a row of a tile, at most


@jax.custom_vjp
def grouped_dot(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return each row times the matrix of its group: (M, K) by (X, K, N) → (M, N).

    Args:
        rows: (M, K), those of the first group first.
        matrices: (X, K, N), of the same dtype.
        sizes: (X,) int32, rows in each group; they add up to M.

    Example:
        >>> from neurenix.models.grouped import grouped_dot
        >>> sizes = nx.Tensor([1, 2], dtype=nx.int32)
        >>> grouped_dot(nx.ones((3, 4)), nx.ones((2, 4, 5)), sizes).shape
        (3, 5)
    """
    return jax.lax.ragged_dot(rows, matrices, sizes)


def _forward(rows: jax.Array, matrices: jax.Array, sizes: jax.Array):
    return grouped_dot(rows, matrices, sizes), (rows, matrices, sizes)


def _backward(kept: tuple[jax.Array, jax.Array, jax.Array], gradient: jax.Array):
    rows, matrices, sizes = kept
    where = _with_kernels(rows)
    kernels = grouped_products() if where is not None else None  # which loads Pallas
    if where is None or kernels is None:
        _, pull = jax.vjp(lambda x, w: jax.lax.ragged_dot(x, w, sizes), rows, matrices)
        return (*pull(gradient), None)
    gmm, tgmm = kernels
    groups, depth, columns = matrices.shape
    of_rows = gmm(
        gradient,
        matrices,
        sizes,
        rows.dtype,
        _tiling(rows, groups, columns, depth, where),
        transpose_rhs=True,
    )
    of_matrices = tgmm(
        rows.T,
        gradient,
        sizes,
        matrices.dtype,
        _tiling(rows, groups, depth, columns, where, sums_rows=True),
    )
    return of_rows, of_matrices, None


grouped_dot.defvjp(_forward, _backward)


def _with_kernels(rows: jax.Array) -> Generation | None:
    """Return the generation of TPU that is traced for, if its kernels take these rows.

    They are not divided by themselves: the rows must be those of one device.
    """
    kind, mesh = traced_kind() or "", jax.sharding.get_abstract_mesh()
    if mesh.empty or (mesh.size > 1 and set(mesh.manual_axes) != set(mesh.axis_names)):
        return None
    if rows.shape[0] % _ROWS[-1] or rows.dtype not in (jnp.bfloat16, jnp.float32):
        return None
    if kind in WITHOUT_BFLOAT16 and rows.dtype != jnp.float32:
        return None
    return generation_of_kind(kind)


def rows_of_tile(rows: int, groups: int, itemsize: int, where: Generation) -> int:
    """Return how many rows a tile should have: few for many groups, many for a fast unit.

    A group takes whole tiles, so that up to a tile more is multiplied for each; and each tile
    fetches the matrix of its group.

    Example:
        >>> from neurenix.models.grouped import rows_of_tile
        >>> v6e = nx.chips.generation("v6e")
        >>> rows_of_tile(65536, 8, 2, v6e), rows_of_tile(32768, 128, 2, v6e)
        (1024, 512)
    """

    def seconds(tile: int) -> float:
        multiplied = 2 * (rows + groups * tile) / where.peak_flops_per_second["bfloat16"]
        fetched = itemsize * (rows / tile + groups)
        return max(multiplied, fetched / where.hbm_bandwidth_bytes_per_second_per_device)

    return min((size for size in _ROWS if rows % size == 0), key=seconds)


def _tiling(
    rows: jax.Array,
    groups: int,
    depth: int,
    columns: int,
    where: Generation,
    *,
    sums_rows: bool = False,
) -> tuple[int, int, int]:
    """Return rows, depth and columns of a tile, all of which stay below 16 MiB of VMEM."""
    size, wide = rows.dtype.itemsize, _WIDE_BYTES // rows.dtype.itemsize
    tile = rows_of_tile(rows.shape[0], groups, size, where)
    if sums_rows:  # the result is (depth, columns), and rows are summed up tile by tile
        return min(tile, _ROWS[1]), min(wide, depth), min(wide, columns)
    return tile, min(wide // 2, depth), min(wide, columns)

"""The product of groups of rows with one matrix per group, and its gradients.

The product is ``jax.lax.ragged_dot``, for which the TPU compiler has a kernel. For the gradient of
the matrices libtpu 0.0.42 has none: it multiplies all rows for each group, with masks, eight times
the work of the product for eight groups (0.0.50 has a kernel). On a TPU the gradients use the
Pallas kernels of Megablox that ship with JAX (Gale et al. 2022, MegaBlocks), which process each row
once and do not transpose the matrices.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from neurenix._jax import grouped_products
from neurenix._jit.target_device import traced_kind
from neurenix.chips import Generation
from neurenix.chips.generations import generation_of_kind
from neurenix.nn.splash_attention import WITHOUT_BFLOAT16

_ROWS = (1024, 512, 256, 128)  # rows of a tile, in order of preference
_WIDE_BYTES = 2048  # maximum size of a row of a tile


@jax.custom_vjp
def grouped_dot(rows: jax.Array, matrices: jax.Array, sizes: jax.Array) -> jax.Array:
    """Return the product of each row and its group's matrix: (M, K), (X, K, N) → (M, N).

    Args:
        rows: (M, K), sorted by group.
        matrices: (X, K, N), of the same dtype.
        sizes: (X,) int32, rows in each group; their sum is M.

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
    """Return the TPU generation of the trace target if the Megablox kernels fit these rows.

    A kernel is not partitioned, so the rows must be on one device.
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
    """Return the number of rows per tile: smaller for many groups, larger for a fast matrix unit.

    A group is padded to whole tiles, which costs up to one tile of work per group, and each tile
    loads the matrix of its group.

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
    """Return rows, depth and columns of a tile, so that all tiles fit in 16 MiB of VMEM."""
    size, wide = rows.dtype.itemsize, _WIDE_BYTES // rows.dtype.itemsize
    tile = rows_of_tile(rows.shape[0], groups, size, where)
    if sums_rows:  # the result is (depth, columns), accumulated over tiles of rows
        return min(tile, _ROWS[1]), min(wide, depth), min(wide, columns)
    return tile, min(wide // 2, depth), min(wide, columns)

"""Matrix products, and linear algebra."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from neurenix.interop.torch.registry import operator

Array = Any


@operator("linear", product=True)
def linear(input: Array, weight: Array, bias: Array | None = None) -> Array:
    result = lax.dot_general(input, weight, (((input.ndim - 1,), (weight.ndim - 1,)), ((), ())))
    return result if bias is None else result + bias


@operator("mm", "bmm", "matmul", "dot", "vdot", "mv", product=True)
def matmul(x: Array, other: Any = None, mat2: Any = None, tensor: Any = None, vec: Any = None):
    right = next(each for each in (other, mat2, tensor, vec) if each is not None)
    return jnp.matmul(x, right)


@operator("addmm", "addmv", product=True)
def addmm(x: Array, mat1: Any = None, mat2: Any = None, beta: Any = 1, alpha: Any = 1,
          mat: Any = None, vec: Any = None) -> Array:  # fmt: skip
    product = jnp.matmul(mat1 if mat is None else mat, mat2 if vec is None else vec)
    return _scaled(x, beta) + _scaled(product, alpha)


@operator("baddbmm", product=True)
def baddbmm(x: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    return _scaled(x, beta) + _scaled(jnp.matmul(batch1, batch2), alpha)


@operator("addbmm", product=True)
def addbmm(x: Array, batch1: Array, batch2: Array, beta: Any = 1, alpha: Any = 1) -> Array:
    return _scaled(x, beta) + _scaled(jnp.matmul(batch1, batch2).sum(0), alpha)


def _scaled(x: Array, factor: Any) -> Any:
    if factor == 0:
        return jnp.zeros((), x.dtype)  # also where x is not finite
    return x if factor == 1 else factor * x


@operator("einsum", product=True)
def einsum(equation: str, tensors: Any, path: Any = None) -> Array:
    return jnp.einsum(equation, *tensors)


@operator("bilinear", "_trilinear", product=True)
def bilinear(input1: Array, input2: Array, weight: Array, bias: Array | None = None) -> Array:
    result = jnp.einsum("...i,oij,...j->...o", input1, weight, input2)
    return result if bias is None else result + bias


@operator("outer", "ger", product=True)
def outer(x: Array, vec2: Array) -> Array:
    return jnp.outer(x, vec2)


@operator("tensordot", product=True)
def tensordot(x: Array, other: Array, dims_self: Any, dims_other: Any) -> Array:
    return jnp.tensordot(x, other, (tuple(dims_self), tuple(dims_other)))


@operator("transformers::grouped_mm_fallback", "_grouped_mm", product=True)
def grouped_mm(input: Any = None, weight: Any = None, offs: Any = None, x: Any = None,
               mat2: Any = None, **_: Any) -> Array:  # fmt: skip
    rows = input if input is not None else x
    matrices = weight if weight is not None else mat2
    sizes = jnp.diff(offs, prepend=0).astype(jnp.int32)
    return lax.ragged_dot(rows, matrices, sizes)


@operator("linalg_inv_ex")
def inverse(A: Array, **_: Any) -> tuple[Array, Array]:
    return jnp.linalg.inv(A), jnp.zeros(A.shape[:-2], jnp.int32)


@operator("linalg_cholesky_ex")
def cholesky(x: Array, upper: bool = False, **_: Any) -> tuple[Array, Array]:
    factor = jnp.linalg.cholesky(x)
    factor = jnp.swapaxes(factor, -1, -2) if upper else factor
    return factor, jnp.zeros(x.shape[:-2], jnp.int32)


@operator("_linalg_det")
def determinant(A: Array) -> tuple[Array, Array, Array]:
    lu, pivots, _ = lax.linalg.lu(A)
    return jnp.linalg.det(A), lu, pivots


@operator("linalg_qr")
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    return tuple(jnp.linalg.qr(A, mode))


@operator("_linalg_svd")
def svd(A: Array, full_matrices: bool = False, **_: Any) -> tuple[Array, Array, Array]:
    return tuple(jnp.linalg.svd(A, full_matrices))


@operator("_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    return tuple(jnp.linalg.eigh(A, UPLO, symmetrize_input=False))


@operator("_linalg_solve_ex")
def solve(A: Array, B: Array, left: bool = True, **_: Any) -> tuple[Array, ...]:
    vector = B.ndim == A.ndim - 1
    right = B[..., None] if vector else B
    found = jnp.linalg.solve(A, right)
    lu, pivots, _perm = lax.linalg.lu(A)
    nothing = jnp.zeros(A.shape[:-2], jnp.int32)
    return (found[..., 0] if vector else found), lu, pivots, nothing


@operator("linalg_householder_product")
def householder_product(input: Array, tau: Array) -> Array:
    """Multiply reflections I - τ v vᵀ, whose v are columns below a diagonal of ones."""
    rows, columns = input.shape[-2:]
    result = jnp.broadcast_to(jnp.eye(rows, columns, dtype=input.dtype), input.shape)
    for number in reversed(range(tau.shape[-1])):
        below = jnp.where(jnp.arange(rows) > number, input[..., number], 0)
        v = below.at[..., number].set(1)[..., None]
        factor = tau[..., number, None, None]
        result = result - factor * v @ (jnp.swapaxes(v, -1, -2) @ result)
    return result


@operator("linalg_solve_triangular")
def solve_triangular(
    x: Array, B: Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> Array:
    return lax.linalg.triangular_solve(
        x, B, left_side=left, lower=not upper, unit_diagonal=unitriangular
    )


@operator("linalg_matrix_exp", "matrix_exp")
def matrix_exp(x: Array) -> Array:
    return jax.scipy.linalg.expm(x)


@operator("linalg_cross", "cross")
def cross(x: Array, other: Array, dim: int | None = -1) -> Array:
    return jnp.cross(x, other, axis=-1 if dim is None else dim)

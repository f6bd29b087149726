"""Matrix products."""

from __future__ import annotations

import jax.numpy as jnp

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.registry import operator


@operator("MatMul")
def matmul(x, y):
    return jnp.matmul(x, y)


@operator("Gemm", since=7)
def gemm(a, b, c=None, *, alpha=1.0, beta=1.0, transA=0, transB=0):
    product = jnp.matmul(a.T if transA else a, b.T if transB else b)
    product = product if alpha == 1 else (alpha * product).astype(a.dtype)
    if c is None or beta == 0:
        return product
    return product + (c if beta == 1 else (beta * c).astype(c.dtype))


@operator("Gemm", since=1)
def gemm_1(a, b, c, *, alpha=1.0, beta=1.0, broadcast=0, transA=0, transB=0):
    return gemm(a, b, c, alpha=alpha, beta=beta, transA=transA, transB=transB)


@operator("com.microsoft::FusedMatMul")
def fused_matmul(
    a,
    b,
    *,
    alpha=1.0,
    transA=0,
    transB=0,
    transBatchA=0,
    transBatchB=0,
):
    if transBatchA or transBatchB:
        raise ConversionError("transBatchA and transBatchB are not computed here.")
    a = jnp.swapaxes(a, -1, -2) if transA else a
    return alpha * jnp.matmul(a, jnp.swapaxes(b, -1, -2) if transB else b)


@operator("Einsum")
def einsum(*xs, equation):
    return jnp.einsum(equation.replace(" ", ""), *xs)


@operator("Det")
def det(x):
    return jnp.linalg.det(x)

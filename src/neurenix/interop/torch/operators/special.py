"""Functions of mathematics, number theory and bits that few models use."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import special

from neurenix.interop.torch.registry import always, operator

Array = Any

for _name, _function in {
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_modified_bessel_i0": special.i0,
    "special_modified_bessel_i1": special.i1,
    "special_ndtri": special.ndtri,
    "signbit": jnp.signbit,
    "frexp": jnp.frexp,
}.items():
    operator(_name)(lambda x, f=_function: f(x))

for _name, _function in {
    "igamma": special.gammainc,
    "igammac": special.gammaincc,
    "special_zeta": special.zeta,
    "gcd": jnp.gcd,
    "lcm": jnp.lcm,
    "__lshift__": jnp.left_shift,
    "__rshift__": jnp.right_shift,
    "ldexp": lambda x, other: x * jnp.exp2(jnp.asarray(other, jnp.float32)),
}.items():
    operator(_name)(lambda x, other, f=_function: f(x, other))


@operator("polygamma")
def polygamma(n: int, x: Array) -> Array:
    return special.digamma(x) if n == 0 else special.polygamma(n, x)


@operator("special_erfcx")
def erfcx(x: Array) -> Array:
    """Compute ``exp(x²) · erfc(x)``, beyond 5 by its asymptotic series."""
    near = jnp.minimum(x, 5.0)
    far = jnp.maximum(x, 5.0)
    t = 1 / (2 * far * far)
    series = 1 - t * (1 - 3 * t * (1 - 5 * t * (1 - 7 * t * (1 - 9 * t))))
    series = series / (far * jnp.sqrt(jnp.pi).astype(x.dtype))
    return jnp.where(x < 5, jnp.exp(near * near) * jax.lax.erfc(near), series)


@operator("mode")
def mode(x: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return the most frequent value, the smallest of several, and where it comes last."""
    rows = jnp.moveaxis(x, dim, -1)
    same = rows[..., :, None] == rows[..., None, :]
    counts = same.sum(-1)
    often = counts == counts.max(-1, keepdims=True)
    top = jnp.iinfo(x.dtype).max if jnp.issubdtype(x.dtype, jnp.integer) else jnp.inf
    value = jnp.where(often, rows, jnp.asarray(top, x.dtype)).min(-1, keepdims=True)
    index = jnp.where(rows == value, jnp.arange(rows.shape[-1]), -1).max(-1, keepdims=True)
    found = jnp.take_along_axis(rows, index, -1)
    pair = jnp.moveaxis(found, -1, dim), jnp.moveaxis(index, -1, dim)
    return pair if keepdim else (pair[0].squeeze(dim), pair[1].squeeze(dim))


@operator("nanmedian.dim")
def nanmedian(x: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
    count = (~jnp.isnan(x)).sum(dim, keepdims=True)
    place = jnp.maximum((count - 1) // 2, 0)
    index = jnp.take_along_axis(jnp.argsort(x, dim), place, dim)
    found = jnp.take_along_axis(x, index, dim)
    return (found, index) if keepdim else (found.squeeze(dim), index.squeeze(dim))


@operator("nanmedian.default")
def nanmedian_of_all(x: Array) -> Array:
    return nanmedian(x.reshape(-1), 0)[0]


@operator("index_reduce")
def index_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, include_self: bool = True
) -> Array:
    rows, new = jnp.moveaxis(x, dim, 0), jnp.moveaxis(source, dim, 0)
    wanted = {"prod": "multiply", "amax": "max", "amin": "min", "mean": "add"}[reduce]
    if not include_self:
        start = {"prod": 1, "mean": 0, "amax": -jnp.inf, "amin": jnp.inf}[reduce]
        rows = rows.at[index].set(jnp.asarray(start, x.dtype))
    result = getattr(rows.at[index], wanted)(new)
    if reduce == "mean":
        ones = jnp.ones(len(index), x.dtype)
        start = jnp.full(len(rows), 1.0 if include_self else 0.0, x.dtype)
        counts = jnp.maximum(start.at[index].add(ones), 1)
        result = result / counts.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.moveaxis(result, 0, dim)


@operator("repeat_interleave.Tensor")
def repeat_interleave(repeats: Array, output_size: int | None = None) -> Array:
    """Return each place as often as ``repeats`` says; without a size they must be constant."""
    places = jnp.arange(len(repeats), dtype=jnp.int32)
    return jnp.repeat(places, repeats, total_repeat_length=output_size)


@operator("_linalg_slogdet")
def slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    sign, logarithm = jnp.linalg.slogdet(A)
    lu, pivots, _ = jax.lax.linalg.lu(A)
    return sign, logarithm, lu, pivots + 1


@operator("linalg_lu_factor_ex")
def lu_factor(A: Array, **_: Any) -> tuple[Array, Array, Array]:
    lu, pivots, _permutation = jax.lax.linalg.lu(A)
    return lu, pivots + 1, jnp.zeros(A.shape[:-2], jnp.int32)


@operator("cholesky")
def cholesky(x: Array, upper: bool = False) -> Array:
    factor = jnp.linalg.cholesky(x)
    return jnp.swapaxes(factor, -1, -2).conj() if upper else factor


@operator("cholesky_solve")
def cholesky_solve(x: Array, input2: Array, upper: bool = False) -> Array:
    return jax.scipy.linalg.cho_solve((input2, not upper), x)


@operator("cholesky_inverse")
def cholesky_inverse(x: Array, upper: bool = False) -> Array:
    return jax.scipy.linalg.cho_solve((x, not upper), jnp.eye(x.shape[-1], dtype=x.dtype))


@operator("triangular_solve")
def triangular_solve(
    x: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    found = jax.lax.linalg.triangular_solve(
        A, x, left_side=True, lower=not upper, transpose_a=transpose, unit_diagonal=unitriangular
    )
    return found, A


@operator("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor",
          "normal.float_float", random=always)  # fmt: skip
def normal(mean: Any = 0.0, std: Any = 1.0, size: Any = None, dtype: Any = None, rng: Any = None,
           **_: Any) -> Array:  # fmt: skip
    shape = jnp.broadcast_shapes(jnp.shape(mean), jnp.shape(std)) if size is None else tuple(size)
    kind = jnp.result_type(mean, std, jnp.float32) if dtype is None else dtype
    return mean + std * jax.random.normal(rng(), shape, kind)


@operator("poisson", random=always)
def poisson(x: Array, rng: Any = None, **_: Any) -> Array:
    return jax.random.poisson(rng(), x, x.shape).astype(x.dtype)


@operator("geometric", random=always)
def geometric(x: Array, p: float, rng: Any = None, **_: Any) -> Array:
    return jax.random.geometric(rng(), p, x.shape).astype(x.dtype)


@operator("cauchy", random=always)
def cauchy(x: Array, median: float = 0, sigma: float = 1, rng: Any = None, **_: Any) -> Array:
    return median + sigma * jax.random.cauchy(rng(), x.shape, x.dtype)


@operator("log_normal", random=always)
def log_normal(x: Array, mean: float = 1, std: float = 2, rng: Any = None, **_: Any) -> Array:
    return jnp.exp(mean + std * jax.random.normal(rng(), x.shape, x.dtype))

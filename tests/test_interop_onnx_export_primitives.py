"""Primitives of JAX in ONNX: each function is exported and compared with onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from neurenix import nn
from neurenix._jaxpr import inline_calls, walk
from neurenix.interop.onnx.lowering import known_primitives
from onnx_export import agree, array

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def told(x: Any) -> Any:
    jax.debug.print("{}", x.sum())
    jax.debug.callback(lambda _: None, x)
    return x + 1


X, Y = array(4, 6), array(4, 6, seed=1)
POSITIVE = np.abs(X) + 0.1
SMALL = np.clip(X / 3, -0.9, 0.9)
CUBE = array(4, 5, 6)
WHOLE = np.random.default_rng(0).integers(-9, 9, (4, 6)).astype(np.int32)
OTHER = np.where(WHOLE[::-1] == 0, 3, WHOLE[::-1])
BYTES = (WHOLE + 9).astype(np.uint8)
TRUTH = X > 0
EDGES = np.array(
    [[0.0, -0.0, np.inf, -np.inf, 1e-30, 1e-8], [1.0, -1, 0.5, 2, 1e8, -3]], np.float32
)
ROWS = np.array([0, 3, 1, 2], np.int32)

ONE: dict[str, Any] = {
    name: (getattr(jnp, name), x)
    for names, x in (
        ("abs ceil cos cosh exp exp2 floor negative sign sin sinh square tan tanh", X),
        ("log log1p sqrt cbrt reciprocal log2 log10", POSITIVE),
        ("arccos arcsin arctan arctanh arcsinh expm1 rint", SMALL),
        ("isfinite isnan isinf log1p expm1 sign", EDGES),
        ("invert sign negative abs square", WHOLE),
        ("invert sign square", BYTES),
        ("logical_not", TRUTH),
        ("cumsum cumprod", SMALL),
        ("sort argsort flip ravel", X),
    )
    for name in names.split()
}
CASES: dict[str, tuple[Any, ...]] = {
    **ONE,
    "arccosh": (jnp.arccosh, POSITIVE + 1),
    "log1p of edges": (jnp.log1p, np.abs(EDGES)),
    "expm1 of edges": (jnp.expm1, EDGES),
    "erf": (lax.erf, X),
    "erfc": (lax.erfc, X),
    "erf_inv": (lax.erf_inv, SMALL),
    "logistic": (jax.nn.sigmoid, X),
    "rsqrt": (lax.rsqrt, POSITIVE),
    "round away": (lambda x: lax.round(x), np.array([[0.5, 1.5, -0.5, -2.5, 2.4]], np.float32)),
    "powers": (lambda x: (x**3, x**-1, x**-2, x**2.5, 2.0**x, x**4), POSITIVE),
    "whole powers": (lambda x: (x**2, x**3), WHOLE),
    "arithmetic": (lambda x, y: (x + y, x - y, x * y, x / y), X, Y),
    "whole arithmetic": (
        lambda x, y: (x + y, x - y, x * y, lax.div(x, y), lax.rem(x, y), x // y, x % y),
        WHOLE, OTHER,
    ),
    "bytes": (lambda x: (x + x, x * x, lax.div(x, x | 1), x > 3, x.max(-1)), BYTES),
    "remainder": (lambda x, y: (lax.rem(x, y), x % y), X, Y),
    "atan2": (jnp.arctan2, np.array([[0.0, 1, -1, 1, -1, 0]], np.float32),
              np.array([[1.0, -1, -1, 0, 0, -1]], np.float32)),
    "maximum": (lambda x, y: (jnp.maximum(x, y), jnp.minimum(x, y)), X, Y),
    "comparisons": (lambda x, y: (x < y, x <= y, x > y, x >= y, x == y, x != y), WHOLE, OTHER),
    "of booleans": (
        lambda x, y: (x & y, x | y, x ^ y, x < y, x == y, jnp.maximum(x, y)), TRUTH, Y > 0
    ),
    "bits": (lambda x, y: (x & y, x | y, x ^ y, x << 2, x >> 1), WHOLE, OTHER),
    "unsigned bits": (lambda x: (x << 1, x >> 2), BYTES.astype(np.uint32)),
    "clip": (lambda x: jnp.clip(x, -0.5, 0.5), X),
    "clamp": (lambda x, y: lax.clamp(y - 1, x, y + 1), X, Y),
    "where": (lambda x, y: jnp.where(x > 0, x, y), X, Y),
    "where of booleans": (lambda x, y: jnp.where(x, y, ~y), TRUTH, Y > 0),
    "where of bytes": (lambda x, y: jnp.where(x, y, 0), TRUTH, BYTES),
    "select of three": (lambda x, y: lax.select_n(x % 3, y, 2 * y, -y), BYTES.astype(np.int32), X),
    "casts": (
        lambda x: (x.astype(jnp.int32), x.astype(bool), x.astype(jnp.float16) * 2,
                   x.astype(jnp.int8), (x > 0).astype(jnp.float32)), X,
    ),
    "nan_to_num": (jnp.nan_to_num, EDGES),
    # Products
    "matmul": (lambda x: x @ x.T, X),
    "matvec": (lambda x: x @ jnp.arange(6.0), X),
    "batched": (lambda x: jnp.einsum("bij,bkj->bik", x, x), CUBE),
    "heads": (lambda x: jnp.einsum("btnh,bsnh->bnts", x, x), array(2, 5, 3, 4)),
    "two sums": (lambda x: jnp.einsum("bij,ijk->bk", x, jnp.ones((5, 6, 3))), CUBE),
    "two results": (lambda x: jnp.einsum("bi,ijk->bjk", x, jnp.ones((6, 3, 2))), X),
    "outer": (lambda x: jnp.einsum("bi,bj->bij", x, x), X),
    "tensordot": (lambda x: jnp.tensordot(x, jnp.ones((2, 6)), ((2,), (1,))), CUBE),
    "no sum": (lambda x: jnp.einsum("bi,bi->bi", x, x), X),
    "whole products": (lambda x: x @ x.T, WHOLE),
    "8-bit products": (
        lambda x: lax.dot(x, x.T, preferred_element_type=jnp.int32), WHOLE.astype(np.int8)
    ),
    "all of the batch": (lambda x: jnp.einsum("bij->ij", x) @ jnp.ones(6), CUBE),
    # Shapes
    "reshape": (lambda x: (x.reshape(x.shape[0], -1), x.reshape(-1, 3), x.reshape(-1)), CUBE),
    "batch in the middle": (lambda x: x.reshape(x.shape[0], 5, 2, 3).transpose(1, 0, 2, 3), CUBE),
    "transpose": (lambda x: (x.T, jnp.moveaxis(x, 0, -1), x.swapaxes(1, 2) + 1), CUBE),
    "broadcast": (lambda x: jnp.broadcast_to(x[:, None], (x.shape[0], 3, 6)), X),
    "concatenate": (lambda x: jnp.concatenate([x, 2 * x, jnp.zeros_like(x)], 1), X),
    "along the batch": (lambda x: jnp.concatenate([x, x]), X),
    "stack": (lambda x: jnp.stack([x, x + 1], 1), X),
    "split": (lambda x: jnp.split(x, [1, 3], axis=1), X),
    "slices": (lambda x: (x[:, 1:4], x[:, ::2], x[:, -1], x[:, ::-1], x[..., None], x[0]), X),
    "pad": (lambda x: jnp.pad(x, ((0, 0), (1, 2)), constant_values=3), X),
    "pad between": (lambda x: lax.pad(x, 1.0, ((0, 0, 0), (1, -1, 2))), X),
    "pad less": (lambda x: lax.pad(x, 0.0, ((0, 0, 0), (-1, -2, 0))), X),
    "pad edges": (lambda x: jnp.pad(x, ((0, 0), (2, 2)), mode="reflect"), X),
    "roll": (lambda x: jnp.roll(x, 2, axis=1), X),
    "repeat": (lambda x: (jnp.repeat(x, 3, axis=1), jnp.tile(x, (1, 2))), X),
    "tril": (lambda x: x * jnp.tril(jnp.ones((5, 6))), CUBE),
    "size of the batch": (lambda x: (x / x.shape[0], jnp.arange(x.shape[0]), x.mean()), X),
    "numbers of the rows": (lambda x: x + jnp.arange(x.shape[0])[:, None], X),
    "pairs of rows": (lambda x: x[:, None] - x[None], X),
    "squeeze": (lambda x: jnp.squeeze(x[:, :1], 1), X),
    "no rows of a constant": (lambda x: jnp.concatenate([x, jnp.zeros((x.shape[0], 0))], 1), X),
    # Reductions
    "reductions": (
        lambda x: (x.sum(1), x.max(2), x.min((1, 2)), x.prod(1), x.mean(), x.std(2)), CUBE
    ),
    "of bytes": (lambda x: (x.max(1), x.min(1), x.sum(1)), BYTES),
    "any": (lambda x: (x.any(1), x.all(1), x.sum(1), jnp.logical_xor.reduce(x, axis=1)), TRUTH),
    "argmax": (lambda x: (x.argmax(1), x.argmin(1), jnp.argmax(x > 0, 1)), X),
    "softmax": (lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, 1)), X),
    "accumulated along the rows": (
        lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 0), lax.cummax(x, 0, reverse=True)), SMALL
    ),
    "accumulated": (
        lambda x: (lax.cummax(x, 1), lax.cummin(x, 1), lax.cumlogsumexp(x, 1),
                   lax.cumsum(x, 1, reverse=True), lax.cumprod(x, 1, reverse=True)), X,
    ),
    "sort of pairs": (lambda x, y: lax.sort((x, y), dimension=1, num_keys=2), WHOLE // 4, X),
    "top_k": (lambda x: lax.top_k(x, 3), X),
    "median": (lambda x: jnp.median(x, axis=1), X),
    # Windows
    "windows": (
        lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 3), (1, 1, 2), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 3, 1), (1, 2, 1), "VALID"),
            lax.reduce_window(x, jnp.inf, lax.min, (1, 2, 2), (1, 1, 1), "VALID"),
            lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 1, 1), "SAME",
                              window_dilation=(1, 2, 1)),
            lax.reduce_window(x, 0.0, lax.add, (1, 2, 2), (1, 1, 1), ((0, 0), (2, 2), (3, 0)),
                              base_dilation=(1, 2, 1)),
            lax.reduce_window(x, 1.0, lax.mul, (1, 2, 2), (1, 1, 1), "VALID"),
        ), CUBE,
    ),
    "whole windows": (
        lambda x: (lax.reduce_window(x, -99, lax.max, (1, 2), (1, 1), "SAME"),
                   lax.reduce_window(x, 0, lax.add, (1, 3), (1, 1), "SAME")), WHOLE,
    ),
    # Indexing
    "take": (lambda x: (jnp.take(x, ROWS, 1), x[:, ROWS], x[:, [0, -1]], x[ROWS[:2]]), X),
    "take outside": (
        lambda x: (x.at[:, [1, 9]].get(mode="fill"), x.at[:, [7]].get(mode="clip")), X
    ),
    "rows by number": (
        lambda x, y: (y[x % 6], y.at[x].get(mode="fill"), y[x, 1]), WHOLE, np.tile(Y, (3, 1))
    ),
    "along an axis": (lambda x, y: jnp.take_along_axis(x, y % 6, 1), X, WHOLE),
    "pairs": (lambda x, y: x[jnp.arange(x.shape[0])[:, None], y % 6], X, WHOLE),
    "one of each": (lambda x, y: x[jnp.arange(x.shape[0]), y[:, 0] % 6], X, WHOLE),
    "a slice of each": (
        lambda x, y: jax.vmap(lambda a, n: lax.dynamic_slice(a, (n,), (3,)))(x, y[:, 0]), X, WHOLE
    ),
    "dynamic slice": (lambda x, y: lax.dynamic_slice(x, (0, y[0, 0]), (2, 3)), X, WHOLE),
    "dynamic index": (lambda x, y: lax.dynamic_index_in_dim(x, y[0, 0] % 6, 1), X, WHOLE),
    "dynamic update": (
        lambda x, y: (lax.dynamic_update_slice(x, jnp.ones((2, 2)), (1, y[0, 0])),
                      lax.dynamic_update_slice(x, x[:, :2] + 9, (0, y[0, 1]))), X, WHOLE,
    ),
    "set": (
        lambda x: (x.at[:, 2].set(5.0), x.at[:, 1:3].add(1.0), x.at[0].set(0.0),
                   x.at[:, [1, 1, 4]].add(2.0), x.at[:, ::2].multiply(3.0),
                   x.at[:, 1].subtract(2.0)), X,
    ),
    "scatter": (
        lambda x, y: (x.at[jnp.arange(x.shape[0]), y[:, 0] % 6].set(7.0), x.at[:, y[0]].add(1.0),
                      x.at[:, y[0]].max(0.5), x.at[:, y[0]].min(0.5),
                      x.at[:, jnp.array([2, 9])].set(4.0)), X, WHOLE,
    ),
    "counts": (lambda x: jnp.zeros(6).at[x.reshape(-1) % 6].add(1.0), WHOLE),
    "updates of each": (
        lambda x, y: jax.vmap(lambda a, n: lax.dynamic_update_slice(a, jnp.ones(2), (n,)))(
            x, y[:, 0]), X, WHOLE,
    ),
    "one_hot": (lambda x: jax.nn.one_hot(x % 6, 6), WHOLE),
    "bincount": (lambda x: jnp.bincount(x.reshape(-1) + 9, length=20), WHOLE),
    "searchsorted": (
        lambda x: (jnp.searchsorted(jnp.arange(-9.0, 9.0), x),
                   jnp.searchsorted(jnp.arange(-9.0, 9.0), x, side="right")), X,
    ),
    # Control
    "scan": (lambda x: lax.scan(lambda c, v: (c + v, c * v), jnp.zeros_like(x[:, 0]), x.T), X),
    "scan over rows": (lambda x: lax.scan(lambda c, v: (c + v, c * v), jnp.zeros(6), x), X),
    "unrolled scan": (
        lambda x: lax.scan(lambda c, v: (c * v, c + v), x[:, 0], x.T, unroll=6, reverse=True), X
    ),
    "scan of one": (lambda x: lax.scan(lambda c, v: (c + v, c), x[:, 0], x.T[:1]), X),
    "scan backwards": (
        lambda x: lax.scan(lambda c, v: (c + v, c), jnp.zeros(()), jnp.arange(5.0), reverse=True)[1]
        + x[:, :5], X,
    ),
    "scan over nothing": (
        lambda x: lax.scan(lambda c, _: (jnp.tanh(c), None), x, length=4)[0], X
    ),
    "nested scans": (
        lambda x: lax.scan(
            lambda c, v: (lax.scan(lambda d, w: (d + w * v.sum(), None), c, x.T)[0], c.sum()),
            x[:, 0], x.T), X,
    ),
    "while": (lambda x: lax.while_loop(lambda v: v.sum() < 99, lambda v: v + 1.5, x), X),
    "reduced precision": (
        lambda x: (lax.reduce_precision(x, 8, 7), lax.reduce_precision(x, 5, 10)), X,
    ),
    "unchanged": (
        lambda x: lax.optimization_barrier(jnp.copy(jax.device_put(x)) + lax.stop_gradient(x)), X
    ),
    "told": (told, X),
    "approx_top_k": (lambda x: (lax.approx_max_k(x, 2), lax.approx_min_k(x, 2)), X),
    "unstack": (lambda x: [2 * one for one in jnp.unstack(x, axis=1)], X),
    "fori": (lambda x: lax.fori_loop(0, 5, lambda i, v: v * 1.1 + i, x), X),
    "as often as rows": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, v: v + i, x), X),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda v: v * 2, lambda v: v - 1, x), X),
    "switch": (
        lambda x, y: lax.switch(
            y[0, 0] % 4, [lambda v: v, lambda v: v * 2, jnp.sin, lambda v: v * 0 + 3], x), X, WHOLE,
    ),
    "a constant result": (lambda x: (x, jnp.arange(3), jnp.float32(2)), X),
    "an input as result": (lambda x: (x, x), X),
    "functions with rules": (lambda x: (jax.nn.relu(x), jax.nn.silu(x), jax.jit(jnp.sin)(x)), X),
    "remat": (lambda x: jax.checkpoint(lambda v: jnp.sin(v) * v)(x), X),
    "vmap": (lambda x: jax.vmap(lambda r: jnp.dot(r, jnp.sort(r)))(x), X),
    "gradient": (lambda x: jax.grad(lambda v: (jnp.tanh(v) ** 2).sum())(x), X),
    "conv in NCHW": (
        lambda x: lax.conv(x.reshape(x.shape[0], 1, 5, 6), jnp.ones((3, 1, 2, 2)), (1, 1), "SAME"),
        CUBE,
    ),
    "conv with negative padding": (
        lambda x: lax.conv_general_dilated(
            x[..., None], jnp.ones((2, 2, 1, 2)) + jnp.arange(2.0), (1, 1), ((-1, 2), (1, -1)),
            dimension_numbers=("NHWC", "HWIO", "NHWC")), CUBE,
    ),
    "conv of groups of rows": (
        lambda x: lax.conv_general_dilated(
            x[:, None], jnp.arange(16.0).reshape(4, 1, 2, 2), (1, 1), "VALID", batch_group_count=2),
        CUBE,
    ),
    "conv of a spaced input": (
        lambda x: lax.conv_general_dilated(
            x[..., None], jnp.arange(24.0).reshape(2, 3, 1, 4), (2, 1), ((3, 0), (-1, 4)),
            lhs_dilation=(2, 3), rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")),
        CUBE,
    ),
    "gradient of a conv": (
        lambda x: jax.grad(lambda v: (lax.conv_general_dilated(
            v[..., None], jnp.arange(12.0).reshape(2, 3, 1, 2), (2, 2), "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2).sum())(x), CUBE,
    ),
}  # fmt: skip
FIXED = {
    "conv of groups of rows",
    "dynamic slice",
    "dynamic update",
}  # whose number of rows is part of what is computed


@pytest.mark.parametrize("name", CASES)
def test_a_function_agrees(name: str, tmp_path: Path) -> None:
    function, *inputs = CASES[name]
    agree(Function(function), tmp_path / "model.onnx", *inputs, dynamic=name not in FIXED)


def test_every_function_of_the_table_is_used() -> None:
    """A primitive that no case here, layer or model has would be untested."""
    seen = set()
    for function, *inputs in CASES.values():
        jaxpr = inline_calls(jax.make_jaxpr(function)(*inputs))
        seen |= {site.equation.primitive.name for site in walk(jaxpr)}
    elsewhere = {  # models, and sizes that depend on the batch
        "dim_as_value", "name", "platform_index", "ragged_dot_general", "sharding_constraint",
    }  # fmt: skip
    assert sorted(known_primitives() - seen - elsewhere) == []

"""The gradient of max pooling, lowered for the CPU: the same bits, and no scatter."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

from neurenix._cpu import max_pool_gradient
from neurenix._jax import cpu_lowering, replace_cpu_lowering
from neurenix._jax import max_pool_gradient_primitive as max_pool_gradient_p

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


def lowered(x: Any, gradient: Any, window: Any, strides: Any, padding: Any, how: Any) -> Any:
    """Return the gradient of max pooling with JAX's own lowering or another, compiled anew."""
    present = cpu_lowering(max_pool_gradient_p)
    mlir.register_lowering(max_pool_gradient_p, how, platform="cpu")
    try:
        return jax.jit(  # a function of its own: what JAX has compiled before stays as it was
            lambda x, g: jax.vjp(lambda x: pooled(x, window, strides, padding), x)[1](g)[0]
        ).lower(x, gradient)
    finally:
        mlir.register_lowering(max_pool_gradient_p, present, platform="cpu")


def pooled(x: Any, window: Any, strides: Any, padding: Any) -> Any:
    lowest = np.asarray(-np.inf, x.dtype)[()]
    return lax.reduce_window(x, lowest, lax.max, window, strides, padding)


def arrays(shape: Any, window: Any, strides: Any, padding: Any, dtype: Any) -> Any:
    """Return inputs with many that are equal and some that are NaN, and gradients."""
    generator = np.random.default_rng(0)
    values = generator.integers(-2, 3, shape).astype(np.float32)
    values.flat[:: values.size // 5] = np.nan
    x = jnp.asarray(values, dtype)
    out = jax.eval_shape(lambda x: pooled(x, window, strides, padding), x)
    return x, jnp.asarray(generator.normal(size=out.shape), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("shape", "window"),
    [
        ((3, 8, 6, 4), (1, 2, 2, 1)),
        ((3, 9, 7, 4), (1, 2, 2, 1)),  # rows at the end that fill no window
        ((2, 9, 8, 5), (1, 3, 2, 1)),
        ((2, 8, 3), (1, 4, 1)),
        ((2, 4, 4, 4, 3), (1, 2, 2, 2, 1)),
        ((2, 3, 8, 8), (1, 1, 2, 2)),
    ],
    ids=str,
)
def test_the_gradient_is_that_of_jax_bit_for_bit(shape: Any, window: Any, dtype: str) -> None:
    given = arrays(shape, window, window, "VALID", dtype)
    expected = lowered(*given, window, window, "VALID", max_pool_gradient._standard)
    found = lowered(*given, window, window, "VALID", max_pool_gradient.elementwise_gradient)
    assert "select_and_scatter" in expected.as_text()
    assert "select_and_scatter" not in found.as_text()
    assert "scatter" not in found.compile().as_text()
    np.testing.assert_array_equal(
        np.asarray(found.compile()(*given)), np.asarray(expected.compile()(*given))
    )


def test_of_several_that_are_greatest_the_first_has_the_gradient() -> None:
    x = jnp.asarray([0.0, 1.0, 1.0, 0.0, 2.0, 2.0]).reshape(1, 6, 1)
    window, gradient = (1, 3, 1), jnp.asarray([5.0, 7.0]).reshape(1, 2, 1)
    found = lowered(x, gradient, window, window, "VALID", max_pool_gradient.elementwise_gradient)
    assert found.compile()(x, gradient).ravel().tolist() == [0, 5, 0, 0, 7, 0]


@pytest.mark.parametrize(
    ("window", "strides", "padding"),
    [
        ((1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
        ((1, 2, 2, 1), (1, 1, 1, 1), "VALID"),
        ((1, 2, 2, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0))),
        ((1, 2, 2, 1), (1, 3, 3, 1), "VALID"),
        ((1, 9, 9, 1), (1, 9, 9, 1), "VALID"),
    ],
    ids=str,
)
def test_other_windows_are_lowered_as_before(window: Any, strides: Any, padding: Any) -> None:
    given = arrays((2, 9, 9, 2), window, strides, padding, "float32")
    found = lowered(*given, window, strides, padding, max_pool_gradient.elementwise_gradient)
    assert "select_and_scatter" in found.as_text()


def test_it_is_used_unless_somebody_has_set_a_rule_of_their_own() -> None:
    present = cpu_lowering(max_pool_gradient_p)
    try:
        mlir.register_lowering(max_pool_gradient_p, max_pool_gradient._standard, platform="cpu")
        replace_cpu_lowering(*max_pool_gradient.LOWERING)
        assert cpu_lowering(max_pool_gradient_p) is max_pool_gradient.elementwise_gradient

        def their_own(ctx: Any, *operands: Any, **params: Any) -> Any:
            return max_pool_gradient._standard(ctx, *operands, **params)

        mlir.register_lowering(max_pool_gradient_p, their_own, platform="cpu")
        replace_cpu_lowering(*max_pool_gradient.LOWERING)
        assert cpu_lowering(max_pool_gradient_p) is their_own
    finally:
        mlir.register_lowering(max_pool_gradient_p, present, platform="cpu")

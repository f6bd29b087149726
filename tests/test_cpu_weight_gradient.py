"""Gradients of weights, lowered for the CPU: the same numbers, by products that YNNPACK takes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.interpreters import mlir

from neurenix import _cpu
from neurenix._cpu import weight_gradient
from neurenix._jax import cpu_lowering, replace_cpu_lowering

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


def lowered(function: Any, given: Any, how: Any = weight_gradient.turned_product) -> Any:
    """Return a function lowered anew, with ours of products or with JAX's own."""
    present = cpu_lowering(lax.dot_general_p)
    mlir.register_lowering(lax.dot_general_p, how, platform="cpu")
    try:
        return jax.jit(lambda *given: function(*given)).lower(*given)
    finally:
        mlir.register_lowering(lax.dot_general_p, present, platform="cpu")


def compiled(function: Any, given: Any, how: Any = weight_gradient.turned_product) -> Any:
    return lowered(function, given, how).compile(compiler_options=_cpu.compiler_options())


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[jax.Array]:
    generator = np.random.default_rng(0)
    return [jnp.asarray(generator.normal(size=shape), dtype) for shape in shapes]


def plain(weights: Any, x: Any) -> Any:
    """Return a loss whose gradient is that of a dense layer's weights."""
    return jnp.sin(jnp.tensordot(x, weights, 1)).sum()


def torch_like(weights: Any, x: Any) -> Any:
    return jnp.sin(jnp.einsum("...i,oi->...o", x, weights)).sum()


def with_heads(weights: Any, x: Any) -> Any:
    return jnp.sin(jnp.einsum("bti,iho->btho", x, weights)).sum()


@pytest.mark.parametrize(
    ("loss", "weights", "x"),
    [
        (plain, (64, 32), (32, 64)),
        (plain, (256, 8), (128, 256)),  # the cotangent is the smaller one
        (plain, (8, 256), (128, 8)),
        (plain, (24, 16), (4, 5, 6, 24)),
        (plain, (24, 1), (40, 24)),
        (plain, (7, 5), (1, 7)),
        (torch_like, (16, 24), (4, 9, 24)),
        (torch_like, (6, 256), (4, 50, 256)),
        (with_heads, (24, 4, 16), (3, 10, 24)),
        (with_heads, (256, 2, 3), (3, 50, 256)),
    ],
    ids=lambda given: getattr(given, "__name__", str(given)),
)
def test_gradients_are_those_of_jax(loss: Any, weights: Any, x: Any) -> None:
    given = arrays(weights, x)
    gradient = jax.grad(loss, (0, 1))
    expected = compiled(gradient, given, weight_gradient._standard)(*given)
    program = compiled(gradient, given)
    for found, wanted in zip(program(*given), expected, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("columns", [(64, 32), (256, 8)])
def test_the_library_takes_all_products_of_a_step(columns: tuple[int, int]) -> None:
    given = arrays(columns, (32, columns[0]))
    gradient = jax.grad(plain, (0, 1))
    texts = {
        ours: compiled(
            gradient, given, weight_gradient.turned_product if ours else weight_gradient._standard
        ).as_text()
        for ours in (False, True)
    }
    # A product that XLA leaves to YNNPACK stands in a fusion of its kind; the rest in the entry.
    entry = {ours: text[text.index("\nENTRY") :] for ours, text in texts.items()}
    assert " dot(" in entry[False]  # where XLA ends this itself, the lowering can go
    assert " dot(" not in entry[True]


def turns(function: Any, given: Any) -> bool:
    return "optimization_barrier" in lowered(function, given).as_text()


def over_rows(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((0,), (0,)), ((), ())))


def test_other_products_are_lowered_as_before() -> None:
    assert turns(over_rows, arrays((32, 64), (32, 48)))
    assert not turns(jnp.matmul, arrays((32, 64), (64, 48)))
    assert not turns(jnp.dot, arrays((32,), (32,)))
    assert not turns(over_rows, arrays((32,), (32, 48)))
    assert not turns(over_rows, arrays((0, 64), (0, 48)))
    assert not turns(over_rows, arrays((32, 64), (32, 48), dtype=jnp.bfloat16))
    assert not turns(lambda x, y: jnp.einsum("bki,bko->bio", x, y), arrays((2, 9, 4), (2, 9, 3)))
    assert not turns(lambda x, y: jnp.einsum("abi,bao->io", x, y), arrays((2, 9, 4), (9, 2, 3)))
    # Long and thin: to turn them takes as long as is gained.
    assert turns(over_rows, arrays((1023, 64), (1023, 64)))
    assert not turns(over_rows, arrays((1024, 64), (1024, 64)))


def test_sizes_that_are_not_known_yet_are_lowered_as_before() -> None:
    rows = jax.export.symbolic_shape("n")[0]
    given = [jax.ShapeDtypeStruct((rows, size), np.float32) for size in (64, 48)]
    present = cpu_lowering(lax.dot_general_p)
    mlir.register_lowering(lax.dot_general_p, weight_gradient.turned_product, platform="cpu")
    try:
        exported = jax.export.export(jax.jit(over_rows), platforms=["cpu"])(*given)
    finally:
        mlir.register_lowering(lax.dot_general_p, present, platform="cpu")
    assert "optimization_barrier" not in exported.mlir_module()
    x, y = arrays((32, 64), (32, 48))
    np.testing.assert_allclose(exported.call(x, y), over_rows(x, y), rtol=1e-4, atol=1e-4)


def test_replicas_still_sum_their_gradients_once() -> None:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    weights, x = arrays((24, 16), (64, 24))
    given = jax.device_put(weights, whole), jax.device_put(x, rows)

    def gradient(weights: Any, x: Any) -> Any:
        return lax.with_sharding_constraint(jax.grad(plain)(weights, x), whole)

    program = compiled(gradient, given)
    text = program.as_text()
    assert text.count(" all-reduce(") == 1
    assert " all-gather(" not in text and " all-to-all(" not in text
    np.testing.assert_allclose(program(*given), jax.grad(plain)(weights, x), rtol=1e-4, atol=1e-4)


def test_it_is_used_unless_somebody_has_set_a_rule_of_their_own() -> None:
    present = cpu_lowering(lax.dot_general_p)
    try:
        mlir.register_lowering(lax.dot_general_p, weight_gradient._standard, platform="cpu")
        replace_cpu_lowering(*weight_gradient.LOWERING)
        assert cpu_lowering(lax.dot_general_p) is weight_gradient.turned_product

        def their_own(ctx: Any, *operands: Any, **params: Any) -> Any:
            return weight_gradient._standard(ctx, *operands, **params)

        mlir.register_lowering(lax.dot_general_p, their_own, platform="cpu")
        replace_cpu_lowering(*weight_gradient.LOWERING)
        assert cpu_lowering(lax.dot_general_p) is their_own
    finally:
        mlir.register_lowering(lax.dot_general_p, present, platform="cpu")

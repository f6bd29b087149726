"""Attention: masks, heads, dropout, and the kernel that each platform takes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import nn_reference as ref
from neurenix import nn
from neurenix._core.errors import ArgumentTypeError
from neurenix._nnx import nnx
from neurenix.nn import splash_attention
from neurenix.nn.dot_product import dot_product_attention

pytestmark = pytest.mark.newest

RNG = np.random.default_rng(0)

# A kernel that is interpreted runs for longer than it is compiled.
OPTIMISED = {"xla_backend_optimization_level": 3}


def heads(length, count, size=4, batch=2):
    return RNG.normal(size=(batch, length, count, size)).astype(np.float32)


MASKS = {
    "(T, S)": (5, 7),
    "(N, T, S)": (2, 5, 7),
    "(N, 1, T, S)": (2, 1, 5, 7),
    "(N, H, T, S)": (2, 6, 5, 7),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_every_shape_say_who_looks_where(name):
    q, k, v = heads(5, 6), heads(7, 2), heads(7, 2)
    mask = RNG.uniform(size=MASKS[name]) < 0.6
    mask[..., 0] = True
    full = {2: mask, 3: mask[:, None] if mask.ndim == 3 else mask, 4: mask}[mask.ndim]
    found = dot_product_attention(*map(jnp.asarray, (q, k, v)), mask=jnp.asarray(mask))
    np.testing.assert_allclose(found, ref.attention(q, k, v, full), rtol=1e-4, atol=1e-5)


def test_a_causal_output_does_not_see_the_future():
    layer = nn.MultiHeadAttention(8, 2, causal=True)
    x = jnp.asarray(RNG.normal(size=(1, 6, 8)), jnp.float32)
    changed = x.at[:, 4].add(1.0)
    difference = jnp.abs(layer(x) - layer(changed)).max((0, 2))
    assert float(difference[:4].max()) == 0 and float(difference[4:].min()) > 0


def test_other_keys_and_values():
    layer = nn.MultiHeadAttention(8, 2)
    x, k, v = (RNG.normal(size=(2, n, 8)) for n in (5, 7, 7))
    found = layer(*(jnp.asarray(a, jnp.float32) for a in (x, k, v)))
    np.testing.assert_allclose(found, ref.multi_head(layer, x, k, v), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_dropout_of_weights_keeps_the_mean_and_stops_in_evaluation(causal):
    plain = nn.MultiHeadAttention(8, 4, num_kv_heads=2, causal=causal)
    layer = nn.MultiHeadAttention(8, 4, num_kv_heads=2, causal=causal, dropout=0.3)
    nnx.update(layer, nnx.state(plain, nnx.Param))
    x = jnp.asarray(RNG.normal(size=(1, 6, 8)), jnp.float32)
    wanted = plain(x)

    @nnx.jit
    def run(layer, x):
        return layer(x)

    mask = jnp.ones((6, 6), bool)
    many = jnp.tile(x, (4000, 1, 1))
    drawn = run(layer, many)
    assert float(drawn.std(0).max()) > 0.01
    np.testing.assert_allclose(drawn.mean(0), wanted[0], atol=0.05)
    assert layer(x, mask=mask).shape == x.shape
    np.testing.assert_allclose(layer.eval()(x), wanted, rtol=1e-5, atol=1e-6)


def test_a_query_without_keys_is_a_number_in_training_too():
    plain = nn.MultiHeadAttention(8, 4, num_kv_heads=2, causal=True)
    layer = nn.MultiHeadAttention(8, 4, num_kv_heads=2, causal=True, dropout=1e-7)
    nnx.update(layer, nnx.state(plain, nnx.Param))
    x = jnp.asarray(RNG.normal(size=(2, 5, 8)), jnp.float32)
    padded = jnp.arange(5) < jnp.array([[2], [0]])  # at the left: the first queries see nothing
    mask = jnp.broadcast_to(~padded[:, None, :], (2, 5, 5))
    np.testing.assert_allclose(layer(x, mask=mask), plain(x, mask=mask), rtol=1e-4, atol=1e-5)
    gradient = nnx.grad(lambda layer: layer(x, mask=mask).sum())(layer)
    assert all(bool(jnp.isfinite(leaf).all()) for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("query", "other"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_keys_and_values_of_another_dtype_are_cast_to_that_of_the_queries(query, other, training):
    layer = nn.MultiHeadAttention(8, 2, dropout=1e-7).train(training)
    x, k, v = (jnp.asarray(RNG.normal(size=(2, n, 8)), query) for n in (5, 7, 7))
    k, v = k.astype(other), v.astype(other)
    found = layer(x, k, v)
    assert found.dtype == query
    np.testing.assert_array_equal(found, layer(x, k.astype(query), v.astype(query)))


@pytest.mark.parametrize("sinks", [None, np.zeros(2, np.float32)])
def test_attention_without_its_layer_takes_one_dtype(sinks):
    q = jnp.ones((1, 3, 2, 4))
    told = "query float32, key bfloat16, value float32"
    with pytest.raises(ArgumentTypeError, match=told):
        dot_product_attention(q, q.astype("bfloat16"), q, sinks=sinks)
    found = dot_product_attention(np.ones((1, 3, 2, 4)), q, q, sinks=sinks)  # float64 of NumPy
    assert found.shape == q.shape


# --- the TPU kernel -----------------------------------------------------------------------------

MESH = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))


def lowered(platform, *, length=128, dtype="bfloat16", mask=None, mesh=MESH, size=64):
    """The program of attention and its gradient for a platform, as text."""
    spec = jax.ShapeDtypeStruct(
        (4, length, 2, size), dtype, sharding=NamedSharding(MESH, PartitionSpec("data"))
    )

    def loss(q, k, v):
        return dot_product_attention(q, k, v, causal=True, mask=mask).astype(jnp.float32).sum()

    def gradient(q, k, v):
        if mesh is None:
            return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)
        with jax.sharding.use_abstract_mesh(mesh):
            return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)

    allowed = [jax.export.DisabledSafetyCheck.custom_call("tpu_custom_call")]
    exported = jax.export.export(jax.jit(gradient), platforms=[platform], disabled_checks=allowed)(
        spec, spec, spec
    )
    return exported.mlir_module()


def test_a_tpu_takes_its_kernel_forward_and_backward():
    assert lowered("tpu").count("tpu_custom_call") >= 2


def of_kind(kind):
    device = jax.sharding.AbstractDevice(kind, None, "tpu" if "TPU" in kind else "cpu")
    return AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,), abstract_device=device)


@pytest.mark.parametrize(
    ("kind", "dtype", "taken"),
    [
        ("TPU v5 lite", "bfloat16", True),
        ("TPU v3", "bfloat16", False),
        ("TPU v3", "float32", True),
        ("cpu", "float32", False),
    ],
)
def test_a_mesh_of_known_devices_decides_at_once(kind, dtype, taken):
    assert ("tpu_custom_call" in lowered("tpu", mesh=of_kind(kind), dtype=dtype)) is taken


def test_heads_are_divided_over_the_tensor_axis():
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    q, k, v = heads(128, 4, 64), heads(128, 2, 64), heads(128, 2, 64)
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(mesh):
        compiled = jax.jit(
            splash_attention.attention, static_argnames="causal", compiler_options=OPTIMISED
        )
        found = compiled(q, k, v, causal=True)
    assert found.sharding.spec == PartitionSpec("data", None, "tensor")
    np.testing.assert_allclose(found, ref.attention(q, k, v, None, True), rtol=2e-3, atol=2e-3)


def test_other_platforms_do_not():
    assert "tpu_custom_call" not in lowered("cpu")


OTHERWISE = {
    "odd length": {"length": 100},
    "a mask": {"mask": np.ones((128, 128), bool)},
    "no mesh known": {"mesh": None},
    "float16": {"dtype": "float16"},
    "large odd heads": {"size": 136},
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_shapes_that_the_tpu_kernel_does_not_take_go_to_xla(name):
    assert "tpu_custom_call" not in lowered("tpu", **OTHERWISE[name])


@pytest.mark.parametrize(
    ("queries", "keys", "kv_heads", "causal"), [(128, 256, 2, False), (256, 256, 1, True)]
)
def test_the_tpu_kernel_gives_what_numpy_gives(queries, keys, kv_heads, causal):
    q, k, v = heads(queries, 2, 64), heads(keys, kv_heads, 64), heads(keys, kv_heads, 64)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(mesh):
        compiled = jax.jit(
            splash_attention.attention, static_argnames="causal", compiler_options=OPTIMISED
        )
        found = compiled(q, k, v, causal=causal)
    np.testing.assert_allclose(found, ref.attention(q, k, v, None, causal), rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(("kv_heads", "causal"), [(2, False), (1, True)])
def test_the_tpu_kernels_gradients_are_those_of_plain_attention(kv_heads, causal, monkeypatch):
    monkeypatch.setattr(splash_attention, "_QUERIES", 128)
    monkeypatch.setattr(splash_attention, "_KEYS", 128)
    monkeypatch.setattr(splash_attention, "_PARTS", 2)  # of the queries' gradient
    q, k, v = heads(256, 2, 64), heads(512, kv_heads, 64), heads(512, kv_heads, 64)
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def loss(attention, q, k, v):
        return (attention(q, k, v, causal=causal) ** 2).sum()

    wanted = jax.grad(loss, argnums=(1, 2, 3))(dot_product_attention, q, k, v)
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(mesh):
        gradient = jax.jit(
            jax.grad(loss, argnums=(1, 2, 3)), static_argnums=0, compiler_options=OPTIMISED
        )
        found = gradient(splash_attention.attention, q, k, v)
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3)

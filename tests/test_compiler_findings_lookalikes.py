"""Programs with the sizes of what a rule is about, some of which are it and some not; compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import neurenix as nx
from neurenix.preflight import CompileOptions, PreflightOptions, Report

pytestmark = pytest.mark.tpu_compile

ATTENTION = {"materialised-attention", "head-dimension"}


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = CompileOptions(cache_directory=tmp_path_factory.mktemp("cache"))

    def ask(function: Any, *args: Any, on: str = "v5e-1") -> Report:
        options = PreflightOptions(compiler=compiler, suggest=False)
        return nx.preflight(function, *args, on=on, options=options)

    return ask


def rules(report: Report) -> set[str]:
    return {finding.rule for finding in report.findings}


def bf16(*shape: int) -> Any:
    return nx.spec(shape, "bfloat16")


def divided(*partition: Any, shape: tuple[int, ...]) -> Any:
    return nx.spec(shape, "float32", partition=partition)


def trained(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(parameters: Any, *batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *batch)
        return jax.tree.map(
            lambda p, g: p - (1e-3 * g).astype(p.dtype), parameters, gradients
        ), value

    return step


def test_an_ensemble_is_no_attention(ask) -> None:
    def perceptron(p: Any, x: Any) -> Any:
        h = jax.nn.softplus(x @ p["w1"] + p["b1"])  # which has an exponential, as attention
        return jax.nn.softplus(h @ p["w2"]) @ p["w3"]

    def loss(p: Any, x: Any, y: Any) -> Any:
        made = jax.vmap(perceptron, (0, None))(p, x)
        return ((made - y) ** 2).astype(jnp.float32).mean()

    weights = {
        "w1": bf16(4, 32, 512), "b1": bf16(4, 512), "w2": bf16(4, 512, 512), "w3": bf16(4, 512, 32)
    }  # fmt: skip
    found = rules(ask(trained(loss), weights, bf16(16384, 32), bf16(16384, 32)))
    assert not found & ATTENTION
    assert "padded-matmul" in found  # which says what is true of its depth of 32


def grouped_and_causal(q: Any, k: Any, v: Any) -> Any:
    groups = q.reshape(q.shape[0], k.shape[1], -1, *q.shape[2:])
    scores = jnp.einsum("bkgtd,bksd->bkgts", groups, k) * 0.125
    past = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -1e9))
    return jnp.einsum("bkgts,bksd->bkgtd", weights, v)


def divided_last(q: Any, k: Any, v: Any) -> Any:
    """Exponentials that a mask multiplies, and a sum that the values are divided by."""
    scores = jnp.einsum("bhtd,bhsd->bhts", q, k)
    kept = jnp.exp(scores) * jnp.tril(jnp.ones(scores.shape[-2:], scores.dtype))
    return jnp.einsum("bhts,bhsd->bhtd", kept, v) / kept.sum(-1, keepdims=True)


def packages_own(q: Any, k: Any, v: Any) -> Any:
    q, k, v = (a.transpose(0, 2, 1, 3) for a in (q, k, v))
    mask = jnp.sin(jnp.arange(1024.0) ** 2)[None, None, None] > 0
    return nx.nn.dot_product_attention(q, k, v, mask=mask)


@pytest.mark.parametrize(
    ("attention", "heads"), [(grouped_and_causal, 4), (divided_last, 8), (packages_own, 8)]
)
def test_attention_is_seen_however_it_is_written(ask, attention, heads: int) -> None:
    def gradient(*a: Any) -> Any:
        return jax.grad(lambda *a: attention(*a).astype(jnp.float32).sum(), argnums=(0, 1, 2))(*a)

    keys = bf16(4, heads, 1024, 64)
    assert rules(ask(gradient, bf16(4, 8, 1024, 64), keys, keys)) >= ATTENTION


def test_attention_of_layers_in_a_loop_is_seen_on_many_devices(ask) -> None:
    def layer(x: Any, p: Any) -> Any:
        q, k, v = (jnp.einsum("btd,dhe->bhte", x, p[name]) for name in "qkv")
        weights = jax.nn.softmax(jnp.einsum("bhte,bhse->bhts", q, k))
        return x + jnp.einsum("bhts,bhse,hed->btd", weights, v, p["o"]), None

    def loss(p: Any, x: Any) -> Any:
        return (jax.lax.scan(jax.checkpoint(layer), x, p)[0].astype(jnp.float32) ** 2).mean()

    weights = {name: bf16(2, 512, 8, 64) for name in "qkv"} | {"o": bf16(2, 8, 64, 512)}
    x = nx.spec((32, 1024, 512), "bfloat16", partition=("data",))
    assert rules(ask(trained(loss), weights, x, on="v5e-8")) >= ATTENTION


def test_attention_of_flax_is_seen(ask) -> None:
    model = nnx.MultiHeadAttention(
        num_heads=8, in_features=512, dtype=jnp.bfloat16, decode=False, rngs=nnx.Rngs(0)
    )
    graph, weights = nnx.split(model)

    def loss(p: Any, x: Any) -> Any:
        return (nnx.merge(graph, p)(x).astype(jnp.float32) ** 2).mean()

    assert rules(ask(trained(loss), weights, bf16(8, 1024, 512))) >= ATTENTION


def test_the_load_of_experts_is_no_batch_norm(ask) -> None:
    def layer(x: Any, p: Any) -> Any:
        gates = jax.nn.softmax(x @ p["router"])
        h = jax.nn.relu(jnp.einsum("nd,xdf->nxf", x, p["up"]))
        return x + jnp.einsum("nxf,xfd,nx->nd", h, p["down"], gates), 8 * (gates.mean(0) ** 2).sum()

    def loss(p: Any, x: Any, y: Any) -> Any:
        x, balance = jax.lax.scan(layer, x, p)
        return ((x - y) ** 2).mean() + 0.01 * balance.sum()

    shapes = {"router": (6, 256, 8), "up": (6, 8, 256, 128), "down": (6, 8, 128, 256)}
    weights = {name: divided(shape=shape) for name, shape in shapes.items()}
    x = divided("data", shape=(2048, 256))
    found = rules(ask(trained(loss), weights, x, x, on="v5e-8"))
    assert "sync-batchnorm" not in found
    assert "exposed-collective" in found


def normalising(axis: int) -> Callable[..., Any]:
    """A stack of products, each normalised over the batch (0) or over its features (1)."""

    def loss(layers: Any, x: Any, y: Any) -> Any:
        for w, scale in layers:
            x = x @ w
            mean = x.mean(axis, keepdims=True)
            variance = (x**2).mean(axis, keepdims=True) - mean**2
            x = jax.nn.relu((x - mean) / jnp.sqrt(variance + 1e-5) * scale)
        return ((x - y) ** 2).mean()

    return trained(loss)


@pytest.mark.parametrize(
    ("axis", "partition", "expected"), [(0, ("data",), True), (1, (None, "data"), False)]
)
def test_what_is_normalised_over_features_is_no_batch_norm(ask, axis, partition, expected) -> None:
    columns = partition if axis else ()
    layer = (divided(*columns, shape=(1024, 1024)), divided(shape=(1024,)))
    x = divided(*partition, shape=(1024, 1024))
    found = rules(ask(normalising(axis), [layer] * 4, x, x, on="v5e-8"))
    assert ("sync-batchnorm" in found) is expected


@pytest.mark.parametrize("of_flax", [False, True])
def test_batch_norm_of_libraries_is_seen(ask, of_flax: bool) -> None:
    def norm() -> Any:
        return nnx.BatchNorm(256, rngs=nnx.Rngs(0)) if of_flax else nx.nn.BatchNorm(256)

    layers = [layer for _ in range(4) for layer in (nx.nn.Linear(256, 256), norm(), nnx.relu)]
    model = nx.nn.Sequential(*layers).compile(loss="mse")
    report = ask(model, nx.spec((8192, 256)), on="v5e-8")
    assert "sync-batchnorm" in rules(report)

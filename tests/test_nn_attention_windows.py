"""Attention with windows, sinks, bounds, values of another size: XLA's and the TPU's."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, PartitionSpec
from scipy import special

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix.nn import splash_attention
from neurenix.nn.dot_product import dot_product_attention

pytestmark = pytest.mark.cpu8

RNG = np.random.default_rng(0)

# A kernel that is interpreted runs for longer than it is compiled.
OPTIMISED = {"xla_backend_optimization_level": 3}


def arrays(length: int, size: int, width: int, *, heads: int = 4, groups: int = 2):
    shapes = ((heads, size), (groups, size), (groups, width))
    made = [RNG.normal(size=(2, length, *shape)) for shape in shapes]
    return [jnp.asarray(x, jnp.float32) for x in (*made, RNG.normal(size=heads) + 1)]


def reference(q, k, v, *, causal=True, window=None, sinks=None, softcap=None):
    """By the definition, head by head, in float64."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    out = np.zeros((*q.shape[:3], v.shape[3]))
    ahead = np.arange(q.shape[1])[:, None] - np.arange(k.shape[1])
    for n, h in itertools.product(range(q.shape[0]), range(q.shape[2])):
        group = h * k.shape[2] // q.shape[2]
        scores = q[n, :, h] @ k[n, :, group].T / np.sqrt(q.shape[3])
        if softcap:
            scores = softcap * np.tanh(scores / softcap)
        if causal:
            scores = np.where(ahead >= 0, scores, -np.inf)
        if window:
            scores = np.where(abs(ahead) < window, scores, -np.inf)
        if sinks is not None:
            last = np.full((len(scores), 1), float(sinks[h]))
            scores = np.concatenate([scores, last], axis=1)
        out[n, :, h] = special.softmax(scores, axis=1)[:, : k.shape[1]] @ v[n, :, group]
    return out


CASES = {
    "a window": ({"window": 3}, 8),
    "a window of one": ({"window": 1}, 8),
    "a window both ways": ({"window": 3, "causal": False}, 8),
    "sinks": ({"sinks": True}, 8),
    "sinks behind a window": ({"window": 3, "sinks": True}, 8),
    "bounded scores": ({"softcap": 0.5}, 8),
    "bounded scores, a window and sinks": ({"softcap": 2, "window": 3, "sinks": True}, 8),
    "smaller values": ({}, 6),
    "larger values behind a window": ({"window": 4}, 10),
    "sinks, and no order": ({"sinks": True, "causal": False}, 8),
}


def options_of(name: str, sinks: jax.Array) -> dict:
    options = {"causal": True, **CASES[name][0]}
    return {**options, "sinks": sinks} if "sinks" in options else options


@pytest.mark.parametrize("name", CASES)
def test_attention_gives_what_numpy_gives(name: str) -> None:
    q, k, v, sinks = arrays(9, 8, CASES[name][1])
    options = options_of(name, sinks)
    found = dot_product_attention(q, k, v, **options)
    np.testing.assert_allclose(found, reference(q, k, v, **options), rtol=1e-4, atol=1e-5)


def test_sinks_go_with_a_mask() -> None:
    q, k, v, sinks = arrays(9, 8, 8)
    mask = jnp.asarray(np.tril(np.ones((9, 9), bool)))
    found = dot_product_attention(q, k, v, mask=mask, sinks=sinks)
    np.testing.assert_allclose(found, reference(q, k, v, sinks=sinks), rtol=1e-4, atol=1e-5)


def test_a_sink_far_above_all_scores_leaves_nothing() -> None:
    q, k, v, sinks = arrays(9, 8, 8)
    found = dot_product_attention(q, k, v, causal=True, sinks=sinks + 100)
    assert float(jnp.abs(found).max()) < 1e-30


def test_options_that_cannot_be_are_refused() -> None:
    q, k, v, sinks = arrays(9, 8, 8)
    for window in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="integer of at least 1"):
            dot_product_attention(q, k, v, window=window)
    for softcap in (0, -1.0, float("inf"), "50", True):
        with pytest.raises(ArgumentError, match="`softcap` must be a number above 0, or None"):
            dot_product_attention(q, k, v, softcap=softcap)
    with pytest.raises(ShapeError, match="one number per head, 4"):
        dot_product_attention(q, k, v, sinks=sinks[:2])
    with pytest.raises(ShapeError, match=r"\(N, S, K, C\)"):
        dot_product_attention(q, k, v[:, 1:])


# --- the TPU kernel -----------------------------------------------------------------------------

KERNEL_CASES = {
    # Those of a window are of a length at which whole blocks of keys lie before it.
    "a window, large heads": ({"window": 130}, 256, 256),
    "sinks": ({"sinks": True}, 64, 64),
    "sinks behind a window": ({"window": 100, "sinks": True}, 64, 64),
    "bounded scores": ({"softcap": 0.5}, 64, 64),
    "bounded scores behind a window, large heads": ({"softcap": 1.0, "window": 130}, 256, 256),
    "smaller values": ({}, 192, 128),
}


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_the_tpu_kernel_and_its_gradients_are_those_of_plain_attention(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(splash_attention, "_QUERIES", 128)
    monkeypatch.setattr(splash_attention, "_KEYS", 128)
    options, size, width = KERNEL_CASES[name]
    q, k, v, sinks = arrays(384 if "window" in options else 256, size, width)
    operands = (q, k, v, sinks) if "sinks" in options else (q, k, v)
    options = {"causal": True, "window": options.get("window"), "softcap": options.get("softcap")}

    def plain(q, k, v, sinks=None):
        return dot_product_attention(q, k, v, sinks=sinks, **options)

    def kernel(*operands):
        return splash_attention.attention(*operands, **options)

    def both(attend, *operands):
        """No sum over all devices beside the kernels: one may wait in it for the others, and they
        in the kernel, as it is interpreted, for that one."""
        out, gradient = jax.vjp(attend, *operands)
        return out, gradient(2 * out)

    plainly, wanted = both(plain, *operands)
    mesh = jax.make_mesh((2, 2), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)
    with pltpu.force_tpu_interpret_mode(), jax.set_mesh(mesh):
        compiled = jax.jit(both, static_argnums=0, compiler_options=OPTIMISED)
        found, gradients = compiled(kernel, *operands)
    assert found.sharding.spec == PartitionSpec("data", None, "tensor")
    np.testing.assert_allclose(found, plainly, rtol=2e-3, atol=2e-3)
    for one, other in zip(gradients, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=5e-3, atol=5e-3)

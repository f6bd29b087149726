"""Random numbers on a CPU: the same as ``jax.random`` gives, from few programs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurenix import nn
from neurenix._cpu import drawn
from neurenix._nnx import nnx

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

SHAPES = [(), (1,), (5,), (3, 4), (3, 3, 3, 8), (27, 8), (33, 31), (4097,), (1025, 1025)]
SAMPLES: dict[str, Callable[..., jax.Array]] = {
    "uniform": lambda key, shape: jax.random.uniform(key, shape, minval=-0.1, maxval=0.1),
    "normal": jax.random.normal,
    "bfloat16": lambda key, shape: jax.random.normal(key, shape, jnp.bfloat16),
    "integers": lambda key, shape: jax.random.randint(key, shape, 0, 10),
    "complex": lambda key, shape: jax.random.normal(key, shape, jnp.complex64),
}


class Sampler:
    """Draws, and remembers the shapes that it was asked for."""

    def __init__(self, key: jax.Array) -> None:
        self.key, self.asked = key, []

    def __call__(self, shape: tuple[int, ...]) -> jax.Array:
        self.asked.append(shape)
        return jax.random.uniform(self.key, shape)

    def drawn(self, *shape: int) -> jax.Array:
        return drawn(self, self.key, shape)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey], ids=["typed", "raw"])
@pytest.mark.parametrize("name", SAMPLES)
def test_the_numbers_are_those_of_jax(name: str, make: Any) -> None:
    key, sample = make(7), SAMPLES[name]
    for shape in SHAPES:
        ours, theirs = drawn(lambda sizes: sample(key, sizes), key, shape), sample(key, shape)
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.sharding == theirs.sharding and not ours.committed
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_small_shapes_share_one_program_and_large_ones_waste_nothing() -> None:
    sampler = Sampler(jax.random.key(0))
    for shape in SHAPES[:-2]:
        sampler.drawn(*shape)
    assert set(sampler.asked) == {(4096,)}
    sampler.asked.clear()
    for shape in ((4097,), (90, 90), (1025, 1025), (0, 3)):
        sampler.drawn(*shape)
    assert sampler.asked == [(8192,), (8192,), (1025 * 1025,), (0, 3)]


def test_what_is_drawn_owns_its_memory() -> None:
    numbers = Sampler(jax.random.key(0)).drawn(3, 4)
    before = np.array(numbers)
    after = jax.jit(lambda a: a + 1, donate_argnums=0)(numbers)
    assert numbers.is_deleted()
    np.testing.assert_array_equal(after, before + 1)


def test_on_another_device() -> None:
    device = jax.devices()[3]
    with jax.default_device(device):
        sampler = Sampler(jax.random.key(0))
        assert sampler.drawn(3, 4).devices() == {device}
    assert sampler.asked == [(4096,)]


@pytest.mark.parametrize("kind", ["committed", "another generator", "not partitionable", "a mesh"])
def test_where_it_cannot_be_known_jax_draws(kind: str) -> None:
    key = jax.random.key(1, impl="rbg" if kind == "another generator" else None)
    around: Any = nullcontext()
    if kind == "committed":
        key = jax.device_put(key, jax.devices()[2])
    elif kind == "not partitionable":
        around = jax.threefry_partitionable(False)
    elif kind == "a mesh":
        around = jax.set_mesh(jax.make_mesh((8,), ("data",)))
    with around:
        sampler = Sampler(key)
        numbers = sampler.drawn(3, 5)
        np.testing.assert_array_equal(numbers, jax.random.uniform(key, (3, 5)))
    assert sampler.asked == [(3, 5)]


def test_a_program_draws_its_shape() -> None:
    sampler = Sampler(jax.random.key(1))
    numbers = jax.jit(lambda: sampler.drawn(3, 5))()
    assert sampler.asked == [(3, 5)]
    np.testing.assert_array_equal(numbers, sampler.drawn(3, 5))


def test_a_layer_has_the_same_parameters_made_here_and_in_a_program() -> None:
    def made() -> Any:
        rngs = nnx.Rngs(5)
        layers = [nn.Conv2d(3, 8, 3, rngs=rngs), nn.Embedding(9, 4, rngs=rngs)]
        layers.append(nn.MultiHeadAttention(8, 2, rngs=rngs))
        return nnx.state(nnx.List(layers), nnx.Param)

    here, compiled = made(), jax.jit(made)()
    assert len(jax.tree.leaves(here)) == 11
    for ours, theirs in zip(jax.tree.leaves(here), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)

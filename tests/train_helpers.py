"""Small modules, data and an independent training loop for the tests of training."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


class MLP(nnx.Module):
    """A foreign module: NNX only, nothing of Neurenix."""

    def __init__(self, sizes: tuple[int, ...] = (6, 8, 3), *, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.layers = nnx.List(
            [nnx.Linear(a, b, rngs=rngs) for a, b in zip(sizes, sizes[1:], strict=False)]
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Noisy(nnx.Module):
    """A module with every kind of state: batch statistics, dropout's random stream, a buffer."""

    def __init__(self, *, seed: int = 0) -> None:
        rngs = nnx.Rngs(seed)
        self.inner = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs, momentum=0.9)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.outer = nnx.Linear(8, 3, rngs=rngs)
        self.shift = jnp.full((3,), 0.25)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.outer(self.dropout(nnx.relu(self.norm(self.inner(x))))) + self.shift


def classification(count: int = 64, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs (count, 6) and learnable labels (count,) of three classes."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(count, 6)).astype(np.float32)
    return x, np.argmax(x[:, :3] + 0.1 * x[:, 3:], axis=1).astype(np.int32)


def weights_of(module: nnx.Module) -> dict[str, np.ndarray]:
    """Return copies of a module's parameters and batch statistics, by path."""
    flat = nnx.to_flat_state(nnx.state(module, (nnx.Param, nnx.BatchStat)))
    return {".".join(map(str, path)): np.array(leaf.get_value()) for path, leaf in flat}


def assert_same_weights(a: nnx.Module, b: nnx.Module, *, rtol: float = 0, atol: float = 0) -> None:
    """Compare all parameters and statistics of two modules."""
    mine, other = weights_of(a), weights_of(b)
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        np.testing.assert_allclose(value, other[name], rtol=rtol, atol=atol, err_msg=name)


def prepared(trainer: Any) -> Any:
    """Return what a trainer has made for its module: the step, and its compiled functions."""
    return trainer._state.built()


def hand_written(module: nnx.Module, transformation: Any, batches: list[Any]) -> nnx.Module:
    """Train a copy of ``module`` by plain JAX and optax; return the copy."""
    graphdef, params, rest = nnx.split(nnx.clone(module), nnx.Param, ...)
    state = transformation.init(params)

    @jax.jit
    def step(params: Any, state: Any, x: jax.Array, y: jax.Array, w: jax.Array) -> Any:
        def loss_of(params: Any) -> jax.Array:
            logits = nnx.merge(graphdef, params, rest)(x)
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
            return (losses * w).sum() / w.sum()

        updates, after = transformation.update(jax.grad(loss_of)(params), state, params)
        return optax.apply_updates(params, updates), after

    for x, y, w in batches:
        params, state = step(params, state, x, y, w)
    return nnx.merge(graphdef, params, rest)

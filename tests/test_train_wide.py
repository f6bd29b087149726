"""What keeps its 64 bits where JAX has them: all of it in one process, which is not JAX's own."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = pytest.mark.multiprocess

WIDE = """
import numpy as np, jax.numpy as jnp, neurenix as nx
from flax import nnx
from neurenix.data import Dataset

data = Dataset.from_arrays(jnp.arange(3) + 2**40)
for mapped in (data.map(lambda i: i - 1).batch(3), data.batch(3).map(lambda i: i - 1)):
    print("map", next(iter(mapped)) - 2**40)

seen = []

class Model(nx.nn.Module):
    def __init__(self):
        self.factor = nnx.Param(jnp.ones((), "float32"))

    def __call__(self, x):
        seen.append(x.dtype.name)
        return x * self.factor[...]

def seen_of(x, **options):
    seen.clear()
    model = Model()
    model.compile("sgd", "mse").fit(x, x, verbose=0, **options)
    model.predict(x)
    return sorted(set(seen))

x = np.ones((8, 1))
print("fit", seen_of(jnp.asarray(x)), seen_of(jnp.asarray(x), validation_split=0.5), seen_of(x))

model = nx.nn.Linear(4, 1)
loss = lambda t, p: jnp.mean((t - p).astype("float64") ** 2, axis=-1)
model.compile("sgd", loss, steps_per_execution=2, accumulate_steps=2)
x = np.ones((32, 4), "float32")
history = model.fit(x, x[:, :1], batch_size=8, verbose=0)
print("loss", history["loss"][0] > model.evaluate(x, x[:, :1])["loss"])
"""


def test_arrays_of_jax_keep_their_64_bits_and_a_loss_of_64_bits_trains(run_python: Any) -> None:
    done = run_python(code=WIDE, env={"JAX_ENABLE_X64": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "map [-1  0  1]",
        "map [-1  0  1]",
        "fit ['float64'] ['float64'] ['float32']",
        "loss True",
    ]

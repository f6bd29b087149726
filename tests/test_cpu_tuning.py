"""The CPU's programs as fit, nx.jit and predict compile them, and the memory that they keep."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import _cpu, nn

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

KEEP = """
from neurenix._cpu.allocator import keep_freed_memory
print(keep_freed_memory())
"""
# The page faults of the median of steps, which want some 40 MiB for the backward pass. Now and then
# a thread that had none yet takes the call: its heap is new, and that step has all faults again.
# On a busy machine that takes some forty steps until every thread has had a call.
FAULTS = """
import resource, statistics
import jax, jax.numpy as jnp

def loss(w, x):
    for _ in range(6):
        x = jnp.tanh(x @ w)
    return (x ** 2).mean()

step = jax.jit(lambda w, x: w - 0.1 * jax.grad(loss)(w, x), donate_argnums=0)
w, x = jnp.eye(16), jnp.ones((96 * 2 ** 10, 16))
faults = []
for _ in range(90):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    w = step(w, x).block_until_ready()
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults[45:])))
"""


def said(code: str, **environment: str) -> list[str]:
    """Return the words that code prints in a process of its own."""
    names = ("MALLOC_", "GLIBC_TUNABLES")
    own = {k: v for k, v in os.environ.items() if not k.startswith(names)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**own, "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(sys.platform != "linux", reason="the GNU C library's memory")
def test_steps_keep_their_memory() -> None:
    (without,), (set_so, kept) = said(FAULTS), said(KEEP + FAULTS)
    assert set_so == "True"
    assert int(kept) < int(without) / 10  # measured: none or one of 10,753


@pytest.mark.parametrize(
    "setting",
    [
        {"MALLOC_TRIM_THRESHOLD_": "131072"},
        {"MALLOC_MMAP_THRESHOLD_": "131072"},
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_the_environment_says_of_memory_holds(setting: dict[str, str]) -> None:
    assert said(KEEP, **setting) == ["False"]


def test_other_devices_have_no_options_of_the_cpu(monkeypatch: Any) -> None:
    assert _cpu.compiler_options()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert _cpu.compiler_options() is None


def convolution(x: Any, w: Any) -> Any:
    return jax.lax.conv_general_dilated(x, w, (1, 1), "VALID", None, None, ("NHWC", "HWIO", "NHWC"))


def test_the_options_leave_convolutions_to_xla() -> None:
    x, w = np.ones((8, 16, 16, 32), np.float32), np.ones((3, 3, 32, 32), np.float32)
    texts = {
        tuned: jax.jit(convolution, compiler_options=options).lower(x, w).compile().as_text()
        for tuned, options in ((False, None), (True, _cpu.compiler_options()))
    }
    assert "ynn" in texts[False]  # where XLA ends this itself, the option can go
    assert "ynn" not in texts[True]


def test_all_that_compiles_does_so_with_them(monkeypatch: Any) -> None:
    options: dict[str, Any] = {}
    jit = jax.jit

    def recorded(function: Any, **given: Any) -> Any:
        options[getattr(function, "__name__", "")] = given.get("compiler_options")
        return jit(function, **given)

    monkeypatch.setattr(jax, "jit", recorded)
    net = nn.Sequential(nn.Linear(4, 3))
    net.compile(optimizer="sgd", loss="mse")
    x, y = np.ones((8, 4), np.float32), np.ones((8, 3), np.float32)
    net.fit(x, y, epochs=1, batch_size=8, validation_data=(x, y), verbose=0)
    net.predict(x)

    @nx.jit
    def my_step(net: Any, x: Any) -> Any:
        return net(x)

    assert options.get("my_step") is None  # nothing is known of devices before it is called
    my_step(net, x)
    strategy = nx.distribute.OneDeviceStrategy("tpu:0")
    jax.jit(lambda x: strategy.run(jnp.sin, args=(x,)).stacked)(x)  # a part takes no options
    assert options["_replicas"] is None
    strategy.run(jnp.cos, args=(x,))
    ours = {"train_step", "evaluation_step", "predict", "my_step", "_replicas"}
    assert {options[name] == _cpu.compiler_options() for name in ours} == {True}

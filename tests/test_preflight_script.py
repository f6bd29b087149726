"""Scripts as people write them, up to their first step: modules of others, steps of their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.tpu_compile

FOREIGN = """
import numpy as np
import optax
from flax import nnx
import neurenix as nx

class Net(nnx.Module):
    def __init__(self, rngs):
        self.up, self.down = nnx.Linear(64, 256, rngs=rngs), nnx.Linear(256, 8, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)

    def __call__(self, x):
        return self.down(self.dropout(nnx.relu(self.up(x))))

trainer = nx.Trainer(Net(nnx.Rngs(0)), optimizer=optax.adamw(1e-3), loss="mse")
trainer.fit(np.ones((640, 64), "float32"), np.ones((640, 8), "float32"), batch_size=64)
print("trained")
"""

OWN_STEP = """
import jax
import jax.numpy as jnp
import neurenix as nx

def loss(w, x):
    return jnp.mean((jnp.tanh(x @ w) - x) ** 2)

@nx.jit
def step(w, x):
    value, gradient = jax.value_and_grad(loss)(w, x)
    return w - 0.1 * gradient, value

w = jnp.eye(128)
for _ in range(10):
    w, value = step(w, jnp.ones((64, 128)))
print("trained")
"""

# 65,536 × 65,536 activations are kept for the backward pass: 16 GiB beside the rest.
TOO_LARGE = """
import numpy as np
import neurenix as nx
from neurenix import nn
model = nn.Sequential(nn.Linear(16, 65536), nn.GELU(), nn.Linear(65536, 16))
model.compile("sgd", nx.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.ones((65536, 16), "float32"), np.zeros(65536, "int32"), batch_size=65536)
"""


@pytest.fixture
def preflight(command):
    """Return ``preflight(script, *arguments)``, which leaves the reports in ``r.json``."""
    arguments = ("preflight", "--json", "r.json")
    return lambda script, *more: command(*arguments, *more, "train.py", script=script)


def test_a_module_of_flax_through_a_trainer_on_a_mesh(preflight, tmp_path: Path) -> None:
    done = preflight(FOREIGN, "--on", "v5e-8", "--mesh", "data=2,fsdp=4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of training step on v5e-8" in done.stdout
    assert "trained" not in done.stdout.splitlines()
    (report,) = json.loads((tmp_path / "r.json").read_text())
    assert report["mesh"] == {"data": 2, "fsdp": 4}
    assert report["batch"]["examples"] == 64
    roles = report["hbm_per_device"]["roles"]
    parameters = 4 * (64 * 256 + 256 + 256 * 8 + 8)
    assert 0 < roles["parameters"] < parameters < roles["parameters"] * 8  # a quarter, padded
    sources = {operation["source"] or "" for operation in report["operations"]}
    assert any("train.py:" in source for source in sources), sources


def test_a_step_of_ones_own(preflight, tmp_path: Path) -> None:
    done = preflight(OWN_STEP, "--on", "v5e-1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of step on v5e-1" in done.stdout
    assert "trained" not in done.stdout.splitlines()
    (report,) = json.loads((tmp_path / "r.json").read_text())
    assert report["program"] == "step" and report["model_flops"] >= 2 * 2 * 64 * 128 * 128
    assert report["estimated_cost"]["usd_per_epoch"] is None  # nobody says how many steps


def test_reports_go_where_the_command_was_told_wherever_the_script_is(
    preflight, tmp_path: Path
) -> None:
    moving = "import os, sys\nos.mkdir('run')\nos.chdir('run')\nsys.stdout = open('log', 'w')\n"
    done = preflight(moving + OWN_STEP, "--on", "v5e-1", "--html", "r.html")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Preflight of step on v5e-1" in done.stdout
    assert {path.name for path in tmp_path.glob("r*")} == {"r.json", "r.html", "run"}
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["log"]


def test_what_nobody_foresaw_is_no_condition_that_is_true(command) -> None:
    broken = "import neurenix.chips as c\ndef resolve(name): raise RuntimeError('strange')\n"
    done = command(
        "preflight",
        "--on",
        "v5e-1",
        "train.py",
        prelude=f"exec({broken + 'c.resolve = resolve'!r})",
    )
    assert done.returncode == 2 and "RuntimeError: strange" in done.stderr


def test_what_does_not_fit_is_said_without_trying_changes(preflight) -> None:
    done = preflight(TOO_LARGE, "--on", "v5e-1", "--no-suggest")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fits         NO" in done.stdout
    assert "changes, each compiled" not in done.stdout

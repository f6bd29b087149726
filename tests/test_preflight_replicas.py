"""A script whose step is ``strategy.run``, with the slice that it simulates and with others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from neurenix.preflight.script.run_script import first_step, preflight_script

pytestmark = pytest.mark.cpu8

LOOP = """
import numpy as np
import neurenix as nx
from neurenix import nn

nx.simulate("v5e-8")
strategy = nx.distribute.TPUStrategy()
with strategy.scope():
    model = nn.Linear(64, 32)
    optimizer = nx.Optimizer(model, nx.optim.Adam(1e-3))

def replica_step(model, optimizer, x):
    def loss(model):
        return nx.distribute.compute_average_loss((model(x) ** 2).sum(-1))
    value, gradient = nx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value

def step(model, optimizer, x):
    return strategy.run(replica_step, args=(model, optimizer, x))
"""
CALL = """
rows = 128 * strategy.num_replicas_in_sync
for x in strategy.distribute([np.ones((rows, 64), np.float32)]):
    step(model, optimizer, x)
"""
COMPILED = "step = nx.jit(step)\n"


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def write(code: str) -> Path:
        path = tmp_path / "loop.py"
        path.write_text(code)
        return path

    return write


def test_a_replica_loop_reaches_its_step_at_the_first_call_of_run(script: Any) -> None:
    code = f"{LOOP}{CALL}open('taken', 'w').close()"
    for name in (None, "replica_step"):
        found = first_step(script(code), step=name)
        assert found.target.__name__ == "replica_step"
        assert found.args[2].shape == (1024, 64)
    assert not Path("taken").exists()


@pytest.mark.tpu_compile
@pytest.mark.parametrize("way", ["", COMPILED])
def test_each_device_works_on_its_share_on_any_slice(script: Any, way: str) -> None:
    """Its own ``nx.simulate`` does not keep the script from as many devices as are asked about."""
    reports = preflight_script(script(LOOP + way + CALL), on=["v5e-8", "v5e-4"])
    for report, devices in zip(reports, (8, 4), strict=True):
        (mesh,) = report.to_dict()["mesh"].values()
        assert mesh == devices
        products = [p for o in report.operations for p in o.products]
        assert {p.flops for p in products} == {2.0 * 128 * 64 * 32}
        assert report.hbm.roles["parameters"] < report.hbm.roles["optimizer"]

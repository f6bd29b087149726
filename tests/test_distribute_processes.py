"""Replicas of two processes, which talk to each other through Gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.multiprocess, pytest.mark.newest]

PROGRAM = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
import numpy as np
import neurenix as nx

strategy = nx.distribute.MirroredStrategy(nx.devices("cpu"))
context = nx.distribute.get_replica_context
numbers = strategy.run(lambda: context().replica_id)

def batches(context):
    own = np.arange(16.0, dtype="float32")[context.input_pipeline_id::context.num_input_pipelines]
    size = context.per_replica_batch_size(8)
    return [own[i : i + size] for i in range(0, 8, size)]

def told(call):
    try:
        call()
    except nx.ArgumentError as error:
        return str(error)

dealt = strategy.distribute_from_function(batches)
sums = [strategy.run(lambda b: b.sum(), args=(batch,)) for batch in dealt]
with strategy.scope():
    model = nx.nn.Linear(1, 1)
    model.compile("sgd", "mse")
pairs = strategy.distribute_from_function(
    lambda context: [(b[:, None], b[:, None]) for b in batches(context)]
)
print(json.dumps({
    "values": [int(value) for value in numbers.values],
    "text": repr(numbers),
    "elsewhere": told(lambda: numbers[3 - 3 * jax.process_index()]),
    "sum": float(strategy.reduce("sum", numbers)),
    "sums": [[float(value) for value in part.values] for part in sums],
    "total": [float(strategy.reduce("sum", part)) for part in sums],
    "steps": len(model.fit(pairs, epochs=1, verbose=0).history["loss"]),
    "weight": float(model.kernel[...].addressable_data(0)[0, 0]),
}))
"""


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script: Path = tmp_path_factory.mktemp("two") / "program.py"
    script.write_text(PROGRAM)
    environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(process)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"JAX_PLATFORMS": "cpu"},
        )
        for process in range(2)
    ]
    ended = [process.communicate(timeout=300) for process in started]
    for process, (_, said) in zip(started, ended, strict=True):
        assert process.returncode == 0, said
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]


def test_each_process_has_the_values_of_its_own_replicas(told) -> None:
    assert [process["values"] for process in told] == [[0, 1], [2, 3]]
    assert told[0]["text"] == (
        "PerReplica{0: 0, 1: 1, 2: of another process, 3: of another process}"
    )
    assert "Replica 3 runs in another process" in told[0]["elsewhere"]
    assert "Replica 0 runs in another process" in told[1]["elsewhere"]
    assert [process["sum"] for process in told] == [6.0, 6.0]


def test_each_process_deals_out_its_own_batches(told) -> None:
    own = [[[0.0 + 2, 4.0 + 6], [8.0 + 10, 12.0 + 14]], [[1.0 + 3, 5.0 + 7], [9.0 + 11, 13.0 + 15]]]
    assert [process["sums"] for process in told] == own
    totals = [sum(own[0][step]) + sum(own[1][step]) for step in range(2)]
    assert [process["total"] for process in told] == [totals, totals]


def test_fit_takes_the_batches_of_all_processes(told) -> None:
    assert [process["steps"] for process in told] == [1, 1]
    assert told[0]["weight"] == told[1]["weight"]

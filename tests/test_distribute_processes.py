"""Two processes that compute together, and talk to each other through Gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import neurenix as nx
from process_helpers import BEGIN, run_in_two_processes

pytestmark = [pytest.mark.multiprocess, pytest.mark.newest]

REPLICAS = (
    BEGIN
    + """
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
)


WHOLE = (
    BEGIN
    + """
from flax import nnx
from jax.experimental import multihost_utils
gathers, gather = [], multihost_utils.process_allgather
def counted(value, *args, **options):
    gathers.append(jax.tree.map(np.shape, value))
    return gather(value, *args, **options)
multihost_utils.process_allgather = counted

folder, process = sys.argv[3], jax.process_index()
x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
y = x.sum(1, keepdims=True)

def shares(context):
    rows = nx.data.Dataset.from_arrays(x[:26], y[:26])
    rows = rows.shard(context.input_pipeline_id, context.num_input_pipelines)
    return rows.batch(context.per_replica_batch_size(16))

# The batches that the shares make: of 16 rows, and of 5 of each process.
order = [[*range(0, 16, 2), *range(1, 16, 2)], [*range(16, 26, 2), *range(17, 26, 2)]]
ordered = [(x[rows], y[rows]) for rows in order]

class Normed(nnx.Module):
    def __init__(self):
        self.norm = nnx.BatchNorm(6, rngs=nnx.Rngs(0))  # which no row may be added to
        self.linear = nnx.Linear(6, 1, rngs=nnx.Rngs(0))
    def __call__(self, x):
        return self.linear(self.norm(x))

def normed():
    with nx.distribute.Strategy(nx.devices("cpu")).scope():
        return nx.Trainer(Normed(), optimizer="sgd", loss="mse")

def model_of(strategy):
    with strategy.scope():
        nx.seed(0)
        model = nx.nn.Sequential(nx.nn.Linear(6, 8), nx.nn.ReLU(), nx.nn.Linear(8, 1))
        return model.compile("adam", "mse", metrics=["mae"])

strategy = nx.distribute.Strategy(nx.devices("cpu"), mesh={"fsdp": 4})
model = model_of(strategy)
told = {"losses": model.fit(
    x, y, batch_size=16, epochs=2, verbose=False,
    callbacks=[nx.callbacks.CSVLogger(f"{folder}/log.csv"), nx.callbacks.EMA(0.5)],
)["loss"]}
kernel = model.layers[0].kernel[...]
told["divided"] = not kernel.is_fully_replicated
gathers.clear()
told["predicted"] = model.predict(x, batch_size=16).tolist()
told["loss"], told["mae"] = model.evaluate(x, y, batch_size=16).values()
told["gathers"] = list(gathers)

model.save(f"{folder}/model.safetensors")
model.trainer.save(f"{folder}/trainer.safetensors")
told["there"] = pathlib.Path(f"{folder}/trainer.safetensors").stat().st_size > 0
again = model_of(strategy)
again.load(f"{folder}/model.safetensors")
told["loaded"] = again.predict(x, batch_size=16).tolist()
again = model_of(strategy)
again.trainer.load(f"{folder}/trainer.safetensors")
model.load(f"{folder}/trainer.safetensors")  # where its arrays are, in both processes
told["reloaded"] = model.predict(x, batch_size=16).tolist()
more = dict(batch_size=16, epochs=3, initial_epoch=2, verbose=False)
told["resumed"] = again.fit(x, y, callbacks=[nx.callbacks.EMA(0.5)], **more)["loss"]
told["straight"] = model.fit(x, y, callbacks=[nx.callbacks.EMA(0.5)], **more)["loss"]
try:
    model.save(f"{folder}/log.csv/no.safetensors")
except nx.CheckpointError as error:
    told["refused"] = str(error)

gathers.clear()
own = strategy.distribute_from_function(shares)
told["of_shares"] = model.predict(own).tolist()
told["loss_of_shares"] = model.evaluate(own)["loss"]
told["of_ordered"] = model.predict(iter([x for x, _ in ordered])).tolist()
told["loss_of_ordered"] = model.evaluate(ordered)["loss"]
told["losses_of_both"] = [
    normed().fit(data, epochs=2, verbose=False)["loss"] for data in (own, ordered)
]
told["gathers_of_shares"] = list(gathers)
print(json.dumps(told))
"""
)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_in_two_processes(REPLICAS, tmp_path_factory.mktemp("two"))


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


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def both(folder: Path) -> dict[str, Any]:
    """Return what both processes say, which is the same but for an error's message."""
    first, second = run_in_two_processes(WHOLE, folder)
    assert "Not a directory" in first.pop("refused")
    assert second.pop("refused") == "Process 0 could not write the file; its own error says why."
    assert first == second
    return first


def test_each_process_has_the_predictions_of_a_divided_model_whole(both, folder: Path) -> None:
    assert both["divided"]
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    y = x.sum(1, keepdims=True)
    alone = nx.nn.Sequential(nx.nn.Linear(6, 8), nx.nn.ReLU(), nx.nn.Linear(8, 1))
    alone.compile("adam", "mse", metrics=["mae"]).load(folder / "model.safetensors")
    np.testing.assert_allclose(both["predicted"], alone.predict(x), rtol=1e-4, atol=1e-6)
    found = [both["loss"], both["mae"]]
    np.testing.assert_allclose(found, list(alone.evaluate(x, y).values()), rtol=1e-5)


def test_process_0_writes_what_both_have_and_both_can_read_it(both, folder: Path) -> None:
    assert both["there"], "when save returns, in whichever process"
    assert both["loaded"] == both["reloaded"] == both["predicted"]
    assert both["resumed"] == both["straight"]
    rows = (folder / "log.csv").read_text().splitlines()
    assert len(rows) == 3, "a table of two epochs, written once"


def test_shares_of_the_processes_are_the_batches_that_they_make(both) -> None:
    np.testing.assert_allclose(both["of_shares"], both["of_ordered"], rtol=1e-5)
    assert len(both["of_shares"]) == 26
    assert both["loss_of_shares"] == pytest.approx(both["loss_of_ordered"], rel=1e-5)
    of_shares, of_ordered = both["losses_of_both"]
    assert of_shares == pytest.approx(of_ordered, rel=1e-5)


def test_no_process_is_sent_the_batches_of_others(both) -> None:
    assert not any(both["gathers"]), "only numbers"
    text = json.dumps(both["gathers_of_shares"])
    assert "[8, 6]" not in text and "[16, 6]" not in text
    assert "[5, 6]" in text, "but for a batch without padding that the replicas do not divide"

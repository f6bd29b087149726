"""What counts as a batch and as tokens, of programs that are traced and not compiled."""

from __future__ import annotations

from typing import Any

import pytest

import neurenix as nx
from neurenix import chips, nn
from neurenix.compiler.memory import Buffer, Memory
from neurenix.compiler.program import Program
from neurenix.compiler.training import TRAINERS_STEP, is_trainers_step, is_training_step, sent_bytes
from neurenix.preflight.batch import batch_of
from neurenix.preflight.description import describe

V5E = chips.resolve("v5e-1")


def program(target: Any, *args: Any) -> Program:
    return describe(target, args, V5E)


def language_model() -> Any:
    return nn.Sequential(nn.Embedding(32, 8), nn.Linear(8, 32))


def loss(model: Any, ids: Any) -> Any:
    logits = model(ids)
    return nx.losses.SparseCategoricalCrossentropy(from_logits=True)(ids, logits)


@nx.jit
def step(model: Any, optimizer: Any, ids: Any) -> Any:
    value, gradients = nx.value_and_grad(loss)(model, ids)
    optimizer.update(model, gradients)
    return value


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_ids_that_a_trainer_takes_are_tokens(dtype: str) -> None:
    model = language_model()
    model.compile("adam", nx.losses.SparseCategoricalCrossentropy(from_logits=True))
    traced = program(model, nx.spec((4, 16), dtype), nx.spec((4, 16), "int32"))
    assert traced.name == TRAINERS_STEP
    assert is_trainers_step(traced) and is_training_step(traced)
    batch = batch_of(traced)
    assert (batch.examples, batch.sequence_length, batch.tokens) == (4, 16, 64)


def test_ids_of_a_step_with_an_optimizer_are_tokens() -> None:
    model = language_model()
    optimizer = nx.Optimizer(model, "adam")
    traced = program(step, model, optimizer, nx.spec((4, 16), "int32"))
    assert is_training_step(traced) and not is_trainers_step(traced)
    assert batch_of(traced).tokens == 64


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda table, ids: table[ids].sum(1), [((32, 8), "float32"), ((64, 8), "int32")]),
        (lambda a, b: a @ b, [((512, 512), "int8")] * 2),
        (lambda x: x + 1, [((512, 512), "int4")]),
        (lambda x: x + 1, [((512, 512), "int32")]),
    ],
)
def test_integers_of_a_plain_function_are_no_tokens(function, shapes) -> None:
    traced = program(function, *(nx.spec(shape, dtype) for shape, dtype in shapes))
    assert not is_training_step(traced)
    assert batch_of(traced).tokens is None


def test_ids_of_a_model_that_does_not_train_are_examples() -> None:
    batch = batch_of(
        program(lambda model, ids: model(ids), language_model(), nx.spec((4, 16), "int32"))
    )
    assert (batch.examples, batch.tokens) == (4, None)


def test_only_what_trains_is_sent_its_batch_at_every_step() -> None:
    kept = (Buffer("0", "parameters", "", 8, 8), Buffer("1", "batch", "", 64, 128))
    memory = Memory(0, 0, 0, 0, 0, 0, 0, 0, {}, kept)
    ids = nx.spec((4, 16), "int32")
    model = language_model()
    trains = program(step, model, nx.Optimizer(model, "adam"), ids)
    predicts = program(lambda model, ids: model(ids), model, ids)
    assert (sent_bytes(trains, memory), sent_bytes(predicts, memory)) == (64, 0)


def test_small_integers_are_no_tokens() -> None:
    model = nn.Sequential(nn.Embedding(256, 8), nn.Linear(8, 4))
    model.compile("adam", "mse")
    batch = batch_of(program(model, nx.spec((4, 16), "uint8"), nx.spec((4, 16, 4))))
    assert (batch.examples, batch.tokens) == (4, None)

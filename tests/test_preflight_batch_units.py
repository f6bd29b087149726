"""What counts as a batch and as tokens, of programs that are traced and not compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import neurenix as nx
from neurenix import chips, nn
from neurenix.compiler.peak_memory import Buffer, Memory
from neurenix.compiler.program import Program
from neurenix.compiler.training import TRAINERS_STEP, is_trainers_step, is_training_step, sent_bytes
from neurenix.preflight.batch_units import batch_of
from neurenix.preflight.describe_program import describe

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


def squares(params: Any, x: Any, y: Any) -> Any:
    return ((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2).mean()


PARAMS = {"w": nx.spec((32, 16)), "v": nx.spec((16, 4))}
ADAM = optax.adam(1e-3)


def applied(params: Any, state: Any, gradients: Any) -> Any:
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def plain_step(params: Any, state: Any, x: Any, y: Any) -> Any:
    return applied(params, state, jax.grad(squares)(params, x, y))


def added(params: Any, gradients: Any, x: Any, y: Any) -> Any:
    return jax.tree.map(jnp.add, gradients, jax.grad(squares)(params, x, y))


def accumulating(params: Any, state: Any, x: Any, y: Any) -> Any:
    x = x.astype("bfloat16")
    zeros = jax.tree.map(jnp.zeros_like, params)
    gradients, _ = jax.lax.scan(lambda g, xy: (added(params, g, *xy), None), zeros, (x, y))
    return applied(params, state, gradients)


def accumulating_by_number(params: Any, state: Any, x: Any, y: Any) -> Any:
    zeros = jax.tree.map(jnp.zeros_like, params)
    gradients = jax.lax.fori_loop(0, len(x), lambda i, g: added(params, g, x[i], y[i]), zeros)
    return applied(params, state, gradients)


def in_a_sum_of_losses(params: Any, state: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        return jax.lax.scan(lambda sum, xy: (sum + squares(params, *xy), None), 0.0, (x, y))[0]

    return applied(params, state, jax.grad(loss)(params))


def several_steps(params: Any, state: Any, x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda both, xy: (plain_step(*both, *xy), None), (params, state), (x, y))[0]


def several_that_accumulate(params: Any, state: Any, x: Any, y: Any) -> Any:
    def step(both: Any, xy: Any) -> Any:
        return accumulating(*both, *xy), None

    return jax.lax.scan(step, (params, state), (x, y))[0]


def unrolled(params: Any, state: Any, x: Any, y: Any) -> Any:
    gradients = jax.tree.map(jnp.zeros_like, params)
    for number in range(len(x)):
        gradients = added(params, gradients, x[number], y[number])
    return applied(params, state, gradients)


def recurrent(params: Any, state: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        def turn(hidden: Any, now: Any) -> Any:
            return jnp.tanh(now @ params["w"] + hidden), None

        hidden, _ = jax.lax.scan(turn, jnp.zeros((x.shape[1], 16)), x)
        return ((hidden @ params["v"] - y[-1]) ** 2).mean()

    return applied(params, state, jax.grad(loss)(params))


def one_by_one(params: Any, state: Any, x: Any, y: Any) -> Any:
    def loss(params: Any) -> Any:
        return jax.lax.map(lambda xy: squares(params, *xy), (x, y)).mean()

    return applied(params, state, jax.grad(loss)(params))


@pytest.mark.parametrize(
    ("function", "sizes", "examples"),
    [
        (plain_step, (256,), 256),
        (accumulating, (8, 256), 2048),
        (accumulating_by_number, (8, 256), 2048),
        (in_a_sum_of_losses, (8, 256), 2048),
        (several_steps, (8, 256), 2048),
        (several_that_accumulate, (4, 8, 256), 8192),
        (one_by_one, (8, 256), 2048),
        (one_by_one, (256,), 256),
        (accumulating, (256,), 256),
        (unrolled, (8, 256), None),
        (recurrent, (8, 256), None),
    ],
)
def test_a_loop_over_microbatches_is_over_all_of_their_examples(function, sizes, examples) -> None:
    state = jax.eval_shape(ADAM.init, PARAMS)
    x, y = nx.spec((*sizes, 32)), nx.spec((*sizes, 4))
    for target in (function, jax.jit(function, donate_argnums=(0, 1))):
        traced = program(target, PARAMS, state, x, y)
        assert [leaf.role for leaf in traced.leaves].count("batch") == 2
        assert batch_of(traced).examples == examples
        assert batch_of(traced, 12).examples == 12


def test_ids_in_microbatches_are_tokens() -> None:
    def likelihood(table: Any, ids: Any) -> Any:
        logits = table[ids] @ table.T
        return optax.softmax_cross_entropy_with_integer_labels(logits, ids).mean()

    def accumulate(params: Any, state: Any, ids: Any) -> Any:
        def turn(gradients: Any, part: Any) -> Any:
            own = jax.grad(lambda params: likelihood(params["table"], part))(params)
            return jax.tree.map(jnp.add, gradients, own), None

        zeros = jax.tree.map(jnp.zeros_like, params)
        return applied(params, state, jax.lax.scan(turn, zeros, ids)[0])

    params = {"table": nx.spec((64, 8))}
    state = jax.eval_shape(ADAM.init, params)
    batch = batch_of(program(accumulate, params, state, nx.spec((2, 4, 16), "int32")))
    assert (batch.examples, batch.sequence_length, batch.tokens) == (8, 16, 128)

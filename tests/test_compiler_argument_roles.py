"""Training steps in plain JAX: which argument is what, and when nothing is said. No compiler."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import optax
import pytest

from neurenix.compiler.program import Program, spec, trace
from neurenix.preflight.batch_units import batch_of

pytestmark = pytest.mark.pure

PARAMS = {"w": spec((4, 8)), "v": [spec((8, 2)), spec((2,))]}
X, Y = spec((16, 4)), spec((16, 2))


class State(NamedTuple):
    params: Any
    opt: Any
    key: Any
    step: Any


def loss(params: Any, x: Any, y: Any) -> Any:
    first, bias = params["v"]
    return (((x @ params["w"]) @ first + bias - y) ** 2).mean()


def stepper(tx: Any) -> Any:
    def step(params: Any, opt: Any, x: Any, y: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        updates, opt = tx.update(gradients, opt, params)
        return optax.apply_updates(params, updates), opt, value

    return step


def roles(program: Program) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for leaf in program.leaves:
        found.setdefault(leaf.role, set()).add(leaf.path.split(".")[0])
    return found


@pytest.mark.parametrize(
    "tx",
    [
        optax.adamw(1e-3),
        optax.sgd(0.1, momentum=0.9),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.linear_schedule(1, 0, 9))),
        optax.MultiSteps(optax.adam(1e-3), 2).gradient_transformation(),
        optax.inject_hyperparams(optax.adam)(1e-3),
    ],
)
def test_optax_tells_what_the_arguments_are(tx: Any) -> None:
    opt = jax.eval_shape(tx.init, PARAMS)
    program = trace(stepper(tx), (PARAMS, opt, X, Y), axes={"data": 1})
    assert roles(program) == {"parameters": {"0"}, "optimizer": {"1"}, "batch": {"2", "3"}}
    assert batch_of(program).examples == 16


def test_state_in_one_argument_is_told_apart() -> None:
    tx = optax.adam(1e-3)

    def step(state: State, batch: Any) -> Any:
        params, opt, value = stepper(tx)(state.params, state.opt, batch["x"], batch["y"])
        return State(params, opt, jax.random.split(state.key)[0], state.step + 1), value

    state = State(PARAMS, jax.eval_shape(tx.init, PARAMS), jax.random.key(0), spec((), "int32"))
    program = trace(jax.jit(step, donate_argnums=0), (state, {"x": X, "y": Y}), axes={"data": 1})
    by_path = {leaf.path: leaf.role for leaf in program.leaves}
    assert by_path["0.params.w"] == "parameters"
    assert by_path["0.opt.0.mu.v.0"] == "optimizer"
    assert by_path["0.key"] == by_path["0.step"] == "argument"
    assert by_path["1.x"] == by_path["1.y"] == "batch"


def test_tokens_of_a_plain_step_are_counted() -> None:
    tx = optax.adam(1e-3)
    params = {"table": spec((32, 8)), "out": spec((8, 32))}

    def step(params: Any, opt: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = params["table"][tokens] @ params["out"]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        updates, opt = tx.update(jax.grad(loss)(params), opt)
        return optax.apply_updates(params, updates), opt

    args = (params, jax.eval_shape(tx.init, params), spec((4, 16), "int32"))
    assert batch_of(trace(step, args, axes={"data": 1})).tokens == 4 * 16


def unlike(params: Any, opt: Any, x: Any, y: Any) -> Any:
    return params, opt, (x.sum() + y.sum())


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ((PARAMS, PARAMS, X, Y), "no state of optax"),
        (({"w": spec((4, 9))}, jax.eval_shape(optax.adam(1.0).init, PARAMS), X, Y), "other shapes"),
        ((X, jax.eval_shape(optax.adam(1.0).init, X), X, Y), "one array, and a batch like it"),
    ],
)
def test_nothing_is_guessed(args: Any, why: str) -> None:
    assert set(roles(trace(unlike, args, axes={"data": 1}))) == {"argument"}, why


@pytest.mark.parametrize(
    ("x", "y", "batch"),
    [
        (X, spec((8, 2)), set()),  # of different numbers of rows
        (X, spec(()), {"2"}),  # a number is no batch
        (X, jax.eval_shape(lambda: jax.random.key(0)), {"2"}),
    ],
)
def test_what_may_not_be_the_batch_is_not_said_to_be(x: Any, y: Any, batch: set[str]) -> None:
    def step(params: Any, opt: Any, x: Any, y: Any) -> Any:
        if jax.numpy.issubdtype(y.dtype, jax.dtypes.prng_key):
            y = jax.random.normal(y)
        return unlike(params, opt, x, y)

    opt = jax.eval_shape(optax.adam(1.0).init, PARAMS)
    found = roles(trace(step, (PARAMS, opt, x, y), axes={"data": 1}))
    assert found.get("batch", set()) == batch


def test_what_is_returned_is_state() -> None:
    def step(params: Any, opt: Any, seen: Any, x: Any) -> Any:
        return params, opt, seen + x.mean(0)

    opt = jax.eval_shape(optax.adam(1.0).init, PARAMS)
    found = roles(trace(step, (PARAMS, opt, spec((4,)), X), axes={"data": 1}))
    assert found["argument"] == {"2"}
    assert found["batch"] == {"3"}

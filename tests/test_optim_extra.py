"""Transformations of optax that need more than gradients: given it, or refused in plain words."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix import nn

X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(16, 4)


@pytest.mark.parametrize(
    ("optimizer", "error", "said"),
    [
        (optax.lbfgs(), nx.ArgumentError, "optax.lbfgs.*value_fn"),
        (optax.chain(optax.clip(1.0), optax.lbfgs()), nx.ArgumentError, "value_fn"),
        (optax.apply_if_finite(optax.lbfgs(), 2), nx.ArgumentError, "value_fn"),
        (optax.lookahead(optax.sgd(0.1), 5, 0.5), nx.ArgumentError, "optax.lookahead"),
        (optax.MultiSteps(optax.sgd(0.1), 2), nx.ArgumentTypeError, r"gradient_transformation\(\)"),
    ],
)
def test_what_no_step_can_serve_is_refused(optimizer: Any, error: Any, said: str) -> None:
    model = nn.Linear(4, 1)
    with pytest.raises(error, match=f"`optimizer`.*{said}"):
        model.compile(optimizer, "mse")
    with pytest.raises(error, match=f"`optimizer`.*{said}"):
        nx.Optimizer(model, optimizer)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.adam(1e-3),
        optax.contrib.sam(optax.sgd(0.1), optax.sgd(0.1)),
        optax.contrib.schedule_free_sgd(0.1),
        optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
        optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
        optax.multi_transform({"a": optax.sgd(0.1)}, "a"),
        optax.masked(optax.sgd(0.1), mask=True),
    ],
)
@pytest.mark.parametrize("value", [False, True])
def test_others_are_taken_with_the_loss_and_without(optimizer: Any, value: bool) -> None:
    assert stepped(optimizer, value=value) == 1


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.polyak_sgd(),
        optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau()),
    ],
)
def test_the_loss_is_given_to_what_needs_it(optimizer: Any) -> None:
    assert stepped(optimizer, value=True) == 1
    with pytest.raises(nx.ArgumentError, match=r"update\(model, gradients, value=loss\)"):
        stepped(optimizer, value=False)


def stepped(optimizer: Any, *, value: bool) -> int:
    model = nn.Linear(4, 1)
    state = nx.Optimizer(model, optimizer)

    @nx.jit
    def step(model: Any, optimizer: Any, x: Any) -> Any:
        loss, gradients = nx.value_and_grad(lambda m: jnp.mean((m(x) - 1) ** 2))(model)
        optimizer.update(model, gradients, **({"value": loss} if value else {}))
        return loss

    for _ in range(3):
        assert np.isfinite(step(model, state, X))
    return step.compilations


def test_the_loss_given_changes_the_rate() -> None:
    model = nn.Linear(4, 1)
    plateau = optax.contrib.reduce_on_plateau(factor=0.5, patience=1)
    optimizer = nx.Optimizer(model, optax.chain(optax.sgd(1.0), plateau))
    gradients = nx.grad(lambda m: m(X).sum())(model)
    sizes = []
    for _ in range(6):
        before = np.asarray(model.bias[...])
        optimizer.update(model, gradients, value=jnp.float32(1.0))
        sizes.append(float(np.abs(np.asarray(model.bias[...]) - before).max()))
    assert sizes[-1] < sizes[0] / 2


RULES_WITH_EPS = [
    getattr(nx.optim, name)
    for name in nx.optim.__all__
    if hasattr(getattr(nx.optim, name), "eps") and name != "Lamb"  # 1e-6 is above 0 in float16
]


@pytest.mark.parametrize("rule", RULES_WITH_EPS)
def test_an_eps_that_is_0_in_a_parameters_dtype_is_refused(rule: Any) -> None:
    """A gradient of 0 made the parameter NaN, and fit told of a finite loss."""
    x = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float16)
    x[:, 1] = 0
    if np.float16(rule.eps) == 0:
        with pytest.raises(nx.ArgumentError, match=r"is 0 in float16.*moment_dtype=\"float32\""):
            nn.Linear(2, 1, dtype="float16").compile(rule(), "mse").fit(x, x[:, :1], verbose=0)
    model = nn.Linear(2, 1, dtype="float16")
    before = np.asarray(model.kernel[...])
    model.compile(rule(moment_dtype="float32"), "mse").fit(x, x[:, :1] + 1, verbose=0)
    after = np.asarray(model.kernel[...])
    assert after.dtype == np.float16 and np.isfinite(after).all()
    assert after[0] != before[0]


def test_an_eps_is_held_against_python_numbers_too() -> None:
    assert nx.optim.Adam().to_optax().init({"w": 0.0})[0].mu["w"] == 0

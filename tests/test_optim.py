"""Optimisers against formulas in NumPy; the chain of clipping, decay and rate; schedules."""

from __future__ import annotations

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
import optim_reference as ref
from neurenix import nn, optim
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, UnknownNameError
from neurenix._nnx import nnx
from neurenix.optim import schedules
from neurenix.train import load_weights, save_weights
from optim_reference import GRADIENTS, START

pytestmark = pytest.mark.newest


def run(spec, gradients=GRADIENTS, start=START):
    tx = optim.get(spec)
    params = {"w": jnp.asarray(start, jnp.float32)}
    state = tx.init(params)
    step = jax.jit(tx.update)
    for gradient in gradients:
        updates, state = step({"w": jnp.asarray(gradient, jnp.float32)}, state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params["w"])


CASES = {
    "sgd": (optim.SGD(0.1), ref.sgd()),
    "sgd momentum": (optim.SGD(0.1, momentum=0.9), ref.sgd(0.9)),
    "sgd nesterov": (optim.SGD(0.1, momentum=0.9, nesterov=True), ref.sgd(0.9, True)),
    "sgd decay": (optim.SGD(0.1, momentum=0.5, weight_decay=0.1), ref.sgd(0.5, decay=0.1)),
    "adam": (optim.Adam(0.01), ref.adam()),
    "adam l2": (optim.Adam(0.01, weight_decay=0.1), ref.adam(l2=0.1)),
    "adamw": (optim.AdamW(0.01, weight_decay=0.1), ref.adam(decay=0.1)),
    "adam betas": (
        optim.Adam(0.01, betas=(0.5, 0.8), eps=1e-3),
        ref.adam(b1=0.5, b2=0.8, eps=1e-3),
    ),
    "rmsprop": (optim.RMSprop(0.01, alpha=0.9), ref.rmsprop()),
    "rmsprop momentum": (optim.RMSprop(0.01, alpha=0.9, momentum=0.5), ref.rmsprop(0.5)),
    "rmsprop centered": (optim.RMSprop(0.01, alpha=0.9, centered=True), ref.rmsprop(centered=True)),
    "adagrad": (optim.Adagrad(0.1, initial_accumulator_value=0.1), ref.adagrad()),
    "adadelta": (optim.Adadelta(), ref.adadelta()),
    "lion": (optim.Lion(0.01, weight_decay=0.1), ref.lion()),
    "clip value": (optim.SGD(0.1, clip_value=0.3), ref.clipped(value=0.3)),
    "clip norm": (optim.SGD(0.1, clip_norm=0.5), ref.clipped(norm=0.5)),
    "clip both": (optim.SGD(0.1, clip_norm=0.5, clip_value=0.3), ref.clipped(0.5, 0.3)),
    "rmsprop eps": (optim.RMSprop(0.01, alpha=0.9, eps=1e-2), ref.rmsprop(eps=1e-2)),
    "nadam": (optim.NAdam(0.01, (0.9, 0.8)), ref.by_moments(ref.nadam)),
    "radam": (optim.RAdam(0.01, (0.9, 0.8)), ref.by_moments(ref.radam)),
    "lamb": (optim.Lamb(0.01, (0.9, 0.8), weight_decay=0.1), ref.by_moments(ref.lamb)),
    "adamax": (optim.Adamax(0.01, (0.9, 0.8)), ref.adamax()),
    "lars": (optim.Lars(0.1, trust_coefficient=0.02, weight_decay=0.1), ref.lars()),
    "adafactor": (optim.Adafactor(0.05, 0.6, 0.7), ref.adafactor(factored=False)),
    "adafactor factored": (
        optim.Adafactor(0.05, 0.6, 0.7, min_dim_size_to_factor=3),
        ref.adafactor(factored=True),
    ),
    "clipped, then decayed": (
        optim.SGD(0.1, clip_norm=0.5, weight_decay=0.1),
        ref.clipped_then_decayed(),
    ),
}
ALL = [getattr(optim, name) for name in optim.__all__ if name[0].isupper()]
ALL.remove(optim.OptimizerSpec)


@pytest.mark.parametrize("name", CASES)
def test_an_optimiser_agrees_with_its_formula(name):
    spec, expected = CASES[name]
    np.testing.assert_allclose(run(spec), expected, rtol=2e-4, atol=1e-5)


# Those of torch.optim; of LAMB, LARS and Lion those of their papers, of Adafactor optax's.
DEFAULTS = {
    "SGD": (1e-2,),
    "Adam": (1e-3, (0.9, 0.999), 1e-8),
    "AdamW": (1e-3, (0.9, 0.999), 1e-8),
    "NAdam": (2e-3, (0.9, 0.999), 1e-8),
    "RAdam": (1e-3, (0.9, 0.999), 1e-8),
    "Adamax": (2e-3, (0.9, 0.999), 1e-8),
    "Lamb": (1e-3, (0.9, 0.999), 1e-6),
    "Lion": (1e-4, (0.9, 0.99)),
    "Lars": (0.1, 0.9, 1e-3),
    "RMSprop": (1e-2, 0.99, 1e-8),
    "Adagrad": (1e-2, 0.0, 1e-10),
    "Adadelta": (1.0, 0.9, 1e-6),
    "Adafactor": (1e-2, 0.8, 1.0, 128, 1e-30),
}


@pytest.mark.parametrize("make", ALL)
def test_an_optimiser_starts_from_its_published_options(make):
    assert make() == make(*DEFAULTS[make.__name__])


def test_the_eps_of_adagrad_is_added_under_the_root():
    gradient = np.array([0.1, 0.2])
    found = run(optim.Adagrad(1.0, 0.0, 1e-2), [gradient], np.zeros(2))
    np.testing.assert_allclose(found, -gradient / np.sqrt(gradient**2 + 1e-2), rtol=1e-5)


@pytest.mark.parametrize("make", ALL)
def test_names_classes_and_descriptions_are_found(make):
    assert optim.spec(make.__name__) == optim.spec(make) == make()
    assert hash(make()) == hash(make())
    assert isinstance(optim.get(make.__name__.lower()), optax.GradientTransformation)
    assert optim.learning_rate_of(make()) == make().learning_rate


def test_a_schedule_is_followed_step_by_step():
    rates = [0.5, 0.5, 0.1, 0.1, 0.1, 0.1]
    spec = optim.SGD(schedules.PiecewiseConstant((2,), (0.5, 0.1)))
    moved = sum(rate * g for rate, g in zip(rates, GRADIENTS, strict=True))
    np.testing.assert_allclose(run(spec), START - moved, rtol=1e-5, atol=1e-6)


def test_the_rate_can_be_given_from_outside():
    tx = optax.inject_hyperparams(
        lambda learning_rate: optim.SGD(9.0).to_optax(learning_rate=learning_rate)
    )(learning_rate=0.1)
    np.testing.assert_allclose(run(tx), ref.sgd(), rtol=1e-5, atol=1e-6)


def test_decay_can_leave_vectors_alone():
    tx = optim.AdamW(0.1, weight_decay=0.5, decay_mask=optim.matrices_only).to_optax()
    params = {"kernel": jnp.ones((2, 2)), "bias": jnp.ones(2)}
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.05, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0)


def test_slopes_do_not_decay_either():
    params = {"slope": jnp.ones((6, 4)), "kernel": jnp.ones((2, 2))}
    assert optim.matrices_only(params) == {"slope": False, "kernel": True}


def test_a_centered_rmsprop_of_a_steady_gradient_stays_finite():
    ours = optim.RMSprop(1.0, centered=True).to_optax()
    theirs = optax.rmsprop(1.0, 0.99, 1e-8, centered=True, eps_in_sqrt=False)
    steady = jnp.array([0.1, 0.3, 0.7, 1.1, 3.3, 12.7, 100.1, 1e-3])

    def run(tx, gradients):
        def step(state, gradient):
            updates, state = tx.update(gradient, state)
            return state, updates

        return jax.lax.scan(step, tx.init(steady), gradients)

    noisy = steady * jax.random.normal(jax.random.key(0), (50, 8))
    np.testing.assert_array_equal(run(ours, noisy)[1], run(theirs, noisy)[1])
    assert jax.tree.structure(ours.init(steady)[0]) == jax.tree.structure(theirs.init(steady)[0])
    updates = run(ours, jnp.broadcast_to(steady, (3000, 8)))[1]
    assert np.all((updates < 0) & (updates > -3000))  # 1 / √rounding error


@pytest.mark.parametrize("name", ["tiny", "gpt2", "gpt-oss-20b", "deepseek3-671b"])
def test_vectors_of_stacked_layers_do_not_decay_either(name):
    model = nnx.eval_shape(lambda: nx.models.build(name))
    params = nnx.state(model, nnx.Param)
    decaying = {
        ".".join(str(key.key) for key in path if isinstance(key, jax.tree_util.DictKey)): decays
        for path, decays in jax.tree.leaves_with_path(optim.matrices_only(params))
    }
    vector = re.compile(r"bias$|scale$|sinks$")
    assert decaying == {path: not vector.search(path) for path in decaying}


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (lambda params: {"kernel": True}, "in the structure of the parameters.*'bias'"),
        (lambda params: jax.tree.map(jnp.sum, params), "True or False for each parameter"),
    ],
)
def test_a_mask_of_another_structure_is_told_before_a_step(mask, message):
    model = nn.Sequential(nn.Linear(4, 1))
    with pytest.raises(ArgumentError, match=message):
        nx.Optimizer(model, optim.AdamW(decay_mask=mask))
    model.compile(optim.AdamW(decay_mask=mask), "mse")
    with pytest.raises(ArgumentError, match=message):
        model.fit(np.ones((8, 4)), np.ones((8, 1)))


def test_a_mask_may_speak_of_a_whole_layer():
    params = {"body": {"kernel": jnp.ones((2, 2))}, "head": {"kernel": jnp.ones((2, 2))}}

    def mask(params):
        return {"body": False, "head": True}

    tx = optim.AdamW(0.1, weight_decay=0.5, decay_mask=mask).to_optax()
    updates, _ = tx.update(jax.tree.map(jnp.zeros_like, params), tx.init(params), params)
    np.testing.assert_array_equal(updates["body"]["kernel"], 0)
    np.testing.assert_allclose(updates["head"]["kernel"], -0.05, rtol=1e-6)


def test_betas_in_a_list_are_as_good():
    assert optim.Adam(betas=[0.5, 0.9]) == optim.Adam(betas=(0.5, 0.9))
    assert hash(optim.Adam(betas=[0.5, 0.9])) == hash(optim.Adam(betas=(0.5, 0.9)))


def test_decay_of_zero_and_no_clipping_cost_no_state():
    assert len(jax.tree.leaves(optim.SGD(0.1).to_optax().init({"w": jnp.ones(3)}))) == 0


def test_optax_passes_through():
    tx = optax.sgd(0.1)
    assert optim.get(tx) is tx and optim.learning_rate_of(tx) is None


WRONG = {
    "rate below 0": (lambda: optim.SGD(-1.0), ArgumentError, "learning_rate"),
    "rate not a number": (lambda: optim.SGD(float("nan")), ArgumentError, "learning_rate"),
    "rate a word": (lambda: optim.Adam("fast"), ArgumentTypeError, "learning_rate"),
    "beta": (lambda: optim.Adam(betas=(0.9, 1.0)), ArgumentError, "betas"),
    "decay": (lambda: optim.AdamW(weight_decay=-0.1), ArgumentError, "weight_decay"),
    "norm none of": (lambda: optim.SGD(clip_norm=math.inf), ArgumentError, "clip_norm"),
    "rate infinite": (lambda: optim.SGD(math.inf), ArgumentError, "learning_rate.*finite"),
    "rate a pair": (lambda: optim.SGD(jnp.ones(2)), ArgumentTypeError, "learning_rate"),
    "one beta": (lambda: optim.Adam(betas=(0.9,)), ArgumentError, "betas.*two numbers"),
    "beta alone": (lambda: optim.Lion(betas=0.9), ArgumentError, "betas.*two numbers"),
    "alpha": (lambda: optim.RMSprop(alpha=2.0), ArgumentError, "alpha.*below 1"),
    "rho": (lambda: optim.Adadelta(rho=1.0), ArgumentError, "rho.*below 1"),
    "eps of 0": (lambda: optim.Adam(eps=0), ArgumentError, "eps.*above 0"),
    "eps too small": (lambda: optim.RMSprop(eps=1e-50), ArgumentError, "eps.*0.0 in float32"),
    "eps infinite": (lambda: optim.Adagrad(eps=math.inf), ArgumentError, "eps.*finite"),
    "eps none": (lambda: optim.Adam(eps=None), ArgumentTypeError, "eps"),
    "trust": (lambda: optim.Lars(trust_coefficient=0), ArgumentError, "trust_coefficient"),
    "mask no function": (
        lambda: optim.AdamW(decay_mask={"w": True}),
        ArgumentTypeError,
        "decay_mask.*function",
    ),
    "schedule without step": (
        lambda: optim.SGD(lambda: 1e-3),
        ArgumentTypeError,
        "learning_rate.*the step alone",
    ),
    "schedule with if": (
        lambda: optim.SGD(lambda step: 1.0 if step < 3 else 0.1),
        ArgumentError,
        "jnp.where",
    ),
    "schedule of NumPy": (
        lambda: optim.SGD(lambda step: np.cos(step)),
        ArgumentError,
        "jnp instead of np",
    ),
    "schedule of nothing": (
        lambda: optim.SGD(lambda step: None),
        ArgumentTypeError,
        "one number; it returns None",
    ),
    "constant": (lambda: schedules.Constant(-1.0), ArgumentError, "value.*at least 0"),
    "peak": (lambda: schedules.LinearWarmup(math.nan, 3), ArgumentError, "peak"),
    "after": (lambda: schedules.LinearWarmup(1e-3, 3, "fast"), ArgumentTypeError, "after"),
    "after without step": (
        lambda: schedules.LinearWarmup(1e-3, 3, lambda: 1e-3),
        ArgumentTypeError,
        "after",
    ),
    "norm": (lambda: optim.SGD(clip_norm=0), ArgumentError, "clip_norm"),
    "nesterov alone": (lambda: optim.SGD(nesterov=True), ArgumentError, "momentum"),
    "name": (lambda: optim.get("adma"), UnknownNameError, "'adam'"),
    "type": (lambda: optim.get(3), ArgumentTypeError, "optimizer"),
    "steps": (lambda: schedules.CosineDecay(1.0, 0), ArgumentError, "decay_steps"),
    "no warm-up": (lambda: schedules.LinearWarmup(1.0, 0), ArgumentError, "warmup_steps"),
    "factor": (lambda: schedules.ExponentialDecay(1.0, 5, 0.0), ArgumentError, "decay_rate"),
    "power": (lambda: schedules.PolynomialDecay(1.0, 5, power=-1.0), ArgumentError, "power"),
    "share": (lambda: schedules.CosineDecay(1.0, 5, -0.1), ArgumentError, "alpha"),
    "value": (lambda: schedules.PiecewiseConstant((1,), (1.0, -1.0)), ArgumentError, "values"),
    "values": (lambda: schedules.PiecewiseConstant((1, 2), (1.0,)), ArgumentError, "boundaries"),
    "order": (lambda: schedules.PiecewiseConstant((2, 1), (1, 2, 3)), ArgumentError, "increase"),
    "warm-up": (lambda: schedules.WarmupCosine(1.0, 10, 10), ArgumentError, "step 0"),
    "no steps": (lambda: schedules.WarmupCosine(1.0, 10, math.nan), ArgumentError, "decay_steps"),
    "steps a word": (
        lambda: schedules.WarmupCosine(1.0, 10, "20"),
        ArgumentTypeError,
        "decay_steps",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_told(name):
    build, error, text = WRONG[name]
    with pytest.raises(error, match=text):
        build()


SCHEDULES = {
    "constant": (schedules.Constant(0.3), lambda s: 0.3),
    "cosine": (
        schedules.CosineDecay(2.0, 10, 0.1),
        lambda s: 2 * (0.9 * 0.5 * (1 + math.cos(math.pi * min(s, 10) / 10)) + 0.1),
    ),
    "exponential": (schedules.ExponentialDecay(2.0, 5, 0.5), lambda s: 2 * 0.5 ** (s / 5)),
    "staircase": (
        schedules.ExponentialDecay(2.0, 5, 0.5, staircase=True),
        lambda s: 2 * 0.5 ** (s // 5),
    ),
    "piecewise": (
        schedules.PiecewiseConstant((3, 7), (1.0, 0.5, 0.1)),
        lambda s: 1.0 if s < 3 else 0.5 if s < 7 else 0.1,
    ),
    "linear": (schedules.PolynomialDecay(1.0, 8, 0.2), lambda s: 1 - 0.8 * min(s, 8) / 8),
    "square": (
        schedules.PolynomialDecay(1.0, 8, 0.2, 2.0),
        lambda s: 0.2 + 0.8 * (1 - min(s, 8) / 8) ** 2,
    ),
    "warm-up": (schedules.LinearWarmup(2.0, 4), lambda s: 2 * min(s / 4, 1)),
    "warm-up, then a number": (
        schedules.LinearWarmup(2.0, 4, after=0.5),
        lambda s: 2 * s / 4 if s < 4 else 0.5,
    ),
    "warm-up, then": (
        schedules.LinearWarmup(2.0, 4, schedules.PolynomialDecay(2.0, 6)),
        lambda s: 2 * s / 4 if s < 4 else 2 * (1 - min(s - 4, 6) / 6),
    ),
    "warm-up cosine": (
        schedules.WarmupCosine(2.0, 4, 10, 0.5),
        lambda s: 2 * s / 4 if s < 4 else 0.5 + 0.75 * (1 + math.cos(math.pi * min(s - 4, 6) / 6)),
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_agrees_with_its_formula_traced_or_not(name):
    schedule, expected = SCHEDULES[name]
    steps = range(13)
    wanted = [expected(step) for step in steps]
    np.testing.assert_allclose([float(schedule(s)) for s in steps], wanted, rtol=1e-5, atol=1e-6)
    traced = jax.jit(jax.vmap(schedule))(jnp.arange(13))
    np.testing.assert_allclose(traced, wanted, rtol=1e-5, atol=1e-6)
    assert hash(schedule) == hash(dataclasses.replace(schedule))


@pytest.mark.parametrize("part", [0, 0.5], ids=["whole", "fractional"])
def test_a_staircase_steps_at_each_multiple_compiled_or_not(part: float) -> None:
    lengths = np.array([1, 3, 41, 47, 49, 55, 61, 82, 97, 123, 187, 1000, 46875]) + part
    stairs = [schedules.ExponentialDecay(1.0, d, 0.5, staircase=True) for d in lengths.tolist()]
    steps = np.ceil(lengths[:, None] * np.arange(1, 40)).astype(np.int32)
    steps = np.stack([steps - 1, steps])  # the last of a stair and the first of the next

    def rates(steps: jax.Array) -> jax.Array:
        return jnp.stack([stair(steps[:, row]) for row, stair in enumerate(stairs)])

    wanted = 0.5 ** np.floor(steps / lengths[:, None]).swapaxes(0, 1)
    np.testing.assert_allclose(jax.jit(rates)(steps), wanted, rtol=1e-6)
    np.testing.assert_allclose(rates(steps), wanted, rtol=1e-6)


def test_a_compiled_root_ends_at_its_end() -> None:
    lengths = (3, 7, 41, 49, 55, 97, 123, 187)

    def at(part: jax.Array) -> list[jax.Array]:
        return [schedules.PolynomialDecay(1.0, d, 0.1, 0.5)(part * d) for d in lengths]

    ends = jnp.stack(jax.jit(at)(jnp.int32(1)))
    np.testing.assert_allclose(ends, 0.1, rtol=1e-6)


@pytest.mark.parametrize("step", [120, np.uint8(120), np.uint32(120), np.float32(120)])
def test_past_its_end_a_decay_stays_there(step) -> None:
    assert float(schedules.PolynomialDecay(1.0, 100, 0.25)(step)) == 0.25


@pytest.mark.parametrize(
    "schedule",
    [
        schedules.CosineDecay(1.0, 300),
        schedules.PolynomialDecay(1.0, 300),
        schedules.LinearWarmup(1.0, 300, schedules.Constant(0.5)),
        schedules.WarmupCosine(1.0, 300, 400),
        schedules.PiecewiseConstant((300,), (1.0, 0.5)),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.uint32])
def test_a_step_of_few_bits_is_held_against_many_steps(schedule, kind) -> None:
    assert float(schedule(kind(3))) == float(schedule(3))


# --- nx.Optimizer -------------------------------------------------------------------------------


def gradients_of(model):
    return nx.grad(lambda m: jnp.mean(m(jnp.ones((2, 4))) ** 2))(model)


def test_gradients_of_another_model_are_told():
    model, wider = nn.Sequential(nn.Linear(4, 1)), nn.Sequential(nn.Linear(4, 3))
    optimizer = nx.Optimizer(model, "adam")
    with pytest.raises(ShapeError, match=r"2 of 2 differ.*layers.0.bias: \(3,\).*\(1,\) in the"):
        optimizer.update(model, gradients_of(wider))
    deeper = nn.Sequential(nn.Linear(4, 1), nn.Linear(1, 1))
    with pytest.raises(ShapeError, match=r"layers.1.bias: \(1,\).*nothing in the model"):
        optimizer.update(model, gradients_of(deeper))
    assert optimizer.step == 0
    optimizer.update(model, gradients_of(model))
    assert optimizer.step == 1


def test_gradients_before_the_model_are_told():
    model = nn.Sequential(nn.Linear(4, 1))
    optimizer = nx.Optimizer(model, "adam")
    with pytest.raises(ArgumentTypeError, match=r"update\(model, gradients\).*other way round"):
        optimizer.update(gradients_of(model), model)
    with pytest.raises(ArgumentTypeError, match="model is int"):
        optimizer.update(3, gradients_of(model))


def test_an_optimizer_that_was_made_before_freezing_says_so() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    optimizer = nx.Optimizer(model, "adam")
    model.layers[0].freeze()
    gradients = nx.grad(lambda model: jnp.sum(model(jnp.ones((2, 4)))))(model)
    with pytest.raises(nx.ShapeError, match=r"layers.0.*is not trained.*after freezing"):
        optimizer.update(model, gradients)


def test_the_rate_that_was_set_is_a_factor_on_a_schedule_and_is_saved(tmp_path):
    model = nn.Sequential(nn.Linear(4, 1))
    spec = optim.SGD(schedules.PiecewiseConstant((1,), (0.5, 0.1)))
    optimizer = nx.Optimizer(model, spec)
    optimizer.learning_rate = 0.25
    optimizer.update(model, gradients_of(model))
    assert optimizer.learning_rate == pytest.approx(0.05)
    save_weights(optimizer, tmp_path / "optimizer")
    again = nx.Optimizer(model, spec)
    load_weights(again, tmp_path / "optimizer")
    assert (again.step, again.learning_rate) == (1, pytest.approx(0.05))


def test_the_rate_can_be_set_inside_of_a_compiled_function():
    @nx.jit
    def halve(optimizer):
        optimizer.learning_rate = optimizer.learning_rate / 2

    optimizer = nx.Optimizer(nn.Linear(4, 1), optim.SGD(0.5))
    halve(optimizer)
    halve(optimizer)
    assert optimizer.learning_rate == 0.125 and halve.compilations == 1


@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, "fast", None])
def test_what_is_no_rate_cannot_be_set(value):
    optimizer = nx.Optimizer(nn.Linear(4, 1), "sgd")
    with pytest.raises(ArgumentError, match="finite number from 0"):
        optimizer.learning_rate = value
    assert optimizer.learning_rate == 1e-2


def test_a_rate_that_is_hidden_or_0_is_told():
    model = nn.Linear(4, 1)
    with pytest.raises(ArgumentError, match="optax transformation"):
        nx.Optimizer(model, optax.sgd(0.1)).learning_rate = 0.1
    warming = nx.Optimizer(model, optim.SGD(schedules.LinearWarmup(0.1, 4)))
    with pytest.raises(ArgumentError, match="own is 0.0 at step 0"):
        warming.learning_rate = 0.1
    warming.learning_rate = warming.learning_rate
    warming.update(model, gradients_of(model))
    assert warming.learning_rate == pytest.approx(0.025)


@pytest.mark.parametrize("name", ["lr", "learning_rates", "momentum"])
def test_an_attribute_that_would_change_nothing_is_refused(name):
    optimizer = nx.Optimizer(nn.Linear(4, 1), "sgd")
    with pytest.raises(AttributeError, match=f"{name}.*optimizer.learning_rate"):
        setattr(optimizer, name, 0.1)
    with pytest.raises(AttributeError):
        getattr(optimizer, name)

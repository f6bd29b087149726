"""What a compiled function is compiled for beside arrays: compared by value, so compiled once.

An optimizer, a model, a loss or a schedule that is built anew and computes the same takes the
program that is there; one that computes something else never does.
"""

from __future__ import annotations

import enum
import functools
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import neurenix as nx
from neurenix._jit.recompilation import RecompilationWarning
from neurenix._jit.static_keys import exact_key
from neurenix.distribute import Strategy, TPUClusterResolver, compute_average_loss

pytestmark = pytest.mark.cpu8

X = np.random.default_rng(0).normal(size=(16, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)
RATE = 0.1
CONFIG = {"rate": 0.1}


def build() -> Any:
    model = nx.nn.Linear(3, 1)
    model.kernel[...], model.bias[...] = jnp.ones((3, 1)), jnp.zeros(1)
    return model


def train(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    loss, gradients = nx.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
    optimizer.update(model, gradients)
    return loss


def by_hand(rates: list[float]) -> np.ndarray:
    """Return the kernel after plain gradient descent with these rates, in float64."""
    kernel, bias = np.ones((3, 1)), np.zeros(1)
    for rate in rates:
        error = 2 * (X @ kernel + bias - Y) / Y.size
        kernel, bias = kernel - rate * X.T @ error, bias - rate * error.sum(0)
    return kernel


class Halving:
    """A schedule of the user's own, as an object."""

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def __call__(self, step: Any) -> Any:
        return self.rate * 0.5**step


def from_global(rate: float) -> Any:
    global RATE
    RATE = rate
    return optax.sgd(lambda step: RATE + 0 * step)


def from_config(rate: float) -> Any:
    CONFIG["rate"] = rate
    return nx.optim.SGD(lambda step: CONFIG["rate"] + 0 * step)


def masked(rate: float) -> Any:
    return optax.chain(optax.sgd(rate), optax.masked(optax.scale(1.0), nx.optim.matrices_only))


CONSTANT: dict[str, Callable[[float], Any]] = {
    "spec": lambda rate: nx.optim.SGD(rate),
    "optax": lambda rate: optax.sgd(rate),
    "array": lambda rate: optax.sgd(jnp.float32(rate)),
    "numpy": lambda rate: optax.sgd(np.float32(rate)),
    "chain": lambda rate: optax.chain(optax.clip_by_global_norm(1e6), optax.sgd(rate)),
    "injected": lambda rate: optax.inject_hyperparams(optax.sgd)(rate),
    "closure": lambda rate: optax.stateless(lambda g, p: jax.tree.map(lambda g: -rate * g, g)),
    "partial": lambda rate: optax.sgd(functools.partial(lambda rate, step: rate, rate)),
    "schedule": lambda rate: nx.optim.SGD(nx.optim.schedules.Constant(rate)),
    "piecewise": lambda rate: optax.sgd(optax.piecewise_constant_schedule(rate, {50: 0.1})),
    "masked": masked,
    "global": from_global,
    "config": from_config,
}


@pytest.mark.parametrize("name", CONSTANT)
def test_an_optimizer_built_anew_compiles_once_for_each_rate(name: str) -> None:
    step, make = nx.jit(train), CONSTANT[name]
    for rate in (0.1, 0.1, 0.3, 0.1, 0.3):
        model = build()
        optimizer = nx.Optimizer(model, make(rate))
        for _ in range(3):
            step(model, optimizer, X, Y)
        kernel = model.kernel[...]
        np.testing.assert_allclose(kernel, by_hand([rate] * 3), rtol=1e-4, atol=1e-5)
    assert step.compilations == 2


def test_names_and_schedules_of_ones_own_compile_once() -> None:
    for make in (lambda: "adam", lambda: nx.optim.Adam, lambda: nx.optim.AdamW(clip_norm=1.0)):
        step = nx.jit(train)
        for _ in range(3):
            model = build()
            step(model, nx.Optimizer(model, make()), X, Y)
        assert step.compilations == 1
    step = nx.jit(train)
    for rate in (0.1, 0.2, 0.1):
        model = build()
        optimizer = nx.Optimizer(model, optax.sgd(Halving(rate)))
        for _ in range(2):
            step(model, optimizer, X, Y)
        kernel = model.kernel[...]
        np.testing.assert_allclose(kernel, by_hand([rate, rate / 2]), rtol=1e-4, atol=1e-5)
    assert step.compilations == 2


def test_a_model_of_equal_structure_compiles_once() -> None:
    step = nx.jit(lambda model, x: model(x))
    for slope in (0.1, 0.1, 0.2):

        def leaky(x: Any, slope: float = slope) -> Any:
            return jnp.where(x > 0, x, slope * x)

        model = nx.nn.Sequential(build(), leaky, nx.nn.Linear(1, 2))
        inner = model[0](X)
        expected = np.where(inner > 0, inner, slope * inner)
        np.testing.assert_allclose(step(model, X), model[2](expected), rtol=1e-5, atol=1e-6)
    assert step.compilations == 2


def test_a_later_shape_is_compiled_with_the_values_of_the_caller() -> None:
    """What an equal optimizer of before held may have changed since."""
    rates = [np.array(0.1, np.float32), np.array(0.1, np.float32)]
    step = nx.jit(train)
    for rate in rates:
        model = build()
        optimizer = nx.Optimizer(model, optax.sgd(lambda count, rate=rate: jnp.asarray(rate)))
        step(model, optimizer, X, Y)
        rates[0][...] = 9.0
    assert step.compilations == 1
    step(model, optimizer, X[:8], Y[:8])
    assert np.abs(model.kernel[...]).max() < 3


def test_what_cannot_be_compared_compiles_anew() -> None:
    step, drawn = nx.jit(train), iter([0.1, 0.2, 0.3])
    for rate in (0.1, 0.2, 0.3):
        model = build()
        optimizer = nx.Optimizer(model, optax.sgd(lambda count, drawn=drawn: next(drawn)))
        step(model, optimizer, X, Y)
        np.testing.assert_allclose(model.kernel[...], by_hand([rate]), rtol=1e-4, atol=1e-5)
    assert step.compilations == 3


def scaled(factor: Any) -> Callable[[Any], Any]:
    return lambda x: factor * x


def counted() -> Callable[[Any], Any]:
    return lambda x: (TRACES.append(1), x)[1]


def with_property(factor: int) -> Any:
    class Scaled:
        @property
        def factor(self) -> int:
            return factor

    return Scaled.factor


TRACES: list[int] = []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (scaled(1), scaled(1.0)),
        (scaled(0.0), scaled(-0.0)),
        (scaled(True), scaled(1)),
        (scaled(np.float32(1)), scaled(np.float64(1))),
        (scaled(np.ones(2)), scaled(np.zeros(2))),
        (scaled([1, 2]), scaled([2, 1])),
        (scaled({"a": 1}), scaled({"a": 2})),
        (scaled(scaled(1)), scaled(scaled(2))),
        (functools.partial(scaled, 1), functools.partial(scaled, 2)),
        (Halving(0.1), Halving(0.2)),
        (Halving(0.1).__call__, Halving(0.2).__call__),
        (nx.losses.Huber(delta=1.0), nx.losses.Huber(delta=2.0)),
        (with_property(1), with_property(2)),
        (scaled(range(3)), scaled(range(4))),
        (lambda x: x, lambda x: x + 1),
    ],
)
def test_keys_differ_where_what_is_computed_may(one: Any, other: Any) -> None:
    assert exact_key(one) is not None and exact_key(other) is not None
    assert exact_key(one) == exact_key(one) != exact_key(other)


def test_what_cannot_be_compared_has_no_exact_key() -> None:
    for value in (iter([1]), build(), object(), scaled(iter([1])), scaled(build())):
        assert exact_key(value) is None


def test_a_list_that_is_only_appended_to_is_not_read() -> None:
    before = exact_key(counted())
    counted()(1)
    assert before is not None and exact_key(counted()) == before


class Mode(enum.Enum):
    SUM = 1
    MEAN = 2


@dataclass
class Settings:
    factor: float
    activation: Any = None


@pytest.fixture(params=["jit", "run"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    strategy = Strategy(["tpu:0"])
    jitted: dict[Any, Any] = {}

    def run(function: Any, *args: Any, **named: Any) -> Any:
        if request.param == "run":
            return strategy.run(function, args, named)[0]
        return jitted.setdefault(function, nx.jit(function))(*args, **named)

    return run


@pytest.mark.filterwarnings("ignore::neurenix._jit.recompilation.RecompilationWarning")
def test_arguments_that_are_no_arrays_are_part_of_the_program(call: Callable[..., Any]) -> None:
    traces = []

    def step(x: Any, how: Any, settings: Any = None, *, more: Any = None) -> Any:
        traces.append(how)
        if settings is not None:
            x = settings.factor * settings.activation(x)
        if isinstance(how, Mode):
            return x.sum() if how is Mode.SUM else x.mean()
        if isinstance(how, str):
            return getattr(jnp, how)(x)
        return how(x) if more is None else how(x) * more["by"](more["x"])

    for expected, how in (
        (X.sum(), Mode.SUM), (X.mean(), Mode.MEAN), (X.max(), "max"), (X.min(), "min"),
        (X.sum(), jnp.sum), (X.std(), jnp.std), (X.sum(), "sum"),
    ):  # fmt: skip
        np.testing.assert_allclose(call(step, X, how), expected, rtol=1e-5, atol=1e-6)
    for factor in (2.0, 3.0):
        out = call(step, X, "sum", settings=Settings(factor, jnp.abs))
        np.testing.assert_allclose(out, factor * np.abs(X).sum(), rtol=1e-5)
    settings = Settings(1.0, jnp.abs)
    call(step, X, "sum", settings)
    settings.factor = 5.0
    out = call(step, X, "sum", settings)
    np.testing.assert_allclose(out, 5 * np.abs(X).sum(), rtol=1e-5)
    before = len(traces)
    for power in (2, 3, 2, 3):
        more = {"x": np.float32(2), "by": lambda x, power=power: x**power, "name": None}
        out = call(step, X, lambda x: x.sum(), more=more)
        np.testing.assert_allclose(out, X.sum() * 2**power, rtol=1e-5, atol=1e-5)
    assert len(traces) - before == 2


LOSSES = [
    nx.losses.MeanSquaredError(reduction="none"),
    lambda y, p: ((y - p) ** 2).mean(-1),
    functools.partial(lambda power, y, p: (jnp.abs(y - p) ** power).mean(-1), 2),
    lambda y, p: optax.squared_error(p, y).mean(-1),
]


@pytest.mark.parametrize("loss_fn", LOSSES)
@pytest.mark.parametrize("by_name", [False, True])
def test_a_replicated_step_takes_its_loss_and_its_metric(loss_fn: Any, by_name: bool) -> None:
    def train_step(x: Any, y: Any, model: Any, optimizer: Any, loss_fn: Any, metric: Any) -> Any:
        def loss(model: Any) -> Any:
            losses = loss_fn(y, model(x))
            return compute_average_loss(losses.reshape(len(x), -1).mean(-1))

        value, gradients = nx.value_and_grad(loss)(model)
        metric.update(y, model(x))
        optimizer.update(model, gradients)
        return value

    strategy = nx.distribute.TPUStrategy()
    model = build()
    optimizer, metric = nx.Optimizer(model, nx.optim.SGD(0.1)), nx.metrics.get("mse")
    for _ in range(3):
        x, y = next(iter(strategy.distribute([(X, Y)])))
        args, rest = (x, y, model, optimizer), {"loss_fn": loss_fn, "metric": metric}
        if not by_name:
            args, rest = (*args, *rest.values()), {}
        out = strategy.run(train_step, args=args, kwargs=rest)
    assert len(out) == 8
    np.testing.assert_allclose(model.kernel[...], by_hand([0.1] * 3), rtol=1e-4, atol=1e-5)


def test_a_function_that_holds_a_module_or_arrays_is_no_argument(call: Callable[..., Any]) -> None:
    model = build()

    @dataclass
    class Batch:
        x: Any

    class Holder:
        def __init__(self) -> None:
            self.model = model

        def __call__(self, x: Any) -> Any:
            return self.model(x)

    def apply(x: Any, function: Any) -> Any:
        return function(x)

    with pytest.raises(nx.ArgumentError, match=r"uses model \(Linear\) and is not given it"):
        call(apply, X, lambda x: model(x))
    with pytest.raises(nx.ArgumentTypeError, match="make Holder a subclass of nn.Module"):
        call(apply, X, Holder())
    with pytest.raises(nx.ArgumentTypeError, match="function is of type Batch"):
        call(apply, X, Batch(X))


def test_the_loss_is_given_to_many_steps_in_one() -> None:
    def step(model: Any, optimizer: Any, loss_fn: Any, batch: Any) -> Any:
        x, y = batch
        loss, gradients = nx.value_and_grad(lambda model: loss_fn(y, model(x)))(model)
        optimizer.update(model, gradients)
        return loss

    model = build()
    optimizer = nx.Optimizer(model, nx.optim.SGD(0.1))
    many = nx.multi_step(step, steps=3)
    losses = many(model, optimizer, nx.losses.get("mse"), iter([(X, Y)] * 3))
    assert losses.shape == (3,)
    np.testing.assert_allclose(model.kernel[...], by_hand([0.1] * 3), rtol=1e-4, atol=1e-5)


def test_the_warning_names_the_argument_and_the_users_line() -> None:
    step = nx.jit(train)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecompilationWarning)
        for number in range(1, 6):
            model = build()
            optimizer = nx.Optimizer(model, nx.optim.SGD(0.1 * number))
            step(model, optimizer, X, Y)
    (warning,) = [one for one in caught if one.category is RecompilationWarning]
    assert warning.filename == __file__
    assert Path(__file__).read_text().splitlines()[warning.lineno - 1].strip().startswith("step(")
    text = str(warning.message)
    assert f"{__file__}:{warning.lineno}" in text
    assert "['optimizer']" in text and "BaseLearningRate(0.4) → BaseLearningRate(0.5)" in text


def test_the_warning_of_fit_names_the_users_line() -> None:
    trainer = nx.Trainer(build(), optimizer="sgd", loss="mse")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RecompilationWarning)
        for size in range(1, 6):
            trainer.fit(X[:size], Y[:size], batch_size=size, verbose=0)
    (warning,) = [one for one in caught if one.category is RecompilationWarning]
    assert warning.filename == __file__ and f"{__file__}:{warning.lineno}" in str(warning.message)


def test_a_device_that_is_not_here_is_both_kinds_of_error() -> None:
    for error in (RuntimeError, ValueError, nx.DeviceError):
        with pytest.raises(error):
            TPUClusterResolver(tpu="grpc://10.0.0.2:8470")
        with pytest.raises(error):
            Strategy(["tpu:99"])
        with pytest.raises(error), nx.device("tpu:99"):
            pass
        with pytest.raises(error):
            nx.to(nx.ones(2), "tpu:99")


PROGRAM = """
import neurenix as nx
from neurenix.distribute import OneDeviceStrategy, TPUClusterResolver, TPUStrategy

chosen = []
for error in (ValueError, RuntimeError):
    for make in (
        lambda: TPUStrategy(TPUClusterResolver(tpu="")),
        lambda: TPUStrategy(),
        lambda: TPUStrategy(TPUClusterResolver(tpu="local")),
        lambda: nx.Device("tpu:0").jax_device,
    ):
        try:
            strategy = make()
        except error as caught:
            assert isinstance(caught, nx.DeviceNotFoundError) and "simulate" in str(caught)
            strategy = OneDeviceStrategy()
        chosen.append(type(strategy).__name__)
assert nx.devices("tpu") == [] and not nx.Device("tpu:0").is_available()
print(*chosen)
"""


@pytest.mark.multiprocess
def test_without_a_tpu_a_program_goes_on_after_its_error() -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NEURENIX", "TPU"))}
    environment |= {"JAX_PLATFORMS": "cpu"}
    environment.pop("XLA_FLAGS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["OneDeviceStrategy"] * 8

"""``nx.jit``, ``nx.multi_step`` and ``nx.Optimizer``: loops of one's own."""

from __future__ import annotations

import copy
import gc
import signal
import time
import warnings
import weakref
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix._jit.flat_modules import Binding
from neurenix._jit.recompilation import RecompilationWarning
from train_helpers import MLP, Noisy, assert_same_weights, classification, hand_written

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

X, Y = classification(64)


def step(model: Any, optimizer: Any, loss_metric: Any, batch: Any) -> Any:
    def loss_fn(model: Any) -> Any:
        logits = model(batch[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    loss, gradients = nx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    loss_metric.update(loss)
    return loss


def parts(kind: Any = MLP) -> tuple[Any, Any, Any]:
    model = kind()
    return model, nx.Optimizer(model, optax.adam(1e-2)), nx.metrics.Mean()


def batches(size: int = 16) -> list[Any]:
    return [(X[i : i + size], Y[i : i + size]) for i in range(0, 64, size)]


def test_a_compiled_loop_gives_the_weights_of_a_hand_written_one() -> None:
    model, optimizer, metric = parts()
    weighted = [(x, y, np.ones(len(x), np.float32)) for x, y in batches()]
    expected = hand_written(model, optax.adam(1e-2), weighted)
    compiled = nx.jit(step)
    losses = [float(compiled(model, optimizer, metric, batch)) for batch in batches()]
    assert_same_weights(model, expected, rtol=2e-4, atol=2e-6)
    assert compiled.compilations == 1
    assert optimizer.step == 4 and isinstance(optimizer.step, int)
    np.testing.assert_allclose(float(metric.result()), np.mean(losses), rtol=1e-6)


def test_every_kind_of_state_is_carried_as_nnx_jit_carries_it() -> None:
    ours, theirs = parts(Noisy), parts(Noisy)
    a, b = nx.jit(step), nnx.jit(step)
    for batch in batches():
        assert float(a(*ours, batch)) == pytest.approx(float(b(*theirs, batch)), rel=1e-6)
    assert_same_weights(ours[0], theirs[0], rtol=1e-6, atol=1e-7)
    mine, other = (m.dropout.rngs.count.get_value() for m in (ours[0], theirs[0]))
    assert int(mine) == int(other) == 4


def test_modes_compile_once_each_and_are_followed() -> None:
    model = Noisy()
    calls = []

    @nx.jit
    def forward(model: Any, x: Any) -> Any:
        calls.append(1)
        return model(x)

    trained = forward(model, X)
    model.eval()
    evaluated = forward(model, X)
    assert not np.allclose(trained, evaluated)
    np.testing.assert_allclose(evaluated, model(X), rtol=1e-5, atol=1e-6)
    model.train()
    forward(model, X)
    assert len(calls) == forward.compilations == 2


def test_changes_from_outside_are_seen() -> None:
    model = MLP()
    forward = nx.jit(lambda model, x: model(x))
    forward(model, X)
    model.layers[1].kernel.set_value(jnp.zeros((8, 3)))
    np.testing.assert_allclose(forward(model, X), 0, atol=1e-6)
    model.layers[1] = nnx.Linear(8, 2, rngs=nnx.Rngs(1))
    assert forward(model, X).shape == (64, 2)
    model.layers[1].bias = nnx.Param(jnp.full((2,), 5.0))
    np.testing.assert_allclose(forward(model, X), model(X), rtol=1e-5, atol=1e-6)


def test_tied_weights_stay_tied() -> None:
    class Tied(nnx.Module):
        def __init__(self) -> None:
            self.a = nnx.Linear(6, 6, rngs=nnx.Rngs(0))
            self.b = self.a

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.b(self.a(x))

    model = Tied()
    optimizer, metric = nx.Optimizer(model, optax.sgd(0.1)), nx.metrics.Mean()
    before = np.array(model.a.kernel[...])
    nx.jit(step)(model, optimizer, metric, (X, Y))
    assert model.a.kernel is model.b.kernel
    assert not np.allclose(before, model.a.kernel[...])


def test_old_buffers_are_deleted_unless_asked_otherwise() -> None:
    for donate in (True, False):
        model, optimizer, metric = parts()
        compiled = nx.jit(step, donate=donate)
        compiled(model, optimizer, metric, batches()[0])
        old = jax.tree.leaves(nnx.state((model, optimizer)))
        compiled(model, optimizer, metric, batches()[1])
        assert {leaf.is_deleted() for leaf in old} == {donate}


@pytest.mark.parametrize("use", [
    lambda module, x: nx.jit(lambda module, x: module(x))(module, x),
    lambda module, x: nx.distribute.TPUStrategy().run(lambda m, x: m(x), args=(module, x)),
    lambda module, x: nx.Trainer(module).predict(x),
], ids=["jit", "run", "predict"])  # fmt: skip
def test_a_clone_whose_arrays_were_given_away_is_told(use: Any) -> None:
    model, optimizer, metric = parts()
    clone, copied = nnx.clone(model), copy.deepcopy(model)
    x = X[:16]
    before = np.asarray(model(x))
    nx.jit(step)(model, optimizer, metric, batches()[0])
    with pytest.raises(nx.ArgumentError, match=r"deepcopy.*before the step"):
        use(clone, x)
    np.testing.assert_allclose(np.asarray(copied(x)), before)


def test_a_module_from_outside_of_a_trace_is_not_given_tracers() -> None:
    model, optimizer, metric = parts()
    compiled = nx.jit(step)
    with pytest.raises(nx.ArgumentError, match="changes .* of a module.*would be lost"):
        jax.jit(lambda x: compiled(model, optimizer, metric, (x, Y[:16])))(X[:16])
    assert np.isfinite(model(X[:16])).all()
    outer = nx.jit(
        lambda model, optimizer, metric, batch: compiled(model, optimizer, metric, batch)
    )
    before = np.asarray(model(X[:16]))
    outer(model, optimizer, metric, batches()[0])
    assert not np.allclose(np.asarray(model(X[:16])), before)


@pytest.mark.parametrize("around", [
    lambda f, m, x: jax.grad(lambda v: f(m, v).sum())(x),
    lambda f, m, x: nx.grad(lambda m: f(m, x).sum())(m),
    lambda f, m, x: jax.vmap(lambda v: f(m, v[None]))(x),
    lambda f, m, x: jax.eval_shape(lambda v: f(m, v), x),
    lambda f, m, x: jax.lax.scan(lambda c, v: (c, f(m, v[None])), 0, x),
], ids=["grad", "nx.grad", "vmap", "eval_shape", "scan"])  # fmt: skip
def test_a_compiled_function_inside_of_a_transformation_leaves_its_module_alive(
    around: Any,
) -> None:
    model = nx.nn.Sequential(nx.nn.Linear(6, 4), nx.nn.BatchNorm(4)).eval()
    forward = nx.jit(lambda model, x: model(x))
    x = X[:16]
    before = np.asarray(forward(model, x))
    around(forward, model, x)
    np.testing.assert_allclose(np.asarray(model(x)), before, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(forward(model, x)), before, rtol=1e-5, atol=1e-6)


def test_a_gradient_through_a_compiled_function_is_that_of_the_function() -> None:
    model = nx.nn.Sequential(nx.nn.Linear(6, 4), nx.nn.BatchNorm(4)).eval()
    x = X[:16]
    expected = jax.grad(lambda v: jnp.square(model(v)).sum())(x)
    compiled = nx.jit(lambda model, x: model(x))
    found = jax.grad(lambda v: jnp.square(compiled(model, v)).sum())(x)
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ask", [
    lambda y: float(y.sum()), lambda y: np.asarray(y), lambda y: y[y > 0],
    lambda y: y if y.sum() > 0 else -y, lambda y: range(y.argmax()),
], ids=["float", "numpy", "mask", "if", "range"])  # fmt: skip
@pytest.mark.parametrize("run", [False, True])
def test_asking_for_numbers_while_compiling_names_the_line(ask: Any, run: bool) -> None:
    def wants_numbers(model: Any, x: Any) -> Any:
        return ask(model(x))

    call: Any = nx.jit(wants_numbers)
    if run:
        strategy = nx.distribute.TPUStrategy()
        call = lambda *args: strategy.run(wants_numbers, args=args)  # noqa: E731
    with pytest.raises(nx.ArgumentTypeError) as raised:
        call(MLP(), X)
    assert "wants_numbers needs the values of an array" in str(raised.value)
    assert "test_train_loops.py" in str(raised.value) and "jnp.where" in str(raised.value)


def test_a_model_is_not_moved_to_where_a_batch_is() -> None:
    model = nx.nn.Linear(6, 2).to("tpu:2")
    with pytest.raises(nx.DeviceError, match="model on tpu:2, x on tpu:1"):
        nx.jit(lambda model, x: model(x))(model, nx.to(X, "tpu:1"))
    assert str(nx.device_of(model.kernel[...])) == "tpu:2"


def test_arguments_that_lie_apart_are_told() -> None:
    strategy = nx.distribute.TPUStrategy()
    with strategy.scope():
        model = MLP()
        forward = nx.jit(lambda model, x: model(x))
        forward(model, X)
        with pytest.raises(nx.DeviceError, match="model on 8 devices, x on tpu:1"):
            forward(model, nx.to(X, "tpu:1"))
        forward(model, nx.Tensor(X))


def test_structure_may_not_change_inside() -> None:
    def grow(model: Any) -> None:
        model.extra = nnx.Param(jnp.zeros(3))

    with pytest.raises(nx.RecompilationError, match="grow changes the structure"):
        nx.jit(grow)(MLP())


def test_a_shape_that_changes_at_every_call_is_reported() -> None:
    forward = nx.jit(lambda model, x: model(x))
    model = MLP()
    with pytest.warns(RecompilationWarning, match=r"changed 4 times.*float32\[5,6\]"):
        for count in range(1, 7):
            forward(model, X[:count])


def test_many_calls_do_not_warn_or_recompile() -> None:
    model, optimizer, metric = parts()
    compiled = nx.jit(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            for batch in batches():
                compiled(model, optimizer, metric, batch)
    assert compiled.compilations == 1


@pytest.mark.parametrize("kind", [MLP, Noisy])
def test_many_steps_in_one_call_are_the_same_steps(kind: Any) -> None:
    single, many = parts(kind), parts(kind)
    compiled = nx.jit(step)
    losses = [compiled(*single, batch) for batch in batches()]
    together = nx.multi_step(compiled, steps=4)(*many, iter(batches()))
    np.testing.assert_allclose(together, np.array(losses), rtol=1e-5)
    assert_same_weights(single[0], many[0], rtol=1e-5, atol=1e-6)
    assert many[1].step == 4


def test_many_steps_is_one_scan_of_one_trace() -> None:
    traces = []

    def counted(*args: Any) -> Any:
        traces.append(1)
        return step(*args)

    loop = nx.multi_step(counted, steps=50)
    model, optimizer, metric = parts()
    data = iter(nx.data.Dataset.from_arrays(X, Y).repeat().batch(16))
    for _ in range(3):
        loop(model, optimizer, metric, data)
    assert len(traces) == loop.compilations == 1 and optimizer.step == 150


def test_many_steps_say_what_they_need() -> None:
    model, optimizer, metric = parts()
    with pytest.raises(nx.ArgumentTypeError, match="iterator"):
        nx.multi_step(step, steps=2)(model, optimizer, metric, batches())
    with pytest.raises(nx.DataError, match="ended.*4"):
        nx.multi_step(step, steps=9)(model, optimizer, metric, iter(batches()))
    for steps in (0, True, 2.0):
        with pytest.raises(nx.ArgumentError, match="steps must be a whole number from 1"):
            nx.multi_step(step, steps=steps)
    nx.multi_step(step, steps=np.int64(2))(model, optimizer, metric, iter(batches()))
    assert optimizer.step == 2


class Sum(nx.nn.Module):
    def __init__(self, value: Any) -> None:
        self.value = nnx.Param(value)


def test_a_weakly_typed_variable_costs_no_second_compile() -> None:
    module = Sum(jnp.asarray(2.0))
    assert module.value[...].weak_type

    @nx.jit
    def halve(module: Any, x: Any) -> None:
        module.value[...] = module.value[...] * 0.5 + x.sum()

    for _ in range(2):
        halve(module, X)
    assert halve.compilations == 1


def test_a_variable_whose_dtype_a_step_changes_is_told() -> None:
    def add(module: Any, x: Any) -> None:
        module.value.set_value(module.value.get_value() + x.sum())

    with pytest.raises(nx.RecompilationError, match="dtype from bfloat16 to float32"):
        nx.multi_step(add, steps=2)(Sum(jnp.zeros((), jnp.bfloat16)), iter([X, X]))


def test_replicas_in_global_view() -> None:
    strategy = nx.distribute.TPUStrategy()
    single, spread = parts(), parts()
    data = nx.data.Dataset.from_arrays(X, Y).batch(16)
    compiled_a, compiled_b = nx.jit(step), nx.jit(step)
    for a, b in zip(data, strategy.distribute(data), strict=True):
        assert len(b[0].sharding.device_set) == 8
        compiled_a(*single, a)
        compiled_b(*spread, b)
    assert compiled_b.compilations == 1
    assert spread[0].layers[0].kernel.get_value().sharding.is_fully_replicated
    assert_same_weights(single[0], spread[0], rtol=1e-4, atol=1e-6)


def test_a_batch_that_does_not_divide_is_an_error_in_a_custom_loop() -> None:
    data = nx.data.Dataset.from_arrays(X, Y).batch(12)
    with pytest.raises(nx.ShapeError, match="12 examples.*8 replicas"):
        next(iter(nx.distribute.TPUStrategy().distribute(data)))


def test_optimizer_refuses_what_is_no_module() -> None:
    with pytest.raises(nx.ArgumentTypeError, match="order"):
        nx.Optimizer(optax.adam(1e-3), MLP())


def test_variables_that_share_an_array_are_given_away_once() -> None:
    online, target = MLP(), MLP()
    optimizer = nx.Optimizer(online, optax.sgd(0.1))

    def follow(online: Any, target: Any, optimizer: Any, x: Any) -> None:
        def distance(online: Any) -> Any:
            return ((online(x) - target(x) - 1.0) ** 2).mean()

        optimizer.update(online, nx.grad(distance)(online))

    for run in (
        nx.jit(follow),
        lambda *args: nx.distribute.TPUStrategy().run(follow, args=args),
    ):
        for _ in range(2):
            run(online, target, optimizer, X)
            nnx.update(target, nnx.state(online))
            assert_same_weights(online, target)
    assert optimizer.step == 4


def test_modules_may_be_named_and_may_not_hide() -> None:
    model, optimizer, metric = parts()
    compiled = nx.jit(step)
    compiled(model, optimizer=optimizer, loss_metric=metric, batch=batches()[0])
    assert optimizer.step == 1
    with pytest.raises(nx.ArgumentTypeError, match="argument of its own"):
        nx.jit(lambda pair, x: pair[0](x))((model, optimizer), X)
    with pytest.raises(nx.ArgumentTypeError, match="argument of its own"):
        nx.jit(lambda x, parts: parts["model"](x))(X, {"model": model})


def test_the_number_of_modules_may_change() -> None:
    a, b = MLP(seed=0), MLP(seed=1)
    total = nx.jit(lambda *args: sum(module(args[-1]) for module in args[:-1]))
    one = total(a, X)
    np.testing.assert_allclose(total(a, b, X), one + total(b, X), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total(a, X), one, rtol=1e-6)


def state_in_a_dict() -> optax.GradientTransformation:
    def init(parameters: Any) -> Any:
        return {"trace": jax.tree.map(jnp.zeros_like, parameters), "pair": (jnp.zeros(3), [])}

    def update(gradients: Any, state: Any, parameters: Any = None) -> Any:
        return gradients, {**state, "trace": gradients}

    return optax.GradientTransformation(init, update)


@pytest.mark.parametrize(
    ("make", "run"), [(lambda: optax.adam(1e-2), "jit"), (state_in_a_dict, "strategy")]
)
def test_a_model_that_outlives_its_optimizer_does_not_keep_the_moments(make: Any, run: str) -> None:
    model, _, metric = parts()
    strategy = nx.distribute.TPUStrategy()
    compiled = nx.jit(step)
    for _ in range(2):
        optimizer = nx.Optimizer(model, make())
        arguments = (model, optimizer, metric, batches()[0])
        if run == "jit":
            compiled(*arguments)
        else:
            strategy.run(step, args=arguments)
        kept = [weakref.ref(leaf) for leaf in jax.tree.leaves(nnx.as_pure(nnx.state(optimizer)))]
        assert all(array() is not None for array in kept)
        del optimizer, arguments
        gc.collect()
        assert [array for array in kept if array() is not None] == []


def test_the_memory_of_modules_that_are_gone_is_used_by_others() -> None:
    a, total = MLP(seed=0), nx.jit(lambda a, b, x: a(x) + b(x))
    for seed in range(20):  # Python gives a new object the identity of one that is gone
        b = MLP(seed=seed)
        np.testing.assert_allclose(total(a, b, X), a(X) + b(X), rtol=1e-5, atol=1e-6)


# Python reports and drops an exception that is raised in a callback of its garbage collector (JAX
# has one); the next signal is what stops the loop.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["jit", "run", "fit"])
def test_ctrl_c_at_any_moment_loses_no_weights(kind: str) -> None:
    strategy = nx.distribute.TPUStrategy()
    model, optimizer, metric = parts()
    trainer = nx.Trainer(model, loss="sparse_categorical_crossentropy")
    compiled = nx.jit(step)
    loops: dict[str, Any] = {
        "jit": lambda: compiled(model, optimizer, metric, batches()[0]),
        "run": lambda: strategy.run(step, args=(model, optimizer, metric, batches()[0])),
        "fit": lambda: trainer.fit(X, Y, epochs=10),
    }
    loops[kind]()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        for attempt in range(12):
            # Again and again: Python drops an exception that is raised in a weak reference's
            # callback, NumPy reports one inside a dtype's conversion as a SystemError, and jaxlib
            # one inside the comparison of a cache's keys as a ValueError that quotes it.
            signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.003 * attempt, 0.5)
            until = time.monotonic() + 60
            with pytest.raises((KeyboardInterrupt, SystemError, ValueError)) as caught:
                while time.monotonic() < until:
                    loops[kind]()
            signal.setitimer(signal.ITIMER_REAL, 0)
            quoted = str(caught.value).rstrip(": \n").endswith("KeyboardInterrupt")
            assert quoted or KeyboardInterrupt in (caught.type, type(caught.value.__cause__))
            assert np.isfinite(np.asarray(model(X))).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", ["jit", "run"])
def test_ctrl_c_between_a_call_and_its_writing_loses_no_weights(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Python looks for signals when a function is entered: a moment of a hundred nanoseconds."""
    model, optimizer, metric = parts()
    arguments = (model, optimizer, metric, batches()[0])
    call = nx.jit(step)
    if kind == "run":
        strategy = nx.distribute.TPUStrategy()
        call = lambda *given: strategy.run(step, args=given)  # noqa: E731
    call(*arguments)
    before = np.asarray(model(X))
    write, entered = Binding.write, []

    def interrupted(self: Binding, leaves: Any) -> None:
        entered.append(self)
        if len(entered) == 1:
            raise KeyboardInterrupt
        write(self, leaves)

    monkeypatch.setattr(Binding, "write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call(*arguments)
    assert len(entered) == 2
    after = np.asarray(model(X))
    assert np.isfinite(after).all() and (after != before).any()


def test_a_warning_made_an_error_loses_no_weights() -> None:
    model = MLP()
    forward = nx.jit(lambda model, x: model(x))
    strategy = nx.distribute.TPUStrategy()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompilationWarning)
        with pytest.raises(RecompilationWarning):
            for count in range(1, 9):
                forward(model, X[:count])
        with pytest.raises(RecompilationWarning):
            for count in range(1, 9):
                strategy.run(forward_of, args=(model, X[:count]))
    assert np.isfinite(np.asarray(model(X))).all()


def forward_of(model: Any, x: Any) -> Any:
    return model(x)

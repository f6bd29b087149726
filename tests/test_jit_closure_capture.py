"""What ``nx.jit``, ``nx.multi_step`` and ``strategy.run`` take, refuse, and call by its name."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix._jit import hooks
from neurenix._jit.recompilation import RecompilationWarning
from train_helpers import MLP, classification

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

X, Y = classification(64)


class Encoder(nnx.Module):
    width = 8

    def __init__(self) -> None:
        self.inner = MLP()
        self.calls = nnx.Variable(jnp.int32(0))
        self.depth = 2

    def __call__(self, x: Any) -> Any:
        self.calls[...] += 1
        return self.inner(x)

    def encode(self, x: Any, *, mode: str = "plain") -> Any:
        self.calls[...] += 1
        return self.inner(x) if mode == "plain" else -self.inner(x)

    @nx.jit
    def compiled(self, x: Any) -> Any:
        return self(x)


def scaled(model: Any, x: Any, k: float, other: Any = None) -> Any:
    return model(x) * k + (0 if other is None else other(x))


MODEL: Any = None  # made by a test, when the backend has been chosen
STATE: dict[str, Any] = {"rate": 0.5}
SPACE: Any = SimpleNamespace(rate=0.5)


@pytest.fixture(autouse=True)
def modules_outside() -> None:
    """Make the module that functions of this file find outside of themselves."""
    global MODEL
    MODEL = STATE["model"] = SPACE.model = Encoder()


def shift(model: Any) -> None:
    for variable in jax.tree.leaves(nnx.state(model, nnx.Param), is_leaf=is_variable):
        variable.set_value(variable.get_value() + 0.25)


def is_variable(leaf: Any) -> bool:
    return isinstance(leaf, nnx.Variable)


@pytest.fixture(params=["jit", "run"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return ``call(function, *args)``, compiled in one of the two ways."""
    if request.param == "jit":
        return lambda function, *args: nx.jit(function)(*args)
    strategy = nx.distribute.TPUStrategy()
    return lambda function, *args: jax.tree.map(
        lambda value: value[0],
        strategy.run(function, args=args),
        is_leaf=lambda value: isinstance(value, nx.distribute.PerReplica),
    )


FORMS: dict[str, Callable[[Any], Any]] = {
    "module": lambda model: model,
    "method": lambda model: model.encode,
    "partial": lambda model: functools.partial(scaled, model, k=1.0),
    "partial by name": lambda model: functools.partial(scaled, model=model, k=1.0, other=None),
    "partial of a method": lambda model: functools.partial(model.encode, mode="plain"),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", ["jit", "run"])
def test_a_module_that_the_function_holds_is_an_argument(form: str, how: str) -> None:
    model = Encoder()
    held = FORMS[form](model)
    names = {"x": X} if form == "partial by name" else {}
    args = () if names else (X,)
    if how == "jit":
        compiled = nx.jit(held)
        forward = functools.partial(compiled, *args, **names)
    else:
        strategy = nx.distribute.TPUStrategy()

        def forward() -> Any:
            return strategy.run(held, args=args, kwargs=names)[0]

    before = forward()
    shift(model)
    after = forward()
    assert not np.allclose(before, after)
    assert int(model.calls[...]) == 2
    np.testing.assert_allclose(after, model(X), rtol=1e-5, atol=1e-5)
    if how == "jit":
        assert compiled.compilations == 1


def test_several_modules_of_a_partial_keep_their_places() -> None:
    a, b = MLP(seed=0), MLP(seed=1)
    compiled = nx.jit(functools.partial(scaled, a, X, other=b))
    np.testing.assert_allclose(compiled(2.0), 2 * a(X) + b(X), rtol=1e-5, atol=1e-6)
    shift(b)
    np.testing.assert_allclose(compiled(2.0), 2 * a(X) + b(X), rtol=1e-5, atol=1e-6)
    assert compiled.compilations == 1


def test_a_method_may_be_compiled_in_its_class() -> None:
    model = Encoder()
    before = model.compiled(X)
    shift(model)
    np.testing.assert_allclose(model.compiled(X), model(X), rtol=1e-5, atol=1e-5)
    assert not np.allclose(before, model.compiled(X))
    assert Encoder.compiled.compilations >= 1
    together = nx.multi_step(model.compiled, steps=2)(iter([X, X]))
    np.testing.assert_allclose(together[1], model(X), rtol=1e-5, atol=1e-5)


def test_many_steps_of_a_bound_function() -> None:
    model = Encoder()
    for step in (model, model.encode, nx.jit(model)):
        model.calls[...] = jnp.int32(0)
        many = nx.multi_step(step, steps=3)
        assert many(iter([X] * 3)).shape == (3, 64, 3)
        assert int(model.calls[...]) == 3 and many.compilations == 1


def closes_over(model: Any) -> Any:
    def step(x: Any) -> Any:
        def loss() -> Any:
            return model(x).sum()

        return loss()

    return step


def closes_over_a_method(model: Any) -> Any:
    encode = model.encode
    return lambda x: encode(x)


class Loop:
    """A training loop that is no module."""

    def __init__(self) -> None:
        self.model = Encoder()
        self.optimizer = nx.Optimizer(self.model, optax.sgd(0.1))
        self.rate = 0.5

    def forward(self, x: Any) -> Any:
        return self.model(x)

    def indirect(self, x: Any) -> Any:
        return [self.forward(part) for part in (x, x)][0]

    def given(self, model: Any, x: Any) -> Any:
        return model(x) * self.rate

    def __call__(self, x: Any) -> Any:
        return self.forward(x)

    @nx.jit
    def compiled(self, x: Any) -> Any:
        return self.model(x)


def uses_global(x: Any) -> Any:
    return MODEL(x)


def uses_global_in_a_helper(x: Any) -> Any:
    return uses_global(x) + 1


def with_default(outside: Any) -> Any:
    def step(x: Any, model: Any = outside) -> Any:
        return model(x)

    return step


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: closes_over(MODEL), "model"),
        (lambda: closes_over_a_method(MODEL), "encode"),
        (lambda: closes_over(MODEL.inner.layers[0]), "model"),
        (lambda: uses_global, "MODEL"),
        (lambda: uses_global_in_a_helper, "MODEL"),
        (lambda: with_default(MODEL), "the default of model"),
        (lambda: lambda x: STATE["model"](x), r"STATE\['model'\]"),
        (lambda: lambda x: [layer(x) for layer in STATE.values()], r"STATE\['model'\]"),
        (lambda: lambda x: SPACE.model(x), "SPACE.model"),
        (lambda: closes_over(nx.jit(MODEL)), "model"),
        (lambda: closes_over(functools.partial(scaled, MODEL, k=2.0)), "model"),
        (lambda: lambda x: x @ MODEL.inner.layers[0].kernel, "MODEL.inner.layers"),
        (lambda: lambda x: MODEL.encode(x), "MODEL"),
        (lambda: nx.value_and_grad(lambda x: MODEL(x).sum()), "MODEL"),
        (lambda: functools.partial(lambda pair, x: pair[0](x), (MODEL,)), "an argument of functo"),
        (lambda: Loop().forward, "self.model"),
        (lambda: Loop().indirect, "self.model"),
        (lambda: Loop(), "self.model"),
    ],
)
def test_a_module_from_outside_is_refused_by_name(
    make: Any, path: str, call: Callable[..., Any]
) -> None:
    with pytest.raises(nx.ArgumentError, match=rf" uses {path}.* \(.* not given it.*parameter"):
        call(make(), X)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * STATE["rate"],
        lambda x: x * SPACE.rate,
        lambda x: x * MODEL.depth * MODEL.width,
        functools.partial(lambda x, rate: x * rate, rate=2),
    ],
)
def test_what_is_no_module_may_come_from_outside(function: Any, call: Callable[..., Any]) -> None:
    assert call(function, X).shape == X.shape


def test_a_module_that_is_given_may_have_the_name_of_one_outside(
    call: Callable[..., Any],
) -> None:
    def step(MODEL: Any, x: Any) -> Any:  # noqa: N803  a global's name is the test
        def loss(MODEL: Any) -> Any:  # noqa: N803  and here
            return (lambda: MODEL(x).sum())()

        return nx.value_and_grad(loss)(MODEL)[0]

    loop = Loop()
    assert call(step, loop.model, X).shape == ()
    assert call(loop.given, loop.model, X).shape == (64, 3)
    assert call(with_default(MODEL), X, loop.model).shape == (64, 3)


def test_static_arguments_compile_a_program_for_each_value() -> None:
    model = Encoder()
    expected = model.inner(X)
    for options in ({"static_argnames": "mode"}, {"static_argnames": ["mode"]}):
        encode = nx.jit(Encoder.encode, **options)
        for mode, sign in (("plain", 1), ("turned", -1), ("plain", 1)):
            out = encode(model, X, mode=mode)
            np.testing.assert_allclose(out, sign * expected, rtol=1e-5, atol=1e-6)
        assert encode.compilations == 2
    power = nx.jit(lambda x, n, flag=False: [x] * n if flag else x**n, static_argnums=(1, -1))
    assert len(power(X, 3, True)) == 3 and len(power(X, n=2, flag=True)) == 2
    assert power(X, 1).shape == X.shape and power(X, True, flag=False).shape == X.shape
    assert power.compilations == 4, "1 is not True"


def test_static_arguments_of_methods_and_of_many_steps() -> None:
    model = Encoder()
    for encode in (nx.jit(model.encode, static_argnames="mode"),):
        np.testing.assert_allclose(encode(X, mode="turned"), -model.inner(X), rtol=1e-5, atol=1e-6)
    step = nx.jit(lambda model, mode, x: model.encode(x, mode=mode), static_argnums=1)
    out = nx.multi_step(step, steps=2)(model, "turned", iter([X, X]))
    np.testing.assert_allclose(out[1], -model.inner(X), rtol=1e-5, atol=1e-6)
    bound = nx.jit(functools.partial(scaled, model), static_argnums=1)
    assert bound(X, 2.0).shape == (64, 3)


def test_static_arguments_that_cannot_be() -> None:
    with pytest.raises(nx.UnknownNameError, match="Did you mean 'mode'"):
        nx.jit(Encoder.encode, static_argnames="mod")
    with pytest.raises(nx.ArgumentError, match="names argument 7"):
        nx.jit(scaled, static_argnums=7)
    with pytest.raises(nx.ArgumentTypeError, match="static argument k is a list.*hashed"):
        nx.jit(scaled, static_argnames="k")(MODEL, X, [1])


def test_a_static_argument_that_changes_at_every_call_is_reported() -> None:
    power = nx.jit(lambda x, n: x**n, static_argnames="n")
    with pytest.warns(RecompilationWarning, match=r"\['n'\] changed 4 times, lately 1 → 2.*static"):
        for n in range(1, 7):
            power(X, n)


def choose(x: Any, flag: Any) -> Any:
    return x if flag else -x


def test_an_argument_that_must_be_static_is_named(call: Callable[..., Any]) -> None:
    way_out = r"(nx.jit\(choose, static_argnames=\"flag\"\)|functools.partial\(choose, flag=…\))"
    with pytest.raises(nx.ArgumentTypeError, match=rf"flag is of type object.*{way_out}"):
        call(choose, X, object())
    with pytest.raises(nx.ArgumentTypeError, match=rf"needs the value of flag \(bool\).*{way_out}"):
        call(choose, X, True)
    with pytest.raises(nx.ArgumentTypeError, match=r"x\['kind'\] is of type object"):
        call(lambda x: x["x"], {"x": X, "kind": object()})
    with pytest.raises(nx.ArgumentTypeError, match=r"x is of type ndarray of <U1"):
        call(lambda x: x, np.array(["a"]))
    with pytest.raises(nx.ArgumentTypeError, match=r"needs the value of n \(int\)"):
        call(lambda x, n: jnp.zeros(n) + x.sum(), X, 3)
    with pytest.raises(nx.ArgumentTypeError, match="made of flag, at .*return x if flag"):
        call(choose, X, jnp.array(True))
    with pytest.raises(nx.ArgumentTypeError, match="make Loop a subclass of nn.Module"):
        call(lambda loop, x: x, Loop(), X)
    with pytest.raises(nx.ArgumentTypeError, match="self is of type Loop.*subclass of nn.Module"):
        Loop().compiled(X)


def test_an_error_of_the_function_itself_stays(call: Callable[..., Any]) -> None:
    def wrong(x: Any) -> Any:
        raise TypeError("of my own")

    with pytest.raises(TypeError, match="^of my own") as caught:
        call(wrong, X)
    assert caught.type is TypeError


class _Stop(hooks.StopScript):
    pass


@pytest.mark.parametrize(
    ("make", "args", "named"),
    [
        (lambda model: nx.jit(model), (X,), {}),
        (lambda model: nx.jit(Encoder.__call__).__get__(model), (X,), {}),
        (lambda model: nx.jit(model.encode, static_argnames="mode"), (X,), {"mode": "turned"}),
        (lambda model: nx.multi_step(model, steps=2), "iterator", {}),
    ],
)
def test_tools_see_a_function_of_everything(make: Any, args: Any, named: Any) -> None:
    seen: list[Any] = []

    def stop(function: Any, args: tuple[Any, ...]) -> None:
        seen.append((function, args))
        raise _Stop

    model = Encoder()
    given: Iterator[Any] = iter([(iter([X, X]),)]) if args == "iterator" else iter([args])
    with hooks.listening(on_first_call=stop), pytest.raises(_Stop):
        make(model)(*next(given), **named)
    function, everything = seen[0]
    assert everything[0] is model and everything[1].shape == X.shape
    assert function(*everything).shape == (64, 3)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("layer", ["Dropout", "BatchNorm"])
def test_a_gradient_that_changes_a_module_from_outside_says_what_to_do(
    layer: str, compiled: bool
) -> None:
    changing = nx.nn.Dropout(0.5) if layer == "Dropout" else nx.nn.BatchNorm(8)
    judge = nx.nn.Sequential(nx.nn.Linear(4, 8), changing, nx.nn.Linear(8, 1))
    maker = nx.nn.Sequential(nx.nn.Linear(2, 4))
    z = np.ones((8, 2), "float32")

    def step(maker: Any, judge: Any, z: Any) -> Any:
        def loss_fn(maker: Any) -> Any:
            return (judge(maker(z)) ** 2).mean()

        return nx.value_and_grad(loss_fn)(maker)[0]

    with pytest.raises(nx.ArgumentError, match="loss_fn changes a module.*argument of loss_fn"):
        (nx.jit(step) if compiled else step)(maker, judge, z)
    judge.eval()
    assert np.isfinite((nx.jit(step) if compiled else step)(maker, judge, z))


def test_a_gradient_is_a_decorator_too() -> None:
    @nx.grad(argnums=1)
    def slope(x: Any, y: Any) -> Any:
        return x * y

    assert slope(2.0, 3.0) == 2.0


@pytest.mark.parametrize("transform", [nx.grad, nx.value_and_grad])
def test_a_gradient_of_what_is_no_function_is_told(transform: Any) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="expected a function, got str"):
        transform("loss")


@pytest.mark.parametrize("given", [lambda layer: layer.kernel[...], lambda layer: layer.kernel])
def test_an_array_of_a_module_may_not_be_another_argument_too(given: Any) -> None:
    def pulled(layer: Any, anchor: Any) -> Any:
        return layer(X) + ((layer.kernel[...] - anchor[...]) ** 2).sum()

    layer = nx.nn.Linear(X.shape[-1], 2)
    with pytest.raises(nx.ArgumentError, match="array kernel of a module as another .*jnp.copy"):
        nx.jit(pulled)(layer, given(layer))
    assert nx.jit(pulled)(layer, jnp.copy(layer.kernel[...])).shape == (len(X), 2)
    assert nx.jit(pulled, donate=False)(layer, given(layer)).shape == (len(X), 2)


def test_many_steps_at_the_datas_end_say_so() -> None:
    batches = iter(nx.data.Dataset.from_arrays(np.ones((4, 2), np.float32)).batch(2))
    step = nx.multi_step(lambda layer, x: layer(x), steps=2)
    layer = nx.nn.Linear(2, 2)
    step(layer, batches)
    with pytest.raises(nx.DataError, match="the data ended .* after 0"):
        step(layer, batches)

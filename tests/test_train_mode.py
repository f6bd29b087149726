"""Training and evaluation: ``training=`` of a user's call, and ``self.training``.

The reference is NumPy: a model that scales its input in training and not elsewhere.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx

pytestmark = pytest.mark.cpu8
nn = nx.nn

X = np.arange(1, 33, dtype=np.float32).reshape(8, 4) / 16
Y = np.zeros((8, 1), np.float32)


class ByArgument(nn.Module):
    """Ten times its input in training."""

    def __init__(self):
        self.out = nn.Linear(4, 1)

    def __call__(self, x, training=False):
        return self.out(10 * x if training else x)


class ByNone(ByArgument):
    def __call__(self, x, training=None):
        return self.out(10 * x if training else x)


class ByKeyword(ByArgument):
    def __call__(self, x, *, training):
        return self.out(10 * x if training else x)


class ByPosition(ByArgument):
    def __call__(self, x, training, factor=1):
        return self.out(10 * factor * x if training else x)


class ByTrueDefault(ByArgument):
    def __call__(self, x, training=True):
        return self.out(10 * x if training else x)


class ByProperty(ByArgument):
    def __call__(self, x):
        return self.out(10 * x if self.training else x)


class ByTrain(ByArgument):
    def __call__(self, x, train: bool = False):
        return self.out(10 * x if train else x)


class ByDeterministic(ByArgument):
    def __call__(self, x, *, deterministic: bool = True):
        return self.out(x if deterministic else 10 * x)


class ByTwo(ByArgument):
    def __call__(self, x, training=False, deterministic=True):
        assert training is not deterministic
        return self.out(10 * x if training else x)


class Rematerialised(ByArgument):
    @nnx.remat(static_argnums=2)
    def __call__(self, x, training=False):
        return self.out(10 * x if training else x)


class Outer(nn.Module):
    """Leaves the argument of the inner one out."""

    def __init__(self, inner):
        self.inner = inner

    def __call__(self, x):
        return self.inner(x)


class Deep(nn.Module):
    def __init__(self):
        self.layers = nn.Sequential(Outer(ByArgument()))

    def __call__(self, x, training=False):
        return self.layers(x)

    @property
    def out(self):
        return self.layers[0].inner.out


class ForeignByTraining(nnx.Module):
    def __init__(self):
        self.out = nnx.Linear(4, 1, rngs=nnx.Rngs(0))

    def __call__(self, x, training=False):
        return self.out(10 * x if training else x)


class ForeignByTrain(ForeignByTraining):
    def __call__(self, x, *, train):
        return self.out(10 * x if train else x)


class ForeignByDeterministic(ForeignByTraining):
    def __call__(self, x, deterministic=True):
        return self.out(x if deterministic else 10 * x)


class ForeignAround(nnx.Module):
    def __init__(self, inner):
        self.inner = inner

    @property
    def out(self):
        return self.inner.out

    def __call__(self, x):
        return self.inner(x)


KINDS = [
    ByArgument,
    ByNone,
    ByKeyword,
    ByPosition,
    ByTrueDefault,
    ByProperty,
    ByTrain,
    ByDeterministic,
    ByTwo,
    Rematerialised,
    Deep,
    ForeignByTraining,
    ForeignByTrain,
    ForeignByDeterministic,
    lambda: ForeignAround(ByArgument()),
    lambda: ForeignAround(ByProperty()),
]


def output(model, x):
    return x @ np.asarray(model.out.kernel[...]) + np.asarray(model.out.bias[...])


@pytest.mark.parametrize("steps_per_execution", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_fit_trains_and_evaluate_and_predict_do_not(kind, steps_per_execution):
    model = kind()
    options = nx.train.TrainOptions(steps_per_execution=steps_per_execution)
    trainer = nx.Trainer(model, optimizer=nx.optim.SGD(0.0), loss="mse", options=options)
    history = trainer.fit(
        X, Y, batch_size=4, shuffle=False, validation_data=(X, Y), verbose=0
    ).history
    in_training, otherwise = output(model, 10 * X), output(model, X)
    assert history["loss"][0] == pytest.approx(np.mean(in_training**2), rel=1e-5)
    assert history["val_loss"][0] == pytest.approx(np.mean(otherwise**2), rel=1e-5)
    assert trainer.evaluate(X, Y)["loss"] == pytest.approx(np.mean(otherwise**2), rel=1e-5)
    np.testing.assert_allclose(trainer.predict(X), otherwise, rtol=1e-5)


def test_a_direct_call_of_a_new_module_keeps_its_default():
    for kind, factor in ((ByArgument, 1), (ByNone, 1), (ByTrueDefault, 10), (Deep, 1)):
        model = kind()
        np.testing.assert_allclose(model(X), output(model, factor * X), rtol=1e-5)
    model.compile("sgd", "mse").fit(X, Y, verbose=0)
    np.testing.assert_allclose(model(X), output(model, X), rtol=1e-5)


def test_train_and_eval_set_the_mode_of_arguments_that_are_left_out():
    for kind in (ByArgument, ByTrueDefault, ByProperty, Deep):
        model = kind()
        np.testing.assert_allclose(model.train()(X), output(model, 10 * X), rtol=1e-5)
        np.testing.assert_allclose(model.eval()(X), output(model, X), rtol=1e-5)
        np.testing.assert_allclose(model(X, training=True), output(model, 10 * X), rtol=1e-5)
        np.testing.assert_allclose(model(X), output(model, X), rtol=1e-5)


def test_a_call_that_is_given_the_mode_gives_it_to_the_calls_inside():
    model = Deep()
    np.testing.assert_allclose(model(X, training=True), output(model, 10 * X), rtol=1e-5)
    np.testing.assert_allclose(model.layers(X, training=True), output(model, 10 * X), rtol=1e-5)
    np.testing.assert_allclose(model.train()(X, training=False), output(model, X), rtol=1e-5)

    @nx.jit
    def both(model, x):
        return model(x, training=True), model(x, training=False), model(x)

    trained, evaluated, as_set = both(model, X)
    np.testing.assert_allclose(trained, output(model, 10 * X), rtol=1e-5)
    np.testing.assert_allclose(evaluated, output(model, X), rtol=1e-5)
    np.testing.assert_allclose(as_set, output(model, 10 * X), rtol=1e-5)


def test_a_compiled_function_inside_knows_the_modes_apart():
    inner = jax.jit(lambda graph, state, x: nnx.merge(graph, state)(x), static_argnums=0)

    class Net(ByArgument):
        def __init__(self):
            self.inner = ByArgument()

        def __call__(self, x, training=False):
            return inner(*nnx.split(self.inner), x)

    model = Net()
    for training, factor in ((True, 10), (False, 1), (True, 10)):
        np.testing.assert_allclose(
            model(X, training=training), output(model.inner, factor * X), rtol=1e-5
        )


class Backbone(nn.Module):
    """A head on layers that ``fit`` must leave in evaluation, as Keras's guide has it."""

    def __init__(self):
        self.body = nn.Sequential(nn.BatchNorm(4), nn.Dropout(0.5))
        self.out = nn.Linear(4, 1)

    def __call__(self, x, training=False):
        return self.out(self.body(x, training=False))


def test_layers_of_ours_take_the_mode_as_an_argument_too():
    model = Backbone()
    trainer = model.compile(nx.optim.SGD(0.0), "mse").trainer
    loss = trainer.fit(X, Y, verbose=0)["loss"][0]
    np.testing.assert_array_equal(model.body[0].mean[...], np.zeros(4))
    assert loss == pytest.approx(np.mean(output(model, X / np.sqrt(1 + 1e-5)) ** 2), rel=1e-5)

    assert not np.array_equal(model.body(X, training=True), model.body(X, training=False))
    assert np.any(np.asarray(model.body[0].mean[...]))
    drop = nn.Dropout(0.5).eval()
    assert (np.asarray(drop(X, training=True)) == 0).any()
    np.testing.assert_array_equal(drop(X), X)
    attention = nn.MultiHeadAttention(4, 2, dropout=0.5).eval()
    x = X.reshape(2, 4, 4)
    assert not np.array_equal(attention(x, training=True), attention(x))
    np.testing.assert_array_equal(attention.train()(x, training=False), attention.eval()(x))


def test_a_frozen_norm_stays_in_evaluation_whatever_it_is_told():
    norm = nn.BatchNorm(4).freeze()
    norm(X, training=True)
    np.testing.assert_array_equal(norm.mean[...], np.zeros(4))


def test_a_train_method_of_the_users_own_is_followed():
    class Kept(Backbone):
        def train(self, mode=True, **attributes):
            super().train(mode, **attributes)
            self.body.eval()
            return self

        def __call__(self, x, training=False):
            assert self.body.training is False
            return self.out(self.body(x))

    model = Kept()
    model.compile("sgd", "mse").fit(X, Y, verbose=0)
    np.testing.assert_array_equal(model.body[0].mean[...], np.zeros(4))


def test_several_inputs_go_with_the_mode():
    class Two(ByArgument):
        def __call__(self, a, b, training, scale=None):
            x = a + b if scale is None else a + scale * b
            return self.out(10 * x if training else x)

    model = Two().compile(nx.optim.SGD(0.0), "mse")
    loss = model.fit((X, X), Y, verbose=0)["loss"][0]
    assert loss == pytest.approx(np.mean(output(model, 20 * X) ** 2), rel=1e-5)
    np.testing.assert_allclose(model.predict((X, X)), output(model, 2 * X), rtol=1e-5)
    np.testing.assert_allclose(model.predict({"a": X, "b": X}), output(model, 2 * X), rtol=1e-5)
    scale = np.full((8, 1), 2, np.float32)
    np.testing.assert_allclose(model.predict((X, X, scale)), output(model, 3 * X), rtol=1e-5)
    with pytest.raises(nx.ArgumentTypeError, match="one input"):
        model.predict(X)
    with pytest.raises(nx.ArgumentTypeError, match="2 inputs"):
        ByArgument().compile("sgd", "mse").fit((X, X), Y, verbose=0)


def test_an_input_of_such_a_name_is_an_input():
    class Named(ByArgument):
        def __call__(self, train, deterministic="no"):
            assert deterministic == "no"
            return self.out(train)

    model = Named()
    np.testing.assert_allclose(model.predict(X), output(model, X), rtol=1e-5)


def test_training_is_a_property_of_every_module():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Dropout(0.1)))
    assert model.training and model[0].training and model[2][0].training
    model.eval()
    assert not (model.training or model[0].training or model[2].training or model[2][0].training)
    assert not nnx.clone(model)[0].training
    model[2].train()
    assert model[2][0].training and not model.training
    model.training = True
    assert model[0].training
    with pytest.raises(nx.ArgumentTypeError, match="training must be True or False"):
        model.training = "yes"
    with pytest.raises(nx.ArgumentTypeError, match="True, False or None"):
        model[0](X, training="yes")
    assert "_training" not in str(nnx.state(model))


def test_the_mode_compiles_nothing_twice():
    traced = []

    @nx.jit
    def apply(model, x):
        traced.append(model.training)
        return model(x)

    model = nn.Linear(4, 1)
    for _ in range(2):
        apply(model, X)
        apply(model.eval(), X)
        model.train()
    assert traced == [True, False]

    model = ByArgument().compile("sgd", "mse")
    for _ in range(2):
        model.train().fit(X, Y, verbose=0)
        model.eval().evaluate(X, Y)
        assert not model.training  # as it was
        model.fit(X, Y, verbose=0)
    assert model.trainer._state.built().compiled.step_compilations == 1


def test_a_traced_flag_is_the_users_own_affair():
    class Traced(ByArgument):
        def __call__(self, x, training=False):
            return self.out(jnp.where(training, 10 * x, x))

    model = Traced()
    run = nx.jit(lambda model, x, training: model(x, training=training))
    np.testing.assert_allclose(run(model, X, jnp.array(True)), output(model, 10 * X), rtol=1e-5)


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.5), lambda: nn.MultiHeadAttention(4, 2)])
def test_a_layer_with_a_flag_of_its_own_takes_training_too(make) -> None:
    x = np.ones((3, 5, 4), np.float32)
    layer = make()
    assert np.array_equal(layer(x, training=False), layer.eval()(x))
    if isinstance(layer, nn.Dropout):
        assert not np.asarray(layer(x, training=True)).all()
        assert np.array_equal(layer(x, training=True, deterministic=True), x)

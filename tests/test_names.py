"""Names of other libraries, and misspelt ones: what is said to whoever looks for them here."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import _elsewhere, nn
from neurenix._core.names import MissingAttributeError
from neurenix.nn import elsewhere as of_nn
from neurenix.optim import elsewhere as of_optim

pytestmark = pytest.mark.cpu8


@pytest.mark.parametrize(
    ("package", "name", "said"),
    [
        (nx.nn, "Dense", "Here that is nn.Linear"),
        (nx.nn, "Conv2D", "Did you mean 'Conv2d'"),
        (nx.nn, "MultiheadAttention", "'MultiHeadAttention'"),
        (nx.nn, "Linaer", "'Linear'"),
        (nx.nn, "CrossEntropyLoss", "nx.losses.CrossEntropyLoss"),
        (nx.optim, "StepLR", "optim.schedules.ExponentialDecay"),
        (nx.optim, "RMSProp", "'RMSprop'"),
        (nx.losses, "CategoricalCrossEntropy", "'CategoricalCrossentropy'"),
        (nx.losses, "MSE", "losses.MeanSquaredError"),
        (nx.metrics, "Acuracy", "'Accuracy'"),
        (nx.callbacks, "EarlyStoping", "'EarlyStopping'"),
        (nx, "cat", "Here that is nx.concatenate."),
        (nx, "relu", "Here that is jax.nn.relu."),
        (nx, "Linear", "Here that is nx.nn.Linear."),
        (nx, "matmull", "Did you mean 'matmul'"),
        (nx.optim.schedules, "StepLR", "optim.schedules.ExponentialDecay"),
        (nx.optim.schedules, "CosineDecy", "'CosineDecay'"),
        (nx.random, "normal", "Here that is nx.randn."),
        (nx.random, "sed", "Did you mean 'seed'"),
    ],
)
def test_a_package_says_what_a_name_is_here(package: Any, name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"{package.__name__}' has no")) as caught:
        getattr(package, name)
    assert said in str(caught.value)
    assert not hasattr(package, name)


@pytest.mark.parametrize(
    "package", [nx, nx.random, nx.nn, nx.optim, nx.losses, nx.metrics, nx.callbacks]
)
def test_what_nothing_here_is_like_has_no_hint(package: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'xyzzy'.$"):
        _ = package.xyzzy


def test_every_name_that_a_table_gives_exists() -> None:
    tables = (of_nn.LAYERS, of_nn.METHODS, of_optim.NAMES, nx.losses._ELSEWHERE)
    model = nn.Sequential(nn.Linear(1, 1))
    known = {"nx": nx, "nn": nn, "nnx": nnx, "jax": jax, "optax": optax, "model": model}
    known |= {"optim": nx.optim, "losses": nx.losses, "metrics": nx.metrics}
    known |= {"x": X, "np": np, "strategy": nx.distribute.OneDeviceStrategy()}
    tables += nx.metrics._ELSEWHERE, _elsewhere.names(), nx.random._ELSEWHERE
    tables += of_optim.SCHEDULES, nx.callbacks._ELSEWHERE
    for text in (text for table in tables for text in table.values()):
        for root, path in re.findall(r"\b([a-z]+)((?:\.[A-Za-z_][A-Za-z_0-9]*)+)", text):
            found = known[root]
            for name in path[1:].split("."):
                found = getattr(found, name)


class Net(nn.Module):
    def __init__(self) -> None:
        self.hidden = nn.Linear(2, 2)

    @property
    def broken(self) -> Any:
        return self.not_there


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("save_weights", r"model.save\(path\)"),
        ("count_params", "model.num_parameters"),
        ("hiden", "Did you mean 'hidden'"),
        ("evalute", "'evaluate'"),
    ],
)
def test_a_model_says_what_a_name_is_here(name: str, said: str) -> None:
    model = Net()
    with pytest.raises(AttributeError, match=f"'Net' object has no attribute '{name}'.*{said}"):
        getattr(model, name)
    assert not hasattr(model, name)
    assert getattr(model, name, None) is None


class Forward(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.layer(x)


class Call(nn.Module):
    def call(self, x: Any) -> Any:
        return x


class Wider(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)

    def forward(self, x: Any) -> Any:  # that of Linear would be called, and this one never
        return 2 * x


class Twice(Forward):
    def __call__(self, x: Any) -> Any:
        return 2 * self.forward(x)


class Uncallable(nnx.Module):
    pass


X, Y = np.ones((4, 2), np.float32), np.zeros((4, 2), np.float32)


@pytest.mark.parametrize("kind", [Forward, Call, Wider])
@pytest.mark.parametrize(
    "use",
    [
        lambda model: model(X),
        lambda model: nn.Sequential(model)(X),
        lambda model: model.compile(loss="mse").fit(X, Y),
        lambda model: model.predict(X),
        lambda model: model.summary(input_shape=(4, 2)),
    ],
)
def test_a_module_with_the_method_of_another_library_says_what_it_is_here(
    kind: type[nn.Module], use: Callable[[Any], Any]
) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=rf"{kind.__name__} has .*def __call__\(self"):
        use(kind())


class Ones(Twice):
    def forward(self, x: Any) -> Any:  # the inherited call calls it
        return np.ones_like(x)


def test_a_method_forward_may_stand_beside_a_call() -> None:
    model = Twice()
    assert (model(X) == 2 * model.forward(X)).all()
    assert (Ones()(X) == 2).all()
    assert Forward().forward(X).shape == (4, 2)
    nnx.clone(Forward())


def test_layers_of_which_only_forward_is_used_are_counted() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            self.inner = Forward()

        def __call__(self, x: Any) -> Any:
            return self.inner.forward(x)

    assert "6 parameters" in str(Outer().summary(input_shape=(4, 2)))
    bad = np.full((4, 2), np.nan, np.float32)
    with pytest.raises(nx.TrainingDivergedError, match="The batch itself"):
        Outer().compile(loss="mse").fit(bad, Y)


def test_a_module_that_cannot_be_called_is_refused_before_any_data() -> None:
    with pytest.raises(nx.ArgumentTypeError, match="Uncallable cannot be called"):
        nx.Trainer(Uncallable(), loss="mse")


def test_a_property_that_fails_says_what_failed_in_it() -> None:
    with pytest.raises(AttributeError, match="no attribute 'not_there'"):
        _ = Net().broken


def test_the_text_is_made_when_it_is_read() -> None:
    def known() -> list[str]:
        raise AssertionError("searched")

    error = MissingAttributeError("it", "x", known)
    assert error.name == "x"
    there = pickle.loads(pickle.dumps(MissingAttributeError("it", "fitt", lambda: ["fit"])))
    assert type(there) is AttributeError
    assert "Did you mean 'fit'" in str(there)


def test_models_are_copied_and_pickled_as_ever() -> None:
    model = Net()
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model), nnx.clone(model)):
        assert nnx.graphdef(twin) == nnx.graphdef(model)
        assert (twin.hidden.kernel[...] == model.hidden.kernel[...]).all()


def test_an_optimizer_in_a_loop_says_what_a_name_is_here() -> None:
    optimizer = nx.Optimizer(nn.Linear(1, 1), "sgd")
    with pytest.raises(AttributeError, match="zero_grad'. Here that is not needed"):
        _ = optimizer.zero_grad
    with pytest.raises(AttributeError, match="Did you mean 'update'"):
        _ = optimizer.updat


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (nx.optim.Adam, {"lr": 1e-3}, "'lr'. Here that is learning_rate"),
        (nx.optim.Adam, {"beta_1": 0.9}, r"betas=\(beta_1, beta_2\)"),
        (nx.optim.SGD, {"clipnorm": 1.0}, "clip_norm"),
        (nx.optim.AdamW, {"epsilon": 1e-7}, "eps"),
        (nx.optim.SGD, {"nesterow": True}, "Did you mean 'nesterov'"),
        (nx.optim.Lion, {"amsgrad": True}, "'amsgrad'. Options: .*betas"),
        (nx.optim.RMSprop, {"rho": 0.9}, "'rho'. Here that is alpha"),
    ],
)
def test_an_option_of_an_optimizer_is_named(kind: Any, options: Any, said: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=rf"{kind.__name__}\(\) has no option.*{said}"):
        kind(**options)
    assert pickle.loads(pickle.dumps(kind(0.1))) == copy.deepcopy(kind(0.1)) == kind(0.1)


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        (nx.callbacks.ModelCheckpoint, {"filepath": "best"}, "'filepath'. Here that is path"),
        (nx.callbacks.CSVLogger, {"filename": "log.csv"}, "Here that is path"),
        (nx.callbacks.TensorBoard, {"log_dir": "logs"}, "Here that is directory"),
        (nx.callbacks.EarlyStopping, {"patients": 3}, "Did you mean 'patience'"),
        (nx.callbacks.ReduceLROnPlateau, {"verbose": 1}, "not needed: model.fit"),
        (nx.optim.schedules.CosineDecay, {"initial_learning_rate": 1.0}, "Here that is initial"),
        (nx.optim.schedules.ExponentialDecay, {"gamma": 0.9}, "Here that is decay_rate"),
    ],
)
def test_an_option_of_a_callback_or_a_schedule_is_named(kind: Any, options: Any, said: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=rf"{kind.__name__}\(\) has no option.*{said}"):
        kind(**options)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nn.Linear(4, units=3), r"Linear\(\) has no option 'units'. Here that is out_feat"),
        (lambda: nn.Conv2d(1, 8, 3, activation="relu"), r"Conv2d\(\) .* a layer after it"),
        (lambda: nn.Conv2d(1, filters=8, kernel_size=3), "'filters'. Here that is out_channels"),
        (lambda: nn.ConvTranspose2d(1, 8, 3, use_bias=False), "Here that is bias. Options: in_ch"),
        (lambda: nn.DepthwiseConv2d(8, 3, depth_multiplier=2), "Here that is multiplier"),
        (lambda: nn.MaxPool2d(pool_size=2), r"MaxPool2d\(\) .* Here that is kernel_size"),
        (lambda: nn.MaxPool2d(2, ceil_mode=True), "'ceil_mode'. Options: kernel_size, stride"),
        (lambda: nn.BatchNorm2d(3, epsilon=1e-3), "'epsilon'. Here that is eps"),
        (lambda: nn.Dropout(rate=0.1), r"Dropout\(\) has no option 'rate'. Here that is p\."),
        (lambda: nn.Embedding(10, 3, 0), r"Embedding\(\): too many positional arguments. Options"),
        (lambda: nn.Embedding(10, 3, use_bias=True), "'use_bias'. Options: num_embeddings"),
        (lambda: nn.LSTM(3), r"LSTM\(\): missing a required argument: 'hidden_size'"),
        (lambda: nn.LSTM(3, 4, bidirectional=True), "a second layer with reverse=True"),
        (lambda: nn.GRU(3, 4, return_sequences=True), "the first of what a call returns"),
        (lambda: nn.TransformerBlock(8, nhead=2), "Here that is num_heads"),
        (lambda: nn.Softmax(axis=-1), "Here that is dim"),
        (lambda: nn.LayerNorm(4, elementwise_afine=False), "Did you mean 'elementwise_affine'"),
        (lambda: nn.ReLU(0.1), r"ReLU\(\): too many positional arguments"),
    ],
)
def test_an_option_of_a_layer_is_named(make: Any, said: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=said):
        make()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nx.losses.CategoricalCrossentropy(weight=[1.0]), r"entropy\(\) .*class_weight="),
        (lambda: nx.losses.MeanSquaredError(size_average=True), "Here that is reduction"),
        (lambda: nx.losses.BinaryCrossentropy(from_logit=True), "Did you mean 'from_logits'"),
        (lambda: nx.losses.MSELoss("sum"), r"MSELoss\(\): too many positional arguments"),
        (lambda: nx.metrics.Precision(thresholds=0.5), r"Precision\(\) .*Here that is threshold"),
        (lambda: nx.metrics.AUC(top_k=3), r"AUC\(\) has no option 'top_k'. Options: bins"),
        (lambda: nx.distribute.OneDeviceStrategy(tpu="a"), "'tpu'. Options: device"),
        (lambda: nx.metrics.AUC(curve="PR"), r"AUC\(\) has no option 'curve'. Options: bins"),
        (lambda: nx.distribute.TPUStrategy(tpu="local"), r"resolver=TPUClusterResolver\(tpu=…\)"),
    ],
)
def test_an_option_of_a_loss_a_metric_or_a_strategy_is_named(make: Any, said: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=said):
        make()


def test_the_mean_has_the_name_of_keras_too() -> None:
    loss = nx.losses.MeanSquaredError(reduction="sum_over_batch_size")
    assert loss == nx.losses.MeanSquaredError()
    with pytest.raises(nx.UnknownNameError, match="no reduction of a loss"):
        nx.losses.MeanSquaredError(reduction=["mean"])  # pyright: ignore


def test_a_layer_of_ones_own_is_python_s_own_matter() -> None:
    class Own(nn.Linear):
        def __init__(self, units: int) -> None:
            super().__init__(4, units)

    assert Own(units=3).out_features == 3
    with pytest.raises(TypeError, match=r"__init__\(\) got an unexpected keyword argument 'unit'"):
        Own(**{"unit": 3})


def test_every_option_of_a_layer_that_a_table_gives_exists() -> None:
    layers = [one for one in vars(nn).values() if isinstance(one, type) and of_nn.options_of(one)]
    kinds = {re.sub(r"(Transpose)?[123]d$", "", one.__name__) for one in layers}
    assert set(of_nn._OPTIONS) <= kinds
    for layer in layers:
        known = inspect.signature(layer.__init__).parameters
        kind = re.sub(r"(Transpose)?[123]d$", "", layer.__name__)
        for option, here in of_nn._OPTIONS.get(kind, {}).items():
            assert option not in known, (layer, option)
            if re.fullmatch(r"\w+", here):
                assert here in known, (layer, option)


def test_every_option_that_a_table_gives_exists() -> None:
    schedules = [
        getattr(nx.optim.schedules, name)
        for name in ("CosineDecay", "ExponentialDecay", "LinearWarmup", "PiecewiseConstant",
                     "PolynomialDecay", "WarmupCosine")
    ]  # fmt: skip
    callbacks = [getattr(nx.callbacks, name) for name in nx.callbacks.__all__]
    for kinds in ([nx.optim.RMSprop, nx.optim.Adam, nx.optim.SGD], schedules, callbacks):
        options = {name for kind in kinds for name in inspect.signature(kind.__init__).parameters}
        for text in {**kinds[0].options_elsewhere}.values():
            word = re.match(r"\w+", text.removeprefix("nx.optim.schedules."))
            known = word and (word[0] in options or hasattr(nx.optim.schedules, word[0]))
            assert known or text.startswith("not needed"), text


def test_what_takes_no_arguments_says_so_and_subclasses_take_their_own() -> None:
    class Own(nx.callbacks.Callback):
        def __init__(self, **options: Any) -> None:
            self.options = options

    with pytest.raises(TypeError, match=r"TerminateOnNaN\(\) takes no arguments"):
        nx.callbacks.TerminateOnNaN(1)
    assert Own(filepath=1).options == {"filepath": 1}
    decay = nx.optim.schedules.CosineDecay(1e-3, 10)
    assert float(copy.deepcopy(decay)(5)) == float(decay(5))
    with pytest.raises(
        TypeError, match=r"CosineDecay\(\): missing .*'decay_steps'\. Options: init"
    ):
        nx.optim.schedules.CosineDecay(1e-3)

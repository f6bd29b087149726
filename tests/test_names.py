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
from neurenix import nn
from neurenix._core.names import MissingAttributeError, slips_of
from neurenix._migration import layers as of_nn
from neurenix._migration import optimizers as of_optim
from neurenix._migration import top_level

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
        (nx, "keras", "Here that is nx.nn for layers"),
        (nx, "Model", "Here that is nx.nn.Module"),
        (nx.data, "DataLoader", "data.Dataset.from_arrays"),
        (nx.data, "Datasett", "Did you mean 'Dataset'"),
        (nx.distribute, "MultiWorkerMirroredStrategy", "distribute.MirroredStrategy"),
        (nx.distribute, "MirorredStrategy", "'MirroredStrategy'"),
        (nx.models, "gpt2", 'models.build("gpt2")'),
        (nx.models, "Decodr", "'Decoder'"),
        (nx.losses, "softmax_cross_entropy", "losses.categorical_crossentropy(y_true, y_pred"),
    ],
)
def test_a_package_says_what_a_name_is_here(package: Any, name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=re.escape(f"{package.__name__}' has no")) as caught:
        getattr(package, name)
    assert said in str(caught.value)
    assert not hasattr(package, name)


@pytest.mark.parametrize(
    "package",
    [nx, nx.random, nx.nn, nx.optim, nx.losses, nx.metrics, nx.callbacks, nx.data, nx.models,
     nx.distribute],
)  # fmt: skip
def test_what_nothing_here_is_like_has_no_hint(package: Any) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'xyzzy'.$"):
        _ = package.xyzzy


# Names of Keras, PyTorch, TensorFlow and JAX that are like some name here, and mean another thing.
LOOKALIKES = {
    nx: "backend ops utils constraints torch tensor_split set_default_dtype gather_nd addmm cdist "
    "narrow item enable_grad get_device xpu export config profiler sharding strings signal math "
    "test rearrange version onnx quantization autocast",
    nx.nn: "Dot AdditiveAttention Cropping2D SeparableConv2D Bilinear ConstantPad2d LSTMCell "
    "GRUCell InstanceNorm2d SyncBatchNorm Hardtanh Dropout2d AlphaDropout EmbeddingBag Maximum",
    nx.losses: "CircleLoss ctc_loss smooth_labels FocalLoss DiceLoss functional Reduction",
    nx.optim: "Rprop SparseAdam LambdaLR join_schedules Muon LBFGS Ftrl Shampoo",
    nx.metrics: "MeanIoU BinaryIoU ConfusionMatrix MeanTensor Poisson CategoricalHinge BLEUScore "
    "MultiMetric PrecisionAtRecall CategoricalCrossentropy",
    nx.callbacks: "CallbackList BaseLogger WandbLogger WandbCallback LearningRateFinder Timer",
    nx.data: "Subset Sampler random_split AUTOTUNE Options zip ImageFolder",
    nx.distribute: "Server ReduceOp barrier broadcast launch P tensor",
    nx.models: "VGG16 MobileNetV2 Llama T5 CLIP unet whisper",
}


@pytest.mark.parametrize("package", LOOKALIKES, ids=lambda package: package.__name__)
def test_what_only_looks_alike_is_no_hint(package: Any) -> None:
    for name in LOOKALIKES[package].split():
        with pytest.raises(AttributeError) as caught:
            getattr(package, name)
        assert str(caught.value).endswith(f"has no attribute {name!r}."), caught.value


@pytest.mark.parametrize(
    ("name", "known", "near"),
    [
        ("evalaute", ["evaluate"], ["evaluate"]),  # swapped
        ("fitt", ["fit", "fits"], ["fit", "fits"]),
        ("fit", ["jit", "fft"], []),
        ("patients", ["patience"], ["patience"]),
        ("SparseCategoricalCrosentropie", ["SparseCategoricalCrossentropy"], None),
        ("signal", ["sign"], []),
        ("a", ["b"], []),
        ("batchnorm_2d", ["BatchNorm2d"], ["BatchNorm2d"]),
        ("updat", ["date", "update"], ["update"]),
    ],
)
def test_near_is_what_a_slip_makes(name: str, known: list[str], near: list[str] | None) -> None:
    assert slips_of(name, known) == (known if near is None else near)


def test_every_name_that_a_table_gives_exists() -> None:
    tables = (of_nn.LAYERS, of_nn.METHODS, of_optim.NAMES, nx.losses._ELSEWHERE)
    model = nn.Sequential(nn.Linear(1, 1))
    known = {"nx": nx, "nn": nn, "nnx": nnx, "jax": jax, "optax": optax, "model": model}
    known |= {"optim": nx.optim, "losses": nx.losses, "metrics": nx.metrics}
    known |= {"x": X, "np": np, "strategy": nx.distribute.OneDeviceStrategy()}
    tables += nx.metrics._ELSEWHERE, top_level.names(), nx.random._ELSEWHERE
    tables += of_optim.SCHEDULES, nx.callbacks._ELSEWHERE, nx.data._ELSEWHERE
    tables += nx.models._ELSEWHERE, nx.distribute._ELSEWHERE, nx.metrics.base._METHODS
    known |= {"data": nx.data, "models": nx.models, "distribute": nx.distribute}
    known |= {"callbacks": nx.callbacks, "self": nx.metrics.Mean()}
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


UPDATE = r"optimizer\.update\(model, gradients\)"


def test_calls_of_pytorchs_loop_say_what_to_do_here() -> None:
    model = nn.Linear(2, 1)
    optimizer = nx.Optimizer(model, "sgd")
    for one in (optimizer, nx.optim.Adam()):
        with pytest.raises((nx.ArgumentTypeError, AttributeError), match=UPDATE):
            one.step()  # pyright: ignore
        with pytest.raises(AttributeError, match=UPDATE):
            one.zero_grad()  # pyright: ignore
        assert not hasattr(one, "zero_grad")
    assert optimizer.step == 0 and repr(optimizer.step) == "0"
    assert jax.jit(lambda n: n + 1)(optimizer.step) == 1
    with pytest.raises(AttributeError, match="'weight_decy'. Did you mean 'weight_decay'"):
        _ = nx.optim.Adam().weight_decy  # pyright: ignore


def stepping(optimizer: Any, loss: Any) -> None:
    optimizer.step()


def going_back(optimizer: Any, loss: Any) -> None:
    loss.backward()


@pytest.mark.parametrize("call", [stepping, going_back])
def test_calls_of_pytorchs_loop_say_so_while_traced(call: Any) -> None:
    model = nn.Linear(2, 1)
    optimizer = nx.Optimizer(model, "sgd")

    @nx.jit
    def train(model: Any, optimizer: Any, x: Any) -> Any:
        loss = (model(x) ** 2).mean()
        call(optimizer, loss)
        return loss

    with pytest.raises(nx.ArgumentTypeError, match=f"train .*{UPDATE}"):
        train(model, optimizer, X)

    @nx.jit
    def other(x: Any) -> Any:
        return x.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        other(X)


class OfKeras:
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None: ...
    def result(self) -> Any: ...
    def reset_state(self) -> None: ...


class Derived(nx.metrics.Metric):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None: ...


@pytest.mark.parametrize("given", [OfKeras(), OfKeras, Derived(), Derived])
def test_a_metric_with_the_methods_of_keras_says_what_they_are_called(given: Any) -> None:
    said = r"update_state.*update\(self, y_true, y_pred, sample_weight=None\).*reset\(\)"
    with pytest.raises(nx.ArgumentTypeError, match=said):
        nn.Linear(2, 2).compile(loss="mse", metrics=[given])
    with pytest.raises(AttributeError, match=r"'update_state'. Here that is update\("):
        nx.metrics.Accuracy().update_state(X, Y)  # pyright: ignore
    with pytest.raises(AttributeError, match=r"Here that is reset\(\)"):
        nx.metrics.Accuracy().reset_states()  # pyright: ignore


@pytest.mark.parametrize(
    ("metric", "y_true", "y_pred"),
    [
        (nx.metrics.Accuracy, np.ones((4, 3), np.float32), np.ones(4, np.int32)),
        (nx.metrics.BinaryAccuracy, np.full(4, 0.3, np.float32), np.ones(4, np.int32)),
        (nx.metrics.AUC, np.full(4, 0.3, np.float32), np.ones(4, np.int32)),
        (nx.metrics.Precision, np.full(4, 0.3, np.float32), np.ones(4, bool)),
    ],
)
def test_a_metric_tells_predictions_that_come_first(metric: Any, y_true: Any, y_pred: Any) -> None:
    with pytest.raises(nx.ArgumentError, match=r"\(y_true, y_pred\): targets first"):
        metric().update(y_true, y_pred)
    metric().update(np.ones(4, np.float32), np.ones(4, np.int32))


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
        for text in {**kinds[0].migration_options}.values():
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

"""Module: training mode, state under compilation, summary, moving, saving, and its graph."""

from __future__ import annotations

import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neurenix import device, nn, random, tensor
from neurenix._core.errors import (
    ArgumentTypeError,
    CheckpointError,
    DataError,
    NotCompiledError,
    ShapeError,
    UnknownNameError,
)
from neurenix._nnx import nnx

pytestmark = pytest.mark.newest


def make_cnn(classes=5):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Linear(36, classes),
    )


IMAGES = np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype(np.float32)


# --- modes and state ----------------------------------------------------------------------------


def test_train_and_eval_switch_and_return_the_module():
    model = make_cnn()
    assert model.eval() is model and model[4].deterministic and model[1].use_running_average
    assert model.train() is model and not model[4].deterministic
    assert model.train(False)[4].deterministic


def test_dropout_draws_anew_at_each_compiled_call_and_keeps_the_mean():
    layer = nn.Dropout(0.25)

    @nnx.jit
    def run(layer, x):
        return layer(x)

    x = jnp.ones((200, 200))
    first, second = run(layer, x), run(layer, x)
    assert bool((first != second).any())
    for y in (first, second):
        assert set(np.unique(y)) == {0.0, np.float32(1 / 0.75)}
        assert abs(float(y.mean()) - 1) < 0.02
    np.testing.assert_array_equal(run(layer.eval(), x), x)


def test_two_dropouts_of_one_model_draw_different_masks():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    x = jnp.ones((50, 50))
    kept = (model(x) != 0).mean()
    assert 0.2 < float(kept) < 0.3


def test_batch_norm_moves_its_statistics_as_pytorch_does():
    layer = nn.BatchNorm(4, momentum=0.1)
    x = np.random.default_rng(0).normal(size=(6, 3, 4)) * 3 + 5

    @nnx.jit
    def run(layer, x):
        return layer(x)

    for _ in range(2):
        run(layer, jnp.asarray(x, jnp.float32))
    mean, var = x.mean((0, 1)), x.var((0, 1), ddof=1)
    np.testing.assert_allclose(layer.mean[...], 0.19 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.var[...], 0.81 + 0.19 * var, rtol=1e-5)
    before = layer.mean[...]
    run(layer.eval(), jnp.asarray(x, jnp.float32))
    np.testing.assert_array_equal(layer.mean[...], before)


def test_batch_norm_keeps_float32_statistics_of_bfloat16_data():
    layer = nn.BatchNorm(2)
    x = jnp.tile(jnp.array([[256.0, 257.0], [256.0, 259.0]], jnp.bfloat16), (500, 1))
    layer(x)
    assert layer.mean[...].dtype == jnp.float32
    np.testing.assert_allclose(layer.mean[...], 0.1 * np.asarray(x, np.float64).mean(0), rtol=1e-5)


def test_norms_of_large_means_do_not_cancel():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 32)) + 3000, jnp.float32)
    for layer in (nn.LayerNorm(32), nn.BatchNorm(32), nn.GroupNorm(4, 32)):
        assert abs(float(layer(x).std()) - 1) < 0.02, type(layer).__name__


# --- the graph of NNX ---------------------------------------------------------------------------


def test_a_module_is_an_nnx_module_and_survives_split_merge_and_copy():
    model = make_cnn().eval()
    expected = model(IMAGES)
    for twin in (nnx.merge(*nnx.split(model)), nnx.clone(model), copy.deepcopy(model)):
        assert isinstance(twin, nn.Sequential) and isinstance(twin, nnx.Module)
        np.testing.assert_array_equal(twin(IMAGES), expected)
        assert twin.trainer is None


def test_the_trainer_is_no_part_of_the_graph():
    model = make_cnn()
    graph, state = nnx.split(model)
    model.compile(optimizer="sgd", loss="mse")
    assert model.trainer is not None
    again, after = nnx.split(model)
    assert again == graph
    assert jax.tree.structure(after) == jax.tree.structure(state)
    assert "_trainer" not in vars(model)


def test_functions_and_foreign_layers_go_into_sequential():
    model = nn.Sequential(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), jnp.tanh, nn.Linear(4, 2))
    assert model(jnp.ones((3, 4))).shape == (3, 2)
    assert len(model) == 3 and model[1] is jnp.tanh
    assert isinstance(model[:2], nn.Sequential) and len(model[:2]) == 2
    assert model[:2][0] is model[0]


@pytest.mark.parametrize("layer", [nn.ReLU, 3])
def test_sequential_says_which_layer_cannot_be_called(layer):
    with pytest.raises(ArgumentTypeError, match="Layer 1"):
        nn.Sequential(nn.Linear(2, 2), layer)


def test_the_seed_decides_the_parameters():
    random.seed(3)
    first = nn.Linear(4, 4).kernel[...]
    random.seed(3)
    np.testing.assert_array_equal(nn.Linear(4, 4).kernel[...], first)
    assert bool((nn.Linear(4, 4).kernel[...] != first).any())
    given = [nn.Linear(4, 4, rngs=nnx.Rngs(7)).kernel[...] for _ in range(2)]
    np.testing.assert_array_equal(*given)


def test_parameters_are_named_and_counted_once():
    model = make_cnn()
    sizes = {name: value.shape for name, value in model.parameters().items()}
    assert sizes["layers.0.kernel"] == (3, 3, 1, 4) and sizes["layers.6.bias"] == (5,)
    assert model.num_parameters == 40 + 8 + 36 * 5 + 5
    layer = nn.Linear(4, 4)
    assert nn.Sequential(layer, nn.ReLU(), layer).num_parameters == 20


# --- moving -------------------------------------------------------------------------------------


def test_to_moves_everything_in_place():
    model = make_cnn()
    assert model.to("tpu:3") is model
    assert all(device.device_of(v) == device.Device("tpu:3") for v in model.parameters().values())
    assert device.device_of(model[1].mean[...]) == device.Device("tpu:3")
    x = device.to(IMAGES, "tpu:3")
    assert device.device_of(model(x)) == device.Device("tpu:3")


def test_to_casts_numbers_and_leaves_random_streams():
    model = make_cnn().to("tpu:0", dtype="bfloat16")
    assert {v.dtype for v in model.parameters().values()} == {jnp.dtype("bfloat16")}
    assert model(IMAGES.astype("bfloat16")).dtype == jnp.bfloat16
    assert jnp.issubdtype(model[4].rngs.key[...].dtype, jax.dtypes.prng_key)
    assert model[1].mean[...].dtype == model[1].var[...].dtype == jnp.float32
    assert nn.Linear(2, 3).to("cpu", dtype="bf16").kernel.dtype == jnp.bfloat16


# --- summary ------------------------------------------------------------------------------------


def test_a_summary_lists_layers_shapes_and_bytes():
    model = make_cnn()
    summary = model.summary((3, 8, 8, 1))
    rows = {row.name: row for row in summary.rows}
    assert [row.kind for row in summary.rows] == [type(layer).__name__ for layer in model]
    assert rows["layers.0"].output_shape == (3, 6, 6, 4)
    assert rows["layers.6"].output_shape == (3, 5)
    assert rows["layers.6"].parameter_bytes == 4 * rows["layers.6"].num_parameters == 4 * 185
    assert summary.num_parameters == model.num_parameters and summary.state_bytes == 32
    assert "layers.0 (Conv2d)" in str(summary) and "233 parameters" in str(summary)


def test_a_summary_leaves_the_model_and_its_classes_as_they_were():
    model, original = make_cnn(), nn.Linear.__call__
    model.summary((3, 8, 8, 1))
    assert nn.Linear.__call__ is original and "__call__" not in vars(nn.MaxPool2d)
    assert not model[4].deterministic
    np.testing.assert_array_equal(model[1].mean[...], 0)
    with pytest.raises(ShapeError, match="NHWC"):
        model.summary((3, 1, 8, 8))
    assert nn.Conv2d.__call__ is nn.Conv3d.__call__


def test_a_summary_of_a_layer_that_returns_several_arrays():
    summary = nn.Sequential(nn.LSTM(4, 3), lambda y: y[0]).summary((2, 5, 4))
    assert summary.rows[0].output_shape == ((2, 5, 3), ((2, 3), (2, 3)))
    assert "((2, 5, 3), ((2, 3), (2, 3)))" in str(summary)


def test_a_summary_of_nested_modules_and_other_dtypes():
    class Model(nn.Module):
        def __init__(self):
            self.embed = nn.Embedding(50, 8)
            self.block = nn.TransformerBlock(8, 2)

        def __call__(self, x):
            return self.block(self.embed(x))

    summary = Model().summary((2, 5), dtype="int32")
    rows = {row.name: row for row in summary.rows}
    assert rows["embed"].output_shape == (2, 5, 8)
    assert rows["block.attention.query"].output_shape == (2, 5, 8)
    assert sum(row.num_parameters for row in summary.rows) == Model().num_parameters


class Two(nn.Module):
    def __init__(self):
        self.words, self.numbers = nn.Embedding(50, 3), nn.Linear(4, 3)

    def __call__(self, words, numbers):
        return self.words(words).sum(1) + self.numbers(numbers)


@pytest.mark.parametrize(
    ("shapes", "dtypes"),
    [
        (((2, 5), (2, 4)), ("int32", "float32")),
        ([(2, 5), [2, 4]], ["int32", "float32"]),
        ({"numbers": (2, 4), "words": (2, 5)}, {"words": "int32", "numbers": "float32"}),
        (((2, 5), (2, 4)), "int32"),
    ],
)
def test_a_summary_of_several_inputs(shapes, dtypes):
    rows = {row.name: row.output_shape for row in Two().summary(shapes, dtype=dtypes).rows}
    assert rows == {"words": (2, 5, 3), "numbers": (2, 3)}


def test_a_summary_without_a_batch_size_is_of_one_example():
    summary = nn.Linear(4, 2).summary((None, 4))
    assert summary.rows[0].output_shape == (1, 2)


@pytest.mark.parametrize(
    ("model", "shape", "options", "error", "text"),
    [
        (nn.Linear, (2, None), {}, ShapeError, r"only the first.*None; got \(2, None\)"),
        (nn.Linear, (2.0, 4), {}, ShapeError, "whole numbers"),
        (nn.Linear, (-1, 4), {}, ShapeError, "from 0"),
        (nn.Linear, 4, {}, ArgumentTypeError, "got 4"),
        (nn.Linear, "4", {}, ArgumentTypeError, "got '4'"),
        (nn.Linear, ((2, 4), (2, 3)), {}, ArgumentTypeError, r"Linear\(x\).*2 inputs"),
        (Two, (2, 4), {}, ArgumentTypeError, "one input.*'numbers'"),
        (Two, {"words": (2, 5)}, {}, ArgumentTypeError, "inputs named words"),
        (Two, ((2, 5), (2, 4)), {"dtype": ("int32",)}, ArgumentTypeError, "one for each"),
        (nn.Linear, (2, 4), {"dtype": "flot32"}, UnknownNameError, "float32"),
    ],
)
def test_what_no_summary_can_be_made_of_is_told(model, shape, options, error, text):
    made = model(4, 2) if model is nn.Linear else model()
    with pytest.raises(error, match=text):
        made.summary(shape, **options)


# --- saving -------------------------------------------------------------------------------------


def test_a_model_is_saved_and_loaded_bit_for_bit(tmp_path):
    path = tmp_path / "model.safetensors"
    model, other = make_cnn(), make_cnn()
    model(IMAGES)  # moves the running statistics, which belong to the file
    model.save(path)
    assert other.load(path) is other
    np.testing.assert_array_equal(model.eval()(IMAGES), other.eval()(IMAGES))
    for name, value in model.parameters().items():
        np.testing.assert_array_equal(other.parameters()[name], value)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("make", [lambda: nn.LSTM(3, 4), lambda: nn.MultiHeadAttention(8, 2)])
def test_other_layers_are_saved_too(tmp_path, make):
    first, second = make(), make()
    first.save(tmp_path / "w")
    second.load(tmp_path / "w")
    for name, value in first.parameters().items():
        np.testing.assert_array_equal(second.parameters()[name], value)


def test_bfloat16_is_saved_as_it_is_and_cast_on_loading(tmp_path):
    model = nn.Linear(3, 2, dtype="bfloat16")
    model.save(tmp_path / "w")
    twin = nn.Linear(3, 2, dtype="bfloat16").load(tmp_path / "w")
    np.testing.assert_array_equal(twin.kernel[...], model.kernel[...])
    wide = nn.Linear(3, 2).load(tmp_path / "w")
    assert wide.kernel[...].dtype == jnp.float32
    np.testing.assert_array_equal(wide.kernel[...], model.kernel[...].astype(jnp.float32))


def test_loading_keeps_the_device(tmp_path):
    model = nn.Linear(3, 2)
    model.save(tmp_path / "w")
    twin = nn.Linear(3, 2).to("tpu:5").load(tmp_path / "w")
    assert device.device_of(twin.kernel[...]) == device.Device("tpu:5")


MISFITS = {
    "names": (lambda: nn.Sequential(nn.Linear(4, 3)), "layers.0.kernel"),
    "shape": (lambda: nn.Linear(4, 5), r"has shape .*\(5,\)"),
    "missing": (lambda: nn.Linear(4, 3, bias=False), "bias"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_weights_that_do_not_fit_are_named_and_change_nothing(tmp_path, name):
    make, text = MISFITS[name]
    nn.Linear(4, 3).save(tmp_path / "w")
    model = make()
    before = {key: np.asarray(value) for key, value in model.parameters().items()}
    with pytest.raises(CheckpointError, match=text):
        model.load(tmp_path / "w")
    for key, value in model.parameters().items():
        np.testing.assert_array_equal(value, before[key])


@pytest.mark.parametrize("keep", [0, 5, 0.5, -1])
def test_a_truncated_file_is_damaged(tmp_path, keep):
    path = tmp_path / "w"
    nn.Linear(40, 30).save(path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if isinstance(keep, float) else keep])
    with pytest.raises(CheckpointError, match="damaged"):
        nn.Linear(40, 30).load(path)


def test_no_file_and_no_folder_are_told(tmp_path):
    with pytest.raises(CheckpointError, match="no file"):
        nn.Linear(4, 3).load(tmp_path / "nothing")
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="written"):
        nn.Linear(4, 3).save(tmp_path / "file" / "w")


# --- before training ----------------------------------------------------------------------------


def test_fit_and_evaluate_need_compile():
    for method in (nn.Linear(2, 1).fit, nn.Linear(2, 1).evaluate):
        with pytest.raises(NotCompiledError, match="compile"):
            method(np.ones((4, 2)), np.ones((4, 1)))


def test_compile_and_fit_refuse_names_that_do_not_exist():
    model = nn.Linear(2, 1)
    for options in ({"optimizer": "adm"}, {"loss": "msee"}, {"metrics": ["acc."], "loss": "mse"}):
        with pytest.raises(UnknownNameError, match="Did you mean"):
            model.compile(**options)
    model.compile(loss="mse")
    with pytest.raises(ArgumentTypeError, match="Did you mean 'shuffle'"):
        model.fit(np.ones((4, 2)), np.ones((4, 1)), shufle=True)


def test_a_model_trains_evaluates_and_predicts():
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
    model = nn.Linear(3, 1).compile(optimizer="sgd", loss="mse", metrics=["mae"])
    before = model.evaluate(x, y)
    history = model.fit(x, y, epochs=3, batch_size=16, verbose=False)
    assert len(history["loss"]) == 3
    assert model.evaluate(x, y)["loss"] < before["loss"]
    np.testing.assert_allclose(model.predict(x), model(jnp.asarray(x)), rtol=1e-4, atol=1e-5)


def test_predict_works_without_compile():
    model = nn.Linear(3, 1)
    assert model.predict(np.ones((5, 3), np.float32)).shape == (5, 1)
    assert model.trainer is None


# --- layers in lists and dicts ------------------------------------------------------------------


class InList(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleList([nn.Linear(4, 8), nn.Linear(8, 8)])
        self.layers.append(nn.Linear(8, 1))

    def __call__(self, x):
        for layer in self.layers:
            x = jnp.tanh(layer(x))
        return x


class InDict(nn.Module):
    def __init__(self):
        self.layers = nn.ModuleDict({"in": nn.Linear(4, 8)})
        self.layers["out"] = nn.Linear(8, 1)

    def __call__(self, x):
        return self.layers["out"](jnp.tanh(self.layers["in"](x)))


@pytest.mark.parametrize(
    ("kind", "names"), [(InList, ["0", "1", "2"]), (InDict, ["in", "out"])], ids=["list", "dict"]
)
def test_layers_in_a_container_are_trained_and_saved(tmp_path, kind, names):
    model, other = kind(), kind()
    assert sorted({name.split(".")[1] for name in model.parameters()}) == names
    before = model.parameters()
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    model.compile("sgd", "mse").fit(x, x[:, :1], epochs=2)
    for name, value in model.parameters().items():
        assert not np.array_equal(value, before[name]), name
    model.save(tmp_path / "model.safetensors")
    other.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(other(x), model(x))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (lambda: [nn.Linear(4, 1)], r"Holder.layers is a list.*self.layers = nn.ModuleList\("),
        (lambda: {"a": nn.Linear(4, 1)}, r"Holder.layers is a dict.*nn.ModuleDict\("),
    ],
    ids=["list", "dict"],
)
def test_a_plain_container_of_layers_is_told_the_way_on(value, text):
    class Holder(nn.Module):
        def __init__(self):
            self.layers = value()

    with pytest.raises(ArgumentTypeError, match=text):
        Holder()


def test_other_attributes_are_as_in_nnx():
    class Holder(nn.Module):
        def __init__(self):
            self.sizes = [1, 2]
            self.pair = nnx.data((nn.Linear(2, 2), nn.Linear(2, 2)))

    assert Holder().sizes == [1, 2] and Holder().num_parameters == 12
    with pytest.raises(NotCompiledError, match="trainer"):
        Holder().stop_training = True


def test_an_embedding_is_trained_on_numbers_in_its_table():
    layer = nn.Embedding(5, 2)
    assert layer(jnp.array([[0, 4, 3]])).shape == (1, 3, 2)
    assert layer(np.zeros((0,), np.int32)).shape == (0, 2)
    for wrong in (jnp.array([[0, 5]]), np.array([[0, -1]])):
        number = int(wrong[0, 1])
        with pytest.raises(DataError, match=rf"5 rows.*{number} at index \(0, 1\)"):
            layer(wrong)
    compiled = jax.jit(lambda x: layer(x))(jnp.array([5, -1, 4]))
    assert jnp.isnan(compiled).all(1).tolist() == [True, True, False]


def test_a_model_trains_on_batches_that_say_they_have_no_weights():
    x = np.ones((2, 3), np.float32)
    model = nn.Sequential(nn.Linear(3, 1)).compile("sgd", "mse")
    assert len(model.fit([(x, x[:, :1], None), [x, x[:, :1], None]])["loss"]) == 1


def test_a_module_that_keeps_its_streams_draws_anew_in_every_step_of_fit():
    sums = []

    class Noisy(nn.Module):
        def __init__(self):
            self.out, self.rngs = nn.Linear(3, 1), nnx.Rngs(random.next_key())

        def __call__(self, x):
            noise = tensor.randn(*x.shape, key=self.rngs())
            jax.debug.callback(lambda total: sums.append(float(total)), noise.sum())
            return self.out(x + noise)

    model, x = Noisy().compile("sgd", "mse"), np.zeros((8, 3), np.float32)
    model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=False)
    jax.effects_barrier()
    assert len(set(sums)) >= 4


def test_integer_features_may_meet_dropout_first():
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(3, 1)).compile("sgd", "mse")
    x = np.ones((8, 3), np.int32)
    history = model.fit(x, np.ones((8, 1), np.float32), batch_size=4, verbose=False)
    assert np.isfinite(history["loss"]).all() and model.predict(x).shape == (8, 1)

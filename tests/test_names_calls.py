"""Arguments of other libraries in calls: of layers, of models' methods, of ``nx.jit``.

Each is answered with what it is here, and what the answer says is tried where it can be.
"""

from __future__ import annotations

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._core.names import answers
from neurenix._migration import layers
from neurenix._migration import trainer as of_train
from neurenix._nnx import nnx

pytestmark = pytest.mark.cpu8

X = np.ones((2, 5, 8), np.float32)
MODE = r"Here that is model.train\(\) or model.eval\(\), before the call\. Arguments: "
CALLS = {
    "lstm initial_state": (lambda: nn.LSTM(8, 4), "initial_state", "Here that is state. Arg"),
    "lstm hx": (lambda: nn.LSTM(8, 4), "hx", r"state=\(h, c\), each \(N, hidden_size\)"),
    "lstm c_0": (lambda: nn.LSTM(8, 4), "c_0", r"state=\(h, c\)"),
    "gru h_0": (lambda: nn.GRU(8, 4), "h_0", r"state, \(N, hidden_size\), without PyTorch's"),
    "gru seq_lengths": (lambda: nn.GRU(8, 4), "seq_lengths", "Here that is lengths"),
    "gru sequence_length": (lambda: nn.GRU(8, 4), "sequence_length", "Here that is lengths"),
    "gru train": (lambda: nn.GRU(8, 4), "train", MODE),
    "gru maks": (lambda: nn.GRU(8, 4), "maks", "Did you mean 'mask'"),
    "attention attn_mask": (lambda: nn.MultiHeadAttention(8, 2), "attn_mask", "opposite of PyTor"),
    "attention is_causal": (lambda: nn.MultiHeadAttention(8, 2), "is_causal", "causal=True, when"),
    "attention_mask": (lambda: nn.MultiHeadAttention(8, 2), "attention_mask", "key_padding_mask="),
    "need_weights": (lambda: nn.MultiHeadAttention(8, 2), "need_weights", "its output alone"),
    "inputs_q": (lambda: nn.MultiHeadAttention(8, 2), "inputs_q", "Here that is query"),
    "block src_mask": (lambda: nn.TransformerBlock(8, 2), "src_mask", "mask, True where a query"),
    "block padding": (lambda: nn.TransformerBlock(8, 2), "src_key_padding_mask", "is key_padding_"),
    "embedding inputs": (lambda: nn.Embedding(3, 4), "inputs", "Here that is x"),
    "embedding input_ids": (lambda: nn.Embedding(3, 4), "input_ids", "Here that is x"),
    "dropout train": (lambda: nn.Dropout(0.5), "train", MODE + "x, deterministic, rngs"),
    "norm train": (lambda: nn.BatchNorm(8), "is_training", MODE),
    "norm average": (lambda: nn.BatchNorm(8), "use_running_average", MODE),
    "sequential train": (lambda: nn.Sequential(nn.Linear(8, 2)), "train", MODE),
    "sequential mask": (lambda: nn.Sequential(nn.Linear(8, 2)), "mask", "module of your own"),
    "conv input": (lambda: nn.Conv1d(8, 2, 3), "input", "Here that is x"),
    "transpose": (lambda: nn.ConvTranspose1d(8, 2, 3), "output_size", "output_padding=, when"),
    "pool mask": (lambda: nn.GlobalAvgPool1d(), "mask", "jnp.mean"),
    "relu xyzzy": (lambda: nn.ReLU(), "xyzzy", "no argument 'xyzzy'. Arguments: x\\."),
}


@pytest.mark.parametrize("case", CALLS)
def test_an_argument_of_another_librarys_call_is_told_what_it_is_here(case) -> None:
    make, name, said = CALLS[case]
    layer = make()
    for call in (layer, nx.jit(layer)):
        with pytest.raises(nx.ArgumentTypeError, match=said) as caught:
            call(X, **{name: None})
        text = str(caught.value)
        assert text.startswith(f"A call of {type(layer).__name__} has no argument {name!r}.")
        assert len(text.splitlines()) == 1


def test_an_argument_of_another_attention_function_is_told_what_it_is_here() -> None:
    q = X[:, :, None]
    with pytest.raises(nx.ArgumentTypeError, match="no option 'is_causal'. Here that is causal"):
        nn.dot_product_attention(q, q, q, is_causal=True)  # pyright: ignore


def test_too_many_and_too_few_arguments_are_told() -> None:
    with pytest.raises(nx.ArgumentTypeError, match="Linear: too many positional.*Arguments: x"):
        nn.Linear(8, 2)(X, True)
    with pytest.raises(nx.ArgumentTypeError, match="missing a required argument: 'x'"):
        nn.LSTM(8, 2)()


def test_a_layer_of_the_users_is_asked_for_what_ours_takes() -> None:
    class Own(nn.LSTM):
        def __call__(self, x, wrong=False):
            return super().__call__(x, **({"hx": None} if wrong else {}))

    assert Own(8, 4)(X)[0].shape == (2, 5, 4)
    with pytest.raises(nx.ArgumentTypeError, match=r"state=\(h, c\).*Arguments: x, state, mask"):
        Own(8, 4)(X, wrong=True)

    class Broken(nn.Identity):
        def __call__(self, x):
            return x + len(3)  # pyright: ignore  a mistake of the user's own

    with pytest.raises(TypeError, match="no len") as caught:
        Broken()(X)
    assert not isinstance(caught.value, nx.NeurenixError)


def test_a_type_error_inside_of_an_answered_function_stays_itself() -> None:
    @answers({"colour": "color"})
    def paint(color, *, thick=1):
        return color + thick

    assert paint(1, thick=2) == 3
    with pytest.raises(TypeError, match="can only concatenate"):
        paint("red")
    with pytest.raises(nx.ArgumentTypeError, match=r"paint\(\) has no option 'colour'. Here that"):
        paint(colour=1)
    assert list(inspect.signature(paint).parameters) == ["color", "thick"]


METHODS = {
    "jit_compile": ("compile", "not needed: every step is compiled"),
    "mixed_precision": ("compile", 'precision="bfloat16"'),
    "run_eagerly": ("compile", r"with jax.disable_jit\(\)"),
    "weighted_metrics": ("compile", "Here that is metrics"),
    "loss_fn": ("compile", "Here that is loss"),
    "lr": ("compile", r"nx.optim.Adam\(learning_rate\)"),
    "strict": ("load", "every name and shape must fit.*saved.backbone"),
    "map_location": ("load", "not needed"),
    "overwrite": ("save", "existing file is replaced"),
    "include_optimizer": ("save", r"model.trainer.save\(path\)"),
    "non_blocking": ("to", "not needed"),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_argument_of_a_models_method_is_told_what_it_is_here(name) -> None:
    method, said = METHODS[name]
    with pytest.raises(
        nx.ArgumentTypeError, match=rf"^{method}\(\) has no option '{name}'.*{said}"
    ):
        getattr(nn.Linear(2, 2), method)(**{name: True})


def test_run_eagerly_is_what_its_answer_says() -> None:
    seen = []

    class Look(nn.Module):
        def __init__(self) -> None:
            self.out = nn.Linear(8, 1)

        def __call__(self, x):
            seen.append(float(jnp.sum(x)) if not isinstance(x, jax.core.Tracer) else None)
            return self.out(x)

    model = Look().compile("sgd", "mse")
    with jax.disable_jit():
        model.fit(np.ones((4, 8), np.float32), np.ones((4, 1), np.float32), batch_size=4, verbose=0)
    assert 32.0 in seen


def test_a_part_of_a_file_is_loaded_as_the_answer_says(tmp_path) -> None:
    class Net(nn.Module):
        def __init__(self, classes: int) -> None:
            self.backbone, self.head = nn.Linear(4, 3), nn.Linear(3, classes)

        def __call__(self, x):
            return self.head(self.backbone(x))

    first, saved, model = Net(10), Net(10), Net(2)
    first.save(tmp_path / "net.safetensors")
    with pytest.raises(nx.CheckpointError, match="head.kernel"):
        model.load(tmp_path / "net.safetensors")
    model.backbone = saved.load(tmp_path / "net.safetensors").backbone
    np.testing.assert_array_equal(model.backbone.kernel[...], first.backbone.kernel[...])
    x, y = np.ones((4, 4), np.float32), np.ones((4, 2), np.float32)
    assert len(model.compile("sgd", "mse").fit(x, y, epochs=2, verbose=0)["loss"]) == 2


@pytest.mark.parametrize("name", ["precision", "steps_per_execution", "accumulate_steps", "remat"])
def test_a_trainer_is_told_where_how_a_step_is_built_is_said(name) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=rf"nx.train.TrainOptions\({name}=…\)"):
        nx.Trainer(nn.Linear(2, 2), **{name: 1})
    with pytest.raises(nx.ArgumentTypeError, match="Here that is module"):
        nx.Trainer(model=nn.Linear(2, 2))  # pyright: ignore


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("donate_argnums", r"donate, which is True.*jax.jit\(function, donate_argnums=…\)"),
        ("in_shardings", "placed like the arrays"),
        ("input_signature", "the first call says it"),
        ("static_argname", "Did you mean 'static_argnames'"),
    ],
)
def test_an_argument_of_another_jit_is_told_what_it_is_here(name, said) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=rf"^jit\(\) has no option '{name}'.*{said}"):
        nx.jit(lambda x: x, **{name: 0})
    with pytest.raises(nx.ArgumentTypeError, match=said):

        @nx.jit(**{name: 0})
        def _(x):
            return x


def test_every_argument_that_an_answer_gives_exists() -> None:
    kinds = {
        getattr(nn, name)
        for name in nn.__all__
        if isinstance(getattr(nn, name), type) and issubclass(getattr(nn, name), nn.Module)
    }
    named: dict[str, set[str]] = {}
    for layer in kinds:
        if layer.__call__ is object.__call__ or not callable(layer.__call__):
            continue
        takes = set(inspect.signature(layer.__call__).parameters)
        for old, here in layers.arguments_of(layer).items():
            if here.isidentifier() and old not in takes:
                named.setdefault(here, set()).update(takes)
    assert all(here in takes for here, takes in named.items())
    tables = [
        (of_train.OF_COMPILE, nn.Module.compile),
        (of_train.OF_TRAINER, nx.Trainer.__init__),
        (of_train.OF_JIT, nx.jit),
        (layers.OF_DOT_PRODUCT, nn.dot_product_attention),
        (layers.OF_LOAD, nn.Module.load),
        (layers.OF_SAVE, nn.Module.save),
        (layers.OF_TO, nn.Module.to),
    ]
    for table, function in tables:
        takes = inspect.signature(function).parameters
        assert not table.keys() & takes.keys()
        for here in table.values():
            first = re.match(r"(\w+)(?:=(?! of)|, |$)", here)
            assert first is None or first[1] in takes, here


def test_to_takes_a_dtype_without_a_device() -> None:
    def made():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm(3), nn.Embedding(3, 2))

    for given in ("bfloat16", "bf16", jnp.bfloat16, jnp.dtype("bfloat16"), np.dtype(jnp.bfloat16)):
        for model in (made().to(given), made().to(dtype=given)):
            kinds = {x.dtype for x in jax.tree.leaves(nnx.state(model, nnx.Param))}
            assert kinds == {jnp.dtype("bfloat16")}
            assert model[1].mean.dtype == jnp.float32
    assert made().to(float)[0].kernel.dtype == jnp.float32
    assert made().to("cpu", "float16")[0].kernel.dtype == jnp.float16
    for wrong, said in [
        ((), r"to\(\) takes a device, a dtype, or both"),
        (("bfloat16", "float32"), "two dtypes"),
        (("int8",), "would truncate to integers"),
    ]:
        with pytest.raises(nx.ArgumentError, match=said):
            made().to(*wrong)


def test_to_without_a_device_leaves_arrays_where_they_are() -> None:
    last = jax.devices()[-1]
    model = nn.Linear(4, 3).to(last).to("bfloat16")
    assert model.kernel[...].devices() == {last}
    assert not nn.Linear(4, 3).to("bfloat16").kernel[...].committed
    array = jax.device_put(jnp.ones(3), last)
    for moved in (nx.to(array, "bfloat16"), nx.to(array, dtype="bfloat16")):
        assert moved.dtype == jnp.bfloat16 and moved.devices() == {last}
    tree = nx.to({"a": np.ones(3), "n": np.arange(3)}, jnp.float16)
    assert tree["a"].dtype == jnp.float16 and tree["n"].dtype == jnp.int32
    foreign = nx.to(nnx.Linear(2, 2, rngs=nnx.Rngs(0)), "bfloat16")
    assert foreign.kernel.dtype == jnp.bfloat16
    with pytest.raises(nx.ArgumentError, match="takes a device, a dtype"):
        nx.to(array)


@pytest.mark.parametrize(
    ("name", "said"),
    [("half", "float16"), ("float", "float32"), ("bfloat16", "bfloat16"), ("double", "float64")],
)
def test_pytorchs_methods_of_a_dtype_are_told(name, said) -> None:
    with pytest.raises(AttributeError, match=rf'model.to\(dtype="{said}"\)'):
        getattr(nn.Linear(2, 2), name)()


def test_the_hints_of_trainers_know_every_option() -> None:
    from dataclasses import fields

    from neurenix._migration.trainer import TRAIN_OPTIONS

    assert {field.name for field in fields(nx.train.TrainOptions)} == {*TRAIN_OPTIONS}

"""Stacks of layers of several kinds: what their loops compute, share and refuse."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import models
from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._nnx import nnx
from neurenix.models.stacked import MixedStack

pytestmark = pytest.mark.cpu8

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
SMALL: dict[str, Any] = {
    "num_layers": 4, "embed_dim": 16, "num_heads": 4, "num_kv_heads": 2, "head_dim": 8,
    "mlp_dim": 24, "vocab_size": 16, "max_length": 16, "dtype": "float32", "window": 3,
    "global_every": 3,
}  # fmt: skip
SHARING: dict[str, Any] = {
    **SMALL, "num_layers": 7, "global_every": 2, "num_kv_shared_layers": 3, "kv_shared_mlp_dim": 40,
    "per_layer_input_dim": 6, "full_attention": models.FullAttention(head_dim=16),
}  # fmt: skip
KEYS_AS_VALUES = {
    **SMALL,
    "full_attention": models.FullAttention(head_dim=16, num_kv_heads=1, key_is_value=True),
}
SIZES = {"gemma4-e2b": SHARING, "gemma4-31b": KEYS_AS_VALUES}
BESIDE_EXPERTS = {
    **KEYS_AS_VALUES, "num_experts": 4, "experts_per_token": 2, "parallel_mlp_dim": 20,
}  # fmt: skip


def tokens(count: int = 8, length: int = 12) -> jax.Array:
    return jnp.asarray(np.random.default_rng(1).integers(0, 16, (count, length)), jnp.int32)


def value_and_gradients(model: models.Decoder) -> tuple[jax.Array, dict[str, jax.Array]]:
    ids = tokens()

    @nnx.jit
    @nnx.value_and_grad
    def loss(model: models.Decoder) -> jax.Array:
        return LOSS(ids, model(ids))

    value, state = loss(model)
    return value, {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(state)}


VARIANTS: dict[str, dict[str, Any]] = {
    "written out": {"scan_layers": False},
    "saved by name": {"remat": models.Remat(save=("decoder_layer_input", "key_proj"))},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("name", SIZES)
def test_loops_and_recomputation_change_no_number(name: str, variant: str) -> None:
    plain = models.build(name, **SIZES[name])
    model = models.build(name, **SIZES[name], **VARIANTS[variant])
    nnx.update(model, nnx.state(plain))
    (value, found), (wanted_value, wanted) = value_and_gradients(model), value_and_gradients(plain)
    assert float(value) == pytest.approx(float(wanted_value), rel=1e-5)
    assert found.keys() == wanted.keys()
    for path in wanted:
        np.testing.assert_allclose(found[path], wanted[path], rtol=1e-3, atol=1e-6, err_msg=path)


def test_each_kind_has_the_parameters_of_its_layers() -> None:
    model = models.abstract("gemma4-e2b", **SHARING)
    assert isinstance(model.layers, MixedStack) and isinstance(model.sharing_layers, MixedStack)
    shapes = {path: leaf.shape for path, leaf in model.parameters().items()}
    windowed, full = "layers.kinds.0.attention", "layers.kinds.1.attention"
    assert shapes[f"{windowed}.key.kernel"] == (2, 16, 2 * 8)
    assert shapes[f"{full}.key.kernel"] == (2, 16, 2 * 16)
    assert shapes["sharing_layers.kinds.0.mlp.up.kernel"] == (2, 16, 40)  # of a pattern and half
    assert shapes["sharing_layers.kinds.1.mlp.up.kernel"] == (1, 16, 40)
    assert not [path for path in shapes if path.startswith("sharing") and ".key." in path]
    assert not [path for path in shapes if "value_norm" in path]  # it has no scale
    keys = models.abstract("gemma4-31b", **KEYS_AS_VALUES).parameters()
    assert f"{windowed}.value.kernel" in keys and f"{full}.value.kernel" not in keys


def test_keys_that_are_shared_learn_from_all_that_look_at_them() -> None:
    """With the layers that share cut off from the loss, the gradient of the keys is another."""
    model = models.build("gemma4-e2b", **SHARING)
    _, whole = value_and_gradients(model)
    for kind in model.sharing_layers.kinds:
        kind.attention.out.kernel.set_value(jnp.zeros_like(kind.attention.out.kernel[...]))
    _, cut = value_and_gradients(model)
    for number, last in ((0, 1), (1, 1)):
        path = f"layers.kinds.{number}.attention.value.kernel"
        moved = jnp.abs(whole[path] - cut[path]).max((1, 2))
        assert float(moved[last]) > 1e-6


def repeated(count: int = 64, length: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rows = (np.arange(length + 1)[None] + np.arange(count)[:, None]) % 8
    return rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)


OF_TRAINING = {"gemma4-e2b": SHARING, "gemma4-26b-a4b": BESIDE_EXPERTS}


@pytest.mark.parametrize("name", OF_TRAINING)
def test_a_step_divided_over_two_axes_is_that_of_one_device(name: str) -> None:
    """One step of plain SGD: what is compared is every parameter's gradient."""
    x, y = repeated(32)
    found = []
    for strategy in (
        nx.distribute.OneDeviceStrategy("cpu"),
        nx.distribute.TPUStrategy(mesh={"fsdp": 4, "tensor": 2}),
    ):
        nx.seed(3)
        with strategy.scope():
            model = models.build(name, **OF_TRAINING[name], remat="full")
            first = {path: np.asarray(leaf[...]) for path, leaf in model.parameters().items()}
            model.compile(optimizer=nx.optim.SGD(1.0), loss=LOSS)
            model.fit(x, y, batch_size=32, shuffle=False, verbose=0)
        found.append({path: np.asarray(leaf[...]) for path, leaf in model.parameters().items()})
    for path, before in first.items():
        wanted, moved = (after[path] - before for after in found)
        most = np.abs(wanted).max()
        assert most > 1e-4, path
        np.testing.assert_allclose(moved, wanted, rtol=0, atol=2e-3 * most, err_msg=path)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no window": ({"window": 0, "full_attention": models.FullAttention()}, "give window"),
    "all full": ({"global_every": 1, "full_attention": models.FullAttention()}, "of 2 or more"),
    "half a pattern": ({"num_layers": 7, "num_kv_shared_layers": 2}, "a multiple of the 3 layers"),
    "all share": ({"num_kv_shared_layers": 4}, "must leave some of num_layers=4"),
    "with dense layers": (
        {"num_kv_shared_layers": 2, "num_dense_layers": 2, "dense_mlp_dim": 8, "global_every": 0},
        "combined with latent",
    ),
    "latent": (
        {"latent": models.Latent(), "value_norm": True, "qk_norm": False}, "has no value_norm",
    ),
    "odd heads": (
        {"full_attention": models.FullAttention(head_dim=15)}, "even full_attention.head_dim",
    ),
    "heads that do not divide": (
        {"full_attention": models.FullAttention(num_kv_heads=3)},
        "full_attention.num_kv_heads=3 does not divide num_heads=4",
    ),
    "beside nothing": ({"parallel_mlp_dim": 8}, "parallel_mlp_dim=8 needs experts"),
    "sigmoid": (
        {"parallel_mlp_dim": 8, "num_experts": 2, "experts_per_token": 1, "router": "sigmoid"},
        "needs router='softmax'",
    ),
    "no part": ({"per_layer_input_dim": -1}, "per_layer_input_dim must be a whole number"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name: str) -> None:
    changes, message = REFUSED[name]
    with pytest.raises(ArgumentError, match=message):
        models.get("gemma3-4b").replace(**{**SMALL, **changes})


def test_full_attention_is_of_its_own_type_and_in_its_range() -> None:
    with pytest.raises(ArgumentTypeError, match="full_attention is a models.FullAttention"):
        models.get("gemma3-4b").replace(full_attention={"head_dim": 512})
    for wrong in (1.5, -0.1, "a", True):
        with pytest.raises(ArgumentError, match=r"rope_proportion must be in 0 … 1"):
            models.FullAttention(rope_proportion=wrong)
    with pytest.raises(ArgumentError, match="FullAttention: head_dim must be a whole number"):
        models.FullAttention(head_dim=-1)
    with pytest.raises(ArgumentError, match="Latent: v_head_dim must be a whole number"):
        models.Latent(v_head_dim=0)

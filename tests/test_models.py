"""Models: their numbers against independent ones, their loops, experts and recomputation."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.ad_checkpoint import print_saved_residuals

import neurenix as nx
from neurenix import models
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    ShapeError,
    UnknownNameError,
)
from neurenix._nnx import nnx
from neurenix.distribute.rules import ShardingRules
from neurenix.models import rope
from neurenix.models.experts import Experts, imbalance
from neurenix.models.layers import Attention

pytestmark = pytest.mark.cpu8

RNG = np.random.default_rng(0)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
TINY = models.get("tiny")


def tokens(count: int = 2, length: int = 16) -> jax.Array:
    return jnp.asarray(RNG.integers(0, TINY.vocab_size, (count, length)), jnp.int32)


def as_float64(module: nnx.Module, *path: str) -> np.ndarray:
    for name in path:
        module = getattr(module, name)
    return np.asarray(module[...], np.float64)


# --- sizes --------------------------------------------------------------------------------------

# In millions. Those of MaxText and GPT-3 are the totals that the published runs were counted with;
# the others are those of the models' own releases, exact.
PARAMETERS = {
    "gpt2": 124.439808,
    "bert-base": 109.514298,
    "vit-b16": 86.567656,
    "resnet50": 25.557032,
    "gpt3-175b": 175_182.4,
    "llama2-7b": 6_738.415616,
    "llama2-13b": 13_015.86432,
    "llama2-70b": 68_976.648192,
    "llama3.1-8b": 8_030.261248,
    "llama3.1-70b": 70_553.706496,
    "llama3.1-405b": 405_853.3888,
    "mistral-7b": 7_241.732096,
    "gemma3-1b": 999.885952,
    "gpt-oss-20b": 20_914.757184,
    "gpt-oss-120b": 116_829.156672,
    "deepseek3-671b": 671_026.4192,
    "gemma3-4b": 3_880.099328,
    "gemma3-12b": 11_765.788416,
    "gemma3-27b": 27_009.00224,
    "llama3.2-1b": 1_235.8144,
    "llama3.2-3b": 3_212.749824,
    "gemma-2b": 2_506.172416,
    "gemma-7b": 8_537.680896,
    "gemma2-2b": 2_614.341888,
    "gemma2-9b": 9_241.705984,
    "gemma2-27b": 27_227.12832,
    "gemma4-e2b": 4_628.569379,
    "gemma4-e4b": 7_463.013418,
    "gemma4-26b-a4b": 25_233.14179,
    "gemma4-31b": 30_697.34534,
    "llama4-scout": 107_769.86112,
    "llama4-maverick": 400_711.84896,
    "qwen3-0.6b": 596.04992,
    "qwen3-1.7b": 1_720.574976,
    "qwen3-4b": 4_022.468096,
    "qwen3-8b": 8_190.73536,
    "qwen3-14b": 14_768.3072,
    "qwen3-32b": 32_762.123264,
    "qwen3-30b-a3b": 30_532.122624,
    "qwen3-235b-a22b": 235_093.63456,
    "mixtral-8x7b": 46_702.792704,
    "mixtral-8x22b": 140_630.071296,
    "mt-16b": 15_831.4,
    "mt-32b": 31_662.8,
    "mt-64b": 62_801.3,
    "mt-128b": 125_078.3,
    "mt-256b": 250_200.0,
    "mt-512b": 499_264.8,
    "mt-1024b": 997_500.0,
    "mt-22b-v4": 22_136.5,
    "mt-52b-v4": 52_300.0,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_model_of_shapes_has_as_many_parameters_as_the_published_one(name: str) -> None:
    model = models.abstract(name)
    exact = not name.startswith(("mt-", "gpt3"))
    assert model.num_parameters / 1e6 == pytest.approx(
        PARAMETERS[name], rel=1e-12 if exact else 3e-3
    )
    leaves = jax.tree.leaves(nnx.state(model))
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    assert all(leaf.dtype == jnp.float32 for leaf in leaves)


@pytest.mark.parametrize("name", models.names())
def test_every_matrix_is_divided_by_some_rule(name: str) -> None:
    model = models.abstract(name)
    rules = ShardingRules(model.sharding_rules())
    axes = {"fsdp": 2, "tensor": 2}
    for path, leaf in model.parameters().items():
        partition = rules.partition(path, leaf.shape, axes)
        matrix = len(leaf.shape) - path.startswith("layers.") >= 2
        if matrix and leaf.size >= 2**20:
            assert any(partition), f"{path} {leaf.shape} is whole on every device"


def test_names_that_nearly_match_are_suggested() -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean 'llama3.1-8b'"):
        models.get("llama3-8b")
    with pytest.raises(UnknownNameError, match="Did you mean 'num_layers'"):
        TINY.replace(num_layer=3)
    with pytest.raises(UnknownNameError, match="Did you mean 'minimal'"):
        TINY.replace(remat="minimum")
    with pytest.raises(UnknownNameError, match="Did you mean 'query_proj'"):
        models.Remat(save=("query_pro",))


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ArgumentError, match="num_kv_heads=3 does not divide"):
        TINY.replace(num_kv_heads=3)
    with pytest.raises(ArgumentError, match="num_layers must be"):
        TINY.replace(num_layers=0)
    with pytest.raises(ArgumentError, match="experts_per_token=5"):
        TINY.replace(num_experts=4, experts_per_token=5)
    with pytest.raises(ArgumentError, match="balance must be a number of at least 0"):
        TINY.replace(balance=-0.1)
    with pytest.raises(ArgumentTypeError, match="latent is a models.Latent"):
        TINY.replace(latent=5)
    with pytest.raises(ArgumentTypeError, match="rope_scaling is one of"):
        TINY.replace(rope_scaling=3)
    with pytest.raises(ArgumentError, match="two waves, a head_dim of 4 or more; got 2"):
        TINY.replace(head_dim=2, rope_scaling=models.YarnScaling())
    heads = jnp.ones((1, 4, 2, 8))
    for wrong in (0, "a", 1.5):
        with pytest.raises(ArgumentError, match="`window` must be an integer of at least 1"):
            nx.nn.dot_product_attention(heads, heads, heads, window=wrong)
    with pytest.raises(ArgumentError, match="saved or offloaded"):
        models.Remat(save=("context",), offload=("context",))


def test_sizes_that_follow_from_others_follow_them() -> None:
    changed = models.get("gpt2").replace(embed_dim=64, num_heads=2)
    assert (changed.head_dim, changed.num_kv_heads) == (32, 2)


def test_whole_numbers_of_numpy_are_sizes() -> None:
    changed = TINY.replace(vocab_size=np.int64(100))
    assert changed == TINY.replace(vocab_size=100) and type(changed.vocab_size) is int
    for wrong in (100.0, True, "100", np.float32(100)):
        with pytest.raises(ArgumentError, match="vocab_size must be a whole number"):
            TINY.replace(vocab_size=wrong)


def test_what_a_decoder_cannot_take_is_said() -> None:
    model = models.build("tiny")
    with pytest.raises(ArgumentTypeError, match="as integers"):
        model(jnp.zeros((2, 4)))
    with pytest.raises(ShapeError, match=r"\(N, T\)"):
        model(jnp.zeros(4, jnp.int32))
    with pytest.raises(ShapeError, match="256 tokens; got 300"):
        model(jnp.zeros((1, 300), jnp.int32))
    for empty in ((1, 0), (0, 4)):
        with pytest.raises(ShapeError, match="one token or more"):
            model(jnp.zeros(empty, jnp.int32))


# --- numbers ------------------------------------------------------------------------------------


def reference_rope(x: np.ndarray, theta: float) -> np.ndarray:
    """Rotate (T, H, D) by complex numbers, pairs i and i + D/2."""
    half = x.shape[-1] // 2
    turn = np.exp(1j * np.outer(np.arange(len(x)), theta ** (-np.arange(half) / half)))
    turned = (x[..., :half] + 1j * x[..., half:]) * turn[:, None]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def test_rotary_positions_are_turns_in_the_complex_plane() -> None:
    x = RNG.normal(size=(12, 3, 8))
    found = rope.rotate(jnp.asarray(x, jnp.float32)[None], rope.angles(12, 8, 500.0, None))[0]
    np.testing.assert_allclose(found, reference_rope(x, 500.0), atol=1e-5)


def reference_decoder(model: models.Decoder, ids: np.ndarray) -> np.ndarray:
    """The tiny decoder in float64, layer by layer and head by head, for one sequence (T,)."""
    config = model.config

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + config.norm_eps) * scale

    def weights(layer: int, *path: str) -> np.ndarray:
        return as_float64(model.layers, *path)[layer]

    x = as_float64(model, "embedding")[ids]
    length, size = len(ids), config.head_dim
    for layer in range(config.num_layers):
        y = norm(x, weights(layer, "attention_norm", "scale"))
        q, k, v = (
            (y @ weights(layer, "attention", name, "kernel")).reshape(length, -1, size)
            for name in ("query", "key", "value")
        )
        q, k = (reference_rope(a, config.rope_theta) for a in (q, k))
        mixed = np.zeros_like(q)
        for head in range(config.num_heads):
            group = head // (config.num_heads // config.num_kv_heads)
            for t in range(length):
                scores = k[: t + 1, group] @ q[t, head] / np.sqrt(size)
                share = np.exp(scores - scores.max())
                mixed[t, head] = share / share.sum() @ v[: t + 1, group]
        x = x + mixed.reshape(length, -1) @ weights(layer, "attention", "out", "kernel")
        y = norm(x, weights(layer, "mlp_norm", "scale"))
        gate = y @ weights(layer, "mlp", "gate", "kernel")
        hidden = gate / (1 + np.exp(-gate)) * (y @ weights(layer, "mlp", "up", "kernel"))
        x = x + hidden @ weights(layer, "mlp", "down", "kernel")
    return norm(x, as_float64(model, "norm", "scale")) @ as_float64(model, "unembedding", "kernel")


def test_a_decoder_gives_what_numpy_gives() -> None:
    model, ids = models.build("tiny", num_kv_heads=2, num_layers=3), tokens(1, 9)
    wanted = reference_decoder(model, np.asarray(ids[0]))
    np.testing.assert_allclose(
        nnx.jit(models.Decoder.__call__)(model, ids)[0], wanted, rtol=1e-3, atol=1e-4
    )


def gradients(model: models.Decoder, ids: jax.Array) -> dict[str, jax.Array]:
    def loss(model: models.Decoder) -> jax.Array:
        return LOSS(ids, model(ids))

    state = nnx.grad(loss)(model)
    return {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(state)}


VARIANTS = {
    "unrolled": {"scan_layers": False},
    "full": {"remat": "full"},
    "minimal": {"remat": "minimal"},
    "minimal, unrolled": {"remat": "minimal", "scan_layers": False},
    "saved by name": {"remat": models.Remat(save=("decoder_layer_input", "context"))},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_loops_and_recomputation_change_no_number(name: str) -> None:
    plain, ids = models.build("tiny"), tokens()
    model = models.build("tiny", **VARIANTS[name])
    nnx.update(model, nnx.state(plain))
    np.testing.assert_allclose(model(ids), plain(ids), rtol=1e-4, atol=1e-5)
    wanted = gradients(plain, ids)
    for path, found in gradients(model, ids).items():
        np.testing.assert_allclose(found, wanted[path], rtol=1e-3, atol=1e-5, err_msg=path)


STORED = {
    "full": 0,
    "minimal": 2,  # up and gate; their product is computed again
    "saved by name": 1,
    "on the host": 0,
}
POLICIES = {
    "saved by name": models.Remat(save=("mlp_gate",)),
    "on the host": models.Remat(offload=("mlp_gate",)),
}


@pytest.mark.parametrize("name", STORED)
def test_a_policy_keeps_what_it_names(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    model, ids = models.build("tiny", remat=POLICIES.get(name, name)), tokens()
    structure, state = nnx.split(model)

    def loss(state: nnx.State) -> jax.Array:
        return LOSS(ids, nnx.merge(structure, state)(ids))

    print_saved_residuals(loss, state)
    hidden = f"[{TINY.num_layers},2,16,{TINY.mlp_dim}] output of scan"
    text = capsys.readouterr().out
    assert text.count(f"f32{hidden}") == STORED[name]
    assert text.count(f"f32<host>{hidden}") == (name == "on the host")


@pytest.mark.parametrize(("mlp", "shared"), [("gated", 0), ("plain", 1)])
def test_experts_give_what_a_loop_over_experts_gives(mlp: str, shared: int) -> None:
    config = TINY.replace(
        num_experts=6, experts_per_token=2, num_shared_experts=shared, mlp=mlp, mlp_dim=24
    )
    layer = Experts(config, config.mlp_dim, lead=(), rngs=nnx.Rngs(1))
    x = RNG.normal(size=(2, 7, config.embed_dim))
    rows = x.reshape(-1, config.embed_dim)

    def silu(y: np.ndarray) -> np.ndarray:
        return y / (1 + np.exp(-y))

    def dense(up: np.ndarray, gate: np.ndarray | None, down: np.ndarray) -> np.ndarray:
        return (silu(rows @ up) if gate is None else silu(rows @ gate) * (rows @ up)) @ down

    scores = rows @ as_float64(layer, "router", "kernel")
    share = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    chosen = np.argsort(-share, axis=-1)[:, :2]
    wanted = np.zeros_like(rows)
    for expert in range(6):
        up, down = (as_float64(layer, "experts", name)[expert] for name in ("up", "down"))
        gate = as_float64(layer, "experts", "gate")[expert] if mlp == "gated" else None
        picked = (chosen == expert).any(-1)
        weight = np.where(picked, share[:, expert], 0) / np.take_along_axis(share, chosen, -1).sum(
            -1
        )
        wanted += weight[:, None] * dense(up, gate, down)
    if shared:
        parts = (as_float64(layer, "shared", name, "kernel") for name in ("up", "down"))
        up, down = parts
        wanted += dense(up, None, down)
    found = layer(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-3, atol=1e-4)
    assert {*np.asarray(layer.route(jnp.asarray(x, jnp.float32))[1]).reshape(-1)} == {
        *chosen.reshape(-1)
    }


def test_imbalance_lies_between_even_use_and_one_expert_for_all() -> None:
    even, all_one = np.full((2, 4, 4), 0.25, np.float32), np.zeros((2, 4, 4), np.float32)
    all_one[..., 3] = 1
    in_turn = np.arange(8).reshape(2, 4, 1) % 4
    assert float(imbalance(even, in_turn)) == pytest.approx(1)
    assert float(imbalance(all_one, np.full((2, 4, 1), 3))) == pytest.approx(4)


@pytest.mark.parametrize("router", ["softmax", "sigmoid_input"])
def test_the_gradient_of_experts_is_that_of_the_loss_with_their_imbalance(router: str) -> None:
    config = TINY.replace(num_experts=6, experts_per_token=2, router=router)
    x = jnp.asarray(RNG.normal(size=(2, 7, config.embed_dim)), jnp.float32)

    def gradient(balance: float, *, added: float = 0.0) -> jax.Array:
        layer = Experts(config.replace(balance=balance), config.mlp_dim, lead=(), rngs=nnx.Rngs(1))

        def loss(layer: Experts) -> jax.Array:
            share = jax.nn.softmax(layer.router(x), axis=-1)
            return jnp.sum(layer(x) ** 2) + added * imbalance(share, layer.route(x)[1])

        return nnx.grad(loss)(layer).router.kernel[...]

    wanted = gradient(0.0, added=3.0)
    np.testing.assert_allclose(gradient(3.0), wanted, rtol=1e-4, atol=1e-6)
    assert float(jnp.abs(wanted - gradient(0.0)).max()) > 1e-3


def test_attention_that_is_not_causal_sees_the_future() -> None:
    x = jnp.asarray(RNG.normal(size=(1, 6, TINY.embed_dim)), jnp.float32)
    for causal, sees in ((True, False), (False, True)):
        layer = Attention(TINY, causal=causal, lead=(), rngs=nnx.Rngs(0))
        before, after = (layer(x.at[:, 4].add(change), None)[0] for change in (0.0, 1.0))
        moved = jnp.abs(before - after).max((0, 2))
        assert bool(moved[0] > 0) is sees


# --- training -----------------------------------------------------------------------------------


def repeated(count: int = 64, length: int = 16) -> tuple[np.ndarray, np.ndarray]:
    rows = (np.arange(length + 1)[None] + np.arange(count)[:, None]) % 8
    return rows[:, :-1].astype(np.int32), rows[:, 1:].astype(np.int32)


STRATEGIES = {
    "one CPU": lambda: nx.distribute.OneDeviceStrategy("cpu"),
    "data": lambda: nx.distribute.TPUStrategy(),
    "fsdp and tensor": lambda: nx.distribute.TPUStrategy(mesh={"fsdp": 4, "tensor": 2}),
}


@pytest.mark.parametrize(
    ("name", "experts"),
    [("one CPU", 0), ("one CPU", 4), ("data", 0), ("fsdp and tensor", 0), ("fsdp and tensor", 4)],
)
def test_a_decoder_trains_with_fit(name: str, experts: int) -> None:
    x, y = repeated()
    with STRATEGIES[name]().scope():
        model = models.build(
            "tiny", remat="minimal", num_experts=experts, experts_per_token=experts and 2
        )
        model.compile(optimizer=nx.optim.Adam(1e-2), loss=LOSS, metrics=["accuracy"])
        history = model.fit(x, y, epochs=6, batch_size=32)
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["accuracy"][-1] > 0.9


def test_accumulated_steps_balance_experts_as_whole_ones_do() -> None:
    x, y = (np.repeat(rows, 4, axis=0) for rows in repeated(count=4))  # the same in each part
    moved = []
    for parts in (1, 4):
        nx.seed(0)
        model = models.build("tiny", num_experts=4, experts_per_token=2, balance=1.0)
        before = np.array(model.layers.mlp.router.kernel[...])
        model.compile(optimizer=nx.optim.SGD(1.0), loss=LOSS, accumulate_steps=parts)
        model.fit(x, y, epochs=1, batch_size=16, shuffle=False)
        moved.append(np.array(model.layers.mlp.router.kernel[...]) - before)
    np.testing.assert_allclose(moved[1], moved[0], rtol=1e-4, atol=1e-6)
    assert np.abs(moved[0]).max() > 1e-3


SMALL = {
    "bert-base": ({"num_layers": 1, "embed_dim": 32, "num_heads": 2, "mlp_dim": 64,
                   "vocab_size": 50, "dtype": "float32"}, (16, 12), (16, 12), 50),
    "vit-b16": ({"num_layers": 1, "embed_dim": 32, "num_heads": 2, "mlp_dim": 64,
                 "image_size": 16, "patch_size": 8, "num_classes": 4, "dtype": "float32"},
                (16, 16, 16, 3), (16,), 4),
    "resnet50": ({"blocks": (1, 1), "width": 8, "num_classes": 4, "dtype": "float32"},
                 (16, 32, 32, 3), (16,), 4),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_the_other_models_train_with_fit(name: str) -> None:
    changes, inputs, targets, classes = SMALL[name]
    y = RNG.integers(0, classes, targets).astype(np.int32)
    x = y if inputs == targets else RNG.normal(size=inputs).astype(np.float32)
    model = models.build(name, **changes)
    model.compile(optimizer=nx.optim.Adam(3e-3), loss=LOSS)
    history = model.fit(x, y, epochs=4, batch_size=16)
    assert history["loss"][-1] < history["loss"][0]


def test_a_model_of_shapes_says_that_it_cannot_train() -> None:
    model = models.abstract("tiny").compile(optimizer="adam", loss=LOSS)
    x, y = repeated()
    for call in (lambda: model.fit(x, y), lambda: model.evaluate(x, y), lambda: model.predict(x)):
        with pytest.raises(ArgumentError, match="The module is abstract"):
            call()
    assert "106,816 parameters, 427,264 bytes" in str(model.summary((2, 16), dtype="int32"))


# --- tokens that no vocabulary has --------------------------------------------------------------


@pytest.mark.parametrize("number", [256, -1])
def test_a_token_outside_of_the_vocabulary_is_told_by_every_call(number: int) -> None:
    model = models.build("tiny").compile(optimizer="adam", loss=LOSS)
    good = np.asarray(tokens(count=4))
    wrong = good.copy()
    wrong[2, 5] = number
    told = rf"embedding of tiny has 256 rows, 0 … 255.* {number} at index \(2, 5\)"
    for call in (
        lambda: model(jnp.asarray(wrong)),
        lambda: model.predict(wrong),
        lambda: model.evaluate(wrong, good),
        lambda: model.fit(wrong, good, verbose=0, shuffle=False),
    ):
        with pytest.raises(DataError, match=told):
            call()
    compiled = jax.jit(lambda x: model(x))
    assert bool(jnp.isnan(compiled(wrong)[2, 5:]).all())
    np.testing.assert_allclose(compiled(good), model(jnp.asarray(good)), rtol=1e-4, atol=1e-5)


def test_an_encoder_tells_tokens_and_segments_that_are_none() -> None:
    model = models.build("bert-base", **SMALL["bert-base"][0])
    ids, kinds = jnp.zeros((2, 4), jnp.int32), jnp.ones((2, 4), jnp.int32)
    name = model.config.name
    with pytest.raises(DataError, match=f"embedding of {name} has 50 rows"):
        model(ids + 50)
    with pytest.raises(DataError, match=f"table of segments of {name} has 2 rows.* holds 2"):
        model(ids, kinds + 1)
    assert bool(jnp.isnan(jax.jit(lambda x: model(ids, x))(kinds + 1)).all())
    with pytest.raises(ArgumentTypeError, match="segments as integers; got float32"):
        model(ids, kinds.astype("float32"))
    with pytest.raises(ArgumentTypeError, match="one array; got a list"):
        model([[1, 2]])
    with pytest.raises(ShapeError, match=r"segments \(N, T\); got the shape \(4,\)"):
        model(ids, kinds[0])
    with pytest.raises(ShapeError, match="one segment for each token"):
        model(ids, kinds[:, :3])
    assert not np.allclose(model(ids, kinds), model(ids))

"""Options that trade memory for time or precision: moment_dtype and remat."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import models, nn
from train_helpers import prepared

pytestmark = pytest.mark.cpu8


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return generator.normal(size=(32, 8, 8, 1)).astype(np.float32), np.arange(32) % 4


def model() -> Any:
    nx.seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm(4), nn.GELU(), nn.Flatten(), nn.Dropout(0.1),
        nn.Linear(144, 4),
    )  # fmt: skip


def fitted(optimizer: Any = "adam", **options: Any) -> Any:
    net = model()
    trainer = nx.Trainer(
        net,
        optimizer=optimizer,
        loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
        options=nx.train.TrainOptions(**options),
    )
    trainer.fit(*data(), batch_size=16, epochs=2, options=nx.train.FitOptions(shuffle=False))
    return trainer


def weights(trainer: Any) -> list[Any]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(nnx.state(trainer.module, nnx.Param))]


def test_remat_computes_the_same_and_keeps_fewer_activations() -> None:
    for a, b in zip(weights(fitted()), weights(fitted(remat="dots")), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-6)

    def kept(remat: str) -> int:
        definition = prepared(fitted(remat=remat)).definition

        def loss(parameters: Any) -> Any:
            out, _ = definition._apply(parameters, state, x, training=True)
            return (out**2).sum()

        parameters, state = definition.model.read()
        x = jnp.asarray(data()[0])
        _, backward = jax.vjp(loss, parameters)
        return sum(leaf.size for leaf in jax.tree.leaves(backward) if leaf.ndim > 1)

    assert kept("dots") < kept("none")


def test_an_unknown_remat_is_named() -> None:
    with pytest.raises(nx.NeurenixError, match="'dotz'.*dots"):
        nx.train.TrainOptions(remat="dotz")


def test_moments_are_held_in_the_dtype_asked_for_and_training_stays_close() -> None:
    small = fitted(nx.optim.Adam(1e-3, moment_dtype="bfloat16"))
    moments = [leaf for leaf in jax.tree.leaves(small.optimizer_state) if leaf.ndim]
    assert moments and all(leaf.dtype == jnp.bfloat16 for leaf in moments)
    for a, b in zip(weights(fitted(nx.optim.Adam(1e-3))), weights(small), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)


def test_held_in_rounds_the_state_and_nothing_else() -> None:
    plain, small = optax.adam(0.1), nx.optim.held_in("bfloat16", optax.adam(0.1))
    parameters = {"w": jnp.linspace(-1.0, 1.0, 5)}
    gradients = {"w": jnp.linspace(0.1, 0.5, 5)}
    expected, expected_state = plain.update(gradients, plain.init(parameters), parameters)
    updates, state = small.update(gradients, small.init(parameters), parameters)
    np.testing.assert_array_equal(updates["w"], expected["w"])
    np.testing.assert_array_equal(state[0].nu["w"], expected_state[0].nu["w"].astype(jnp.bfloat16))
    assert state[0].count.dtype == jnp.int32


@pytest.mark.parametrize("dtype", ["int8", "bfloat17"])
def test_a_moment_dtype_that_is_none_is_refused(dtype: str) -> None:
    with pytest.raises(nx.ArgumentError, match="moment_dtype.*floating-point"):
        nx.optim.Adam(1e-3, moment_dtype=dtype)
    with pytest.raises(nx.ArgumentError, match="floating-point"):
        nx.optim.held_in(dtype, optax.adam(1e-3))


def test_a_variant_is_the_same_trainer_with_one_thing_changed() -> None:
    trainer = fitted()
    variant = trainer.variant(moment_dtype="bfloat16", accumulate_steps=2)
    assert variant.module is trainer.module
    assert variant.options.accumulate_steps == 2 and trainer.options.accumulate_steps == 1
    mesh = jax.sharding.AbstractMesh((8,), ("data",))
    x = jax.ShapeDtypeStruct((16, 8, 8, 1), jnp.float32)
    dtypes = {
        leaf.dtype
        for leaf in jax.tree.leaves(variant.step_program(mesh, x).state.optimizer)
        if leaf.ndim
    }
    assert dtypes == {jnp.dtype(jnp.bfloat16)}


def test_a_policy_of_the_model_stands_in_for_the_trainers() -> None:
    model = models.Decoder.abstract(models.get("tiny"))
    options = nx.train.TrainOptions(remat="dots")
    trainer = nx.Trainer(model, loss="sparse_categorical_crossentropy", options=options)
    for policy in ("none", "full"):
        variant = trainer.variant(remat=policy)
        assert (variant.options.remat, variant.module.config.remat) == ("none", policy)


def test_compile_takes_a_policy() -> None:
    model = nn.Sequential(nn.Linear(4, 2)).compile("sgd", "mse", remat="dots")
    assert model.trainer.options.remat == "dots"
    with pytest.raises(nx.UnknownNameError, match="remat policy named 'dot'. Did you mean 'dots'"):
        model.compile("sgd", "mse", remat="dot")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_accumulated_gradients_of_narrow_parameters_are_those_of_the_whole_batch(
    dtype: str,
) -> None:
    generator = np.random.default_rng(0)
    x = (10 * generator.random((512, 6))).astype("float32")
    y = np.full((512, 1), -30, "float32")

    def changed(parts: int) -> np.ndarray:
        nx.seed(0)
        model = nn.Sequential(nn.Linear(6, 1).to("cpu", dtype=dtype))
        before = np.asarray(model[0].kernel[...], "float32")
        model.compile(nx.optim.SGD(1e-3), "mse", accumulate_steps=parts)
        model.fit(x, y, batch_size=512, shuffle=False)
        assert model[0].kernel[...].dtype == dtype
        return before - np.asarray(model[0].kernel[...], "float32")

    whole, close = changed(1), 1e-5 if dtype == "float32" else 0.02
    for parts in (16, 512):
        np.testing.assert_allclose(changed(parts), whole, rtol=close)

"""``fit`` against a hand-written loop, and what it promises: one compile, no example lost."""

from __future__ import annotations

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import nn
from neurenix.train import FitOptions, Trainer, TrainOptions
from neurenix.train.batch import Batch
from neurenix.train.batch_check import BatchCheck
from train_helpers import (
    MLP,
    Noisy,
    assert_same_weights,
    classification,
    hand_written,
    prepared,
    weights_of,
)

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
IN_ORDER = FitOptions(shuffle=False)


def strategies() -> list[Any]:
    return [nx.distribute.OneDeviceStrategy("tpu:0"), nx.distribute.TPUStrategy()]


def batches_of(x: np.ndarray, y: np.ndarray, size: int, epochs: int = 1) -> list[Any]:
    chunks = [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)] * epochs
    return [(a, b, np.ones(len(a), np.float32)) for a, b in chunks]


@pytest.mark.parametrize("replicas", [1, 8])
@pytest.mark.parametrize("examples", [64, 50])
def test_fit_gives_the_weights_of_a_hand_written_loop(replicas: int, examples: int) -> None:
    x, y = classification(examples)
    module = MLP()
    expected = hand_written(module, optax.adam(1e-2), batches_of(x, y, 16, epochs=3))
    with strategies()[replicas == 8].scope():
        trainer = Trainer(module, optimizer=nx.optim.Adam(1e-2), loss=LOSS)
    history = trainer.fit(x, y, epochs=3, batch_size=16, options=IN_ORDER)
    assert_same_weights(module, expected, rtol=2e-4, atol=2e-6)
    assert history["loss"][2] < history["loss"][0]


def test_the_loss_of_an_epoch_is_the_mean_over_all_examples() -> None:
    x, y = classification(50)
    module = MLP()
    frozen = Trainer(module, optimizer=optax.sgd(0.0), loss=LOSS, metrics=["accuracy"])
    history = frozen.fit(x, y, batch_size=16)
    logits = np.asarray(module(x))
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(50), y]
    np.testing.assert_allclose(history["loss"], [losses.mean()], rtol=1e-5)
    np.testing.assert_allclose(history["accuracy"], [(logits.argmax(1) == y).mean()], rtol=1e-6)


@pytest.mark.parametrize(("replicas", "examples", "per_call"), [(1, 90, 3), (8, 90, 1)])
def test_one_compile_each_of_training_and_evaluation(
    replicas: int, examples: int, per_call: int
) -> None:
    x, y = classification(examples)
    options = TrainOptions(steps_per_execution=per_call, strategy=strategies()[replicas == 8])
    layers = nn.Linear(6, 8), nn.BatchNorm(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)
    module = nn.Sequential(*layers)
    trainer = Trainer(module, loss=LOSS, metrics=["accuracy"], options=options)
    compiled: list[str] = []

    class Count(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.getMessage().startswith("Finished XLA compilation of jit("):
                compiled.append(record.getMessage().split("jit(")[1].split(")")[0])

    count = Count()
    logging.getLogger("jax").addHandler(count)
    with jax.log_compiles():
        trainer.fit(x, y, epochs=3, batch_size=16, validation_data=(x[:70], y[:70]))
        trainer.fit(x, y, epochs=1, batch_size=16)
        trainer.evaluate(x, y, batch_size=16)
    logging.getLogger("jax").removeHandler(count)
    assert compiled.count("train_step") == compiled.count("evaluation_step") == 1
    assert prepared(trainer).compiled.step_compilations == 1


@pytest.mark.parametrize(("replicas", "steps", "per_call"), [(1, 7, 3), (8, 6, 3), (8, 4, 8)])
def test_many_steps_in_one_call_give_the_weights_of_single_steps(
    replicas: int, steps: int, per_call: int
) -> None:
    x, y = classification(64)
    modules = []
    for k in (1, per_call):
        module = Noisy()
        options = TrainOptions(steps_per_execution=k, strategy=strategies()[replicas == 8])
        # SGD: Adam makes noise of the bias before a BatchNorm, whose gradient is 0 but for rounding
        trainer = Trainer(module, optimizer="sgd", loss=LOSS, options=options)
        trainer.fit(x, y, epochs=2, batch_size=16, steps_per_epoch=steps)
        assert trainer.steps_made == 2 * steps
        modules.append(module)
    assert_same_weights(*modules, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("replicas", [1, 8])
def test_accumulation_gives_the_weights_of_whole_batches(replicas: int) -> None:
    x, y = classification(100)
    modules = []
    for parts in (1, 4):
        module = MLP()
        options = TrainOptions(accumulate_steps=parts, strategy=strategies()[replicas == 8])
        Trainer(module, optimizer="sgd", loss=LOSS, options=options).fit(
            x, y, epochs=2, batch_size=32, options=IN_ORDER
        )
        modules.append(module)
    assert_same_weights(*modules, rtol=1e-4, atol=1e-6)


def test_replicas_change_nothing_but_rounding() -> None:
    x, y = classification(90)
    modules = []
    for strategy in strategies():
        module = Noisy()
        options = TrainOptions(strategy=strategy)
        Trainer(module, optimizer="sgd", loss=LOSS, options=options).fit(
            x, y, epochs=2, batch_size=16
        )
        modules.append(module)
    assert_same_weights(*modules, rtol=1e-4, atol=1e-6)


def test_class_and_sample_weights() -> None:
    x, y = classification(32)
    weight = np.linspace(0.0, 2.0, 32).astype(np.float32)
    class_weight = {0: 2.0, 2: 0.5}
    module = MLP()
    both = weight * np.array([2.0, 1.0, 0.5], np.float32)[y]
    expected = hand_written(module, optax.sgd(0.1), [(x, y, both)])
    options = FitOptions(sample_weight=weight, class_weight=class_weight, shuffle=False)
    Trainer(module, optimizer=optax.sgd(0.1), loss=LOSS).fit(x, y, batch_size=32, options=options)
    assert_same_weights(module, expected, rtol=1e-4, atol=1e-6)


def test_state_is_donated_and_a_users_copy_is_not() -> None:
    x, y = classification(64)
    module = MLP()
    mine = module.layers[0].kernel.get_value()
    before = np.array(mine)
    seen: list[jax.Array] = []

    class Look(nx.callbacks.Callback):
        def on_train_batch_end(self, step: int, logs: Any) -> None:
            if not seen:
                seen.extend(jax.tree.leaves(nnx.state(self.model, nnx.Param)))
                seen.extend(jax.tree.leaves(self.trainer.optimizer_state))

    Trainer(module, loss=LOSS).fit(x, y, batch_size=16, callbacks=[Look()])
    assert len(seen) > 8
    assert all(array.is_deleted() for array in seen if array.ndim)
    np.testing.assert_array_equal(np.asarray(mine), before)
    assert all(np.isfinite(value).all() for value in weights_of(module).values())


def test_bfloat16_keeps_float32_parameters_and_learns() -> None:
    x, y = classification(512)
    module = Noisy()
    trainer = Trainer(
        module,
        optimizer=nx.optim.Adam(1e-2),
        loss=LOSS,
        metrics=["accuracy"],
        options=TrainOptions(precision="bfloat16"),
    )
    trainer.fit(x, y, epochs=20)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(module, nnx.Param))} == {
        np.dtype("float32")
    }
    assert trainer.evaluate(x, y)["accuracy"] > 0.85
    spec = jax.ShapeDtypeStruct((8, 6), np.float32)
    program = trainer.step_program(nx.distribute.TPUStrategy().mesh, spec)
    jaxpr = str(jax.make_jaxpr(program.function)(program.state, program.batch))
    assert "bf16[8,8]" in jaxpr


def test_training_goes_on_where_it_was() -> None:
    x, y = classification(64)
    whole, parts = MLP(), MLP()
    Trainer(whole, optimizer="adam", loss=LOSS).fit(x, y, epochs=4, options=IN_ORDER)
    trainer = Trainer(parts, optimizer="adam", loss=LOSS)
    trainer.fit(x, y, epochs=1, options=IN_ORDER)
    trainer.fit(x, y, epochs=4, options=FitOptions(shuffle=False, initial_epoch=1))
    assert_same_weights(whole, parts)


def test_a_note_on_the_module_leaves_the_optimizer_as_it_was() -> None:
    x, y = classification(64)
    whole, parts = MLP(), MLP()
    Trainer(whole, optimizer="adam", loss=LOSS).fit(x, y, epochs=2, options=IN_ORDER)
    trainer = Trainer(parts, optimizer="adam", loss=LOSS)
    trainer.fit(x, y, options=IN_ORDER)
    parts.note = "run 1"
    trainer.predict(x)
    trainer.fit(x, y, epochs=2, options=FitOptions(shuffle=False, initial_epoch=1))
    assert trainer.steps_made == 4
    assert_same_weights(whole, parts)


def test_other_parameters_begin_anew_with_optimizer_and_schedule() -> None:
    x, y = classification(64)
    module = MLP()
    trainer = Trainer(module, optimizer="adam", loss=LOSS)
    trainer.fit(x, y, options=IN_ORDER)
    module.layers[0] = nnx.Linear(6, 8, use_bias=False, rngs=nnx.Rngs(1))
    trainer.predict(x)
    assert (trainer.optimizer_state, trainer.steps_made) == (None, 0)
    trainer.fit(x, y, options=IN_ORDER)
    assert trainer.steps_made == 2


# Losses that couple the examples of a batch


def contrast(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
    return -jnp.mean(jnp.diag(jax.nn.log_softmax(y_pred @ y_pred.T)))


def test_a_loss_that_couples_examples_is_the_same_function_everywhere() -> None:
    x, y = classification(48)
    module = MLP()
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss=contrast)
    history = trainer.fit(x, y, batch_size=16, validation_data=(x, y), options=IN_ORDER)
    expected = np.mean([contrast(y, module(x[i : i + 16])) for i in (0, 16, 32)])
    np.testing.assert_allclose(history["loss"], [expected], rtol=1e-5)
    np.testing.assert_allclose(history["val_loss"], [expected], rtol=1e-5)
    evaluated = trainer.evaluate([(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)])
    np.testing.assert_allclose(evaluated["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda t, x, y: t.fit(x, y, batch_size=16),
        lambda t, x, y: t.evaluate(x, y),
        lambda t, x, y: t.fit(x[:48], y[:48], batch_size=16, validation_data=(x, y)),
        lambda t, x, y: t.fit(x[:48], y[:48], batch_size=16, class_weight={0: 2.0}),
        lambda t, x, y: t.fit([(x[:16], y[:16]), (x[:10], y[:10])]),
    ],
)
def test_such_a_loss_is_never_filled_up_or_weighted(call: Any) -> None:
    with pytest.raises(nx.ArgumentError, match=r"loss contrast .*batch_size that divides"):
        call(Trainer(MLP(), loss=contrast), *classification(50))


def test_a_mean_over_examples_is_filled_up_as_ever() -> None:
    def mean_square(y_true: jax.Array, y_pred: jax.Array) -> jax.Array:
        return jnp.mean((y_true[:, None] - y_pred) ** 2)

    x, y = classification(50)
    trainer = Trainer(MLP(), optimizer=optax.sgd(0.0), loss=mean_square)
    history = trainer.fit(x, y.astype(np.float32), batch_size=16)
    whole = mean_square(y, trainer.predict(x))
    np.testing.assert_allclose(history["loss"], [whole], rtol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_mean_is_over_what_the_loss_counts(weighted: bool, parts: int) -> None:
    x, y = classification(48)
    y[:20] = -100
    module, loss = MLP(), nx.losses.SparseCategoricalCrossentropy(
        from_logits=True, ignore_index=-100
    )  # fmt: skip
    options = TrainOptions(accumulate_steps=parts)
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss=loss, options=options)
    weights = np.ones(48, np.float32) if weighted else None
    found = trainer.fit(x, y, batch_size=16, options=IN_ORDER, sample_weight=weights)["loss"]
    expected = Trainer(module, loss=LOSS).evaluate(x[20:], y[20:])["loss"]
    np.testing.assert_allclose(found, [expected], rtol=1e-5)
    np.testing.assert_allclose(trainer.evaluate(x, y)["loss"], expected, rtol=1e-5)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_mean_is_over_the_positions_of_all_examples(parts: int) -> None:
    x = np.random.default_rng(0).normal(size=(32, 3, 6)).astype(np.float32)
    y = np.random.default_rng(1).integers(0, 3, (32, 3)).astype(np.int32)
    y[np.arange(32) % 3 == 0, 1:] = -100
    model = nx.nn.Linear(6, 3)
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-100)
    model.compile("sgd", loss, accumulate_steps=parts)
    expected = float(loss(y[y >= 0], model(x[y >= 0])))
    assert model.evaluate(x, y, batch_size=8)["loss"] == pytest.approx(expected, rel=1e-5)
    model.compile(optax.sgd(0.0), loss, accumulate_steps=parts)
    found = model.fit(x, y, batch_size=8, verbose=False)["loss"]
    assert found == [pytest.approx(expected, rel=1e-5)]


def test_a_metric_leaves_out_what_its_loss_ignores() -> None:
    x, y = classification(48)
    ignored = y.copy()
    ignored[:20] = -100
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_index=-100)
    mine = nx.metrics.Accuracy(name="mine", ignore_index=7)  # its own choice stands
    trainer = Trainer(MLP(), loss=loss, metrics=["accuracy", mine])
    found = trainer.evaluate(x, ignored, batch_size=16)
    right = trainer.predict(x).argmax(-1) == y
    assert found["accuracy"] == pytest.approx(right[20:].mean())
    assert found["mine"] == pytest.approx(right[20:].sum() / 48)


class Overstated:
    """A loader that says that it has four batches, and has three."""

    def __init__(self, x: np.ndarray, y: np.ndarray) -> None:
        self.batches = [(x[i : i + 16], y[i : i + 16]) for i in (0, 16, 32)]

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Any:
        return iter(self.batches)


def test_a_loader_that_overstates_its_length_trains_no_batch_twice() -> None:
    x, y = classification(48)
    options = TrainOptions(steps_per_execution=2)
    module, expected = MLP(), MLP()
    trainer = Trainer(module, optimizer="sgd", loss=LOSS, options=options)
    trainer.fit(Overstated(x, y))
    Trainer(expected, optimizer="sgd", loss=LOSS).fit(Overstated(x, y))
    assert trainer.steps_made == 3
    assert_same_weights(module, expected, rtol=1e-5, atol=1e-6)


def test_predict_and_evaluate_are_in_evaluation_mode_and_leave_the_mode_alone() -> None:
    x, y = classification(50)
    module = Noisy()
    trainer = Trainer(module, loss=LOSS, metrics=["accuracy"])
    first, second = trainer.predict(x, batch_size=16), trainer.predict(x, batch_size=7)
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
    assert first.shape == (50, 3) and isinstance(first, np.ndarray)
    assert module.dropout.deterministic is False
    module.eval()
    np.testing.assert_allclose(first, np.asarray(module(x)), rtol=1e-5, atol=1e-6)
    logs = trainer.evaluate(x, y)
    np.testing.assert_allclose(logs["accuracy"], (first.argmax(1) == y).mean(), rtol=1e-6)
    assert module.dropout.deterministic is True


def test_the_seed_of_the_process_decides_the_order_of_arrays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.arange(64, dtype=np.float32)[:, None]

    def orders(*seeds: int) -> list[list[float]]:
        seen: list[list[float]] = []

        def note(check: BatchCheck, batch: Batch, steps: int) -> None:
            seen.append(batch.x[:, 0].tolist())

        monkeypatch.setattr(BatchCheck, "labels", note)
        model = nx.nn.Sequential(nx.nn.Linear(1, 1))
        trainer = Trainer(model, optimizer="sgd", loss="mse")
        for seed in seeds:
            nx.seed(seed)
            trainer.fit(x, x * 1e-3, batch_size=64)
        return seen

    try:
        (one,), (two,) = orders(1), orders(2)
        assert sorted(one) == sorted(two) and one != two
        first, second = orders(1, 1)  # a second fit goes on with another order
        assert first == one and second != one
        nx.seed(3)
        key = nx.random.next_key()
        nx.seed(3)
        Trainer(MLP(), loss=LOSS).fit(*classification(64))
        assert nx.random.next_key() == key  # layers made afterwards are as without a fit
    finally:
        nx.seed(0)


def test_generators_dicts_and_endless_data() -> None:
    x, y = classification(64)

    def generator() -> Any:
        for i in range(0, 64, 16):
            yield {"features": x[i : i + 16], "label": y[i : i + 16]}

    trainer = Trainer(MLP(), loss=LOSS)
    assert trainer.fit(generator()).epochs == [0]
    with pytest.raises(nx.DataError, match="once"):
        trainer.fit(generator(), epochs=2)
    data = nx.data.Dataset.from_arrays(x, y).repeat().batch(16)
    with pytest.raises(nx.ArgumentError, match="steps_per_epoch"):
        trainer.fit(data)
    trainer.fit(data, steps_per_epoch=10, epochs=2)
    with pytest.raises(nx.ArgumentError, match="how many, with steps"):
        trainer.evaluate(data)
    found, expected = trainer.evaluate(data, steps=3), trainer.evaluate(x[:48], y[:48])
    assert found == pytest.approx(expected, rel=1e-5)


def test_the_metrics_of_a_trainer_have_the_names_of_the_logs() -> None:
    x, y = classification(32)
    trainer = Trainer(MLP(), loss=LOSS, metrics=["accuracy", "accuracy"])
    names = [metric.name for metric in trainer.metrics]
    assert names == ["accuracy", "accuracy_1"]
    assert list(trainer.evaluate(x, y)) == ["loss", *names]
    kind = nx.metrics.Accuracy
    trainer = Trainer(MLP(), loss=LOSS, metrics=[kind(), kind(), kind(name="accuracy_1")])
    assert [metric.name for metric in trainer.metrics] == ["accuracy", "accuracy_2", "accuracy_1"]


def test_a_frozen_layer_computes_in_the_precision_of_the_others_and_is_not_rounded() -> None:
    seen = []

    class Spy(nx.nn.Module):
        def __call__(self, x: Any) -> Any:
            seen.append(str(x.dtype))
            return x

    model = nx.nn.Sequential(nx.nn.Embedding(5, 4), Spy(), nx.nn.Linear(4, 1), Spy())
    model[0].freeze()
    before = np.asarray(model[0].embedding[...])
    model.compile("sgd", "mse", precision="bfloat16")
    model.fit(np.zeros((8, 3), "int32"), np.ones((8, 3, 1), "float32"))
    model.predict(np.zeros((8, 3), "int32"))
    assert set(seen) == {"bfloat16"}
    assert model[0].embedding[...].dtype == "float32"
    np.testing.assert_array_equal(model[0].embedding[...], before)

"""``EMA``: the average against a loop of NumPy, where it is used, and that it is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix.train import Trainer, TrainOptions, load_weights
from train_helpers import MLP, Noisy, classification, prepared, weights_of

pytestmark = pytest.mark.cpu8

X, Y = classification(48)
LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
EMA = nx.callbacks.EMA

STRATEGIES = {
    "one": lambda: nx.distribute.OneDeviceStrategy("tpu:0"),
    "replicas": lambda: nx.distribute.TPUStrategy(),
    "divided": lambda: nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}),
}


class Weights(nx.callbacks.Callback):
    """Keeps copies of the weights before training and after every step."""

    def __init__(self) -> None:
        self.seen: list[dict[str, np.ndarray]] = []

    def on_train_begin(self) -> None:
        if not self.seen:
            self.seen.append(weights_of(self.model))

    def on_train_batch_end(self, step: int, logs: Any) -> None:
        self.seen.append(weights_of(self.model))


def trainer_of(module: Any = None, *, strategy: str = "one", **options: Any) -> Trainer:
    where = TrainOptions(strategy=STRATEGIES[strategy](), **options)
    module = MLP() if module is None else module
    return Trainer(module, optimizer=nx.optim.Adam(0.05), loss=LOSS, options=where)


def fit(trainer: Trainer, callbacks: Any, epochs: int = 2, first: int = 0, **more: Any) -> Any:
    return trainer.fit(
        X, Y, epochs=epochs, batch_size=16, initial_epoch=first, callbacks=callbacks,
        shuffle=False, verbose=0, **more,
    )  # fmt: skip


def expected(seen: list[Any], decay: float, *, start: int = 0, warmup: bool = False) -> Any:
    """Return the average after every step, in float64, by the formula of the docstring."""
    average = {name: array.astype(np.float64) for name, array in seen[0].items()}
    for t, weights in enumerate(seen[1:], 1):
        d = min(decay, (1 + t - start) / (10 + t - start)) if warmup else decay
        d = 0.0 if t <= start else d
        average = {name: d * average[name] + (1 - d) * weights[name] for name in average}
    return average


def assert_close(module: nnx.Module, average: dict[str, np.ndarray]) -> None:
    mine = weights_of(module)
    assert mine.keys() == average.keys()
    for name, array in mine.items():
        np.testing.assert_allclose(array, average[name], rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("decay", "start", "warmup"),
    [(0.9, 0, False), (0.9, 1, False), (0.8, 4, False), (0.99, 0, True), (0.5, 2, True), (0, 0, 0)],
)
def test_the_average_is_that_of_every_step(decay: float, start: int, warmup: bool) -> None:
    ema, weights = EMA(decay, start_step=start, warmup=warmup), Weights()
    fit(trainer_of(), [ema, weights])
    assert ema.steps == 6 and len(weights.seen) == 7
    assert_close(ema.averaged(), expected(weights.seen, decay, start=start, warmup=warmup))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("per_call", [2, 3])
def test_steps_of_one_call_and_parts_of_a_batch_count_as_in_single_steps(
    per_call: int, parts: int, strategy: str
) -> None:
    """Compared with weights seen after every step, with one step a call."""
    weights, ema = Weights(), EMA(0.9)
    fit(trainer_of(accumulate_steps=parts), weights)
    trainer = trainer_of(strategy=strategy, steps_per_execution=per_call, accumulate_steps=parts)
    fit(trainer, ema)
    assert ema.steps == 6 and prepared(trainer).compiled.step_compilations == 1
    average = expected(weights.seen, 0.9)
    for name, array in weights_of(ema.averaged()).items():
        np.testing.assert_allclose(array, average[name], rtol=2e-3, atol=2e-4, err_msg=name)
    kernels = trainer.module.layers[0].kernel[...], ema.average.parameters["layers"]["0"]["kernel"]
    assert kernels[0].sharding == kernels[1].sharding


def test_it_changes_nothing_of_training_and_compiles_once() -> None:
    plain, averaged = trainer_of(Noisy()), trainer_of(Noisy())
    history = fit(plain, [])
    ema = EMA(0.9, swap=["validation"])
    assert fit(averaged, ema)["loss"] == history["loss"]
    fit(averaged, ema)
    assert prepared(averaged).compiled.step_compilations == 1 and ema.steps == 12
    averaged.evaluate(X, Y)


def test_statistics_are_the_newest_or_averaged() -> None:
    newest, averaged, weights = EMA(0.9), EMA(0.8, batch_statistics=True), Weights()
    trainer = trainer_of(Noisy())
    fit(trainer, [newest, averaged, weights])
    assert_close(averaged.averaged(), expected(weights.seen, 0.8))
    average = expected(weights.seen, 0.9) | {
        name: array for name, array in weights.seen[-1].items() if name.startswith("norm.")
        and not name.endswith(("scale", "bias"))
    }  # fmt: skip
    assert_close(newest.averaged(), average)
    np.testing.assert_array_equal(averaged.averaged().shift, np.full(3, 0.25, np.float32))


def test_small_shares_are_not_lost_in_bfloat16() -> None:
    module = MLP((6, 3))
    kernel = module.layers[0].kernel
    kernel.set_value(jnp.ones((6, 3), jnp.bfloat16))
    ema = EMA(0.999)
    set_two = nx.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch: kernel.set_value(jnp.full((6, 3), 2, jnp.bfloat16))
    )
    trainer = Trainer(module, optimizer=optax.sgd(0.0), loss=LOSS)
    fit(trainer, [ema, set_two], epochs=4)
    average = ema.average.parameters["layers"]["0"]["kernel"]
    assert average.dtype == jnp.float32
    np.testing.assert_allclose(average, 2 - 0.999**12, rtol=1e-5)
    assert ema.averaged().layers[0].kernel[...].dtype == jnp.bfloat16


def test_steps_that_diverge_do_not_count() -> None:
    bad = X.copy()
    bad[40] = np.nan
    ema, trainer = EMA(0.9), trainer_of()
    trainer.fit(bad, Y, batch_size=16, shuffle=False,
                callbacks=[ema, nx.callbacks.TerminateOnNaN()])  # fmt: skip
    assert ema.steps == 2 == trainer.steps_made
    assert all(np.isfinite(array).all() for array in weights_of(ema.averaged()).values())


def test_validation_is_of_the_average_on_request() -> None:
    plain, ema = EMA(0.9), EMA(0.5, swap="validation")
    trainer = trainer_of()
    logs = fit(trainer, [plain, ema], validation_data=(X, Y))
    of_weights = trainer.evaluate(X, Y)["loss"]
    with ema.swapped():
        of_average = trainer.evaluate(X, Y)["loss"]
    assert logs["val_loss"][-1] == pytest.approx(of_average, rel=1e-6)
    assert abs(of_average - of_weights) > 1e-4 and trainer.evaluate(X, Y)["loss"] == of_weights
    separate = Trainer(ema.averaged(), loss=LOSS).evaluate(X, Y)["loss"]
    assert separate == pytest.approx(of_average, rel=1e-6)


def test_checkpoints_are_of_the_average_on_request_and_training_of_the_weights(
    tmp_path: Path,
) -> None:
    ema, weights, module = EMA(0.9, swap=["checkpoints"]), Weights(), MLP(seed=3)
    saves = nx.callbacks.ModelCheckpoint(tmp_path / "{epoch}")
    fit(trainer_of(), [saves, ema, weights])
    plain = Weights()
    fit(trainer_of(), plain)
    for epoch in (1, 2):
        load_weights(module, tmp_path / str(epoch))
        assert_close(module, expected(weights.seen[: 1 + 3 * epoch], 0.9))
    for mine, other in zip(weights.seen, plain.seen, strict=True):
        for name, array in mine.items():
            np.testing.assert_array_equal(array, other[name])


def everything(trainer: Trainer, ema: Any) -> list[np.ndarray]:
    keys = jax.dtypes.prng_key
    leaves = jax.tree.leaves((nnx.state(trainer.module), trainer.optimizer_state, ema.average))
    raw = [jax.random.key_data(a) if jnp.issubdtype(a.dtype, keys) else a for a in leaves]
    return [np.asarray(leaf) for leaf in raw]


@pytest.mark.parametrize("strategy", ["one", "divided"])
@pytest.mark.parametrize("end", [(), ("end",)])
@pytest.mark.parametrize("process", ["same", "other"])
def test_it_is_saved_and_goes_on(
    process: str, end: tuple[str, ...], strategy: str, tmp_path: Path
) -> None:
    def ema() -> Any:
        return EMA(0.9, warmup=True, batch_statistics=True, swap=end)

    def stopping() -> Any:
        return nx.callbacks.EarlyStopping("loss", patience=9, restore_best_weights=True, mode="max")

    whole, parts = trainer_of(Noisy(), strategy=strategy), trainer_of(Noisy(), strategy=strategy)
    one, other = ema(), ema()
    fit(whole, [stopping(), one], epochs=3)
    fit(parts, [stopping(), other], epochs=1)
    if process == "other":
        parts.save(tmp_path / "t")
        parts = trainer_of(Noisy(seed=4), strategy=strategy).load(tmp_path / "t")
    other = ema()
    fit(parts, [stopping(), other], epochs=3, first=1)
    for mine, its in zip(everything(whole, one), everything(parts, other), strict=True):
        np.testing.assert_array_equal(mine, its)
    if end:
        assert_close(parts.module, weights_of(one.averaged()))


def test_a_file_that_is_saved_inside_has_the_average_and_goes_on_from_the_weights(
    tmp_path: Path,
) -> None:
    whole, first, second = trainer_of(), trainer_of(), trainer_of(MLP(seed=3))
    emas = [EMA(0.9) for _ in range(3)]
    fit(whole, emas[0])
    fit(first, emas[1], epochs=1)
    with emas[1].swapped():
        first.save(tmp_path / "t")
    module = MLP(seed=7)
    load_weights(module, tmp_path / "t")
    assert_close(module, weights_of(emas[1].averaged()))
    fit(second.load(tmp_path / "t"), emas[2], first=1)
    for mine, its in zip(everything(whole, emas[0]), everything(second, emas[2]), strict=True):
        np.testing.assert_array_equal(mine, its)


def test_an_average_of_other_arrays_is_told(tmp_path: Path) -> None:
    first = trainer_of(Noisy())
    fit(first, EMA(batch_statistics=True), epochs=1)
    first.save(tmp_path / "t")
    second = trainer_of(Noisy()).load(tmp_path / "t")
    with pytest.raises(nx.CheckpointError, match=r"(?s)EMA.*statistics\.0.*batch_statistics"):
        fit(second, EMA(), first=1)


def test_it_begins_anew_with_another_trainer() -> None:
    ema, weights = EMA(0.9), Weights()
    fit(trainer_of(), ema)
    fit(trainer_of(MLP(seed=2)), [ema, weights])
    assert ema.steps == 6
    assert_close(ema.averaged(), expected(weights.seen, 0.9))


def test_a_compiled_step_of_before_takes_the_average_along(tmp_path: Path) -> None:
    model = nx.nn.Linear(6, 3).compile(nx.optim.SGD(0.1), LOSS)
    ema, weights = EMA(0.9), Weights()
    model.fit(X[:16], Y[:16], epochs=1, callbacks=[ema, weights], batch_size=16, verbose=0)
    state = model.trainer.step_state()
    model.trainer.take_step_state(state)
    assert ema.steps == 1
    assert_close(ema.averaged(), expected(weights.seen, 0.9))


def test_a_step_that_is_described_has_the_average() -> None:
    trainer = trainer_of()
    mesh = jax.sharding.AbstractMesh((2,), ("data",))
    sizes = []
    for callbacks in ([], [EMA()], []):
        fit(trainer, callbacks, epochs=1)
        program = trainer.step_program(mesh, jax.ShapeDtypeStruct((16, 6), jnp.float32))
        out = jax.eval_shape(program.function, program.state, program.batch)[0]
        assert jax.tree.structure(out) == jax.tree.structure(program.state)
        assert len(program.leaf_roles) == len(jax.tree.leaves((program.state, program.batch)))
        sizes.append(len(jax.tree.leaves(program.state)))
    assert sizes == [sizes[0], sizes[0] + 5, sizes[0]]  # four parameters, and the count


def test_what_cannot_be_is_told() -> None:
    for decay in (1.0, -0.1, 1.5):
        with pytest.raises(nx.ArgumentError, match="decay must be from 0 to below 1"):
            EMA(decay)
    with pytest.raises(nx.ArgumentTypeError, match="decay"):
        EMA("0.9")  # type: ignore[arg-type]
    with pytest.raises(nx.UnknownNameError, match="'validate'.*Did you mean 'validation'"):
        EMA(swap=["validate"])
    with pytest.raises(nx.ArgumentTypeError, match="momentum.*decay"):
        EMA(momentum=0.9)  # type: ignore[call-arg]
    for use in (lambda ema: ema.averaged(), lambda ema: ema.swapped().__enter__()):
        ema = EMA()
        ema.trainer = trainer_of()
        with pytest.raises(nx.ArgumentError, match="no average yet"):
            use(ema)
    with pytest.raises(nx.ArgumentError, match="Two EMA"):
        fit(trainer_of(), [EMA(swap="end"), EMA(0.9, swap="end")])
    with pytest.raises(AttributeError, match="Here that is EMA"):
        nx.callbacks.SwapEMAWeights  # noqa: B018  the access is the test


class Keeps(nx.callbacks.Callback):
    """The moving average that people write first: it keeps arrays that the step takes."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def on_train_begin(self) -> None:
        # With new variables: those of the model itself have the newest weights at any time.
        self.kept = jax.tree.map(lambda array: array, nnx.state(self.model, nnx.Param))

    def _use(self) -> None:
        new = nnx.state(self.model, nnx.Param)
        self.kept = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, self.kept, new)

    def on_train_batch_end(self, step: int, logs: Any) -> None:
        if self.moment == "on_train_batch_end":
            self._use()

    def on_epoch_begin(self, epoch: int) -> None:
        if self.moment == "on_epoch_begin" and epoch:
            self._use()

    def on_epoch_end(self, epoch: int, logs: Any) -> None:
        if self.moment == "on_epoch_end":
            self._use()
        if self.moment == "sets":
            nnx.update(self.model, self.kept)

    def on_train_end(self) -> None:
        if self.moment == "on_train_end":
            self._use()


@pytest.mark.parametrize(
    "moment", ["on_train_batch_end", "on_epoch_begin", "on_epoch_end", "on_train_end", "sets"]
)
def test_an_array_that_a_step_was_given_is_told_with_the_cure(moment: str) -> None:
    name = "What a callback has set" if moment == "sets" else rf"Keeps\.{moment}"
    with pytest.raises(nx.ArgumentError, match=rf"{name} uses an array that is gone.*jnp\.copy"):
        fit(trainer_of(), Keeps(moment))


def test_another_error_of_a_callback_stays_as_it_is() -> None:
    def fail(epoch: int, logs: Any) -> None:
        raise RuntimeError("the disk is full")

    with pytest.raises(RuntimeError, match="^the disk is full$"):
        fit(trainer_of(), nx.callbacks.LambdaCallback(on_epoch_end=fail))


def test_a_compiled_loop_tells_of_an_array_that_its_step_was_given() -> None:
    model = nx.nn.Linear(2, 1)
    optimizer = nx.Optimizer(model, "sgd")

    @nx.jit
    def step(model: Any, optimizer: Any, x: jax.Array) -> None:
        gradients = nx.grad(lambda model: jnp.sum(model(x)))(model)
        optimizer.update(model, gradients)

    @nx.jit
    def distance(model: Any, kernel: jax.Array) -> jax.Array:
        return jnp.sum((model.kernel[...] - kernel) ** 2)

    kept = model.kernel[...]
    step(model, optimizer, jnp.ones((4, 2)))
    with pytest.raises(nx.ArgumentError, match=r"distance uses an array that is gone.*jnp\.copy"):
        distance(model, kept)

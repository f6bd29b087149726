"""Parameters divided over devices: FSDP and tensor axes of a strategy's mesh."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

import neurenix as nx
from neurenix import nn
from neurenix.distribute.rules import constrain, shard_largest
from neurenix.distribute.state_sharding import Placement
from train_helpers import prepared

pytestmark = pytest.mark.cpu8

RULES = (("0.kernel$", ("fsdp", "tensor")), ("2.kernel$", ("tensor", "fsdp")))


def data() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(64, 16)).astype(np.float32)
    return x, (x[:, :1] > 0).astype(np.float32)


def trained(mesh: dict[str, int] | None, rules: Any = None, steps_per_execution: int = 1) -> Any:
    nx.seed(0)
    strategy = nx.distribute.TPUStrategy(mesh=mesh, rules=rules)
    with strategy.scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        model.compile(
            optimizer=nx.optim.Adam(1e-2),
            loss="mse",
            metrics=["mae"],
            steps_per_execution=steps_per_execution,
        )
        history = model.fit(*data(), batch_size=16, epochs=3, shuffle=False)
        loss = model.evaluate(*data())["loss"]
        out = model.predict(data()[0])
    return model, history, loss, out


def trained_by(strategy: nx.distribute.Strategy) -> Any:
    nx.seed(0)
    with strategy.scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
        model.compile(optimizer=nx.optim.Adam(1e-2), loss="mse")
        model.fit(*data(), batch_size=16, epochs=1, shuffle=False)
    return model


@pytest.mark.parametrize("axes", [{"fsdp": 8}, {"data": 4, "tensor": 2}])
def test_every_strategy_divides_by_a_mesh_and_rules(axes: dict[str, int]) -> None:
    everything = [f"tpu:{number}" for number in range(8)]
    expected = trained_by(nx.distribute.TPUStrategy())
    for strategy in (
        nx.distribute.auto(mesh=axes, rules=RULES),
        nx.distribute.MirroredStrategy(everything, mesh=axes, rules=RULES),
    ):
        model = trained_by(strategy)
        kernel = model[0].kernel.get_value()
        assert not kernel.sharding.is_fully_replicated
        assert dict(strategy.mesh.shape) == axes
        for a, b in zip(
            jax.tree.leaves(nnx.state(expected, nnx.Param)),
            jax.tree.leaves(nnx.state(model, nnx.Param)),
            strict=True,
        ):
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-6)


def test_a_mesh_that_does_not_fit_is_told_by_every_strategy() -> None:
    devices = nx.distribute
    for make, found in (
        (devices.auto, 8),
        (devices.TPUStrategy, 8),
        (lambda mesh: devices.MirroredStrategy(["tpu:0", "tpu:1"], mesh=mesh), 2),
        (lambda mesh: devices.OneDeviceStrategy("cpu", mesh=mesh), 1),
    ):
        with pytest.raises(nx.ShapeError, match=f"has 3 places, and there are {found} devices"):
            make(mesh={"fsdp": 3})
    assert devices.OneDeviceStrategy("cpu", mesh={"fsdp": 1}).num_replicas_in_sync == 1


def test_auto_on_one_cpu_says_that_a_mesh_does_not_fit(run_python) -> None:
    code = "import neurenix as nx; nx.distribute.auto(mesh={'fsdp': 8})"
    done = run_python(code=code, env={"JAX_PLATFORMS": "cpu"})
    assert "ShapeError: The mesh {'fsdp': 8} has 8 places, and there are 1 devices" in done.stderr


MESHES: dict[str, tuple[dict[str, int] | None, Any]] = {
    "data": (None, None),
    "fsdp": ({"fsdp": 8}, None),
    "data and fsdp": ({"data": 2, "fsdp": 4}, None),
    "tensor": ({"tensor": 8}, RULES),
    "all three": ({"data": 2, "fsdp": 2, "tensor": 2}, RULES),
}


DIVIDED = [name for name in MESHES if name != "data"]


@functools.cache
def trained_over(name: str, steps_per_execution: int = 1) -> Any:
    """Return what ``trained`` does, of a model that no test changes."""
    return trained(*MESHES[name], steps_per_execution)


@pytest.mark.parametrize("name", DIVIDED)
@pytest.mark.parametrize("steps_per_execution", [1, 2])
def test_divided_training_is_data_parallel_training(name: str, steps_per_execution: int) -> None:
    expected, _, loss, out = trained_over("data")
    model, history, divided_loss, divided_out = trained_over(name, steps_per_execution)
    for a, b in zip(
        jax.tree.leaves(nnx.state(expected, nnx.Param)),
        jax.tree.leaves(nnx.state(model, nnx.Param)),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-6)
    np.testing.assert_allclose(divided_loss, loss, rtol=1e-4)
    np.testing.assert_allclose(divided_out, out, rtol=1e-3, atol=1e-5)
    assert history.history["loss"][-1] < history.history["loss"][0]


@pytest.mark.parametrize("name", DIVIDED)
def test_each_device_holds_its_share_of_weights_and_moments(name: str) -> None:
    mesh = MESHES[name][0] or {}
    model, *_ = trained_over(name)
    shares = mesh.get("fsdp", 1) * mesh.get("tensor", 1)
    kernel = model.layers[0].kernel[...] if hasattr(model, "layers") else model[0].kernel[...]
    assert kernel.addressable_shards[0].data.size == kernel.size // shares
    moments = [
        leaf
        for leaf in jax.tree.leaves(model.trainer.optimizer_state)
        if leaf.shape == kernel.shape
    ]
    assert len(moments) == 2
    for moment in moments:
        assert moment.sharding == kernel.sharding


def test_frozen_weights_are_divided_like_trained_ones() -> None:
    with nx.distribute.TPUStrategy(mesh={"fsdp": 8}).scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm(32), nn.Linear(32, 1))
        model[0].freeze()
        before = np.asarray(model[0].kernel[...])
        model.compile(loss="mse")
        model.fit(*data(), batch_size=16)
        frozen, trained = model[0].kernel[...], model[2].kernel[...]
        assert frozen.addressable_shards[0].data.size == frozen.size // 8
        assert trained.addressable_shards[0].data.size == trained.size // 8
        assert model[1].mean[...].sharding.is_fully_replicated
        np.testing.assert_array_equal(np.asarray(frozen), before)
    program = model.trainer.step_program(
        jax.sharding.AbstractMesh((8,), ("fsdp",)), nx.spec((16, 16))
    )
    described = program.state.model_state.fixed["layers"]["0"]["kernel"]
    assert described.sharding.spec == frozen.sharding.spec
    leaves = jax.tree.leaves((program.state, program.batch))
    roles = [role for role, leaf in zip(program.leaf_roles, leaves, strict=True)
             if leaf.shape == frozen.shape]  # fmt: skip
    assert roles == ["parameters"]  # of no optimizer's state


def test_weights_that_a_callback_sets_stay_divided() -> None:
    class Shrink(nx.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any) -> None:
            self.model[0].kernel[...] = np.asarray(self.model[0].kernel[...]) * 0.5

    with nx.distribute.TPUStrategy(mesh={"fsdp": 8}).scope():
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 1))
        model.compile(loss="mse")
        model.fit(*data(), batch_size=16, epochs=2, callbacks=Shrink())
    assert prepared(model.trainer).compiled.step_compilations == 1


def test_a_second_fit_goes_on_and_one_program_is_compiled() -> None:
    model, *_ = trained({"fsdp": 8})
    before = model[0].kernel[...].sharding
    with nx.distribute.TPUStrategy(mesh={"fsdp": 8}).scope():
        model.fit(*data(), batch_size=16)
    assert prepared(model.trainer).compiled.step_compilations == 1
    assert model[0].kernel[...].sharding == before


def test_the_model_may_bring_the_rules() -> None:
    class WithRules(nn.Module):
        def __init__(self) -> None:
            self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 1)

        def sharding_rules(self) -> Any:
            return (("first.kernel$", (None, "fsdp")),)

        def __call__(self, x: Any) -> Any:
            return self.last(constrain(self.first(x), ("data", "fsdp"), None))

    with nx.distribute.TPUStrategy(mesh={"fsdp": 8}).scope():
        model = WithRules()
        model.compile(loss="mse")
        model.fit(*data(), batch_size=16)
    first = model.first.kernel[...].sharding
    assert isinstance(first, jax.sharding.NamedSharding)
    assert first.spec == PartitionSpec(None, "fsdp")
    assert model.last.kernel[...].sharding.is_fully_replicated


def test_saving_and_loading_take_divided_weights(tmp_path: Any) -> None:
    model, _, loss, _ = trained_over("fsdp")
    model.save(tmp_path / "w.safetensors")
    other = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
    other.load(tmp_path / "w.safetensors")
    other.compile(loss="mse")
    np.testing.assert_allclose(other.evaluate(*data())["loss"], loss, rtol=1e-4)


def test_mistakes_with_meshes_and_rules() -> None:
    with pytest.raises(nx.ShapeError, match="4 places.*8 devices"):
        nx.distribute.TPUStrategy(mesh={"fsdp": 4})
    with pytest.raises(nx.NeurenixError, match="'fspd'.*fsdp"):
        nx.distribute.TPUStrategy(mesh={"fspd": 8})
    for wrong in (3, {"bias$": (None,)}):
        with pytest.raises(nx.ArgumentTypeError, match=f"a list of them.*{type(wrong).__name__}"):
            nx.distribute.auto(rules=wrong)
    with pytest.raises(nx.ArgumentError, match="run is for data parallelism"):
        nx.distribute.TPUStrategy(mesh={"fsdp": 8}).run(lambda x: x, args=(1.0,))
    with pytest.raises(nx.ArgumentError, match="3 axes.*bias"):
        nx.distribute.ShardingRules((("bias", ("fsdp", None, None)),)).partition("bias", (4,), {})


@pytest.mark.parametrize(
    "mesh", ["fsdp", {"fsdp": "8"}, {"fsdp": 0}, {"fsdp": -8, "data": -1}, {"fsdp": 8.0}, {8: 8}]
)
def test_a_mesh_of_another_kind_is_refused(mesh: Any) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="whole numbers from 1"):
        nx.distribute.TPUStrategy(mesh=mesh)
    model = nn.Sequential(nn.Linear(4, 4))
    model.compile(loss="mse")
    with pytest.raises(nx.ArgumentTypeError, match="whole numbers from 1"):
        nx.preflight(model, on="v5e-8", input_shape=(8, 4), mesh=mesh)


@pytest.mark.parametrize("rules", ["kernel", [("kernel$",)], [(3, ("fsdp",))], [("(", ("fsdp",))]])
def test_rules_of_another_kind_are_refused(rules: Any) -> None:
    with pytest.raises((nx.ArgumentTypeError, nx.ArgumentError), match="sharding rule"):
        nx.distribute.TPUStrategy(mesh={"fsdp": 8}, rules=rules)


@pytest.mark.parametrize("axes", [("fsdpp", None), (("data", "fsdpp"),), (8, None)])
def test_a_rule_of_an_axis_that_no_mesh_has_is_refused(axes: Any) -> None:
    with pytest.raises(nx.UnknownNameError, match="no mesh axis named.*Known: data, fsdp, tensor"):
        nx.distribute.TPUStrategy(mesh={"fsdp": 8}, rules=[("kernel$", axes)])


def test_the_first_rule_that_matches_decides_and_what_does_not_divide_stays_whole() -> None:
    rules = nx.distribute.ShardingRules(
        (("attention.*kernel", (None, "tensor")), ("kernel", (("fsdp", "tensor"), None)))
    )
    axes = {"fsdp": 4, "tensor": 2}
    assert rules.partition("layers.attention.kernel", (3, 16, 16), axes) == PartitionSpec(
        None, None, "tensor"
    )
    assert rules.partition("mlp.kernel", (16, 4), axes) == PartitionSpec(("fsdp", "tensor"), None)
    assert rules.partition("mlp.kernel", (12, 4), axes) == PartitionSpec(None, None)
    assert rules.partition("scale", (16,), axes) == PartitionSpec()
    assert shard_largest("w", (3, 5), axes) == PartitionSpec()
    more = nx.distribute.ShardingRules((("attention", ("tensor",)),)) + rules
    assert more.partition("attention.kernel", (16,), axes) == PartitionSpec("tensor")


def test_rules_of_the_strategy_come_before_those_of_the_model() -> None:
    own, models = (
        nx.distribute.ShardingRules((("kernel$", axes),))
        for axes in ((None, "fsdp"), ("fsdp", None))
    )
    weights = {"kernel": nx.spec((16, 16))}
    for rules, wanted in ((own, (None, "fsdp")), (None, ("fsdp", None))):
        strategy = nx.distribute.TPUStrategy(mesh={"fsdp": 8}, rules=rules)
        placement = strategy.placement(weights, models)
        assert placement is not None
        assert tuple(placement.shardings(weights)["kernel"].spec) == wanted


def test_a_mesh_grows_along_the_batch() -> None:
    strategy = nx.distribute.TPUStrategy(mesh={"data": 2, "tensor": 4})
    assert strategy.mesh_axes(16) == {"data": 4, "tensor": 4}
    assert nx.distribute.TPUStrategy().mesh_axes(16) == {"data": 16}
    with pytest.raises(nx.ShapeError, match="cannot be laid over 6 devices"):
        strategy.mesh_axes(6)


def test_a_constraint_divides_a_value_inside_of_a_program() -> None:
    mesh = nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}).mesh
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        whole = jax.sharding.NamedSharding(mesh, PartitionSpec())
        double = jax.jit(lambda x: constrain(x, ("data", "fsdp"), "tensor") * 2, in_shardings=whole)
        out = double.lower(nx.spec((8, 4))).compile().output_shardings
    assert out.spec[0] == ("data", "fsdp")


def test_an_optimizer_leaf_of_another_shape_stays_whole() -> None:
    mesh = jax.sharding.AbstractMesh((8,), ("fsdp",))
    weights = {"kernel": jax.ShapeDtypeStruct((16, 8), "float32")}
    placed = Placement(mesh, weights).shardings(
        {"v": weights, "row": {"kernel": jax.ShapeDtypeStruct((16,), "float32")}}
    )
    assert placed["v"]["kernel"].spec == PartitionSpec("fsdp", None)
    assert placed["row"]["kernel"].spec == PartitionSpec()


@pytest.mark.tpu_compile
def test_preflight_divides_state_by_the_rules() -> None:
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 128))
    model.compile(optimizer="adam", loss="mse")
    whole, divided = (
        nx.preflight(model, on="v5e-8", input_shape=(64, 1024), mesh=axes)
        for axes in ({"data": 8}, {"fsdp": 8})
    )

    def held(report: Any) -> int:
        return sum(leaf.device_bytes for leaf in report.analysis.program.leaves
                   if leaf.role in ("parameters", "optimizer"))  # fmt: skip

    assert held(divided) < held(whole) / 7.9
    assert divided.hbm.peak_bytes < whole.hbm.peak_bytes / 2


@pytest.mark.tpu_compile
def test_preflight_takes_the_mesh_of_the_strategy() -> None:
    with nx.distribute.TPUStrategy(mesh={"data": 2, "fsdp": 4}).scope():
        model = nn.Sequential(nn.Linear(64, 128))
        model.compile(optimizer="adam", loss="mse")
    same, larger = nx.preflight(model, on=["v5e-8", "v5e-16"], input_shape=(64, 64))
    assert same.analysis.program.axes == {"data": 2, "fsdp": 4}
    assert larger.analysis.program.axes == {"data": 4, "fsdp": 4}

"""Strategies: what replicas see, compute and bring together, on eight simulated devices."""

from __future__ import annotations

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix._jit.recompilation import RecompilationWarning
from neurenix.distribute import (
    MirroredStrategy,
    OneDeviceStrategy,
    PerReplica,
    TPUClusterResolver,
    TPUStrategy,
    compute_average_loss,
    get_replica_context,
)
from neurenix.distribute import strategy as strategy_module
from train_helpers import MLP, Noisy, assert_same_weights, classification, hand_written

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


@pytest.fixture(scope="module")
def strategy() -> TPUStrategy:
    return TPUStrategy()


def test_a_function_made_for_each_call_is_reported() -> None:
    strategy = OneDeviceStrategy("cpu")
    with pytest.warns(RecompilationWarning, match="<lambda> has been compiled 5 times.*made anew"):
        for number in range(5):
            strategy.run(lambda x: x * 2, args=(np.float32(number),))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompilationWarning)
        for _ in range(8):  # each is called again

            def kept(x: Any) -> Any:
                return x * 3

            for number in range(2):
                strategy.run(kept, args=(np.float32(number),))


def test_every_replica_computes_and_holds_its_own(strategy: TPUStrategy) -> None:
    a, b = nx.Tensor([[1.0, 2.0], [3.0, 4.0]]), nx.Tensor([[5.0], [6.0]])
    result = strategy.run(nx.matmul, args=(a, b))
    assert isinstance(result, PerReplica) and len(result) == 8
    devices = {next(iter(value.devices())) for value in result}
    assert devices == set(jax.devices())
    np.testing.assert_array_equal(result[7], [[17.0], [39.0]])
    assert repr(result).startswith("PerReplica{0: ") and "7: " in repr(result)


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 28.0), ("mean", 3.5), ("max", 7.0), ("min", 0.0)]
)
def test_reductions_inside_and_outside(strategy: TPUStrategy, op: str, expected: float) -> None:
    def inside(x: Any) -> Any:
        context = get_replica_context()
        return context.all_reduce(op, x * context.replica_id)

    assert [float(v) for v in strategy.run(inside, args=(jnp.float32(1),))] == [expected] * 8
    outside = strategy.run(lambda: get_replica_context().replica_id.astype(jnp.float32))
    assert float(strategy.reduce(op, outside)) == expected


def test_all_gather_and_count(strategy: TPUStrategy) -> None:
    def gather() -> Any:
        context = get_replica_context()
        assert context.num_replicas_in_sync == 8
        return context.all_gather(context.replica_id[None])

    np.testing.assert_array_equal(strategy.run(gather)[3], np.arange(8))


def test_outside_there_is_one_replica() -> None:
    context = get_replica_context()
    assert context.num_replicas_in_sync == 1 and int(context.replica_id) == 0
    assert context.all_reduce("sum", 3) == 3
    with pytest.raises(nx.UnknownNameError, match="sum"):
        context.all_reduce("summ", 3)


def test_run_is_compiled_once(strategy: TPUStrategy) -> None:
    traces = []

    def function(x: Any) -> Any:
        traces.append(1)
        return x + 1

    for value in range(5):
        strategy.run(function, args=(np.float32(value),))
    assert len(traces) == 1


def test_the_functions_that_ran_last_stay_compiled(
    strategy: TPUStrategy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategy_module, "_REMEMBERED_FUNCTIONS", 2)
    traced = []

    def named(name: str) -> Any:
        return lambda x: traced.append(name) or x

    functions = {name: named(name) for name in "abc"}
    for name in "abacac":
        strategy.run(functions[name], args=(np.float32(0),))
    assert traced == ["a", "b", "c"]


def test_trees_and_no_result(strategy: TPUStrategy) -> None:
    out = strategy.run(lambda x: {"a": x, "b": (x * 2,)}, args=(np.float32(2),))
    assert float(strategy.reduce("sum", out)["b"][0]) == 32.0
    assert strategy.run(lambda x: None, args=(np.float32(2),)) is None


def replica_step(model: Any, optimizer: Any, batch: Any, *, global_batch: int) -> Any:
    def loss_fn(model: Any) -> Any:
        losses = optax.softmax_cross_entropy_with_integer_labels(model(batch[0]), batch[1])
        return compute_average_loss(losses, global_batch_size=global_batch)

    loss, gradients = nx.value_and_grad(loss_fn)(model)
    optimizer.update(model, gradients)
    return loss


def test_a_replica_loop_gives_the_weights_of_the_global_batch(strategy: TPUStrategy) -> None:
    x, y = classification(64)
    model = MLP()
    optimizer = nx.Optimizer(model, optax.sgd(0.5))
    expected = hand_written(
        model, optax.sgd(0.5), [(x[i : i + 32], y[i : i + 32], np.ones(32)) for i in (0, 32)]
    )
    data = nx.data.Dataset.from_arrays(x, y)
    dealt = strategy.distribute_from_function(
        lambda context: data.batch(context.per_replica_batch_size(32))
    )
    losses = []
    for batch in dealt:
        assert isinstance(batch, PerReplica)
        losses.append(
            strategy.run(replica_step, args=(model, optimizer, batch), kwargs={"global_batch": 32})
        )
    assert len(losses) == 2 and optimizer.step == 2
    assert_same_weights(model, expected, rtol=1e-4, atol=1e-6)


def test_a_distributed_batch_arrives_as_shares(strategy: TPUStrategy) -> None:
    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    batch = next(iter(strategy.distribute([x])))
    shares = strategy.run(lambda share: share, args=(batch,))
    np.testing.assert_array_equal(shares[3], x[6:8])


def test_a_batch_of_another_strategy_is_refused(strategy: TPUStrategy) -> None:
    batches = [np.ones((16, 2), np.float32)]
    others = nx.distribute.Strategy(["tpu:0", "tpu:1"]), TPUStrategy(mesh={"data": 2, "fsdp": 4})
    for other in others:
        batch = next(iter(other.distribute(batches)))
        with pytest.raises(nx.ArgumentError, match="another strategy.*each of the 8 replicas"):
            strategy.run(lambda x: x, args=(batch,))
    alone = nx.distribute.Strategy(["tpu:0"])
    batch = next(iter(strategy.distribute(batches)))
    assert alone.run(lambda x: x, args=(batch,))[0].shape == (16, 2)


def test_several_batches_at_once_are_split_as_one_is(strategy: TPUStrategy) -> None:
    batches = iter(strategy.distribute([np.full((16, 2), i, "f") for i in range(4)]))
    stacked = batches.next_stacked(3)
    assert stacked.shape == (3, 16, 2)
    assert stacked.addressable_shards[0].data.shape == (3, 2, 2)
    assert batches.next_stacked(3).shape == (1, 16, 2)
    with pytest.raises(StopIteration):
        batches.next_stacked(3)


def test_a_custom_loop_resumes_from_a_saved_position(strategy: TPUStrategy) -> None:
    def batches() -> Any:
        data = nx.data.Dataset.from_arrays(np.arange(64.0)).shuffle(seed=0).batch(16)
        return iter(strategy.distribute(data))

    every, first, resumed = [np.asarray(batch) for batch in batches()], batches(), batches()
    first.skip(2)
    resumed.set_state(first.get_state())
    assert isinstance(resumed, nx.data.BatchIterator)
    np.testing.assert_array_equal(resumed.next_stacked(9), every[2:])


def test_r2_over_replicas_is_that_of_all_examples(strategy: TPUStrategy) -> None:
    rng = np.random.default_rng(0)
    years = rng.normal(1998, 10, (3, 64)).astype(np.float32)
    years.sort()  # each replica begins elsewhere
    said = (years + rng.normal(0, 5, years.shape)).astype(np.float32)
    metric = nx.metrics.R2Score()
    for batch in strategy.distribute(list(zip(years, said, strict=True))):
        strategy.run(lambda metric, y, p: metric.update(y, p), args=(metric, *batch))
    wanted = 1 - np.sum(np.square(years - said)) / years.size / np.var(years.astype(float))
    np.testing.assert_allclose(float(metric.result()), wanted, rtol=1e-5)


def test_state_comes_together(strategy: TPUStrategy) -> None:
    model, metric = Noisy(), nx.metrics.Mean()
    x = np.random.default_rng(0).normal(size=(64, 6)).astype(np.float32)

    def forward(model: Any, metric: Any, x: Any) -> Any:
        out = model(x)
        metric.update(jnp.float32(get_replica_context().replica_id))
        return out, jax.random.uniform(model.dropout.rngs())

    (_, noise) = strategy.run(forward, args=(model, metric, next(iter(strategy.distribute([x])))))
    np.testing.assert_allclose(float(metric.result()), 3.5)
    assert len({float(value) for value in noise}) == 8, "replicas draw different numbers"
    (key,) = jax.tree.leaves(nnx.state(model, nnx.RngKey))
    held = {jax.random.key_data(shard.data).tobytes() for shard in key.addressable_shards}
    assert len(held) == 1, "and go on from one state"
    kernel, bias = np.asarray(model.inner.kernel[...]), np.asarray(model.inner.bias[...])
    means = (x @ kernel + bias).reshape(8, 8, 8).mean(1).mean(0)
    np.testing.assert_allclose(model.norm.mean[...], 0.1 * means, rtol=1e-4, atol=1e-6)
    for leaf in jax.tree.leaves(nnx.state(model, nnx.BatchStat)):
        shards = [np.asarray(shard.data) for shard in leaf.addressable_shards]
        for shard in shards[1:]:
            np.testing.assert_array_equal(shards[0], shard)


def test_average_loss() -> None:
    losses = jnp.array([1.0, 2.0, 3.0])
    assert float(compute_average_loss(losses)) == 2.0
    assert float(compute_average_loss(losses, jnp.array([1.0, 0.0, 1.0]))) == pytest.approx(4 / 3)
    with pytest.raises(nx.ShapeError, match="scalar"):
        compute_average_loss(jnp.float32(1))
    for size in (0, -8, np.int64(0)):
        with pytest.raises(nx.ArgumentError, match=f"global_batch_size is {size}"):
            compute_average_loss(losses, global_batch_size=size)


def test_errors_say_what_to_do(strategy: TPUStrategy) -> None:
    with pytest.raises(nx.ShapeError, match="12.*8"):
        strategy.per_replica_batch_size(12)
    with pytest.raises(nx.UnknownNameError, match="mean"):
        strategy.reduce("meen", PerReplica(jnp.zeros(8)))
    with pytest.raises(nx.ArgumentTypeError, match="PerReplica"):
        strategy.reduce("mean", jnp.zeros(8))
    with pytest.raises(nx.ArgumentTypeError, match="function"):
        strategy.run(3)
    with pytest.raises(nx.DeviceNotFoundError, match="TPU_NAME"):
        TPUClusterResolver(tpu="my-pod")
    with pytest.raises(ValueError, match="cuda:0"):
        MirroredStrategy(["cuda:0"])
    batches = [np.zeros((2, 3)), np.zeros((1, 3))] * 4
    with pytest.raises(nx.ShapeError, match="drop_remainder"):
        next(iter(strategy.distribute_from_function(lambda context: batches)))


def test_without_a_gpu_replicas_are_on_the_cpu_and_it_is_said(run_python) -> None:
    """A program of tf.distribute that tries a TPU, then GPUs, runs on a laptop as it is."""
    done = run_python(
        code="import neurenix as nx\n"
        "try:\n    strategy = nx.distribute.TPUStrategy(nx.distribute.TPUClusterResolver())\n"
        "except ValueError:\n    strategy = nx.distribute.MirroredStrategy()\n"
        "print(strategy.num_replicas_in_sync, *strategy.devices)",
        env={"JAX_PLATFORMS": "cpu"},
    )
    assert (done.returncode, done.stdout) == (0, "1 cpu:0\n"), done.stderr
    assert done.stderr == "neurenix: no GPU here, so MirroredStrategy runs on cpu:0\n"


def test_the_resolver_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPU_NAME", "my-pod")
    assert TPUClusterResolver(tpu="my-pod").num_accelerators() == 8


def test_scope_and_auto(strategy: TPUStrategy, capsys: pytest.CaptureFixture[str]) -> None:
    assert nx.distribute.get_strategy() is None
    with strategy.scope():
        assert nx.distribute.get_strategy() is strategy
    assert isinstance(nx.distribute.auto(), TPUStrategy)
    assert "TPUStrategy(8 replicas: tpu:0 … tpu:7)" in capsys.readouterr().err
    assert OneDeviceStrategy().num_replicas_in_sync == 1
    assert MirroredStrategy(["tpu:2", "tpu:3"]).num_replicas_in_sync == 2


def test_updates_of_modules_inside_a_container_are_not_lost_in_silence(
    strategy: TPUStrategy,
) -> None:
    model = MLP()
    both = {"model": model, "optimizer": nx.Optimizer(model, optax.sgd(0.1))}
    for hidden in (both, tuple(both.values()), [model]):
        with pytest.raises(nx.ArgumentTypeError, match="argument of its own"):
            strategy.run(lambda modules, x: x, args=(hidden, np.float32(1)))


@pytest.mark.parametrize(
    ("losses", "weights", "expected"),
    [
        ([1, 3], [[1], [0]], 0.5),
        ([[1.0, 1.0], [3.0, 3.0]], [1, 0], 0.5),
        ([[1.0, 1.0], [3.0, 3.0]], [[1], [0]], 0.5),
        ([[1.0, 1.0], [3.0, 3.0]], [[1, 0], [0, 0]], 0.25),
        (np.ones((2, 3)), [1, 0], 0.5),
        (np.ones((2, 3)), 2.0, 2.0),
    ],
)
def test_weights_go_with_the_examples(losses: Any, weights: Any, expected: float) -> None:
    mean = compute_average_loss(losses, sample_weight=weights, global_batch_size=2)
    assert float(mean) == pytest.approx(expected)


def test_weights_that_go_with_nothing_are_an_error() -> None:
    for weights in (np.ones(3), np.ones((2, 2)), np.ones((2, 3, 2))):
        with pytest.raises(nx.ShapeError, match=r"one weight per example, shape \(2,\)"):
            compute_average_loss(np.ones((2, 3)), weights)


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
def test_an_axis_counts_within_each_replica(strategy: TPUStrategy, axis: int) -> None:
    value = np.arange(6, dtype=np.float32).reshape(2, 3)
    replicas = strategy.run(lambda x: x, args=(value,))
    reduced = strategy.reduce("sum", replicas, axis=axis)
    np.testing.assert_array_equal(reduced, 8 * value.sum(axis))


def test_an_axis_that_no_value_has_is_an_error(strategy: TPUStrategy) -> None:
    replicas = strategy.run(lambda: (jnp.ones((2, 3)), jnp.float32(1)))
    for axis in (2, -3):
        with pytest.raises(nx.ArgumentError, match=f"axis is {axis}.*the axes 0 to 1"):
            strategy.reduce("sum", replicas[0], axis=axis)
    for axis in (0, -1):
        with pytest.raises(nx.ArgumentError, match="no axes"):
            strategy.reduce("mean", replicas[1], axis=axis)
    for wrong in ("x", 1.0, True):
        with pytest.raises(nx.ArgumentTypeError, match="whole number"):
            strategy.reduce("mean", replicas[0], axis=wrong)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("entries", [3, 16])
def test_a_per_replica_has_one_entry_for_each_replica(strategy: TPUStrategy, entries: int) -> None:
    values = PerReplica(np.arange(float(entries)))
    with pytest.raises(nx.ShapeError, match=f"has {entries} entries.*8 replicas"):
        strategy.run(lambda x: x, args=(values,))
    with pytest.raises(nx.ShapeError, match=f"has {entries} entries.*8 replicas"):
        strategy.run(lambda tree: tree["x"], args=({"x": values},))


def test_batches_that_some_replicas_lack_are_an_error_and_not_dropped(
    strategy: TPUStrategy,
) -> None:
    data = nx.data.Dataset.from_arrays(np.zeros((48, 2), np.float32)).batch(4)
    seen = 0
    with pytest.raises(nx.DataError, match=r"12 batches for 8 replicas: 4 .*\.take\(8\)"):
        for _ in strategy.distribute_from_function(lambda context: data):
            seen += 1
    assert seen == 0, "the length is known before the first step"
    with pytest.raises(nx.DataError, match="12 batches"):
        for _ in strategy.distribute_from_function(lambda context: iter([*data])):
            seen += 1
    assert seen == 1
    dealt = strategy.distribute_from_function(lambda context: data.take(8))
    assert len([*dealt]) == len([*dealt]) == 1
    endless = iter(strategy.distribute_from_function(lambda context: data.repeat()))
    for _ in range(4):
        next(endless)


def test_batch_norm_in_a_custom_loop_sees_the_batch_of_all_replicas(strategy: TPUStrategy) -> None:
    x = np.random.default_rng(3).normal(2.0, 3.0, (8, 2, 4)).astype(np.float32)
    alone, together = nx.nn.BatchNorm(4), nx.nn.BatchNorm(4)
    wanted = alone(jnp.asarray(x.reshape(16, 4)))
    shares = strategy.run(lambda layer, x: layer(x), args=(together, PerReplica(x)))
    np.testing.assert_allclose(np.concatenate(list(shares)), wanted, rtol=1e-4, atol=1e-5)
    for name in ("mean", "var"):
        np.testing.assert_allclose(getattr(together, name), getattr(alone, name), rtol=1e-5)


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        (["tpu:0", "tpu:0"], nx.ArgumentError, "tpu:0, tpu:0: one is there twice"),
        (["tpu", nx.Device("tpu:0")], nx.ArgumentError, "twice"),
        (["tpu:0", "cpu:0"], nx.ArgumentError, "tpu:0, cpu:0: .*one type"),
        (["cuda:0"], nx.DeviceNotFoundError, "no cuda:0"),
        (["tpu:7", "tpu:8"], nx.DeviceNotFoundError, "no tpu:8"),
        ("tpu:0", nx.ArgumentTypeError, "list of devices or names; got 'tpu:0'"),
        (2, nx.ArgumentTypeError, "got 2"),
        ([], nx.DeviceNotFoundError, "at least one device"),
        ([3], nx.ArgumentTypeError, "got int"),
    ],
)
def test_devices_that_are_none_are_told_at_once(
    devices: Any, error: type[Exception], message: str
) -> None:
    for make in (MirroredStrategy, nx.distribute.Strategy):
        with pytest.raises(error, match=message):
            make(devices)


def test_a_resolver_that_is_none_is_told() -> None:
    with pytest.raises(nx.ArgumentTypeError, match=r"resolver is 8.*TPUStrategy\(\)"):
        TPUStrategy(8)  # pyright: ignore[reportArgumentType]
    with pytest.raises(nx.DeviceNotFoundError, match="no cuda:0"):
        OneDeviceStrategy("cuda")


def test_arguments_that_are_no_tuple_are_told(strategy: TPUStrategy) -> None:
    for args in (np.ones(8, np.float32), 3.0, {"x": 1.0}):
        with pytest.raises(nx.ArgumentTypeError, match=r"args=\(value,\)"):
            strategy.run(lambda x: x, args=args)  # pyright: ignore[reportArgumentType]


def test_one_batch_is_no_dataset_of_batches(strategy: TPUStrategy) -> None:
    x, y = np.ones((16, 8), np.float32), np.zeros(16, np.int32)
    for batch in ((x, y), {"x": x}, x, jnp.asarray(x), 3):
        with pytest.raises(nx.ArgumentTypeError, match=r"list of it, \[\(x, y\)\]"):
            strategy.distribute(batch)  # pyright: ignore[reportArgumentType]
        with pytest.raises(nx.ArgumentTypeError, match="goes through batches"):
            strategy.distribute_from_function(lambda context, batch=batch: batch)
    placed = next(iter(strategy.distribute([(x, y)])))
    shares = strategy.run(lambda batch: batch[0].sum() + batch[1].shape[0], args=(placed,))
    assert [float(share) for share in shares] == [18.0] * 8


@pytest.mark.parametrize("stacked", [False, True])
def test_a_batch_with_a_single_number_is_told(strategy: TPUStrategy, stacked: bool) -> None:
    batches = iter(strategy.distribute([{"x": np.ones((8, 2)), "n": 3}]))
    with pytest.raises(nx.ShapeError, match=r"batch\['n'\] is a single number"):
        batches.next_stacked(1) if stacked else next(batches)

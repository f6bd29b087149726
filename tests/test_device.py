"""Names of devices, what is here, what is said when one is not, and moving to one."""

from __future__ import annotations

import gc

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import neurenix as nx
from neurenix import device as device_module
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DataError,
    DeviceNotFoundError,
    UnknownNameError,
)
from neurenix._nnx import nnx
from neurenix.device import Device, DeviceType, device_of, devices, from_jax, to
from neurenix.hardware.availability import Availability
from neurenix.hardware.memory_stats import MemoryStats, memory_stats_of

pytestmark = [pytest.mark.cpu8, pytest.mark.newest]


def test_names() -> None:
    assert Device("tpu:0") == Device(DeviceType.TPU, 0) == Device("TPU") == Device("tpu", 0)
    assert str(Device("edge_tpu")) == "edge_tpu:0"
    assert repr(Device("cuda:1")) == "Device('cuda:1')"
    assert Device(Device("tpu:3")) == Device("tpu:3", 3)
    assert len({Device("tpu:0"), Device(DeviceType.TPU), Device("cpu")}) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("tpuu",), UnknownNameError, "Did you mean 'tpu'"),
        (("gpu:0",), ArgumentError, '"cuda" .NVIDIA. or "rocm"'),
        (("tpu:x",), ArgumentError, "needs a number after the colon"),
        (("tpu:²",), ArgumentError, "needs a number after the colon"),
        (("tpu:",), ArgumentError, "needs a number after the colon"),
        (("tpu:1", 2), ArgumentError, "two different"),
        (("tpu", -1), ArgumentError, "counts from 0"),
        (("tpu", 1.0), ArgumentTypeError, "integer"),
        (("tpu", True), ArgumentTypeError, "integer, got bool"),
        ((0,), ArgumentTypeError, "got int"),
    ],
)
def test_names_that_are_none(arguments: tuple, error: type, says: str) -> None:
    with pytest.raises(error, match=says):
        Device(*arguments)


def test_what_is_here() -> None:
    assert [str(found) for found in devices()] == [*(f"tpu:{i}" for i in range(8)), "cpu:0"]
    assert devices("cuda") == []
    assert [found.jax_device for found in devices(DeviceType.TPU)] == jax.devices("tpu")
    assert all(found.is_simulated for found in devices("tpu"))
    assert not Device("cpu").is_simulated
    assert (Device("tpu:0").kind, Device("cpu").kind) == ("TPU v5 lite", "cpu")
    assert (Device("tpu:7").is_available(), Device("tpu:8").is_available()) == (True, False)


def test_an_index_too_high_names_the_last() -> None:
    with pytest.raises(DeviceNotFoundError, match="no tpu:8: the last one is tpu:7"):
        _ = Device("tpu:8").jax_device


@pytest.mark.parametrize("name", ["cuda", "rocm"])
def test_a_device_that_is_not_here_names_three_ways_on(name: str) -> None:
    with pytest.raises(DeviceNotFoundError) as error:
        _ = Device(name).jax_device
    message = str(error.value)
    assert f"There is no {name}:0." in message
    assert "Here are: tpu:0 to tpu:7, cpu:0." in message
    assert f'(1) On a machine that has one: pip install "neurenix[{name}]"' in message
    assert "(2) Simulate a TPU" in message
    assert "(3) Choose another" in message
    assert isinstance(error.value, RuntimeError)


def test_what_is_missing_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Availability(0, 1, "A GPU is here; the plugin is not.", "Install the plugin.")
    monkeypatch.setitem(device_module._AVAILABILITY, DeviceType.CUDA, lambda: half)
    with pytest.raises(DeviceNotFoundError, match="the plugin is not. .*1. Install the plugin"):
        _ = Device("cuda").jax_device
    broken = Availability(1, 1)
    monkeypatch.setitem(device_module._AVAILABILITY, DeviceType.CUDA, lambda: broken)
    with pytest.raises(DeviceNotFoundError, match="JAX was started without it"):
        _ = Device("cuda").jax_device


def test_why_jax_does_not_start_what_is_here_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(device_module._AVAILABILITY, DeviceType.CUDA, lambda: Availability(1, 1))
    monkeypatch.setattr(device_module, "backend_error", lambda name: f"{name} wants a new driver")
    with pytest.raises(DeviceNotFoundError, match="cannot start it: cuda wants a new driver"):
        _ = Device("cuda").jax_device


@pytest.mark.parametrize(("name", "kind"), [("edge_tpu", "Edge TPU"), ("webgpu", "WebGPU adapter")])
def test_devices_without_arrays_say_so(
    monkeypatch: pytest.MonkeyPatch, name: str, kind: str
) -> None:
    none = Availability(0, 0, "None is attached.")
    monkeypatch.setitem(device_module._AVAILABILITY, DeviceType(name), lambda: none)
    ways = r"array.*None is attached.*Here are: tpu:0 to tpu:7.*\(1\).*\(2\) Simulate.*\(3\)"
    with pytest.raises(DeviceNotFoundError, match=ways):
        _ = Device(name).jax_device
    monkeypatch.setitem(device_module._AVAILABILITY, DeviceType(name), lambda: Availability(2, 2))
    with pytest.raises(DeviceNotFoundError, match=r"array.*Here are: tpu:0.*Choose one of them\.$"):
        _ = Device(name).jax_device
    assert [str(found) for found in devices(name)] == [f"{name}:0", f"{name}:1"]
    assert Device(name, 1).kind == kind
    assert (Device(name, 1).is_available(), Device(name, 2).is_available()) == (True, False)
    with pytest.raises(DeviceNotFoundError, match=f"no {name}:2: the last one is {name}:1"):
        _ = Device(name, 2).kind


def test_those_that_compute_fastest_come_first() -> None:
    order = ["tpu", "cuda", "rocm", "cpu", "edge_tpu", "webgpu"]
    assert [kind.value for kind in device_module.availability()] == order


def test_default_device() -> None:
    with nx.device("cpu") as chosen:
        assert chosen == Device("cpu")
        assert device_of(jnp.ones(3)) == Device("cpu")
        with nx.device("tpu:5"):
            assert device_of(jax.jit(lambda: jnp.ones(3))()) == Device("tpu:5")
    assert device_of(jnp.ones(3)) == Device("tpu:0")
    with pytest.raises(DeviceNotFoundError), nx.device("cuda"):
        pass


def test_device_of() -> None:
    assert device_of(jax.device_put(1.0, jax.devices()[3])) == Device("tpu:3")
    mesh = jax.make_mesh((8,), ("data",))
    split = jax.device_put(np.ones(8), NamedSharding(mesh, PartitionSpec("data")))
    with pytest.raises(ArgumentError, match="is on 8 devices. Read array.sharding"):
        device_of(split)
    with pytest.raises(ArgumentTypeError, match="got ndarray"):
        device_of(np.ones(3))
    with pytest.raises(ArgumentTypeError, match="traced"):
        jax.jit(lambda x: device_of(x) and x)(1.0)


def test_from_jax_is_the_way_back() -> None:
    for found in devices():
        assert from_jax(found.jax_device) == found
    with pytest.raises(DeviceNotFoundError, match="none of JAX's devices"):
        from_jax("a string")


def test_to_moves_arrays_and_trees() -> None:
    tree = {"w": np.ones((2, 2), np.float32), "n": jnp.arange(3), "key": jax.random.key(0)}
    moved = to(tree, "tpu:2", dtype="bfloat16")
    assert {str(device_of(leaf)) for leaf in moved.values()} == {"tpu:2"}
    assert (moved["w"].dtype, moved["n"].dtype) == (jnp.bfloat16, jnp.int32)
    assert to(jnp.arange(3), "cpu", dtype="float32").dtype == jnp.float32
    assert device_of(to(2.0, Device("tpu:1"))) == Device("tpu:1")
    assert device_of(to(moved["w"], jax.devices()[1])) == Device("tpu:1")
    mesh = jax.make_mesh((8,), ("data",))
    split = to(np.ones(8, "f"), NamedSharding(mesh, PartitionSpec("data")))
    assert len(split.sharding.device_set) == 8
    with pytest.raises(UnknownNameError, match="Did you mean 'bfloat16'"):
        to(jnp.ones(2), "cpu", dtype="bfloat61")


def test_to_knows_the_names_of_dtypes_and_casts_nothing_to_zero() -> None:
    assert to(jnp.ones(2), "cpu", dtype="bf16").dtype == jnp.bfloat16
    assert to(2.5, "cpu", dtype="bf16").dtype == jnp.bfloat16
    with pytest.raises(ArgumentError, match="float64 needs 64-bit"):
        to(jnp.ones(2), "cpu", dtype="float64")
    for value in ({"w": jnp.ones(2)}, nnx.Linear(2, 3, rngs=nnx.Rngs(0))):
        with pytest.raises(ArgumentError, match="int8 would truncate"):
            to(value, "cpu", dtype="int8")


def test_to_refuses_numbers_that_would_wrap() -> None:
    big = np.arange(8) * 2**32 + 7
    for value in (big, {"x": big}, big[7], 2**40):
        with pytest.raises(DataError, match="contains [0-9]*, and int32 holds"):
            to(value, "cpu")
    with pytest.raises(DataError, match="contains 300, and int8"):
        to(jnp.array([300]), "cpu", dtype="int8")
    assert to(np.arange(3), "cpu").dtype == jnp.int32


def test_devices_of_a_type_have_no_index() -> None:
    for one in ("tpu:0", Device("tpu:0")):
        with pytest.raises(ArgumentError, match="devices.type. takes a type"):
            devices(one)  # pyright: ignore[reportArgumentType]  wrong on purpose


def test_to_moves_a_foreign_module() -> None:
    linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    moved = to(linear, "tpu:4")
    assert device_of(moved.kernel[...]) == Device("tpu:4")
    assert device_of(linear.kernel[...]) == Device("tpu:0")
    x = to(jnp.ones((1, 2)), "tpu:4")
    np.testing.assert_array_equal(moved(x), linear(jnp.ones((1, 2))))


def test_memory_stats_count_live_arrays() -> None:
    gc.collect()  # what tests before it left there would go in between
    before = Device("tpu:6").memory_stats()
    array = to(np.ones((256, 1024), np.float32), "tpu:6")
    after = Device("tpu:6").memory_stats()
    assert after.bytes_in_use - before.bytes_in_use == array.nbytes == 2**20
    assert array.addressable_shards[0].data is not None
    assert Device("tpu:6").memory_stats().bytes_in_use == after.bytes_in_use
    assert after.limit_bytes == int(15.75 * 2**30)
    assert after.is_simulated
    assert "15.75 GiB (of the real chip; simulated here)" in str(after)
    del array
    assert Device("tpu:6").memory_stats().bytes_in_use == before.bytes_in_use
    assert not Device("cpu").memory_stats().is_simulated


def test_memory_stats_count_the_part_that_lies_on_the_device() -> None:
    before = [found.memory_stats().bytes_in_use for found in devices("tpu")]
    array = to(np.ones((8, 1024), np.float32), nx.distribute.TPUStrategy().batch_sharding())
    after = [found.memory_stats().bytes_in_use for found in devices("tpu")]
    assert [a - b for a, b in zip(after, before, strict=True)] == [4096] * 8
    assert array.nbytes == 8 * 4096


class Counting:
    """A device of which PJRT keeps count."""

    def memory_stats(self) -> dict[str, int]:
        return {"bytes_in_use": 3, "peak_bytes_in_use": 5, "bytes_limit": 7, "num_allocs": 9}


def test_memory_stats_that_pjrt_keeps_are_taken() -> None:
    found = memory_stats_of(Counting(), "cuda:0")
    assert found == MemoryStats("cuda:0", 3, 5, 7)
    assert str(found) == "cuda:0: 3 B in use, peak 5 B, limit 7 B"


def test_a_plain_machine_starts_nothing_and_is_quiet(run_python) -> None:
    code = (
        "import neurenix as nx; from jax._src import xla_bridge as xb;"
        "print(nx.Device('tpu').is_available(), nx.Device('cuda').is_available(),"
        "xb.backends_are_initialized(), nx.devices(), nx.Device('tpu').is_simulated)"
    )
    done = run_python(code=code, env={"JAX_PLATFORMS": ""})
    if "tpu" in done.stdout or "cuda" in done.stdout:
        pytest.skip("this machine has an accelerator")
    assert done.stdout.strip() == "False False False [Device('cpu:0')] False"
    assert done.stderr == ""


@pytest.mark.parametrize("value", ["text", {"a": object()}])
def test_what_is_no_array_cannot_be_moved(value: object) -> None:
    with pytest.raises(nx.ArgumentTypeError, match="is not an array"):
        nx.to(value, "cpu")

"""The TPU backend on a simulated slice, on described ones, and when it does not start."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from neurenix import chips
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DeviceInitializationError,
    DeviceNotFoundError,
)
from neurenix.device import Device
from neurenix.hardware import tpu, tpu_failures
from neurenix.hardware.availability import Availability
from neurenix.hardware.tpu import TPUBackend, is_tpu_available, raise_diagnosed
from neurenix.hardware.tpu_failures import CATALOGUE, diagnose
from neurenix.hardware.tpu_topology import topology_of_devices, topology_of_slice

pytestmark = pytest.mark.newest

# The exact texts, as they were seen: the threads are named in the catalogue.
TEXTS = [
    (
        "held",
        "libtpu.so already in use by another process probably owned by another user. Run "
        '"$ sudo lsof -w /dev/accel0" to figure out which process is using the TPU. Not attempting '
        "to load libtpu.so in this process.",
    ),
    ("held", "libtpu.so already in used by another process."),
    (
        "held",
        "ABORTED: The TPU is already in use by process with pid 4194301. Not attempting to load "
        "libtpu.so",
    ),
    (
        "lockfile",
        "ABORTED: Internal error when accessing libtpu multi-process lockfile. Run "
        '"$ sudo rm /tmp/libtpu_lockfile".',
    ),
    ("permission", "Couldn't open device: /dev/accel0 (Operation not permitted)"),
    (
        "permission",
        "TPU initialization failed: open(/dev/accel2): Operation not permitted: Operation not "
        "permitted; Couldn't open device: /dev/accel2",
    ),
    ("permission", "TPU initialization failed: open(/dev/vfio/0): Permission denied"),
    (
        "hosts",
        "TPU backend initialization is taking more than 60.0 seconds. Did you run your code on all "
        "TPU hosts?",
    ),
    ("hosts", "DEADLINE_EXCEEDED: Barrier timed out. Barrier_id: PjRT_Client_Connect"),
    (
        "version",
        "Mismatched PJRT plugin PJRT API version (0.47) and framework PJRT API version 0.40",
    ),
    ("version", "Unexpected PJRT_Plugin_Attributes_Args size: expected 32, got 24"),
    (
        "version",
        "F0601 tpu_executor_init_fns.inc:12] TpuTransferManager_ReadDynamicShapes not available in "
        "this library.",
    ),
    (
        "version",
        "jaxlib is version 0.3.25, but this version of jax requires version >= 0.4.19.",
    ),
    ("shadowed", "module 'libtpu' has no attribute 'get_library_path'"),
    (
        "coral",
        "Failed to open /usr/lib/libtpu.so: libtpu.so: cannot open shared object file: No such "
        "file or directory",
    ),
    (
        "libtpu",
        "A Google TPU may be present on this machine, but either a TPU-enabled jaxlib or libtpu is "
        "not installed. Falling back to cpu.",
    ),
    ("libtpu", "Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so"),
    (
        "no chips",
        "Unable to initialize backend 'tpu': NOT_FOUND: TPU initialization failed: No jellyfish "
        "device found. (set JAX_PLATFORMS='' to automatically choose an available backend)",
    ),
    ("unknown platform", "Unknown backend tpu. Available backends are ['cpu']"),
    ("node", "Unable to connect to grpc://10.0.0.2:8470"),
    ("device node", "open(/dev/accel0): No such file or directory"),
]


@pytest.mark.pure
@pytest.mark.parametrize(("name", "text"), TEXTS)
def test_texts_are_recognised(name: str, text: str, tmp_path) -> None:
    found = diagnose(text, root=tmp_path)
    assert found is not None
    assert found.failure.name == name
    assert found.failure.cause in str(found)
    assert found.failure.fix in str(found)


@pytest.mark.pure
def test_every_entry_is_tested_and_says_where_it_was_seen() -> None:
    assert {name for name, _ in TEXTS} == {failure.name for failure in CATALOGUE}
    assert all(failure.reference for failure in CATALOGUE)


@pytest.mark.pure
@pytest.mark.parametrize(
    "text", ["", "RESOURCE_EXHAUSTED: Ran out of memory on HBM", "Unknown backend cuda"]
)
def test_other_texts_are_not(text: str) -> None:
    assert diagnose(text) is None


@pytest.mark.pure
def test_the_process_that_holds_the_chips_is_named(tmp_path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/accel0").touch()
    process = tmp_path / "proc/4711"
    (process / "fd").mkdir(parents=True)
    (process / "cmdline").write_text("python\0train.py\0")
    os.symlink("/dev/accel0", process / "fd/3")
    message = str(diagnose("libtpu.so already in use by another process", root=tmp_path))
    assert "Held by process 4711 (python train.py): /dev/accel0" in message

    by_pid = "The TPU is already in use by process with pid {}. Not attempting to load libtpu.so"
    assert "Held by process 4711" in str(diagnose(by_pid.format(4711), root=tmp_path))
    assert "Held by process 99 (unknown command)" in str(diagnose(by_pid.format(99), root=tmp_path))


@pytest.mark.pure
@pytest.mark.parametrize("node", ["dev/accel0", "dev/vfio/0"])
def test_who_holds_the_chips_is_said_where_it_has_to_do_with_the_failure(tmp_path, node) -> None:
    (tmp_path / node).parent.mkdir(parents=True)
    (tmp_path / node).touch()
    folder = tmp_path / "proc/4711/fd"
    folder.mkdir(parents=True)
    os.symlink(f"/{node}", folder / "3")
    for name, text in TEXTS:
        said = f"Held by process 4711 (unknown command): /{node}" in str(
            diagnose(text, root=tmp_path)
        )
        assert said == (name in ("held", "lockfile", "permission")), name


@pytest.mark.pure
def test_who_holds_the_lock_of_libtpu_is_said(tmp_path) -> None:
    folder = tmp_path / "proc/4711/fd"
    folder.mkdir(parents=True)
    os.symlink(tpu_failures.LOCKFILE, folder / "3")
    assert "Held by process 4711" in str(diagnose(dict(TEXTS)["lockfile"], root=tmp_path))


@pytest.mark.pure
def test_this_process_is_not_its_own_obstacle(tmp_path, monkeypatch) -> None:
    lock = tmp_path / "libtpu_lockfile"
    monkeypatch.setattr(tpu_failures, "LOCKFILE", str(lock))
    with lock.open("w"):
        found = diagnose("Internal error when accessing libtpu multi-process lockfile")
    assert found is not None
    assert found.holders == ()


HOLD_LIBTPU = """
from jax.experimental import topologies
topologies.get_topology_desc(
    topology_name="v5e:2x4", platform="tpu", chips_per_host_bounds=[2, 4, 1]
)
print("held", flush=True)
input()
"""


def hold_libtpu() -> subprocess.Popen[str]:
    """Start a process that has libtpu to itself, once no program of somebody else has it."""
    alone = {key: value for key, value in os.environ.items() if key != "ALLOW_MULTIPLE_LIBTPU_LOAD"}
    until = time.monotonic() + 120
    while True:
        holder = subprocess.Popen(
            [sys.executable, "-c", HOLD_LIBTPU],
            env=alone,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert holder.stdout is not None
        if holder.stdout.readline() == "held\n":
            return holder
        said = holder.communicate(timeout=60)[1]
        assert "libtpu" in said, said
        assert time.monotonic() < until, said
        time.sleep(2)


@pytest.mark.tpu_compile
@pytest.mark.skipif(sys.platform != "linux", reason="libtpu is for Linux")
def test_two_processes_want_libtpu_and_the_second_is_told_who_has_it(run_python) -> None:
    holder = hold_libtpu()
    try:
        code = (
            "import os; os.environ.pop('ALLOW_MULTIPLE_LIBTPU_LOAD', None);"
            "import neurenix as nx; nx.devices()"
        )
        done = run_python(code=code, env={"JAX_PLATFORMS": "tpu"}, timeout=120)
    finally:
        holder.communicate("\n", timeout=60)
    assert "DeviceInitializationError: Another process has loaded libtpu" in done.stderr
    assert f"Held by process {holder.pid} (" in done.stderr
    assert "The original message: Unable to initialize backend 'tpu'" in done.stderr


@pytest.mark.pure
def test_the_diagnosis_comes_before_the_original() -> None:
    original = RuntimeError(TEXTS[3][1])
    with pytest.raises(DeviceInitializationError) as error:
        raise_diagnosed(original)
    message = str(error.value)
    assert message.startswith("Another process has loaded libtpu")
    assert message.endswith(f"The original message: {original}")
    assert error.value.__cause__ is original
    raise_diagnosed(RuntimeError("something else"))


@pytest.fixture
def backend() -> TPUBackend:
    made = TPUBackend()
    assert made.initialize() is True
    return made


@pytest.mark.cpu8
def test_initialize_twice(backend: TPUBackend) -> None:
    first = backend.devices
    assert backend.initialize() is True
    assert backend.devices is first
    assert list(first) == jax.devices("tpu")
    assert is_tpu_available()


@pytest.mark.cpu8
def test_before_initialize() -> None:
    with pytest.raises(DeviceError, match="call initialize"):
        _ = TPUBackend().topology


@pytest.mark.cpu8
def test_topology_of_the_simulated_slice(backend: TPUBackend) -> None:
    found = backend.topology
    assert (found.slice_name, found.generation, found.shape) == ("v5e-8", "v5e", (2, 4))
    assert (found.num_chips, found.devices_per_chip, found.num_hosts) == (8, 1, 1)
    assert found.num_devices == len(set(found.coordinates)) == 8
    assert found.is_simulated


@dataclass(frozen=True)
class Described:
    """What is read of a device."""

    coords: tuple[int, ...]
    device_kind: str = "TPU v5 lite"
    process_index: int = 0


@pytest.mark.pure
def test_a_part_of_a_slice_is_called_by_its_chips() -> None:
    part = topology_of_devices([Described((x, 1, 0)) for x in range(3)])
    assert (part.slice_name, part.shape, part.num_chips) == ("v5e:3x1", (3, 1), 3)
    assert part.coordinates == ((0, 1), (1, 1), (2, 1))


@pytest.mark.pure
def test_a_tpu_that_is_not_known_is_told() -> None:
    with pytest.raises(DeviceInitializationError, match="'TPU v99'.*does not know"):
        topology_of_devices([Described((0, 0, 0), "TPU v99")])


@pytest.mark.cpu8
def test_memory_stats(backend: TPUBackend) -> None:
    stats = backend.memory_stats()
    assert [stat.device for stat in stats] == [f"tpu:{index}" for index in range(8)]
    assert {stat.limit_bytes for stat in stats} == {int(15.75 * 2**30)}


@pytest.mark.cpu8
def test_transfer_there_and_back(backend: TPUBackend) -> None:
    mesh = jax.make_mesh((8,), ("data",))
    split, whole = (NamedSharding(mesh, spec) for spec in (PartitionSpec("data"), PartitionSpec()))
    batch = {"x": np.arange(64, dtype=np.float32).reshape(16, 4), "n": np.arange(8)}
    there = backend.transfer(batch, {"x": split, "n": whole})
    doubled = jax.tree.map(lambda x: x * 2, there.arrays)
    assert there.result()["x"].sharding == split
    assert there.done()
    back = backend.transfer(doubled, "host").result()
    assert all(type(leaf) is np.ndarray for leaf in back.values())
    np.testing.assert_array_equal(back["x"], batch["x"] * 2)
    np.testing.assert_array_equal(back["n"], batch["n"] * 2)


@pytest.mark.cpu8
def test_transfer_does_not_wait(backend: TPUBackend) -> None:
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda i, x: jnp.tanh(x @ x), x))
    x = jax.device_put(np.eye(512, dtype=np.float32), backend.devices[0])
    slow.lower(x).compile()
    slow(x).block_until_ready()
    moving = backend.transfer((x, slow(slow(x))), "host")
    assert not moving.done(), "one is here, one is not"
    assert moving.result()[1].shape == (512, 512)
    assert moving.done()


@pytest.mark.cpu8
def test_transfers_that_cannot_be(backend: TPUBackend) -> None:
    with pytest.raises(ArgumentError, match="'hsot'"):
        backend.transfer(jnp.ones(2), "hsot")
    with pytest.raises(ArgumentTypeError, match="got ndarray"):
        backend.transfer(np.ones(2), "host")


@pytest.mark.cpu8
def test_a_transfer_takes_devices_and_says_what_is_no_place(backend: TPUBackend) -> None:
    moved = backend.transfer({"a": jnp.ones(2)}, {"a": Device("tpu:3")}).result()
    assert moved["a"].devices() == {backend.devices[3]}
    for wrong in (3, {"a": 1.5}):
        with pytest.raises(ArgumentTypeError, match="a Sharding or a Device; got"):
            backend.transfer({"a": jnp.ones(2)}, wrong)


OTHER = """
import jax, jax.numpy as jnp
from neurenix import DeviceError
from neurenix.hardware.tpu import TPUBackend
from neurenix.simulation import simulate
simulate("v5e-4")
a, b = TPUBackend(), TPUBackend()
a.initialize(), b.initialize()
a.shutdown()
jnp.ones(3)
try:
    b.memory_stats()
except DeviceError as error:
    print(error)
b.initialize()
print(list(b.devices) == jax.devices("tpu"), len(b.memory_stats()))
"""


@pytest.mark.cpu8
def test_a_backend_that_another_one_shut_down_starts_again(run_python) -> None:
    done = run_python(code=OTHER)
    assert done.stdout.splitlines() == [
        "The TPU backend is not started; call initialize() first.",
        "True 4",
    ], done.stderr


@pytest.mark.cpu8
def test_synchronize_waits_for_what_was_dispatched(backend: TPUBackend) -> None:
    slow = jax.jit(lambda x: jax.lax.fori_loop(0, 40, lambda i, x: jnp.tanh(x @ x), x))
    x = jax.device_put(np.eye(512, dtype=np.float32), backend.devices[1])
    slow(x).block_until_ready()
    pending = slow(slow(x))
    assert not pending.is_ready()
    backend.synchronize()
    assert pending.is_ready()


SHUTDOWN = """
import jax, jax.numpy as jnp
from jax._src import xla_bridge
from neurenix.hardware.tpu import TPUBackend
from neurenix.simulation import simulate
simulate("v5e-4")
backend = TPUBackend()
backend.shutdown()
backend.initialize()
old = jnp.ones(3)
backend.shutdown()
assert not xla_bridge.backends_are_initialized()
simulate("tpu7x-2x2x1")
backend.initialize()
print(backend.topology)
print(jax.jit(lambda: jnp.ones(3).sum())(), len(jax.devices()))
"""


@pytest.mark.cpu8
def test_shutdown_gives_the_backend_back(run_python) -> None:
    done = run_python(code=SHUTDOWN)
    assert "simulated tpu7x-8 (4 chips in 2x2x1, 2 devices per chip, 1 host" in done.stdout, (
        done.stderr
    )
    assert done.stdout.endswith("3.0 8\n")


@pytest.mark.cpu8
def test_no_tpu_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "availability", lambda: Availability(0, 0, "No Cloud TPU."))
    assert not is_tpu_available()
    with pytest.raises(DeviceNotFoundError, match="neurenix run --simulate v5e-8"):
        TPUBackend().initialize()


@pytest.mark.cpu8
def test_libtpu_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    half = Availability(0, 4, "4 TPU chip(s) are attached; libtpu is not installed.", "pip install")
    monkeypatch.setattr(tpu, "availability", lambda: half)
    assert is_tpu_available()
    with pytest.raises(DeviceInitializationError, match="libtpu is not installed. pip install"):
        TPUBackend().initialize()


@pytest.mark.cpu8
@pytest.mark.parametrize(
    ("text", "says"),
    [(TEXTS[4][1], "may not open the TPU chips"), ("quota is odd", "not in our catalogue: quota")],
)
def test_xlas_errors_come_with_a_cause(monkeypatch, text: str, says: str) -> None:
    def fail(platform: str) -> list:
        raise RuntimeError(text)

    monkeypatch.setattr(jax, "devices", fail)
    with pytest.raises(DeviceInitializationError, match=says):
        TPUBackend().initialize()


@pytest.mark.cpu8
def test_a_start_that_hangs_says_why_meanwhile(monkeypatch, capsys) -> None:
    said_why = threading.Event()

    def wait(platform: str) -> list:
        assert said_why.wait(timeout=60)
        return [object()]

    def say_why() -> None:
        say()
        said_why.set()

    say = tpu._say_why_it_waits
    monkeypatch.setattr(tpu, "_say_why_it_waits", say_why)
    monkeypatch.setattr(jax, "devices", wait)
    monkeypatch.setattr(tpu, "_SLOW_SECONDS", 0.05)
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "host-a,host-b")
    assert TPUBackend().initialize()
    said = capsys.readouterr().err
    assert "does not run on all of them" in said
    assert "host-a,host-b" in said


@pytest.mark.cpu8
def test_a_start_that_does_not_hang_says_nothing(monkeypatch, capsys) -> None:
    monkeypatch.setattr(tpu, "_SLOW_SECONDS", 2.0)
    before = threading.active_count()
    assert TPUBackend().initialize()
    until = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    assert capsys.readouterr().err == ""


@pytest.mark.cpu8
def test_asked_for_a_tpu_by_the_environment_without_one(run_python) -> None:
    done = run_python(
        code="import neurenix as nx; nx.devices()", env={"JAX_PLATFORMS": "tpu"}, timeout=120
    )
    if done.returncode == 0:
        pytest.skip("this machine has a TPU")
    assert "DeviceInitializationError" in done.stderr
    assert "What to do:" in done.stderr


def _described(name: str):
    from jax.experimental import topologies

    found = chips.resolve(name)
    options = {"chips_per_host_bounds": list(found.chips_per_host_bounds)}
    if found.generation.chip_config_name:
        options["chip_config_name"] = found.generation.chip_config_name
    if found.num_slices > 1:
        options["num_slices"] = found.num_slices
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return topologies.get_topology_desc(
            topology_name=found.topology_name, platform="tpu", **options
        ).devices


@pytest.mark.tpu_compile
@pytest.mark.skipif(sys.platform != "linux", reason="libtpu is for Linux")
@pytest.mark.parametrize(
    "name",
    ["v2-8", "v3-32", "v4-16", "v5e-1", "v5e-8", "v5e-16", "v5p-128", "v6e-256", "tpu7x-4x4x8",
     "2x v5e-16", "v2-512", "v5p-12288"],
)  # fmt: skip
def test_libtpu_agrees_about_the_slice(name: str) -> None:
    expected = chips.resolve(name)
    devices = _described(name)
    assert len(devices) == expected.num_devices
    assert devices[0].device_kind == expected.generation.device_kind
    found = topology_of_devices(devices)
    assert dataclasses.replace(found, is_simulated=True) == topology_of_slice(expected)

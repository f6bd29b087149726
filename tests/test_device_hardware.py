"""What the kernel and the installed packages say is told truly, on machines made up for it."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path

import pytest

from neurenix.hardware import availability as availability_module
from neurenix.hardware import cuda, edge_tpu, machine, rocm, tpu, webgpu

pytestmark = pytest.mark.pure


class Machine:
    """A root of a file system with the devices that a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str = "") -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def pci(self, vendor: str, device: str, device_class: str = "0x030200") -> None:
        number = len(list((self.root / "sys/bus/pci/devices").glob("*")))
        folder = f"sys/bus/pci/devices/0000:00:{number:02x}.0"
        for name, value in (("vendor", vendor), ("device", device), ("class", device_class)):
            self.write(f"{folder}/{name}", value + "\n")

    def usb(self, usb_id: str) -> None:
        vendor, product = usb_id.split(":")
        self.write("sys/bus/usb/devices/1-1/idVendor", vendor + "\n")
        self.write("sys/bus/usb/devices/1-1/idProduct", product + "\n")

    def process(self, pid: int, command: str, *files: str) -> None:
        self.write(f"proc/{pid}/cmdline", command.replace(" ", "\0") + "\0")
        (self.root / f"proc/{pid}/fd").mkdir(parents=True)
        for number, file in enumerate(files):
            os.symlink(file, self.root / f"proc/{pid}/fd/{number}")


@pytest.fixture
def box(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch):
    """Say which packages are installed, whatever is."""

    def only(*names: str) -> None:
        def any_installed(*modules: str) -> bool:
            return any(name in names for name in modules)

        for module in (cuda, rocm, edge_tpu, webgpu, tpu):
            monkeypatch.setattr(module, "any_installed", any_installed)

    return only


@pytest.fixture
def unsimulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tpu, "simulated", lambda: None)


def test_no_gpu_no_driver_no_plugin_are_told_apart(box: Machine, installed) -> None:
    installed()
    assert "No NVIDIA GPU is attached" in cuda.availability(box.root).problem

    box.pci("0x10de", "0x1aef", "0x040300")  # the sound part of a card is not a GPU
    assert cuda.availability(box.root).found == 0

    box.pci("0x10de", "0x2330")
    found = cuda.availability(box.root)
    assert (found.count, found.found) == (0, 1)
    assert "kernel driver is not loaded" in found.problem

    box.write("dev/nvidiactl")
    box.write("dev/nvidia0")
    found = cuda.availability(box.root)
    assert (found.count, found.found) == (0, 1)
    assert "plugin is not installed" in found.problem
    assert 'pip install "neurenix[cuda]"' in found.fix

    installed("jax_cuda12_plugin")
    found = cuda.availability(box.root)
    assert (found.count, found.problem, found.fix) == (1, "", "")
    assert found


def test_a_container_sees_nodes_and_no_bus(box: Machine, installed) -> None:
    installed("jax_cuda13_plugin")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        box.write(f"dev/{name}")
    assert cuda.availability(box.root).count == 2


def test_fewer_nvidia_gpus_than_the_bus_has(box: Machine, installed) -> None:
    installed("jax_cuda13_plugin")
    for _ in range(4):
        box.pci("0x10de", "0x2330")
    box.write("dev/nvidiactl")
    box.write("dev/nvidia2")
    assert cuda.availability(box.root).count == 1


def test_an_nvidia_gpu_in_the_linux_of_windows(box: Machine, installed) -> None:
    installed("jax_cuda13_plugin")
    box.write("dev/dxg")
    assert cuda.availability(box.root).found == 0
    box.write("usr/lib/wsl/lib/libcuda.so.1")
    assert cuda.availability(box.root).count == 1


def test_amd(box: Machine, installed) -> None:
    installed()
    assert "No AMD GPU is attached" in rocm.availability(box.root).problem
    box.write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n")
    assert rocm.availability(box.root).found == 0

    box.pci("0x1002", "0x74a1", "0x120000")
    assert "/dev/kfd" in rocm.availability(box.root).problem

    box.write(
        "sys/class/kfd/kfd/topology/nodes/1/properties", "cpu_cores_count 0\nsimd_count 304\n"
    )
    box.write("dev/kfd")
    assert "plugin is not installed" in rocm.availability(box.root).problem

    installed("jax_rocm7_plugin")
    assert rocm.availability(box.root).count == 1


def test_some_of_the_amd_gpus(box: Machine, installed, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a container: the bus and the driver show all GPUs, and only some may be used."""
    installed("jax_rocm60_plugin")
    for _ in range(4):
        box.pci("0x1002", "0x74a1", "0x030000")
    for node in (1, 2):
        box.write(f"sys/class/kfd/kfd/topology/nodes/{node}/properties", "simd_count 304\n")
    found = rocm.availability(box.root)
    assert (found.count, found.found) == (0, 4)
    box.write("dev/kfd")
    found = rocm.availability(box.root)
    assert (found.count, found.found) == (2, 4)

    def refuse(path: Path, **options: str) -> str:
        if path.parent.name == "2":  # what the kernel says outside of the container's cgroup
            raise PermissionError(1, "Operation not permitted", str(path))
        return read(path, **options)

    read = Path.read_text
    monkeypatch.setattr(Path, "read_text", refuse)
    found = rocm.availability(box.root)
    assert (found.count, found.found) == (1, 4)


@pytest.mark.parametrize("usb_id", ["1a6e:089a", "18d1:9302"])
def test_edge_tpu_on_usb(
    box: Machine, installed, monkeypatch: pytest.MonkeyPatch, usb_id: str
) -> None:
    installed()
    assert "No Edge TPU" in edge_tpu.availability(box.root).problem
    box.usb(usb_id)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert "libedgetpu.so.1 is not installed" in edge_tpu.availability(box.root).problem
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    assert "ai_edge_litert is not" in edge_tpu.availability(box.root).problem
    installed("ai_edge_litert")
    assert edge_tpu.availability(box.root).count == 1


def test_edge_tpu_on_pci_without_its_driver_and_with_it(
    box: Machine, installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("ai_edge_litert")
    box.pci("0x1ac1", "0x089a", "0x0880ff")
    assert "driver is not loaded" in edge_tpu.availability(box.root).problem
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: f"lib{name}.so.1")
    box.write("dev/apex_0")
    found = edge_tpu.availability(box.root)
    assert (found.count, found.found) == (1, 1), "one device, on the bus and driven"


class _Gpu:
    def __init__(self, adapters: list[str] | Exception) -> None:
        self.gpu = self
        self._adapters = adapters

    def enumerate_adapters_sync(self) -> list[str]:
        if isinstance(self._adapters, Exception):
            raise self._adapters
        return self._adapters


@pytest.mark.parametrize(
    ("adapters", "count", "says"),
    [
        (["lavapipe"], 1, ""),
        ([], 0, "finds no adapter"),
        (RuntimeError("no Vulkan"), 0, "no Vulkan"),
    ],
)
def test_webgpu(installed, monkeypatch: pytest.MonkeyPatch, adapters, count, says) -> None:
    installed()
    assert "wgpu is not installed" in webgpu.availability().problem
    installed("wgpu")
    monkeypatch.setattr(webgpu.importlib, "import_module", lambda name: _Gpu(adapters))
    found = webgpu.availability()
    assert found.count == count
    assert says in found.problem


def test_any_installed_imports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "explodes.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    assert availability_module.any_installed("explodes")
    assert not availability_module.any_installed("no_such_package_here")


@pytest.mark.usefixtures("unsimulated")
def test_tpu_chips(box: Machine, installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.delenv("TPU_WORKER_ID", raising=False)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    installed("libtpu")
    box.pci("0x1ae0", "0x0042", "0x020000")  # Google's network card
    box.write("dev/accel/accel0")  # another maker's accelerator
    box.write("dev/vfio/7")  # something passed through
    assert tpu.availability(box.root).found == 0

    for _ in range(4):
        box.pci("0x1ae0", "0x0063", "0x088000")
    assert tpu.availability(box.root).count == 4

    installed()
    found = tpu.availability(box.root)
    assert (found.count, found.found) == (0, 4)
    assert "libtpu" in found.problem
    assert 'pip install "jax[tpu]"' in found.fix

    monkeypatch.setenv("TPU_LIBRARY_PATH", str(box.root / "libtpu.so"))
    assert tpu.availability(box.root).count == 0, "there is no such file"
    box.write("libtpu.so")
    assert tpu.availability(box.root).count == 4


@pytest.mark.usefixtures("unsimulated")
@pytest.mark.parametrize("variable", ["TPU_ACCELERATOR_TYPE", "TPU_WORKER_ID"])
def test_tpu_chips_in_a_container(box: Machine, installed, monkeypatch, variable: str) -> None:
    installed("libtpu")
    monkeypatch.delenv("TPU_ACCELERATOR_TYPE", raising=False)
    monkeypatch.delenv("TPU_WORKER_ID", raising=False)
    box.write("dev/vfio/0")
    box.write("dev/vfio/1")
    box.write("dev/vfio/vfio")
    assert tpu.availability(box.root).found == 0
    monkeypatch.setenv(variable, "0")
    assert tpu.availability(box.root).count == 2
    box.write("dev/accel0")
    assert tpu.availability(box.root).count == 1


def test_who_holds_a_file(box: Machine) -> None:
    box.process(41, "python train.py --big", "/dev/accel0", "/dev/accel0", "/dev/null")
    box.process(42, "bash", "/dev/null")
    assert machine.holders([Path("/dev/accel0")], box.root) == [
        machine.Holder(41, "python train.py --big", "/dev/accel0")
    ]


def test_who_holds_a_file_of_this_machine(tmp_path: Path) -> None:
    file = tmp_path / "held"
    with file.open("w"):
        found = machine.holders([file])
    assert [(holder.pid, holder.path) for holder in found] == [(os.getpid(), str(file))]
    assert machine.holders([file]) == []


def test_a_long_command_is_cut(box: Machine) -> None:
    box.process(41, "python " + "x" * 500, "/dev/accel0")
    (found,) = machine.holders([Path("/dev/accel0")], box.root)
    assert len(found.command) == 101

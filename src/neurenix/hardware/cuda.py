"""NVIDIA GPUs through JAX's CUDA plugin.

Distinguishes three cases: no GPU, a GPU without driver, a driver without plugin.
"""

from __future__ import annotations

from pathlib import Path

from neurenix.hardware import machine
from neurenix.hardware.availability import Availability, any_installed

_NVIDIA = "0x10de"
_DISPLAY_CLASS = "0x03"
_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")


def availability(root: Path = machine.ROOT) -> Availability:
    """Return how many NVIDIA GPUs can be used, and what is missing if none can."""
    attached = _attached(root)
    if not attached:
        return Availability(0, 0, "No NVIDIA GPU is attached to this machine.")
    if not _is_wsl(root) and not machine.nodes("nvidiactl", root=root):
        return Availability(
            0,
            attached,
            f"{attached} NVIDIA GPU(s) are attached, and NVIDIA's kernel driver is not loaded.",
            "Install NVIDIA's driver (in a container: start it with --gpus all).",
        )
    if not any_installed(*_PLUGINS):
        return Availability(
            0,
            attached,
            f"{attached} NVIDIA GPU(s) and the driver are present; JAX's CUDA plugin is not "
            "installed.",
            'Install it with: pip install "neurenix[cuda]"',
        )
    return Availability(attached, attached)


def _attached(root: Path) -> int:
    displays = [
        device
        for device in machine.pci_devices(root)
        if device.vendor == _NVIDIA and device.device_class.startswith(_DISPLAY_CLASS)
    ]
    # A container has device nodes and no PCI bus; WSL has one node for all GPUs. Nodes take
    # precedence: a container may see fewer GPUs than the bus has.
    return len(machine.nodes("nvidia[0-9]*", root=root)) or len(displays) or int(_is_wsl(root))


def _is_wsl(root: Path) -> bool:
    return (root / "dev/dxg").exists() and (root / "usr/lib/wsl/lib/libcuda.so.1").exists()

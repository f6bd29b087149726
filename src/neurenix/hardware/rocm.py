"""AMD GPUs through JAX's ROCm plugin.

Distinguishes three cases: no GPU, a GPU without driver, a driver without plugin.
"""

from __future__ import annotations

import re
from pathlib import Path

from neurenix.hardware import machine
from neurenix.hardware.availability import Availability, any_installed

_AMD = "0x1002"
_DISPLAY_CLASSES = ("0x03", "0x12")  # display controllers, processing accelerators
_PLUGINS = ("jax_rocm7_plugin", "jax_rocm60_plugin")
_SIMD_COUNT = re.compile(r"\bsimd_count\s+([1-9]\d*)\b")


def availability(root: Path = machine.ROOT) -> Availability:
    """Return how many AMD GPUs can be used, and what is missing if none can."""
    on_bus = [
        device
        for device in machine.pci_devices(root)
        if device.vendor == _AMD and device.device_class.startswith(_DISPLAY_CLASSES)
    ]
    driven = _driven(root)
    attached = max(len(on_bus), driven)
    if not attached:
        return Availability(0, 0, "No AMD GPU is attached to this machine.")
    if not driven or not machine.nodes("kfd", root=root):
        return Availability(
            0,
            attached,
            f"{attached} AMD GPU(s) are attached, and the amdgpu compute driver does not offer "
            "them (/dev/kfd).",
            "Install ROCm 7 and its driver (in a container: --device=/dev/kfd --device=/dev/dri).",
        )
    if not any_installed(*_PLUGINS):
        return Availability(
            0,
            attached,
            f"{attached} AMD GPU(s) and the driver are present; JAX's ROCm plugin is not "
            "installed.",
            'Install it with: pip install "neurenix[rocm]"',
        )
    return Availability(driven, attached)


def _driven(root: Path) -> int:
    """Return the number of GPUs the compute driver reports; a node without SIMDs is a CPU."""
    listed = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    return sum(1 for properties in listed if _SIMD_COUNT.search(machine.text(properties)))

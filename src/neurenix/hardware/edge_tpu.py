"""The Coral Edge TPU, on USB or PCI.

It runs only compiled ``.tflite`` models, holds no arrays, and has no JAX backend. It is not a Cloud
TPU, although libtpu may mistake it for one.
"""

from __future__ import annotations

import ctypes.util
from pathlib import Path

from neurenix.hardware import machine
from neurenix.hardware.availability import Availability, any_installed

# On USB, the accelerator has its manufacturer's id until its firmware is loaded, then Google's.
_USB = ("1a6e:089a", "18d1:9302")
_PCI = ("0x1ac1", "0x089a")
_RUNTIME = "ai_edge_litert"


def availability(root: Path = machine.ROOT) -> Availability:
    """Return how many Edge TPUs can be used, and what is missing if none can."""
    on_usb = sum(usb_id in _USB for usb_id in machine.usb_ids(root))
    on_pci = sum((device.vendor, device.device) == _PCI for device in machine.pci_devices(root))
    driven = len(machine.nodes("apex_[0-9]*", root=root))
    attached = on_usb + max(on_pci, driven)
    if not attached:
        return Availability(0, 0, "No Edge TPU is attached to this machine.")
    if on_pci > driven:
        return Availability(
            0,
            attached,
            "An Edge TPU is on the PCI bus, and its driver is not loaded (/dev/apex_0).",
            "Install the gasket and apex kernel modules from Coral's repository.",
        )
    if ctypes.util.find_library("edgetpu") is None:
        return Availability(
            0,
            attached,
            "An Edge TPU is attached; the library libedgetpu.so.1 is not installed.",
            "Install libedgetpu1-std from Coral's Debian repository.",
        )
    if not any_installed(_RUNTIME):
        return Availability(
            0,
            attached,
            f"An Edge TPU and its library are present; the Python package {_RUNTIME} is not.",
            "Install it with: pip install ai-edge-litert",
        )
    return Availability(attached, attached)

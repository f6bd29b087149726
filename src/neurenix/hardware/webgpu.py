"""WebGPU adapters, found through the package ``wgpu``. JAX has no WebGPU backend."""

from __future__ import annotations

import importlib

from neurenix.hardware.availability import Availability, any_installed

_PACKAGE = "wgpu"


def availability() -> Availability:
    """Return how many WebGPU adapters there are, and what is missing if there are none."""
    if not any_installed(_PACKAGE):
        return Availability(
            0,
            0,
            "The Python package wgpu is not installed, so WebGPU adapters cannot be listed.",
            "Install it with: pip install wgpu",
        )
    try:
        adapters = importlib.import_module(_PACKAGE).gpu.enumerate_adapters_sync()
    except (ImportError, OSError, RuntimeError) as error:
        return Availability(
            0,
            0,
            f"wgpu cannot list the adapters of this machine: {error}",
            "Install a Vulkan driver; Mesa's lavapipe (mesa-vulkan-drivers) needs no GPU.",
        )
    if not adapters:
        return Availability(
            0,
            0,
            "wgpu is installed and finds no adapter.",
            "Install a Vulkan driver; Mesa's lavapipe (mesa-vulkan-drivers) needs no GPU.",
        )
    return Availability(len(adapters), len(adapters))

"""WebGPU adapters, through the package ``wgpu``.

Owns finding one. JAX has no WebGPU backend, so no array lies on such a device.
"""

from __future__ import annotations

import importlib

from neurenix.hardware.availability import Availability, any_installed

_PACKAGE = "wgpu"


def availability() -> Availability:
    """Return how many WebGPU adapters there are, and what is missing if none."""
    if not any_installed(_PACKAGE):
        return Availability(
            0,
            0,
            "The Python package wgpu is not installed, so no WebGPU adapter can be asked for.",
            "Install it with: pip install wgpu",
        )
    try:
        adapters = importlib.import_module(_PACKAGE).gpu.enumerate_adapters_sync()
    except (ImportError, OSError, RuntimeError) as error:
        return Availability(
            0,
            0,
            f"wgpu cannot ask this machine for adapters: {error}",
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


def is_webgpu_available() -> bool:
    """Return whether wgpu is installed and finds an adapter.

    Example:
        >>> is_webgpu_available() == bool(availability())
        True
    """
    return bool(availability())

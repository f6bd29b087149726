"""Order the devices of a mesh so that neighbours on an axis are neighbours on ICI."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from neurenix._jaxlib import slice_devices, torus_mesh


def devices_of(target: Mapping[str, Any]) -> list[Any]:
    """Return the devices of an absent TPU slice; ``target`` is ``Target.as_json()``."""
    options: dict[str, Any] = {"chips_per_host_bounds": list(target["chips_per_host_bounds"])}
    if target["num_slices"] > 1:
        options["num_slices"] = target["num_slices"]
    if target["chip_config_name"]:
        options["chip_config_name"] = target["chip_config_name"]
    return slice_devices(target["topology_name"], **options)


def device_grid(devices: Sequence[Any], sizes: tuple[int, ...], num_slices: int) -> Any:
    """Arrange devices along the axes of a mesh.

    Several slices are placed along the first axis, and along the following axes if the first one is
    too short. Within an axis, slices come before the devices of a slice.

    Returns:
        A NumPy array of devices, of the shape ``sizes``.
    """
    import numpy as np

    if sum(size > 1 for size in sizes) < 2:
        return np.array(devices).reshape(sizes)
    if num_slices == 1:
        return torus_mesh(sizes, devices)
    per_slice = len(devices) // num_slices
    outer, left = [], num_slices
    for size in sizes:
        outer.append(math.gcd(size, left))
        left //= outer[-1]
    inner = tuple(size // slices for size, slices in zip(sizes, outer, strict=True))
    grids = np.stack(
        [torus_mesh(inner, devices[i : i + per_slice]) for i in range(0, len(devices), per_slice)]
    ).reshape(*outer, *inner)
    count = len(sizes)  # each axis of slices goes before its own part inside of a slice
    return grids.transpose([n for axis in range(count) for n in (axis, count + axis)]).reshape(
        sizes
    )

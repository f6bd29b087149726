"""The topology of a set of TPU devices: slice name, chips, hosts and coordinates.

Names and shapes of slices are in ``neurenix.chips``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from neurenix._core.errors import DeviceInitializationError, UnknownNameError
from neurenix.chips import Generation, Slice, generation_of_kind, resolve


@dataclass(frozen=True)
class TPUTopology:
    """A slice as JAX reports it.

    Attributes:
        slice_name: such as ``"v5e-8"``.
        generation: such as ``"v5e"``.
        shape: chips along each axis of one slice.
        num_chips: of all slices.
        devices_per_chip: one or two.
        num_hosts: machines.
        num_slices: slices joined over DCN.
        coordinates: chip coordinates of each device, in JAX's order.
        is_simulated: whether the slice is simulated on the CPU.
    """

    slice_name: str
    generation: str
    shape: tuple[int, ...]
    num_chips: int
    devices_per_chip: int
    num_hosts: int
    num_slices: int
    coordinates: tuple[tuple[int, ...], ...]
    is_simulated: bool

    @property
    def num_devices(self) -> int:
        """Number of devices of all chips."""
        return self.num_chips * self.devices_per_chip

    def __str__(self) -> str:
        shape = "x".join(map(str, self.shape))
        per_chip = "1 device" if self.devices_per_chip == 1 else f"{self.devices_per_chip} devices"
        return (
            f"{'simulated ' if self.is_simulated else ''}{self.slice_name} "
            f"({_count(self.num_chips, 'chip')} in {shape}, {per_chip} per chip, "
            f"{_count(self.num_hosts, 'host')}; coordinates "
            f"{self.coordinates[0]} to {self.coordinates[-1]})"
        )


def topology_of_slice(found: Slice) -> TPUTopology:
    """Return the topology of a simulated slice."""
    return TPUTopology(
        slice_name=found.name,
        generation=found.generation.name,
        shape=found.topology,
        num_chips=found.num_chips,
        devices_per_chip=found.devices_per_chip,
        num_hosts=found.num_hosts,
        num_slices=found.num_slices,
        coordinates=tuple(found.coordinates(index) for index in range(found.num_devices)),
        is_simulated=True,
    )


def topology_of_devices(devices: Sequence[Any]) -> TPUTopology:
    """Read the topology from the TPU devices of all processes.

    Args:
        devices: ``jax.devices("tpu")``, or the devices of a topology description.

    Raises:
        DeviceInitializationError: the device kind is unknown.
    """
    generation = generation_of_kind(devices[0].device_kind)
    if generation is None:
        raise DeviceInitializationError(
            f"The device kind {devices[0].device_kind!r} is a TPU that this version "
            "of Neurenix does not know."
        )
    places = [tuple(device.coords) for device in devices]
    slice_of = [getattr(device, "slice_index", 0) or 0 for device in devices]
    slices = set(slice_of)
    extents = (max(axis) - min(axis) + 1 for axis in zip(*places, strict=True))
    shape = tuple(extents)[: generation.ici_dims]
    chips = len(set(zip(slice_of, places, strict=True)))
    return TPUTopology(
        slice_name=_name(generation, shape, len(slices)),
        generation=generation.name,
        shape=shape,
        num_chips=chips,
        devices_per_chip=len(devices) // chips,
        num_hosts=len({device.process_index for device in devices}),
        num_slices=len(slices),
        coordinates=tuple(place[: generation.ici_dims] for place in places),
        is_simulated=False,
    )


def _name(generation: Generation, shape: tuple[int, ...], num_slices: int) -> str:
    grid = f"{generation.topology_prefix}:{'x'.join(map(str, shape))}"
    try:
        return resolve(grid if num_slices == 1 else f"{num_slices}x {grid}").name
    except UnknownNameError:  # a part of a slice, such as one chip of four
        return grid


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"

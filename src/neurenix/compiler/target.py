"""Describe the target of a compilation as plain data for a worker process.

Converts a ``chips.Slice`` to the arguments of libtpu's topology. ``neurenix.chips`` parses names.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass

from neurenix.chips import Slice

_CPU = re.compile(r"cpu(?:[-:]([1-9]\d{0,3}))?")


@dataclass(frozen=True)
class CpuHost:
    """A machine's CPU as a target: ``num_devices`` virtual devices."""

    num_devices: int

    @property
    def name(self) -> str:
        """``"cpu"``, or ``"cpu-8"`` for eight devices."""
        return "cpu" if self.num_devices == 1 else f"cpu-{self.num_devices}"


def cpu_host(name: object) -> CpuHost | None:
    """Return the CPU named ``"cpu"`` or ``"cpu-8"``; ``None`` for any other name.

    Example:
        >>> cpu_host("cpu-8")
        CpuHost(num_devices=8)
        >>> cpu_host("v5e-8") is None
        True
    """
    found = _CPU.fullmatch(name) if isinstance(name, str) else None
    return CpuHost(int(found[1] or 1)) if found else None


def platform_of(where: Slice | CpuHost) -> str:
    """Return JAX's name of the platform: ``"tpu"`` or ``"cpu"``."""
    return "cpu" if isinstance(where, CpuHost) else "tpu"


def kind_of(where: Slice | CpuHost) -> str:
    """Return JAX's name of the device kind, such as ``"TPU v3"``; empty for CPUs."""
    return "" if isinstance(where, CpuHost) else where.generation.device_kind


@dataclass(frozen=True)
class Target:
    """Arguments of ``jax.experimental.topologies.get_topology_desc``, and the name of the slice."""

    name: str
    topology_name: str
    chips_per_host_bounds: tuple[int, ...]
    num_slices: int
    chip_config_name: str | None
    num_devices: int

    @classmethod
    def of(cls, where: Slice | CpuHost) -> Target:
        """Return the target of a slice.

        Example:
            >>> from neurenix import chips
            >>> Target.of(chips.resolve("v4-8")).chip_config_name
            'megacore'
        """
        if isinstance(where, CpuHost):
            return cls(where.name, "", (), 1, None, where.num_devices)
        return cls(
            name=where.name,
            topology_name=where.topology_name,
            chips_per_host_bounds=tuple(where.chips_per_host_bounds),
            num_slices=where.num_slices,
            chip_config_name=where.generation.chip_config_name,
            num_devices=where.num_devices,
        )

    @property
    def platform(self) -> str:
        """JAX's name of the platform: ``"tpu"`` or ``"cpu"``."""
        return "tpu" if self.topology_name else "cpu"

    def as_json(self) -> dict[str, object]:
        """Return plain data for the worker and for the cache key."""
        return asdict(self)

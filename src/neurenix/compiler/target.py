"""What is compiled for: a slice, as the plain data that a worker process is handed.

Owns the translation of ``chips.Slice`` to the arguments of libtpu's topology. It does not parse
names (``neurenix.chips``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from neurenix.chips import Slice


@dataclass(frozen=True)
class Target:
    """Arguments of ``jax.experimental.topologies.get_topology_desc``, and the slice's name."""

    name: str
    topology_name: str
    chips_per_host_bounds: tuple[int, ...]
    num_slices: int
    chip_config_name: str | None
    num_devices: int

    @classmethod
    def of(cls, where: Slice) -> Target:
        """Build the target of a slice.

        Example:
            >>> from neurenix import chips
            >>> Target.of(chips.resolve("v4-8")).chip_config_name
            'megacore'
        """
        return cls(
            name=where.name,
            topology_name=where.topology_name,
            chips_per_host_bounds=tuple(where.chips_per_host_bounds),
            num_slices=where.num_slices,
            chip_config_name=where.generation.chip_config_name,
            num_devices=where.num_devices,
        )

    def as_json(self) -> dict[str, object]:
        """Return plain data for the worker and for the key of the cache."""
        return asdict(self)

"""The TPU generations: the properties of one device of each, with the source of every number.

Where Google's pages, JAX's table (``jax/_src/tpu_info.py``) and the scaling book disagree, one
number is chosen here and the source names the others. Names of slices are in ``slices``, prices in
``prices``.

All quantities are per *device* unless the name says chip, core or host: v2, v3 and tpu7x have two
devices per chip.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from neurenix._core.errors import unknown_name
from neurenix.chips._generation_data import RECORDS
from neurenix.chips._names import canonical
from neurenix.chips.prices import PRICES, Price


@dataclass(frozen=True, eq=False)
class Generation:
    """One generation of TPU. Each has one instance: compare with ``is`` or ``==``.

    Sizes are in bytes, times in seconds, rates per second; ``None`` means unknown.
    ``source(field)`` names the source of a number.
    """

    name: str
    device_kind: str
    aliases: tuple[str, ...]
    topology_prefix: str
    chip_config_name: str | None
    counts: str
    cores_per_chip: int
    devices_per_chip: int
    hbm_bytes_per_device: int
    hbm_nominal_bytes_per_chip: int
    hbm_bandwidth_bytes_per_second_per_device: float
    peak_flops_per_second: Mapping[str, float]
    clock_hertz: float
    mxu: tuple[int, int]
    vmem_bytes: int
    smem_bytes: int
    sparse_cores_per_chip: int
    ici_dims: int
    ici_link_bytes_per_second: float
    ici_bytes_per_second_per_chip: float | None
    pod_topology: tuple[int, ...]
    max_slice_chips: int
    chips_per_host: int
    chips_per_host_choices: tuple[int, ...]
    dcn_bytes_per_second_per_chip: float | None
    host_memory_bytes: float | None
    pcie_bytes_per_second_per_chip: float
    power_watts: tuple[int, int, int] | None
    matmul_types: tuple[str, ...]
    pci_device_id: str
    gke_accelerator: str | None
    gke_machine_types: Mapping[int, str]
    sources: Mapping[str, str]

    @property
    def cores_per_device(self) -> int:
        """TensorCores per device: two on v4 and v5p (megacore), else one."""
        return self.cores_per_chip // self.devices_per_chip

    @property
    def prices(self) -> tuple[Price, ...]:
        """All known prices of a chip of this generation."""
        return tuple(entry for entry in PRICES if entry.generation == self.name)

    def source(self, field: str) -> str:
        """Return the source of the number in ``field``.

        Raises:
            UnknownNameError: unknown field.

        Example:
            >>> nx.chips.generation("v5e").source("clock_hertz")
            'fit to estimated_cycles of a 4096^3 bfloat16 matmul, libtpu 0.0.42.1; not documented'
        """
        if field not in self.sources:
            raise unknown_name("sourced number", field, self.sources)
        return self.sources[field]

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return generation, (self.name,)


GENERATIONS: dict[str, Generation] = {record["name"]: Generation(**record) for record in RECORDS}


def generation(name: str) -> Generation:
    """Return a generation by any of its names; case does not matter.

    Raises:
        ArgumentTypeError: ``name`` is not a string.
        UnknownNameError: unknown generation.

    Example:
        >>> nx.chips.generation("v5litepod").name, nx.chips.generation("trillium").device_kind
        ('v5e', 'TPU v6 lite')
    """
    return GENERATIONS[canonical(name)]


def generation_of_kind(device_kind: str) -> Generation | None:
    """Return the generation with JAX's ``device_kind``, or ``None`` if unknown.

    Example:
        >>> nx.chips.generation_of_kind("TPU v5 lite").name
        'v5e'
    """
    for candidate in GENERATIONS.values():
        if candidate.device_kind.lower() == device_kind.strip().lower():
            return candidate
    return None

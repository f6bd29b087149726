"""Memory in use on a device.

Read from PJRT, which pools memory. Where PJRT has no statistics, as on the CPU and a simulated
slice, the sizes of live arrays are summed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from neurenix._core.units import bytes_text
from neurenix.chips import Generation


@dataclass(frozen=True)
class MemoryStats:
    """Memory of one device, in bytes.

    Attributes:
        device: its name, such as ``"tpu:0"``.
        bytes_in_use: held by live arrays (on an accelerator, also by programs).
        peak_bytes_in_use: the maximum so far; ``None`` if unknown.
        limit_bytes: the maximum that can be allocated; for a simulated device, that of the chip.
        is_simulated: whether the device is simulated: memory in use is this machine's, the limit
            a real chip's.
    """

    device: str
    bytes_in_use: int
    peak_bytes_in_use: int | None
    limit_bytes: int | None
    is_simulated: bool = False

    def __str__(self) -> str:
        peak = (
            bytes_text(self.peak_bytes_in_use) if self.peak_bytes_in_use is not None else "not kept"
        )
        limit = bytes_text(self.limit_bytes) if self.limit_bytes is not None else "unknown"
        simulated = " (of the real chip; simulated here)" if self.is_simulated else ""
        return (
            f"{self.device}: {bytes_text(self.bytes_in_use)} in use, peak {peak}, "
            f"limit {limit}{simulated}"
        )


def memory_stats_of(
    device: Any, name: str, *, simulated_as: Generation | None = None
) -> MemoryStats:
    """Return the statistics of PJRT, or the sum of live arrays.

    Args:
        device: a JAX device of this process.
        name: name of the device in the result.
        simulated_as: generation of a simulated device, else None.
    """
    kept = device.memory_stats()
    if kept:
        return MemoryStats(
            name,
            kept["bytes_in_use"],
            kept.get("peak_bytes_in_use"),
            kept.get("bytes_limit"),
        )
    in_use = sum(_live_buffers(device).values())
    if simulated_as is not None:
        return MemoryStats(name, in_use, None, simulated_as.hbm_bytes_per_device, True)
    return MemoryStats(name, in_use, None, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _live_buffers(device: Any) -> dict[int, int]:
    """Return address and size of each live buffer; views of one shard count once."""
    return {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in device.client.live_arrays()
        if not array.is_deleted() and device in array.sharding.device_set
        for shard in array.addressable_shards
        if shard.device == device
    }

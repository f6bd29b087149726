"""How much of a device's memory is in use.

Owns one record and how it is filled. PJRT does the pooling; where it keeps no statistics, as on the
CPU and therefore on a simulated slice, what is in use is added up from the live arrays.
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
        bytes_in_use: held by live arrays (and, on an accelerator, by programs).
        peak_bytes_in_use: the most that was in use; ``None`` where nobody keeps count.
        limit_bytes: what can be allocated at most; for a simulated device, what the real one has.
        is_simulated: the memory is this machine's, the limit is a real chip's.
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
    """Ask PJRT, or add up the live arrays.

    Args:
        device: one of JAX's devices, of this process.
        name: what to call it.
        simulated_as: the generation that the device stands for, if it is simulated.
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
    return MemoryStats(name, in_use, None, _host_memory_bytes())


def _live_buffers(device: Any) -> dict[int, int]:
    """Return address and bytes of each buffer; a shard that was looked at is not counted twice."""
    return {
        shard.data.unsafe_buffer_pointer(): shard.data.nbytes
        for array in device.client.live_arrays()
        if not array.is_deleted() and device in array.sharding.device_set
        for shard in array.addressable_shards
        if shard.device == device
    }


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

"""Arrays and programs that exceed the available memory: one error, raised at once.

Large arrays are checked before allocation, because a system that overcommits memory would kill the
process. Memory in use is in ``memory_stats``; ``neurenix.compiler`` predicts that of programs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import jax
import numpy as np

from neurenix._core.errors import OutOfMemoryError
from neurenix._core.units import bytes_text
from neurenix._jax import trace_state_clean
from neurenix.hardware.memory_stats import memory_stats_of

T = TypeVar("T")

_LARGE_BYTES = 2**28
"""Arrays from this size on are checked before they are created, and awaited: JAX dispatches
asynchronously, and its error would come from the first use of the array."""
_TEXTS = re.compile("RESOURCE_EXHAUSTED|[Oo]ut of memory")
_ASKED = re.compile(r"allocat\w* (?:(\d+) ?bytes|([\d.]+ ?[KMGTPE]iB))")
PROGRAM = (
    "needs more memory than there is. Take a smaller batch, or shard the arrays over devices with "
    "a strategy of nx.distribute; nx.preflight reports beforehand what a program needs."
)
_LESS = (
    "Make it smaller, use a narrower dtype such as bfloat16, or shard it over devices with a "
    "strategy of nx.distribute."
)


def allocated(make: Callable[[], T], shape: Sequence[int], dtype: Any, device: Any = None) -> T:
    """Return ``make()``, an array of this shape and dtype, with a check of the memory it needs.

    Args:
        make: creates the array. In a traced function it is called without a check.
        shape: of the array.
        dtype: of the array.
        device: its ``jax.Device``; the default device by default. With a ``Sharding`` there is no
            check before allocation.

    Raises:
        OutOfMemoryError: the device has less memory, or less free memory, than the array needs.

    Example:
        >>> import jax.numpy as jnp
        >>> allocated(lambda: jnp.zeros(3), (3,), "float32").shape
        (3,)
        >>> allocated(lambda: jnp.zeros(10**14), (10**14,), "float32")
        Traceback (most recent call last):
            ...
        neurenix._core.errors.OutOfMemoryError: An array of shape (100000000000000,), float32, \
takes 364 TiB...
    """
    kind = np.dtype(dtype) if isinstance(dtype, str | type) else dtype  # JAX keys have own dtypes
    size = math.prod(shape) * kind.itemsize
    if size < _LARGE_BYTES or not trace_state_clean():
        with out_of_memory_told(""):
            return make()
    told = f"An array of shape {tuple(shape)}, {kind}, takes {bytes_text(size)}"
    place = device or jax.config.jax_default_device or jax.local_devices()[0]  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(place, jax.Device):
        limit = _most_bytes(place)
        if limit is not None and size > limit:
            whose = "this machine" if place.platform == "cpu" else place.device_kind
            raise OutOfMemoryError(f"{told}, and {whose} has {bytes_text(limit)} in all. {_LESS}")
    with out_of_memory_told(f"{told}, and less memory is free. {_LESS}"):
        return jax.block_until_ready(make())


@contextmanager
def out_of_memory_told(told: str) -> Iterator[None]:
    """Replace out-of-memory errors of JAX and NumPy, in a ``with`` block or as a decorator.

    Args:
        told: start of the message; the requested size is appended if known.

    Raises:
        OutOfMemoryError: instead of the original error.
    """
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if (other := out_of_memory(error, told)) is None:
            raise
        raise other from error


def out_of_memory(error: BaseException, told: str) -> OutOfMemoryError | None:
    """Return the replacement for an out-of-memory error, or None for any other error.

    Example:
        >>> print(out_of_memory(RuntimeError("Out of memory allocating 4096 bytes."), "No."))
        No. It requested 4.00 KiB at once.
    """
    text = str(error)
    wanting = isinstance(error, MemoryError) or _TEXTS.search(text)
    if isinstance(error, OutOfMemoryError) or not wanting:
        return None
    told = told or f"Too little memory is free. {_LESS}"
    asked = _ASKED.search(text)
    if asked is not None:
        size = bytes_text(int(asked[1])) if asked[1] else asked[2]
        told = f"{told} It requested {size} at once."
    return OutOfMemoryError(told)


def _most_bytes(device: Any) -> int | None:
    """Return the memory limit of a device in bytes, swap space included; None if unknown."""
    if device.memory_stats() is None and device.platform != "cpu":
        return None
    limit = memory_stats_of(device, "").limit_bytes
    return None if limit is None else limit + (_swap_bytes() if device.platform == "cpu" else 0)


def _swap_bytes() -> int:
    about = Path("/proc/meminfo")
    found = re.search(r"SwapTotal:\s+(\d+) kB", about.read_text()) if about.exists() else None
    return 0 if found is None else 1024 * int(found[1])

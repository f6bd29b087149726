"""Keep the memory of the CPU's programs with the process from step to step.

XLA allocates a program's temporary buffers from the C library at every call, and frees them at its
end. The GNU C library returns blocks of more than 32 MiB to the system at once, so the system maps
and zeroes every page again in each step: a third of a small transformer's step (12,000 pages, 48 ms
instead of 31, two cores). Two settings of the library end that for blocks of up to 64 MiB; larger
ones still come from the system when a thread other than the first allocates them. (One heap for all
threads would end that too, 140 ms instead of 198 with 200 MiB; but the digits CNN then takes 5 to
15 % longer.)
"""

from __future__ import annotations

import ctypes
import os

# Smaller blocks come from the heap, and up to this much of it stays with the process when freed.
_KEPT_BYTES = 2**30
# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Keep up to 1 GiB of memory that is freed from now on with this process.

    Memory that is free already, such as that of a compilation, is returned to the system first.

    Returns:
        whether the library took the settings. They are not changed where the environment sets the C
        library's memory (``MALLOC_TRIM_THRESHOLD_`` and its like, ``glibc.malloc`` in
        ``GLIBC_TUNABLES``), or where the C library is not GNU's.
    """
    if any(name in os.environ for name in _OWN_SETTINGS):
        return False
    if "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return False
    library = ctypes.CDLL(None)
    set_option = getattr(library, "mallopt", None)
    if set_option is None:
        return False
    library.malloc_trim(0)
    # Each returns 1 where it took the number.
    return all(
        [set_option(option, _KEPT_BYTES) for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD)]
    )

"""Memory of the CPU's programs, kept from step to step.

XLA asks the C library for a program's temporary buffers at every call, and gives them back at its
end. The GNU C library returns blocks of more than 32 MiB to the system at once, so that each step
has every page of them given and zeroed anew: a third of a small transformer's step (12,000 pages,
48 ms in place of 31, two cores). Owns the two numbers that end it, up to 64 MiB: larger blocks come
from the system wherever a thread other than the first asks for them. (One heap for all threads
would end that too, 198 ms in place of 140 with 200 MiB; but the digits CNN then takes 5 to 15 %
longer.)
"""

from __future__ import annotations

import ctypes
import os

# Blocks below this come from the heap, and as much of it stays with the process when it is free.
_KEPT_BYTES = 2**30
# Names and numbers of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_OWN_SETTINGS = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_")


def keep_freed_memory() -> bool:
    """Have up to 1 GiB of memory that is freed from now on stay with this process.

    What is free already, such as what a compilation leaves, goes back to the system first: else it
    would be held beside what steps take.

    Returns:
        whether it was set. It is not where the environment has settings of its own for the C
        library's memory (``MALLOC_TRIM_THRESHOLD_`` and its like, ``glibc.malloc`` in
        ``GLIBC_TUNABLES``), nor where that library is not GNU's.
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

"""Sizes as people read them.

Owns the choice of unit and of digits; the numbers are others'.
"""

from __future__ import annotations

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def bytes_text(count: float) -> str:
    """Return a size in the binary unit that keeps it short, never as ``1024`` of a smaller one.

    Example:
        >>> bytes_text(16911433728), bytes_text(512), bytes_text(2**30 - 1)
        ('15.75 GiB', '512 B', '1.00 GiB')
    """
    power = 0
    while power < len(_UNITS) - 1 and abs(round(count / 1024**power, 2 if power else 0)) >= 1024:
        power += 1
    return f"{count / 1024**power:.{2 if power else 0}f} {_UNITS[power]}"

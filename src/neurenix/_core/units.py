"""Format sizes and shares with a readable unit and few digits."""

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


def percent_text(share: float, digits: int = 1) -> str:
    """Return a share in percent; one that is too small to be seen is not shown as nothing.

    Example:
        >>> percent_text(0.4567), percent_text(2e-5), percent_text(2e-5, 2), percent_text(0.0)
        ('45.7%', 'under 0.1%', 'under 0.01%', '0.0%')
    """
    least = 10.0 ** -(digits + 2)
    return f"{share:.{digits}%}" if share >= least or share <= 0 else f"under {least:.{digits}%}"

"""The CPU: always there."""

from __future__ import annotations

from neurenix.hardware.availability import Availability


def availability() -> Availability:
    """Return that the CPU can be used.

    Example:
        >>> bool(availability())
        True
    """
    return Availability(1, 1)

"""The CPU, which is always available."""

from __future__ import annotations

from neurenix.hardware.availability import Availability


def availability() -> Availability:
    """Return one available device.

    Example:
        >>> bool(availability())
        True
    """
    return Availability(1, 1)

"""Each type of accelerator: whether the machine has one, and if not, what is missing.

Every module has ``availability()``, which reads kernel files and installed packages and starts no
backend. ``tpu`` also initializes TPUs. ``neurenix.device``, which builds on this package, owns the
devices used elsewhere.
"""

from neurenix.hardware.availability import Availability

__all__ = ["Availability"]

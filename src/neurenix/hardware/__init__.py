"""Each kind of accelerator: is one here, and if not, what exactly is missing.

Every module answers ``availability()`` from what the kernel and the installed packages tell, and
starts no backend. ``tpu`` also gets a TPU ready. Devices as the rest of Neurenix knows them are in
``neurenix.device``, which stands above.
"""

from neurenix.hardware.availability import Availability

__all__ = ["Availability"]

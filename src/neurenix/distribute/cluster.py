"""Which TPU slice a strategy runs on.

Owns the look-up of a slice by name in the environment that Google Cloud and Kubernetes set. It
does not start a backend.
"""

from __future__ import annotations

import os

from neurenix._core.errors import DeviceNotFoundError
from neurenix.device import Device, DeviceType, devices

_THIS_MACHINE = ("", "local")


class TPUClusterResolver:
    """The TPU slice with a name.

    Args:
        tpu: ``""`` or ``"local"`` for the slice that this process is part of; otherwise the name
            of a slice, which must be the one that ``TPU_NAME`` names on this machine.

    Raises:
        DeviceNotFoundError: the environment names no slice, or another one.

    Example:
        >>> resolver = nx.distribute.TPUClusterResolver(tpu="")
        >>> resolver.num_accelerators()
        8
    """

    def __init__(self, tpu: str = "") -> None:
        if tpu not in _THIS_MACHINE:
            here = os.environ.get("TPU_NAME")
            if here != tpu:
                found = f"TPU_NAME is {here!r}" if here else "TPU_NAME is not set"
                raise DeviceNotFoundError(
                    f"TPUClusterResolver(tpu={tpu!r}): this machine is not part of a slice of that "
                    f'name ({found}). Run the program on the slice\'s own machines, or use tpu="" '
                    "for the slice that this machine is part of."
                )
        self.tpu = tpu

    def devices(self) -> list[Device]:
        """Return the TPU devices of the slice, in mesh order.

        Raises:
            DeviceNotFoundError: there is no TPU, real or simulated.
        """
        found = devices(DeviceType.TPU)
        if not found:
            Device(DeviceType.TPU, 0).jax_device  # noqa: B018  raises, saying what is there
        return found

    def num_accelerators(self) -> int:
        """Return the number of TPU devices of the slice (on v2, v3 and tpu7x two per chip)."""
        return len(self.devices())

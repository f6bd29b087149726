"""Find the TPU slice of a strategy in the environment that Google Cloud and Kubernetes set."""

from __future__ import annotations

import os

from neurenix._core.errors import DeviceNotFoundError
from neurenix.device import Device, DeviceType, devices

_THIS_MACHINE = ("", "local")


class TPUClusterResolver:
    """A TPU slice, by name.

    Args:
        tpu: ``""`` or ``"local"`` for the slice of this process; otherwise the name of a slice,
            which must equal ``TPU_NAME``.

    Raises:
        DeviceNotFoundError: ``TPU_NAME`` is not set or names another slice.

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
            DeviceNotFoundError: no TPU, real or simulated, was found.
        """
        found = devices(DeviceType.TPU)
        if not found:
            Device(DeviceType.TPU, 0).jax_device  # noqa: B018  raises DeviceNotFoundError
        return found

    def num_accelerators(self) -> int:
        """Return the number of TPU devices of the slice (two per chip on v2, v3 and tpu7x)."""
        return len(self.devices())

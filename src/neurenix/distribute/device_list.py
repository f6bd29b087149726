"""The devices of a strategy: what may be chosen, and what is there to choose from.

Owns the checks of a list of devices. It does not own devices and their names (``neurenix.device``).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DeviceNotFoundError
from neurenix.device import Device, DeviceType, devices


def checked_devices(given: Sequence[Device | str]) -> tuple[Device, ...]:
    """Return the devices of a strategy: here, of one type, each once."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise ArgumentTypeError(
            f"A strategy's devices are a list of devices or names; got {given!r}. Write "
            '["tpu:0", "tpu:1"], or nx.devices("tpu") for all.'
        )
    if not given:
        raise DeviceNotFoundError("A strategy needs at least one device, got none.")
    chosen = tuple(Device(device) for device in given)
    names = ", ".join(map(str, chosen))
    if len(set(chosen)) < len(chosen):
        raise ArgumentError(
            f"A strategy's devices are {names}: one is there twice. Each device is one replica; "
            "name each once."
        )
    if len({device.type for device in chosen}) > 1:
        raise ArgumentError(
            f"A strategy's devices are {names}: one program runs on one type of device. Keep those "
            f"of {chosen[0].type}, for example."
        )
    for device in chosen:
        device.jax_device  # noqa: B018  raises, saying what is there
    return chosen


def gpus() -> list[Device]:
    """Return the GPUs of this machine."""
    return devices(DeviceType.CUDA) or devices(DeviceType.ROCM)


def gpus_or_cpu() -> list[Device]:
    """Return the GPUs of this machine, or its CPU, which standard error then says."""
    found = gpus()
    if not found:
        sys.stderr.write("neurenix: no GPU here, so MirroredStrategy runs on cpu:0\n")
    return found or [Device(DeviceType.CPU, 0)]

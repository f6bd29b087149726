"""Check the devices of a strategy, and find the default ones."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from neurenix._core.errors import ArgumentError, ArgumentTypeError, DeviceNotFoundError
from neurenix.device import Device, DeviceType, devices


def checked_devices(given: Sequence[Device | str]) -> tuple[Device, ...]:
    """Return the devices of a strategy.

    Raises:
        ArgumentTypeError: ``given`` is not a sequence.
        ArgumentError: a device occurs twice, or the devices are of several types.
        DeviceNotFoundError: the sequence is empty, or a device does not exist.
    """
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
        device.jax_device  # noqa: B018  raises DeviceNotFoundError
    return chosen


def gpus() -> list[Device]:
    """Return the GPUs of this machine."""
    return devices(DeviceType.CUDA) or devices(DeviceType.ROCM)


def gpus_or_cpu() -> list[Device]:
    """Return the GPUs of this machine; without one, its CPU, with a line on standard error."""
    found = gpus()
    if not found:
        sys.stderr.write("neurenix: no GPU here, so MirroredStrategy runs on cpu:0\n")
    return found or [Device(DeviceType.CPU, 0)]

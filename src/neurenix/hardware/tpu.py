"""Cloud TPUs: detect and initialize them, and report memory and topology.

If the backend does not start, a diagnosis from ``tpu_failures`` precedes XLA's message. Memory is
pooled by PJRT. ``neurenix.device`` chooses the devices used elsewhere.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax

from neurenix._core.errors import (
    ArgumentError,
    DeviceError,
    DeviceInitializationError,
    DeviceNotFoundError,
)
from neurenix._jax import backends_are_started, clear_backends, register_backend
from neurenix.chips import GENERATIONS
from neurenix.hardware import machine
from neurenix.hardware.availability import Availability, any_installed
from neurenix.hardware.memory_stats import MemoryStats, memory_stats_of
from neurenix.hardware.tpu_failures import diagnose
from neurenix.hardware.tpu_topology import TPUTopology, topology_of_devices, topology_of_slice
from neurenix.hardware.transfer import Transfer, start_to_device, start_to_host
from neurenix.simulation import simulated

T = TypeVar("T")

_GOOGLE = "0x1ae0"
_PCI_IDS = {generation.pci_device_id: generation for generation in GENERATIONS.values()}
_SLOW_SECONDS = 30.0


def availability(root: Path = machine.ROOT) -> Availability:
    """Return how many TPUs, real or simulated, can be used, and what is missing if none can.

    Starts no backend. Counts chips of this host if real, devices if simulated.
    """
    active = simulated()
    if active is not None:
        return Availability(active.num_devices, active.num_devices)
    attached = _chips(root)
    if not attached:
        return Availability(0, 0, "No Cloud TPU is attached to this machine.")
    if not any_installed("libtpu") and not Path(os.environ.get("TPU_LIBRARY_PATH", "")).is_file():
        return Availability(
            0,
            attached,
            f"{attached} TPU chip(s) are attached; libtpu, their compiler and runtime, is not "
            "installed.",
            'Install it with: pip install "jax[tpu]" (Linux x86-64 only).',
        )
    return Availability(attached, attached)


def is_tpu_available() -> bool:
    """Return whether this machine has TPU chips or simulates them. Starts no backend.

    Example:
        >>> import neurenix as nx
        >>> nx.simulate("v5e-8").name
        'v5e-8'
        >>> is_tpu_available()
        True
    """
    return availability().found > 0


def raise_diagnosed(error: Exception, *, root: Path = machine.ROOT) -> None:
    """Raise ``DeviceInitializationError`` with cause and fix, if the error text is known.

    The original text follows the diagnosis.
    """
    diagnosis = diagnose(str(error), root=root)
    if diagnosis is not None:
        raise DeviceInitializationError(f"{diagnosis}\nThe original message: {error}") from error


class TPUBackend:
    """The TPU chips of this process, real or simulated.

    Example:
        >>> import neurenix as nx
        >>> slice_ = nx.simulate("v5e-8")
        >>> tpu = TPUBackend()
        >>> tpu.initialize()
        True
        >>> str(tpu.topology)
        'simulated v5e-8 (8 chips in 2x4, 1 device per chip, 1 host; coordinates (0, 0) to (1, 3))'
    """

    def __init__(self) -> None:
        self._devices: tuple[Any, ...] = ()

    def initialize(self) -> bool:
        """Start the TPU backend; a second call does nothing.

        Returns:
            Always ``True``; failures raise.

        Raises:
            DeviceNotFoundError: no TPU, real or simulated, is available.
            DeviceInitializationError: a TPU is attached and cannot be used; the message says why
                and what to do.
        """
        if self._is_live():
            return True
        found = availability()
        if not found.found:
            raise DeviceNotFoundError(
                f"{found.problem} To go on without one, simulate it: start the program with "
                '`neurenix run --simulate v5e-8 SCRIPT`, or call nx.simulate("v5e-8") before '
                "the first array."
            )
        if not found:
            raise DeviceInitializationError(f"{found.problem} {found.fix}")
        self._devices = tuple(_start())
        return True

    @property
    def devices(self) -> Sequence[Any]:
        """The ``jax.Device`` objects of all hosts, in JAX's order."""
        self._require()
        return self._devices

    @property
    def topology(self) -> TPUTopology:
        """Slice name, chips, devices per chip, hosts and coordinates."""
        self._require()
        active = simulated()
        if active is not None:
            return topology_of_slice(active.slice)
        return topology_of_devices(self._devices)

    def memory_stats(self) -> list[MemoryStats]:
        """Return bytes in use, peak and limit for each device of this process."""
        self._require()
        active = simulated()
        generation = active.slice.generation if active else None
        return [
            memory_stats_of(device, f"tpu:{index}", simulated_as=generation)
            for index, device in enumerate(self._devices)
            if device.process_index == jax.process_index()
        ]

    def transfer(self, arrays: T, to: Any | Literal["host"]) -> Transfer[T]:
        """Start moving a pytree of arrays without waiting.

        Args:
            arrays: a pytree of NumPy or JAX arrays of any shape and dtype; to the host, JAX arrays
                only, which may be sharded.
            to: a ``Sharding``, a ``Device``, a ``jax.Device``, a pytree of them, or ``"host"``.

        Returns:
            The transfer: ``.arrays`` at once, ``.result()`` after waiting.

        Raises:
            ArgumentError: ``to`` is another string.
            ArgumentTypeError: ``to`` has another type.
            DeviceNotFoundError: the ``Device`` does not exist.

        Example:
            >>> import numpy as np
            >>> tpu = TPUBackend()
            >>> tpu.initialize()
            True
            >>> there = tpu.transfer(np.ones((8, 4), np.float32), tpu.devices[3])
            >>> tpu.transfer(there.arrays * 2, "host").result().sum()
            np.float32(64.0)
        """
        self._require()
        if isinstance(to, str):
            if to != "host":
                raise ArgumentError(
                    f'transfer(to=...) takes "host", a Sharding or a Device; got {to!r}.'
                )
            return start_to_host(arrays)
        return start_to_device(arrays, to)

    def synchronize(self) -> None:
        """Wait until all work dispatched to the TPU devices is done.

        Raises:
            RuntimeError: a dispatched computation failed; the original error.
        """
        self._require()
        client = self._devices[0].client
        jax.effects_barrier()
        jax.block_until_ready([array for array in client.live_arrays() if not array.is_deleted()])

    def shutdown(self) -> None:
        """Wait for dispatched work, then release the chips for other processes.

        All arrays and compiled programs of this process are lost, also those on the CPU. A later
        ``initialize`` starts the backend again. Does nothing before ``initialize``.
        """
        if not self._is_live():
            self._devices = ()
            return
        self.synchronize()
        self._devices = ()
        jax.clear_caches()
        clear_backends()

    def _is_live(self) -> bool:
        """Return whether JAX still has the devices: another backend may have been shut down."""
        if not self._devices or not backends_are_started():
            return False
        try:
            return tuple(jax.devices("tpu")) == self._devices
        except RuntimeError:  # JAX was restarted without a TPU
            return False

    def _require(self) -> None:
        if not self._is_live():
            raise DeviceError("The TPU backend is not started; call initialize() first.")


def _spare_libtpu() -> None:
    """Keep JAX from starting libtpu on a machine without TPU, unless explicitly requested.

    libtpu is installed for its compiler. Started as a runtime without chips, it prints warnings,
    takes its process lock, and fails.
    """
    platforms = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]  dynamic
    asked_for = "tpu" in (platforms or "")
    if (
        backends_are_started()
        or asked_for
        or "JAX_FORCE_TPU_INIT" in os.environ
        or availability().found
    ):
        return
    register_backend("tpu", _no_chips, priority=-2000, fail_quietly=True)


def _no_chips() -> Any:
    raise DeviceNotFoundError("No Cloud TPU is attached to this machine.")


def _chips(root: Path) -> int:
    """Return the number of TPU chips of this host, from the PCI bus or a container's nodes."""
    on_bus = [
        device
        for device in machine.pci_devices(root)
        if device.vendor == _GOOGLE and device.device in _PCI_IDS
    ]
    if on_bus:
        return len(on_bus)
    if machine.nodes("accel[0-9]*", root=root):
        return len(machine.nodes("accel[0-9]*", root=root))
    # Any device can be passed through vfio; only the runtime's variables identify a TPU.
    if "TPU_ACCELERATOR_TYPE" in os.environ or "TPU_WORKER_ID" in os.environ:
        return len(machine.nodes("vfio/[0-9]*", root=root))
    return 0


def _start() -> list[Any]:
    watch = threading.Timer(_SLOW_SECONDS, _say_why_it_waits)
    watch.daemon = True
    watch.start()
    try:
        return jax.devices("tpu")
    except RuntimeError as error:
        raise_diagnosed(error)
        raise DeviceInitializationError(
            f"The TPU does not start, for a reason not in our catalogue: {error}"
        ) from error
    finally:
        watch.cancel()


def _say_why_it_waits() -> None:
    """Print a diagnosis to stderr while XLA's initialization still blocks this process."""
    text = f"TPU backend initialization is taking more than {_SLOW_SECONDS} seconds"
    workers = os.environ.get("TPU_WORKER_HOSTNAMES", "")
    listed = f" The hosts of this slice: {workers}." if workers else ""
    print(f"neurenix: {text}. {diagnose(text)}{listed}", file=sys.stderr)


_spare_libtpu()

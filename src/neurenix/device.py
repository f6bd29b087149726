"""Devices: name, find and choose them, and move arrays to them.

Owns ``Device`` and the map between its names and JAX's devices, simulated slices included: code
above this module never checks whether a TPU is real. ``neurenix.hardware`` explains why a device
cannot be used; meshes and shardings are in ``neurenix.distribute``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix._copy_host_arrays import owned
from neurenix._core.callable_module import make_callable
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceNotFoundError,
    unknown_name,
)
from neurenix._core.keys import keys_explained
from neurenix._dtypes import cast, expect_held, names_dtype
from neurenix._dtypes import dtype as dtype_named
from neurenix._jax import backend_error, backends_are_started, devices_of_platform
from neurenix.hardware import cpu, cuda, edge_tpu, rocm, tpu, webgpu
from neurenix.hardware.allocation import allocated, out_of_memory_told
from neurenix.hardware.availability import Availability
from neurenix.hardware.memory_stats import MemoryStats, memory_stats_of
from neurenix.simulation import simulated

T = TypeVar("T")


class DeviceType(enum.Enum):
    """The types of device. ``EDGE_TPU`` and ``WEBGPU`` have no JAX backend and hold no arrays."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    TPU = "tpu"
    EDGE_TPU = "edge_tpu"
    WEBGPU = "webgpu"

    def __str__(self) -> str:
        return self.value


_AVAILABILITY: dict[DeviceType, Callable[[], Availability]] = {
    DeviceType.TPU: tpu.availability,
    DeviceType.CUDA: cuda.availability,
    DeviceType.ROCM: rocm.availability,
    DeviceType.CPU: cpu.availability,
    DeviceType.EDGE_TPU: edge_tpu.availability,
    DeviceType.WEBGPU: webgpu.availability,
}
_INSTALL = {
    DeviceType.TPU: 'pip install "jax[tpu]"',
    DeviceType.CUDA: 'pip install "neurenix[cuda]"',
    DeviceType.ROCM: 'pip install "neurenix[rocm]"',
    DeviceType.CPU: "every machine has a CPU",
    DeviceType.EDGE_TPU: "install libedgetpu and ai-edge-litert",
    DeviceType.WEBGPU: "pip install wgpu",
}
_WITHOUT_ARRAYS = {
    DeviceType.EDGE_TPU: "An Edge TPU runs compiled .tflite models and holds no arrays.",
    DeviceType.WEBGPU: "JAX has no WebGPU backend, so such a device holds no arrays.",
}


@dataclass(frozen=True, init=False)
class Device:
    """A device, by type and index. It may be absent; it is checked on first use.

    The index counts the devices of the type over all hosts, in JAX's order.

    Args:
        type: a ``DeviceType``, a name such as ``"tpu"`` or ``"cuda:1"``, or another ``Device``.
        index: 0 by default; not allowed if ``type`` already has an index.

    Raises:
        UnknownNameError: unknown device type.
        ArgumentError: the index is negative, or differs from that of ``type``.
        ArgumentTypeError: ``type`` is neither a device type nor a name.

    Example:
        >>> nx.Device("tpu:0") == nx.Device(nx.DeviceType.TPU, 0)
        True
        >>> str(nx.Device("cpu"))
        'cpu:0'
    """

    type: DeviceType
    index: int

    def __init__(self, type: DeviceType | str | Device, index: int | None = None) -> None:
        found, written = _parse(type)
        if written is not None and index is not None and index != written:
            raise ArgumentError(f"Device({str(type)!r}, {index}) has two different indices.")
        chosen = next((i for i in (index, written) if i is not None), 0)
        if isinstance(chosen, bool) or not isinstance(chosen, int):
            raise ArgumentTypeError(
                f"Device(index=...) needs an integer, got {chosen.__class__.__name__}."
            )
        if chosen < 0:
            raise ArgumentError(f"Device(index=...) counts from 0, got {chosen}.")
        object.__setattr__(self, "type", found)
        object.__setattr__(self, "index", chosen)

    def __str__(self) -> str:
        return f"{self.type}:{self.index}"

    def __repr__(self) -> str:
        return f"Device('{self}')"

    def is_available(self) -> bool:
        """Return whether the device exists and can be used.

        Starts JAX's backends only if the machine has hardware of the type.
        """
        if not self._might_be_here():
            return False
        if self.type in _WITHOUT_ARRAYS:
            return self.index < _AVAILABILITY[self.type]().count
        return self.index < len(_jax_devices(self.type))

    @property
    def jax_device(self) -> Any:
        """The ``jax.Device``.

        Raises:
            DeviceNotFoundError: the device does not exist. The message lists the available devices
                and three ways to continue.
            DeviceInitializationError: the device exists and cannot be used.
        """
        if self.type in _WITHOUT_ARRAYS:
            raise DeviceNotFoundError(f"{_WITHOUT_ARRAYS[self.type]} {self._ways_on()}")
        found = _jax_devices(self.type) if self._might_be_here() else []
        if self.index >= len(found):
            raise DeviceNotFoundError(_not_here(self, len(found)))
        return found[self.index]

    def _ways_on(self) -> str:
        if self.is_available():
            return f"{_what_is_here()} Choose one of them."
        return _not_here(self, _AVAILABILITY[self.type]().count)

    @property
    def is_simulated(self) -> bool:
        """Whether the CPU simulates this device."""
        return self.type is DeviceType.TPU and simulated() is not None

    @property
    def kind(self) -> str:
        """The name JAX reports, such as ``"TPU v5 lite"``; a simulated device has the same name.

        Raises:
            DeviceNotFoundError: the device does not exist.
        """
        active = simulated()
        if self.type in _WITHOUT_ARRAYS:
            if not self.is_available():
                raise DeviceNotFoundError(_not_here(self, _AVAILABILITY[self.type]().count))
            return "Edge TPU" if self.type is DeviceType.EDGE_TPU else "WebGPU adapter"
        actual = self.jax_device
        if self.type is DeviceType.TPU and active is not None:
            return active.device_kind
        return actual.device_kind

    def memory_stats(self) -> MemoryStats:
        """Return bytes in use, peak and limit.

        Raises:
            DeviceNotFoundError: the device does not exist.
        """
        active = simulated() if self.type is DeviceType.TPU else None
        generation = active.slice.generation if active else None
        return memory_stats_of(self.jax_device, str(self), simulated_as=generation)

    def _might_be_here(self) -> bool:
        return backends_are_started() or bool(_AVAILABILITY[self.type]().found)


def devices(type: DeviceType | str | None = None) -> list[Device]:
    """Return the usable devices, fastest type first.

    Args:
        type: return only devices of this type.

    Raises:
        ArgumentError: the name has an index.
        DeviceInitializationError: a device exists and cannot be started; the message says why.

    Example:
        >>> import neurenix as nx
        >>> nx.simulate("v5e-8").name
        'v5e-8'
        >>> [str(device) for device in nx.devices("tpu")][:2]
        ['tpu:0', 'tpu:1']
    """
    types = tuple(_AVAILABILITY) if type is None else (_type_alone(type),)
    found = []
    for kind in types:
        if kind in _WITHOUT_ARRAYS:
            count = _AVAILABILITY[kind]().count
        else:
            count = len(_jax_devices(kind))
        found += [Device(kind, index) for index in range(count)]
    return found


def availability() -> dict[DeviceType, Availability]:
    """Return, per type, how many devices are attached and usable, and what is missing.

    Starts no backend.

    Example:
        >>> nx.device.availability()[nx.DeviceType.CPU].count
        1
    """
    return {kind: look() for kind, look in _AVAILABILITY.items()}


@contextmanager
def device(spec: Device | DeviceType | str) -> Iterator[Device]:
    """Set the default device for new arrays and computations.

    Args:
        spec: such as ``"cpu"``, ``"tpu:3"`` or a ``Device``.

    Raises:
        DeviceNotFoundError: the device does not exist.

    Example:
        >>> import neurenix as nx
        >>> with nx.device("cpu"):
        ...     str(nx.device_of(nx.zeros(3)))
        'cpu:0'
    """
    chosen = Device(spec)
    with jax.default_device(chosen.jax_device):
        yield chosen


def from_jax(jax_device: Any) -> Device:
    """Return the ``Device`` of a ``jax.Device``.

    Raises:
        DeviceNotFoundError: the backend was shut down, or has no device type here.

    Example:
        >>> import jax, neurenix as nx
        >>> nx.simulate("v5e-8").name
        'v5e-8'
        >>> nx.device.from_jax(jax.devices()[3])
        Device('tpu:3')
    """
    platform = getattr(jax_device, "platform", "")
    likely_first = sorted(_AVAILABILITY, key=lambda kind: kind.value != platform)
    for kind in likely_first:
        if kind not in _WITHOUT_ARRAYS:
            found = _jax_devices(kind)
            if jax_device in found:
                return Device(kind, found.index(jax_device))
    raise DeviceNotFoundError(f"{jax_device} is none of JAX's devices. {_what_is_here()}")


def device_of(array: jax.Array) -> Device:
    """Return the device of an array.

    Args:
        array: on one device, any shape and dtype.

    Raises:
        ArgumentTypeError: ``array`` is not a ``jax.Array``, or is traced.
        ArgumentError: the array is on several devices.

    Example:
        >>> import neurenix as nx
        >>> nx.device_of(nx.to(nx.ones(3), "cpu"))
        Device('cpu:0')
    """
    if not isinstance(array, jax.Array):
        raise ArgumentTypeError(
            f"device_of(array) needs a jax.Array, got {array.__class__.__name__}; "
            "nx.Tensor(data) makes one."
        )
    if isinstance(array, Tracer):
        raise ArgumentTypeError(
            "device_of(array) was called inside a traced function, where arrays have no device yet."
        )
    places = array.sharding.device_set
    if len(places) > 1:
        raise ArgumentError(
            f"This array of shape {array.shape} is on {len(places)} devices. Read array.sharding, "
            "or array.devices() for the set."
        )
    return from_jax(next(iter(places)))


def to(value: T, device: Device | DeviceType | str | Any = None, *, dtype: Any = None) -> T:
    """Return arrays, a pytree of arrays or a module on a device, in a dtype, or both.

    Args:
        value: an array, a pytree of arrays (NumPy arrays are copied), or a module. A module with a
            method ``to`` is moved in place by it; another one is returned as a moved copy.
        device: a ``Device``, a name, a ``jax.Device``, or a ``Sharding``; None keeps the placement.
            As in PyTorch, a dtype may be given here instead.
        dtype: dtype to cast to, any that ``nx.dtype`` accepts. In a pytree or a module, only
            floating-point leaves are cast, and the dtype must be floating.

    Raises:
        DataError: an integer dtype (int32 by default for Python and NumPy integers) cannot hold
            the values.
        DeviceNotFoundError: the device does not exist.
        UnknownNameError: unknown dtype name.
        ArgumentTypeError: a leaf is text or another object that is not an array.
        ArgumentError: neither a device nor a dtype is given, or two dtypes are; the dtype of a
            pytree or a module is not floating; or the dtype has 64 bits and JAX computes in 32.

    Example:
        >>> import neurenix as nx
        >>> nx.to({"w": nx.ones((2, 2))}, "cpu", dtype="bfloat16")["w"].dtype
        dtype(bfloat16)
        >>> nx.to(nx.ones(2), "bfloat16").dtype
        dtype(bfloat16)
    """
    device, dtype = place_and_dtype(device, dtype)
    own = getattr(value, "to", None)
    if callable(own) and not isinstance(value, jax.Array | np.ndarray | np.generic):
        options = {} if dtype is None else {"dtype": dtype}
        return own(device, **options)  # pyright: ignore[reportReturnType]  the value's own method
    target = None if device is None else _target(device)
    wanted = None if dtype is None else dtype_named(dtype)
    is_number = isinstance(value, int | float | complex)
    is_leaf = is_number or isinstance(value, jax.Array | np.ndarray | np.generic)
    if wanted is not None and not is_leaf:
        expect_floating(wanted)

    def move(leaf: Any) -> Any:
        if wanted is not None and (is_leaf or _is_float(leaf)):
            with out_of_memory_told(""):
                leaf = cast(np.asarray(leaf) if is_number else leaf, wanted, called="to(value)")

        def put() -> Any:
            return jax.device_put(owned(_held(leaf)), target)

        try:
            if not hasattr(leaf, "dtype"):
                return put()
            return allocated(put, leaf.shape, leaf.dtype, target)
        except TypeError as error:
            raise ArgumentTypeError(
                f"to(value): {leaf!r:.60} ({type(leaf).__name__}) is not an array."
            ) from error

    with keys_explained(value):
        return jax.tree.map(move, value)


def place_and_dtype(device: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the device and the dtype given to ``to``; the missing one is None.

    Raises:
        ArgumentError: neither is given, or two dtypes are.
    """
    if device is None and dtype is None:
        raise ArgumentError(
            'to() takes a device, a dtype, or both: to("cpu"), to(dtype="bfloat16").'
        )
    if not names_dtype(device):
        return device, dtype
    if dtype is not None:
        raise ArgumentError(f"to() was given two dtypes, {device!r} and {dtype!r}.")
    return None, device


def _target(device: Any) -> Any:
    if isinstance(device, jax.sharding.Sharding | jax.Device):
        return device
    return Device(device).jax_device


def expect_floating(dtype: np.dtype) -> None:
    """Raise ArgumentError unless the parameters of a module can be cast to ``dtype``."""
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ArgumentError(
            f"to(dtype=…) of a module or a tree casts floating-point arrays, which {dtype} "
            'would truncate to integers; give a floating dtype such as "bfloat16".'
        )


def _held(leaf: Any) -> Any:
    """Return ``leaf`` after checking that JAX's narrower integer dtype can hold its values.

    Raises:
        DataError: it cannot; JAX would wrap them.
    """
    if isinstance(leaf, np.ndarray | np.generic) and jnp.issubdtype(leaf.dtype, jnp.integer):
        return cast(leaf, jax.dtypes.canonicalize_dtype(leaf.dtype), called="to(value)")
    if isinstance(leaf, int):
        expect_held("to(value)", leaf, leaf, jax.dtypes.canonicalize_dtype(int))
    return leaf


def _is_float(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def _parse(type: DeviceType | str | Device) -> tuple[DeviceType, int | None]:
    if isinstance(type, Device):
        return type.type, type.index
    if isinstance(type, DeviceType):
        return type, None
    if not isinstance(type, str):
        raise ArgumentTypeError(
            f'A device is a DeviceType or a name such as "tpu:0"; got {type.__class__.__name__}.'
        )
    name, colon, number = type.strip().lower().partition(":")
    known = [kind.value for kind in DeviceType]
    if name == "gpu":
        raise ArgumentError(f'{type!r} is ambiguous: write "cuda" (NVIDIA) or "rocm" (AMD).')
    if name not in known:
        raise unknown_name("device type", name, known)
    if colon and not number.isdecimal():
        raise ArgumentError(f'{type!r} needs a number after the colon, such as "{name}:0".')
    return DeviceType(name), int(number) if colon else None


def _type_alone(type: DeviceType | str) -> DeviceType:
    kind, index = _parse(type)
    if index is not None:
        raise ArgumentError(
            f'devices(type) takes a type such as "{kind}"; Device("{kind}:{index}") is one device.'
        )
    return kind


def _jax_devices(kind: DeviceType) -> list[Any]:
    """Return JAX's devices of a type; empty if JAX has no such backend."""
    simulated()
    try:
        return devices_of_platform(kind.value)
    except RuntimeError as error:
        tpu.raise_diagnosed(error)
        raise


def _not_here(asked: Device, count: int) -> str:
    kind = asked.type
    if count:
        return (
            f"There is no {asked}: the last one is {kind}:{count - 1}. {_what_is_here()} "
            "Choose one of them."
        )
    found = _AVAILABILITY[kind]()
    install = found.fix or f"On a machine that has one: {_INSTALL[kind]}."
    return (
        f"There is no {asked}. {found.problem or _jax_reason(kind)} {_what_is_here()} Ways on: "
        f'(1) {install} (2) Simulate a TPU: call nx.simulate("v5e-8") before the first array, '
        "or start with `neurenix run --simulate v5e-8 SCRIPT`. "
        '(3) Choose another: nx.device("cpu").'
    )


def _jax_reason(kind: DeviceType) -> str:
    """Return why JAX has no devices of a type whose hardware and packages are present."""
    error = backend_error(kind.value)
    if error:
        return f"It is attached, and JAX cannot start it: {error}."
    platforms = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]  dynamic
    return f"It is attached, and JAX was started without it: JAX_PLATFORMS={platforms!r}."


def _what_is_here() -> str:
    counts = {
        kind: len(_jax_devices(kind)) for kind in _AVAILABILITY if kind not in _WITHOUT_ARRAYS
    }
    names = [
        f"{kind}:0" + (f" to {kind}:{count - 1}" if count > 1 else "")
        for kind, count in counts.items()
        if count
    ]
    return f"Here are: {', '.join(names)}."


make_callable(__name__, "device")

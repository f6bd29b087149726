"""Devices: naming them, finding them, choosing one, moving arrays to one.

Owns ``Device`` and the map between its names and JAX's devices; a simulated slice is mapped here,
so nothing above asks whether a TPU is real. What is missing when a device cannot be used is known
by ``neurenix.hardware``; meshes and shardings are ``neurenix.distribute``'s.
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
from jax.extend.backend import backends

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
from neurenix._jax import backend_error, backends_are_started
from neurenix.hardware import cpu, cuda, edge_tpu, rocm, tpu, webgpu
from neurenix.hardware.allocation import allocated, out_of_memory_told
from neurenix.hardware.availability import Availability
from neurenix.hardware.memory_stats import MemoryStats, memory_stats_of
from neurenix.simulation import simulated

T = TypeVar("T")


class DeviceType(enum.Enum):
    """The kinds of device. ``EDGE_TPU`` and ``WEBGPU`` hold no arrays: JAX does not know them."""

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
    DeviceType.WEBGPU: "JAX has no WebGPU backend, so no array can lie on such a device.",
}


@dataclass(frozen=True, init=False)
class Device:
    """One device, by type and index; it need not be there.

    The index counts the devices of the type over all hosts, in JAX's order.

    Args:
        type: a ``DeviceType``, a name such as ``"tpu"`` or ``"cuda:1"``, or another ``Device``.
        index: which one; not allowed beside a name that has an index already.

    Raises:
        UnknownNameError: no such type.
        ArgumentError: a negative index, or two.
        ArgumentTypeError: neither a type nor a name.

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
        """Return whether the device is here and can be used.

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
            DeviceNotFoundError: it is not here; names what is here, and three ways on.
            DeviceInitializationError: it is here, and cannot be used.
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
        """Whether the CPU plays this device."""
        return self.type is DeviceType.TPU and simulated() is not None

    @property
    def kind(self) -> str:
        """What the device calls itself, such as ``"TPU v5 lite"``; of a simulated one, the same.

        Raises:
            DeviceNotFoundError: it is not here.
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
            DeviceNotFoundError: it is not here.
        """
        active = simulated() if self.type is DeviceType.TPU else None
        generation = active.slice.generation if active else None
        return memory_stats_of(self.jax_device, str(self), simulated_as=generation)

    def _might_be_here(self) -> bool:
        return backends_are_started() or bool(_AVAILABILITY[self.type]().found)


def devices(type: DeviceType | str | None = None) -> list[Device]:
    """Return the devices that can be used, those that compute fastest first.

    Args:
        type: of this type only.

    Raises:
        ArgumentError: the name has an index.
        DeviceInitializationError: hardware that is here does not start; says why.

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
    """Return, for each type, how many devices are attached and usable, and what is missing.

    Starts no backend.

    Example:
        >>> nx.device.availability()[nx.DeviceType.CPU].count
        1
    """
    return {kind: look() for kind, look in _AVAILABILITY.items()}


@contextmanager
def device(spec: Device | DeviceType | str) -> Iterator[Device]:
    """Make a device the default one for new arrays and for computations on none.

    Args:
        spec: such as ``"cpu"``, ``"tpu:3"`` or a ``Device``.

    Raises:
        DeviceNotFoundError: it is not here.

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
        DeviceNotFoundError: it belongs to a backend that was shut down, or that has no name here.

    Example:
        >>> import jax, neurenix as nx
        >>> nx.simulate("v5e-8").name
        'v5e-8'
        >>> nx.device.from_jax(jax.devices()[3])
        Device('tpu:3')
    """
    for kind in _AVAILABILITY:
        if kind not in _WITHOUT_ARRAYS:
            found = _jax_devices(kind)
            if jax_device in found:
                return Device(kind, found.index(jax_device))
    raise DeviceNotFoundError(f"{jax_device} is none of JAX's devices. {_what_is_here()}")


def device_of(array: jax.Array) -> Device:
    """Return the device that an array lies on.

    Args:
        array: on one device, any shape and dtype.

    Raises:
        ArgumentTypeError: not a ``jax.Array``, or one that is being traced.
        ArgumentError: the array lies on several devices.

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
            f"This array of shape {array.shape} lies on {len(places)} devices: ask array.sharding "
            "where, or array.devices() for the set."
        )
    return from_jax(next(iter(places)))


def to(value: T, device: Device | DeviceType | str | Any = None, *, dtype: Any = None) -> T:
    """Return arrays, a pytree of them or a module on a device, in a dtype, or both.

    Args:
        value: an array, any pytree of arrays (NumPy's as well, which are copied), or a module. A
            module with a method ``to`` of its own is moved by it; another is returned as a moved
            copy.
        device: a ``Device``, a name, a ``jax.Device``, or a ``Sharding``. Without one arrays stay
            where they are. A dtype in its place is the dtype, as in PyTorch.
        dtype: to cast to on the way, any that ``nx.dtype`` knows. In a pytree or a module only
            floating-point leaves are cast, to a floating dtype.

    Raises:
        DataError: an integer dtype, int32 for Python's and NumPy's, cannot hold the numbers.
        DeviceNotFoundError: the device is not here.
        UnknownNameError: ``dtype`` is none.
        ArgumentTypeError: there is text or an object, not an array.
        ArgumentError: ``dtype`` is none of floats, and there are several arrays; or needs 64 bits
            where JAX computes in 32; or neither a device nor a dtype is given, or two dtypes are.

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
                f"to(value): {leaf!r:.60} ({type(leaf).__name__}) is no array."
            ) from error

    with keys_explained(value):
        return jax.tree.map(move, value)


def place_and_dtype(device: Any, dtype: Any) -> tuple[Any, Any]:
    """Return the device and the dtype that ``to`` was given, the one or the other None.

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
            f"to(dtype=…) of a module or a tree casts its floating-point numbers, which {dtype} "
            'would cut to whole ones; take a floating dtype such as "bfloat16".'
        )


def _held(leaf: Any) -> Any:
    """Return ``leaf``, of which JAX would wrap what its narrower integers cannot hold.

    Raises:
        DataError: there are such numbers.
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
        raise ArgumentError(f'{type!r} is not exact: write "cuda" (NVIDIA) or "rocm" (AMD).')
    if name not in known:
        raise unknown_name("device type", name, known)
    if colon and not number.isdecimal():
        raise ArgumentError(f'After the colon of {type!r} comes a number, as in "{name}:0".')
    return DeviceType(name), int(number) if colon else None


def _type_alone(type: DeviceType | str) -> DeviceType:
    kind, index = _parse(type)
    if index is not None:
        raise ArgumentError(
            f'devices(type) takes a type such as "{kind}"; Device("{kind}:{index}") is one device.'
        )
    return kind


def _jax_devices(kind: DeviceType) -> list[Any]:
    """Return JAX's devices of a type, none if JAX has no such backend."""
    simulated()
    try:
        started = backends()
    except RuntimeError as error:
        tpu.raise_diagnosed(error)
        raise
    if kind.value not in started:
        return []
    return list(jax.devices(kind.value))


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
    """Say why JAX has no devices of a type whose hardware and packages are here."""
    error = backend_error(kind.value)
    if error:
        return f"It is attached, and JAX cannot start it: {error}."
    return f"It is attached, and JAX was started without it: JAX_PLATFORMS={_platforms()!r}."


def _platforms() -> str:
    return jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]  dynamic


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

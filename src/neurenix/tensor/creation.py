"""Create tensors from data and constants.

A tensor *is* a ``jax.Array``: ``Tensor`` creates one and is the type of all of them. Owns the
checks of shapes and ranges; ``conversion`` checks the data and chooses the dtype.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from neurenix import _dtypes as dtypes
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._dtypes import cast, expect_held
from neurenix.device import Device, DeviceType, to
from neurenix.hardware.allocation import allocated, out_of_memory_told
from neurenix.simulation import simulated
from neurenix.tensor.conversion import numbers_of

__all__ = [
    "Tensor",
    "arange",
    "array",
    "asarray",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "identity",
    "linspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]

DeviceLike = Device | DeviceType | str | Any
Shape = int | Sequence[int]

if TYPE_CHECKING:
    # For type checkers it is jax.Array itself, whose stub accepts any argument: a separate class
    # would differ from the type that functions and operators return.
    Tensor: TypeAlias = jax.Array
else:

    class _TensorType(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, jax.Array)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, jax.Array)

    class Tensor(metaclass=_TensorType):
        """A ``jax.Array``, built from data.

        Args:
            data: a number, nested lists, a NumPy array, a ``jax.Array``, or an object with
                ``__array__``, such as a PyTorch tensor; any shape.
            dtype: by default float32 for floats and int32 for integers; narrower dtypes are kept.
            device: a ``Device``, a name such as ``"tpu:0"``, a ``jax.Device`` or a ``Sharding``; by
                default the default device.

        Returns:
            A ``jax.Array``: ``data`` itself if it already has the dtype and the device.

        Raises:
            DataError: ragged lists, objects, text, or values that an integer dtype cannot hold
                (traced values cannot be checked, and wrap).
            DeviceNotFoundError: the device does not exist.

        Example:
            >>> import jax, neurenix as nx
            >>> t = nx.Tensor([[1, 2], [3, 4]])
            >>> t.dtype, isinstance(t, nx.Tensor), isinstance(t, jax.Array)
            (dtype('int32'), True, True)
        """

        def __new__(cls, data: Any, *, dtype: Any = None, device: DeviceLike = None) -> jax.Array:
            """Build the array; see the class."""
            return array(data, dtype, device=device)


def array(
    data: Any,
    dtype: Any = None,
    *,
    copy: bool | None = None,
    ndmin: int = 0,
    device: DeviceLike = None,
) -> jax.Array:
    """Return ``Tensor(data, dtype=dtype, device=device)``, under NumPy's and PyTorch's names.

    ``nx.asarray`` and ``nx.tensor`` are the same function: arrays are immutable, so a copy is
    rarely needed. ``copy=True`` makes one, for example to donate it to a compiled function.
    ``ndmin`` prepends axes of size 1 until there are as many axes.

    Raises:
        DataError: as for ``Tensor``.

    Example:
        >>> nx.array([1.0, 2.0])
        Array([1., 2.], dtype=float32)
        >>> nx.tensor([1, 2], dtype="bf16").dtype
        dtype(bfloat16)
    """
    simulated()
    wanted = None if dtype is None else dtypes.dtype(dtype)
    if isinstance(data, jax.Array):
        made: Any = data if wanted is None else cast(data, wanted, called="Tensor(data)")
    else:
        with out_of_memory_told(""):
            made = numbers_of(data, wanted)
    ndmin = _whole("array(ndmin=…)", ndmin)
    if device is None:
        made = allocated(lambda: jnp.asarray(made), made.shape, made.dtype)
    else:
        made = to(made, device)
    return jnp.array(made, copy=True, ndmin=ndmin) if copy or made.ndim < ndmin else made


asarray = tensor = array


def zeros(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array of zeros; float32 by default.

    Example:
        >>> nx.zeros((2, 3)).shape
        (2, 3)
    """
    return full(shape, 0, dtype_beside_shape(dtype, "float32"), device=device)


def ones(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array of ones; float32 by default.

    Example:
        >>> float(nx.ones((2, 3)).sum())
        6.0
    """
    return full(shape, 1, dtype_beside_shape(dtype, "float32"), device=device)


def empty(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array with unspecified contents. JAX cannot leave memory unset: they are zeros."""
    return zeros(shape, dtype, device=device)


def full(
    shape: Shape, fill_value: Any, dtype: Any = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return an array filled with ``fill_value``; the default dtype is that of ``Tensor``.

    Example:
        >>> nx.full((2,), 7)
        Array([7, 7], dtype=int32)
    """
    filling, sizes = Tensor(fill_value, dtype=dtype_beside_shape(dtype, None)), sizes_of(shape)
    return _made(
        lambda: jnp.full(sizes, filling, dtype=filling.dtype), sizes, filling.dtype, device
    )


def zeros_like(
    array: Any, dtype: Any = None, shape: Shape | None = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return zeros in the dtype and shape of ``array``, unless others are given."""
    return _made_like(jnp.zeros_like, array, dtype, shape, device)


def ones_like(
    array: Any, dtype: Any = None, shape: Shape | None = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return ones in the dtype and shape of ``array``, unless others are given."""
    return _made_like(jnp.ones_like, array, dtype, shape, device)


def empty_like(
    array: Any, dtype: Any = None, shape: Shape | None = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return an array like ``array`` with unspecified contents: zeros."""
    return zeros_like(array, dtype, shape, device=device)


def full_like(
    array: Any,
    fill_value: Any,
    dtype: Any = None,
    shape: Shape | None = None,
    *,
    device: DeviceLike = None,
) -> jax.Array:
    """Return ``fill_value`` in the dtype and shape of ``array``, unless others are given.

    Raises:
        DataError: an integer dtype cannot hold ``fill_value``.

    Example:
        >>> nx.full_like(nx.ones(2), 7, shape=(3,))
        Array([7., 7., 7.], dtype=float32)
    """
    array = _as_array(array)
    filling = Tensor(fill_value, dtype=array.dtype if dtype is None else dtype)

    def make(array: Any, dtype: Any, shape: Any) -> jax.Array:
        return jnp.full_like(array, filling, dtype, shape)

    return _made_like(make, array, filling.dtype, shape, device)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
) -> jax.Array:
    """Return numbers from ``start`` up to but excluding ``stop``; ``arange(n)`` starts at 0.

    Raises:
        ArgumentError: ``step`` is 0.
        ArgumentTypeError: an argument is not a number.
        DataError: the dtype is an integer dtype, int32 by default, and cannot hold the numbers.

    Example:
        >>> nx.arange(3)
        Array([0, 1, 2], dtype=int32)
    """
    simulated()
    kind = _optional(dtype)
    given = [number for number in (start, stop, step) if number is not None]
    if any(np.ndim(number) or isinstance(number, str) for number in given):
        raise ArgumentTypeError(f"arange(start, stop, step) takes numbers; got {given!r:.80}.")
    if all(isinstance(number, int | float | np.number) for number in given):
        if step == 0:
            raise ArgumentError("arange(step=…) must not be 0.")
        ends = (0, start) if stop is None else (start, stop)
        target = jnp.result_type(*map(_kind_of, given)) if kind is None else kind
        _expect_arange_held(*ends, 1 if step is None else step, target)
    return placed(jnp.arange(start, stop, step, dtype=kind), device)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    dtype: Any = None,
    *,
    endpoint: bool = True,
    axis: int = 0,
    device: DeviceLike = None,
) -> jax.Array:
    """Return ``num`` evenly spaced numbers from ``start`` to ``stop``, both included.

    With ``endpoint=False``, ``stop`` is excluded. If the ends are arrays, the numbers run along
    ``axis``.

    Raises:
        ArgumentError: ``num`` is not an integer of at least 0, or ``axis`` does not exist.

    Example:
        >>> nx.linspace(0, 1, 3)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    simulated()
    if isinstance(num, bool) or not isinstance(num, int | np.integer) or num < 0:
        raise ArgumentError(f"linspace(num=…) must be an integer of at least 0; got {num!r}.")
    axes, axis = max(np.ndim(start), np.ndim(stop)) + 1, _whole("linspace(axis=…)", axis)
    if not -axes <= axis < axes:
        raise ArgumentError(f"linspace(axis={axis}) is not an axis of a result with {axes} axes.")
    kind, sizes = _optional(dtype), (num, *np.broadcast_shapes(np.shape(start), np.shape(stop)))

    def make() -> jax.Array:
        return jnp.linspace(start, stop, num, endpoint, dtype=kind, axis=axis)

    return _made(make, sizes, kind or "float32", device)


def eye(
    rows: int,
    columns: int | None = None,
    dtype: Any = None,
    *,
    k: int = 0,
    device: DeviceLike = None,
) -> jax.Array:
    """Return ones on the ``k``-th diagonal and zeros elsewhere; float32 by default.

    Example:
        >>> nx.eye(2)
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    simulated()
    k = _whole("eye(k=…)", k)
    sizes, kind = (
        sizes_of((rows, rows if columns is None else columns)),
        dtypes.dtype(dtype or float),
    )
    return _made(lambda: jnp.eye(sizes[0], sizes[1], k, dtype=kind), sizes, kind, device)


def identity(n: int, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return ``eye(n)``."""
    return eye(n, dtype=dtype, device=device)


def sizes_of(shape: Any) -> tuple[int, ...]:
    """Return the sizes of a shape: an integer, a sequence of them, or a tuple of one sequence.

    Raises:
        ShapeError: a size is not an integer of at least 0.
    """
    sizes = tuple(shape) if _is_row(shape) else (shape,)
    if len(sizes) == 1 and _is_row(sizes[0]):
        sizes = tuple(sizes[0])
    try:
        checked = tuple(map(operator.index, sizes))
    except TypeError:
        checked = (-1,)
    if min(checked, default=0) < 0 or any(isinstance(size, bool) for size in sizes):
        raise ShapeError(f"The sizes of a shape must be integers of at least 0; got {shape!r}.")
    return checked


def _whole(what: str, number: Any) -> int:
    try:
        return operator.index(number)
    except TypeError as error:
        raise ArgumentTypeError(f"{what} must be an integer; got {number!r}.") from error


def _is_row(shape: Any) -> bool:
    """Return whether ``shape`` is a sequence of sizes; a 0-d array is one size."""
    return isinstance(shape, Sequence) or (isinstance(shape, np.ndarray) and shape.ndim > 0)


def _made(
    make: Callable[[], jax.Array], sizes: Sequence[int], dtype: Any, device: DeviceLike
) -> jax.Array:
    return placed(allocated(make, sizes, dtype), device)


def _made_like(
    make: Callable[..., jax.Array], array: Any, dtype: Any, shape: Any, device: DeviceLike
) -> jax.Array:
    array, kind = _as_array(array), _optional(dtype)
    sizes = None if shape is None else sizes_of(shape)
    return _made(
        lambda: make(array, kind, sizes),
        array.shape if sizes is None else sizes,
        array.dtype if kind is None else kind,
        device,
    )


def placed(array: jax.Array, device: DeviceLike) -> jax.Array:
    return array if device is None else to(array, device)


def _optional(dtype: Any) -> Any:
    return None if dtype is None else dtypes.dtype(dtype)


def dtype_beside_shape(dtype: Any, default: Any) -> Any:
    """Return ``dtype``, or ``default`` if None; an integer, meant as a second size, raises."""
    if isinstance(dtype, int | np.integer):
        raise ArgumentTypeError(
            f"dtype is {dtype}, a number. A shape is one tuple: zeros((2, 3)), not zeros(2, 3)."
        )
    return default if dtype is None else dtype


def _as_array(value: Any) -> Any:
    return value if hasattr(value, "shape") and hasattr(value, "dtype") else Tensor(value)


def _kind_of(number: Any) -> Any:
    numpy = isinstance(number, np.generic)
    return jax.dtypes.canonicalize_dtype(number.dtype) if numpy else type(number)


def _expect_arange_held(start: Any, stop: Any, step: Any, target: np.dtype) -> None:
    start, stop, step = (n.item() if isinstance(n, np.number) else n for n in (start, stop, step))
    whole = all(isinstance(n, int) for n in (start, stop, step))
    if not step or not (whole or math.isfinite((stop - start) / step)):
        return  # JAX raises its own error
    count = -((start - stop) // step) if whole else math.ceil((stop - start) / step)
    if count > 0:
        expect_held("arange", start, start + (count - 1) * step, target)

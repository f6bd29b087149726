"""Making tensors: from data, of constants, of random numbers.

A tensor *is* a ``jax.Array``: ``Tensor`` makes one, and is the type of every one. Owns the checks
of shapes, ranges and keys. What data may be, and of which dtype it becomes, is ``given``'s.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix import _cpu, random
from neurenix import _dtypes as dtypes
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._dtypes import cast, expect_held
from neurenix.device import Device, DeviceType, to
from neurenix.simulation import simulated
from neurenix.tensor.given import numbers_of

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
    "rand",
    "randint",
    "randn",
    "zeros",
    "zeros_like",
]

DeviceLike = Device | DeviceType | str | Any
Shape = int | Sequence[int]

if TYPE_CHECKING:
    # For checkers it is jax.Array itself, whose stub takes any argument: a class of its own would
    # be another type than what every function and operator returns.
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
            data: numbers, nested lists of them, a NumPy array, a ``jax.Array``, or anything with
                ``__array__``, such as a PyTorch tensor; any shape.
            dtype: by default float32 for floats and int32 for integers; narrower ones are kept.
            device: a ``Device``, a name such as ``"tpu:0"``, a ``jax.Device`` or a ``Sharding``; by
                default the default device.

        Returns:
            A ``jax.Array``; one that has the dtype and the device already is returned as it is.

        Raises:
            DataError: ragged lists, objects, text, or numbers that an integer dtype cannot hold
                (of an array that is being traced they are not known, and wrap).
            DeviceNotFoundError: the device is not here.

        Example:
            >>> import jax, neurenix as nx
            >>> t = nx.Tensor([[1, 2], [3, 4]])
            >>> t.dtype, isinstance(t, nx.Tensor), isinstance(t, jax.Array)
            (dtype('int32'), True, True)
        """

        def __new__(cls, data: Any, *, dtype: Any = None, device: DeviceLike = None) -> jax.Array:
            """Build the array; see the class."""
            return array(data, dtype, device=device)


def array(data: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return ``Tensor(data, dtype=dtype, device=device)``, under NumPy's and PyTorch's names.

    ``nx.asarray`` and ``nx.tensor`` are the same: an array cannot be changed, so that a copy of one
    is of no use.

    Raises:
        DataError: as ``Tensor`` does.

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
        made = numbers_of(data, wanted)
    if device is not None:
        return to(made, device)
    return jnp.asarray(made)


asarray = tensor = array


def zeros(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array of zeros, float32 unless ``dtype`` says otherwise.

    Example:
        >>> nx.zeros((2, 3)).shape
        (2, 3)
    """
    return full(shape, 0, _dtype_beside_shape(dtype, "float32"), device=device)


def ones(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array of ones, float32 unless ``dtype`` says otherwise.

    Example:
        >>> float(nx.ones((2, 3)).sum())
        6.0
    """
    return full(shape, 1, _dtype_beside_shape(dtype, "float32"), device=device)


def empty(shape: Shape, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array whose contents do not matter: zeros, as JAX leaves no memory as it was."""
    return zeros(shape, dtype, device=device)


def full(shape: Shape, value: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array that is ``value`` everywhere; the dtype is that of ``Tensor(value)``.

    Example:
        >>> nx.full((2,), 7)
        Array([7, 7], dtype=int32)
    """
    filling = Tensor(value, dtype=_dtype_beside_shape(dtype, None))
    return _placed(jnp.full(_sizes(shape), filling, dtype=filling.dtype), device)


def zeros_like(array: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return zeros of the shape and dtype of ``array``."""
    return _placed(jnp.zeros_like(_as_array(array), dtype=_optional(dtype)), device)


def ones_like(array: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return ones of the shape and dtype of ``array``."""
    return _placed(jnp.ones_like(_as_array(array), dtype=_optional(dtype)), device)


def empty_like(array: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return an array of the shape and dtype of ``array`` whose contents do not matter: zeros."""
    return zeros_like(array, dtype, device=device)


def full_like(array: Any, value: Any, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return ``value`` everywhere, in the shape and dtype of ``array``.

    Raises:
        DataError: the dtype is of integers and cannot hold ``value``.
    """
    array = _as_array(array)
    filling = Tensor(value, dtype=array.dtype if dtype is None else dtype)
    return _placed(jnp.full_like(array, filling, dtype=filling.dtype), device)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
) -> jax.Array:
    """Return numbers from ``start`` up to, without, ``stop``; ``arange(n)`` starts at 0.

    Raises:
        ArgumentError: ``step`` is 0.
        ArgumentTypeError: what is given is no number.
        DataError: the dtype is of integers, int32 by default, and cannot hold them.

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
            raise ArgumentError("arange(step=…) is a number other than 0.")
        ends = (0, start) if stop is None else (start, stop)
        target = jnp.result_type(*map(_kind_of, given)) if kind is None else kind
        _expect_arange_held(*ends, 1 if step is None else step, target)
    return _placed(jnp.arange(start, stop, step, dtype=kind), device)


def linspace(
    start: Any, stop: Any, num: int = 50, dtype: Any = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return ``num`` numbers, evenly spaced from ``start`` to ``stop``, both included.

    Raises:
        ArgumentError: ``num`` is no whole number from 0.

    Example:
        >>> nx.linspace(0, 1, 3)
        Array([0. , 0.5, 1. ], dtype=float32)
    """
    simulated()
    if isinstance(num, bool) or not isinstance(num, int | np.integer) or num < 0:
        raise ArgumentError(f"linspace(num=…) is a whole number from 0; got {num!r}.")
    return _placed(jnp.linspace(start, stop, num, dtype=_optional(dtype)), device)


def eye(
    rows: int, columns: int | None = None, dtype: Any = None, *, device: DeviceLike = None
) -> jax.Array:
    """Return ones on the diagonal and zeros elsewhere, float32 unless ``dtype`` says otherwise.

    Example:
        >>> nx.eye(2)
        Array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    simulated()
    rows, columns = _sizes((rows, rows if columns is None else columns))
    return _placed(jnp.eye(rows, columns, dtype=dtypes.dtype(dtype or "float32")), device)


def identity(n: int, dtype: Any = None, *, device: DeviceLike = None) -> jax.Array:
    """Return ``eye(n)``."""
    return eye(n, dtype=dtype, device=device)


def randn(
    *shape: int | Sequence[int],
    dtype: Any = None,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return numbers of the standard normal distribution.

    Without ``key`` they are of the process's stream. In a compiled function, so in a module that
    ``fit``, ``predict`` or ``nx.jit`` runs, that stream is asked once, while the function is
    compiled: every batch gets the same numbers, and a ``neurenix.random.FrozenDrawWarning`` says
    so. There keep an ``nnx.Rngs`` in the module and draw with its keys, as the example does.
    (``evaluate`` and ``predict`` leave a module's state as it was, that stream with it: there the
    keys, and the numbers, are those of the first batch for every batch.)

    Args:
        shape: sizes, or one sequence of them.
        dtype: of floats; float32 by default.
        device: where to put them.
        key: a key of ``jax.random.key`` or of an ``nnx.Rngs``; one of the process's by default.

    Raises:
        ArgumentError: the dtype is none of floats.
        ArgumentTypeError: ``key`` is no key.

    Example:
        >>> nx.randn(2, 3).shape, nx.randn((2, 3)).shape
        ((2, 3), (2, 3))
        >>> import neurenix as nx
        >>> from flax import nnx
        >>> class Noise(nx.nn.Module):
        ...     def __init__(self):
        ...         self.rngs = nnx.Rngs(nx.random.next_key())
        ...     def __call__(self, x):
        ...         return x + nx.randn(*x.shape, key=self.rngs())
        >>> noise, x = nx.jit(Noise()), nx.zeros((2, 3))
        >>> bool((noise(x) == noise(x)).any())
        False
    """
    kind, key = _inexact("randn", dtype, jnp.inexact), _key("randn", key)
    numbers = _cpu.drawn(lambda sizes: jax.random.normal(key, sizes, kind), key, _sizes(shape))
    return _placed(numbers, device)


def rand(
    *shape: int | Sequence[int],
    dtype: Any = None,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return numbers evenly distributed over [0, 1).

    Without ``key`` they are of the process's stream, and in a compiled function the same at every
    call; see :func:`randn`, also for the arguments.

    Raises:
        ArgumentError: the dtype is none of floats.
        ArgumentTypeError: ``key`` is no key.

    Example:
        >>> import jax
        >>> bool((nx.rand(100) < 1).all())
        True
        >>> jax.jit(lambda key: nx.rand(2, 3, key=key))(nx.random.next_key()).shape
        (2, 3)
    """
    kind, key = _inexact("rand", dtype, jnp.floating), _key("rand", key)
    numbers = _cpu.drawn(lambda sizes: jax.random.uniform(key, sizes, kind), key, _sizes(shape))
    return _placed(numbers, device)


def randint(
    low: int,
    high: int,
    shape: Shape,
    dtype: Any = None,
    *,
    device: DeviceLike = None,
    key: jax.Array | None = None,
) -> jax.Array:
    """Return integers from ``low`` up to, without, ``high``.

    Without ``key`` they are of the process's stream, and in a compiled function the same at every
    call; see :func:`randn`.

    Raises:
        ArgumentTypeError: ``low`` or ``high`` is no whole number, or ``key`` is no key.
        ArgumentError: no integer lies between, or the dtype is none of integers.
        DataError: the dtype cannot hold the integers; 32 bits must hold ``high``, too.

    Example:
        >>> import jax
        >>> int(nx.randint(3, 4, (1,))[0])
        3
        >>> jax.jit(lambda key: nx.randint(0, 9, (2,), key=key))(nx.random.next_key()).shape
        (2,)
    """
    kind = dtypes.dtype(_dtype_beside_shape(dtype, "int32"))
    if not jnp.issubdtype(kind, jnp.integer):
        raise ArgumentError(f"randint(dtype=…) is a type of integers, got {kind}.")
    try:
        low, high = operator.index(low), operator.index(high)
    except TypeError as error:
        raise ArgumentTypeError(
            f"randint(low, high) takes whole numbers, got {low!r} and {high!r}."
        ) from error
    if low >= high:
        raise ArgumentError(f"randint(low, high) needs low < high, got {low} and {high}.")
    bounds = kind if kind.itemsize >= 4 else np.dtype("int32")  # 256, of uint8, fits no uint8
    expect_held("randint", low, high - 1, kind)
    expect_held("randint(high)", low, high, bounds)
    minimum, maximum = np.array([low, high], bounds)
    key = _key("randint", key)

    def sample(sizes: tuple[int, ...]) -> jax.Array:
        return jax.random.randint(key, sizes, minimum, maximum, kind)

    return _placed(_cpu.drawn(sample, key, _sizes(shape)), device)


def _key(caller: str, key: Any) -> jax.Array:
    """Return the key to draw with: the one given, or the next of the process.

    Raises:
        ArgumentTypeError: what was given is no key.
    """
    if key is None:
        drawn = random.next_key()
        # Traced construction (``nnx.eval_shape``, a compiled initialiser) draws once on purpose,
        # and cannot be told from a step that is being compiled: so this is no error.
        if isinstance(drawn, Tracer):
            warnings.warn(
                f"{caller}() without a key inside a compiled function draws once, while it is "
                "compiled: every call, so every batch, gets the same numbers. Keep an nnx.Rngs in "
                "the module, as nn.Dropout does, and draw with its keys: self.rngs = "
                f"nnx.Rngs(nx.random.next_key()), and in __call__ nx.{caller}(…, "
                "key=self.rngs()). Where once is meant, pass key=nx.random.next_key().",
                random.FrozenDrawWarning,
                stacklevel=3,
            )
        return drawn
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == 1
    if not raw and not (typed and key.ndim == 0):
        hint = " Call it: key=rngs()." if callable(key) else ""
        raise ArgumentTypeError(
            f"{caller}(key=…) takes one key, such as jax.random.key(0) or that of an nnx.Rngs, "
            f"rngs(); got {key!r:.80}.{hint}"
        )
    return key


def _sizes(shape: Any) -> tuple[int, ...]:
    """Return the sizes of a shape: a whole number, a sequence of them, or a tuple of a sequence.

    Raises:
        ShapeError: a size is no whole number from 0.
    """
    sizes = tuple(shape) if _is_row(shape) else (shape,)
    if len(sizes) == 1 and _is_row(sizes[0]):
        sizes = tuple(sizes[0])
    try:
        checked = tuple(map(operator.index, sizes))
    except TypeError:
        checked = (-1,)
    if min(checked, default=0) < 0 or any(isinstance(size, bool) for size in sizes):
        raise ShapeError(f"The sizes of a shape are whole numbers from 0; got {shape!r}.")
    return checked


def _is_row(shape: Any) -> bool:
    """Tell a sequence of sizes from one size, which may be an array without axes."""
    return isinstance(shape, Sequence) or (isinstance(shape, np.ndarray) and shape.ndim > 0)


def _placed(array: jax.Array, device: DeviceLike) -> jax.Array:
    return array if device is None else to(array, device)


def _optional(dtype: Any) -> Any:
    return None if dtype is None else dtypes.dtype(dtype)


def _inexact(caller: str, dtype: Any, family: Any) -> np.dtype:
    kind = dtypes.dtype(dtype or "float32")
    if not jnp.issubdtype(kind, family):
        raise ArgumentError(f"{caller}(dtype=…) is a type of floats, got {kind}.")
    return kind


def _dtype_beside_shape(dtype: Any, default: Any) -> Any:
    """Return the dtype or the default; the second of several sizes would be taken for a dtype."""
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
        return  # JAX says what is wrong
    count = -((start - stop) // step) if whole else math.ceil((stop - start) / step)
    if count > 0:
        expect_held("arange", start, start + (count - 1) * step, target)

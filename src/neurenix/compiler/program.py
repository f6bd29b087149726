"""A program as data: a jittable function traced for a mesh of devices that are not here.

Owns tracing on an abstract mesh, serialisation, the list of leaves with roles and partitions, and
the errors of functions that cannot be traced. It does not own the compiler (``compile``).
"""

from __future__ import annotations

import math
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, PartitionSpec

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._nnx import TraceContextError
from neurenix.compiler import plain_tree
from neurenix.compiler import traits as traits_module
from neurenix.compiler.callbacks import has_callbacks, without_callbacks
from neurenix.compiler.captured import Captured, captured
from neurenix.compiler.fingerprint import fingerprint
from neurenix.compiler.flops import model_flops
from neurenix.compiler.source import is_library
from neurenix.compiler.traits import Traits


class PartitionedSpec(jax.ShapeDtypeStruct):
    """A ``jax.ShapeDtypeStruct`` that says how it is divided over a mesh yet unknown."""

    __slots__ = ("partition",)

    def __init__(self, shape: tuple[int, ...], dtype: Any, partition: PartitionSpec) -> None:
        super().__init__(shape, dtype)
        self.partition = partition


def spec(
    shape: Sequence[int],
    dtype: Any = "float32",
    *,
    partition: Sequence[str | None] | None = None,
) -> jax.ShapeDtypeStruct:
    """Describe an array by shape and dtype, without making it.

    Args:
        shape: global sizes.
        dtype: name or dtype of the elements.
        partition: for each leading axis the mesh axis that divides it, or ``None``; left out, the
            array is whole on every device. Preflight's mesh has one axis, ``"data"``, unless it is
            told otherwise.

    Raises:
        ShapeError: a size is negative or not an integer.
        ArgumentTypeError: the dtype is unknown.

    Example:
        >>> spec((4096, 128), "bfloat16")
        ShapeDtypeStruct(shape=(4096, 128), dtype=bfloat16)
    """
    sizes = tuple(shape)
    if not all(isinstance(size, (int, np.integer)) and size >= 0 for size in sizes):
        raise ShapeError(f"A shape is a sequence of sizes of 0 or more; got {sizes!r}.")
    try:
        resolved = jax.numpy.dtype(dtype)
    except TypeError as error:
        raise ArgumentTypeError(f"There is no dtype {dtype!r}.") from error
    if partition is None:
        return jax.ShapeDtypeStruct(sizes, resolved)
    return PartitionedSpec(sizes, resolved, PartitionSpec(*partition))


def abstract_mesh(axes: Mapping[str, int], device_kind: str = "") -> AbstractMesh:
    """Return a mesh of devices that are only counted, or TPUs of a known kind.

    Example:
        >>> abstract_mesh({"data": 8}, "TPU v3").abstract_device.device_kind
        'TPU v3'
    """
    device = AbstractDevice(device_kind, None, "tpu") if device_kind else None
    types = (AxisType.Auto,) * len(axes)
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=types, abstract_device=device)


@dataclass(frozen=True)
class Leaf:
    """One array among the arguments: its path, role, global shape and what one device holds.

    ``device_shape`` of random keys is that of their data, 32-bit numbers.
    """

    path: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    partition: tuple[Any, ...]
    device_shape: tuple[int, ...]

    @property
    def device_bytes(self) -> int:
        """Bytes of one device's share, without padding."""
        return math.ceil(math.prod(self.device_shape) * _bits(self.dtype) / 8)


def _bits(dtype: str) -> int:
    """Return the bits of a number; NumPy counts a whole byte for those of less.

    Example:
        >>> _bits("int4"), _bits("bfloat16"), _bits("key<fry>")
        (4, 16, 32)
    """
    if dtype.startswith("key<"):
        return 32
    narrow = re.match(r"u?int([24])$|float(4)", dtype)
    return int(narrow[1] or narrow[2]) if narrow else jax.numpy.dtype(dtype).itemsize * 8


@dataclass(frozen=True)
class Program:
    """A serialised program and what is known of it before it is compiled.

    Attributes:
        name: of the function.
        serialized: ``jax.export`` bytes, with the user's source lines inside.
        fingerprint: the same for the same program, wherever it is asked about from.
        axes: mesh axes and their sizes.
        leaves: the arguments that the program uses, in the order of the compiled parameters.
        donated: indices into ``leaves`` of the arguments whose memory outputs take over.
        model_flops: floating-point operations of all devices together for one call, from the
            matrix products and convolutions of the program as written; recomputation excluded.
        output_bytes: global bytes of the outputs.
        traits: what the program as written shows and the compiled one does not.
        platform: that it was lowered for.
        unused: paths of the arguments that the program does not look at.
        output_tree: of its result, as ``plain_tree`` describes one.
        captured: arrays that it holds without having been given them.
    """

    name: str
    serialized: bytes
    fingerprint: str
    axes: dict[str, int]
    leaves: tuple[Leaf, ...]
    donated: tuple[int, ...]
    model_flops: float
    output_bytes: int
    traits: Traits = field(default_factory=Traits)
    platform: str = "tpu"
    unused: tuple[str, ...] = ()
    output_tree: Any = None
    captured: tuple[Captured, ...] = ()

    @property
    def constant_bytes(self) -> int:
        """Bytes of the arrays that it holds without having been given them."""
        return sum(array.num_bytes for array in self.captured)

    @property
    def num_devices(self) -> int:
        """Devices that the program is for."""
        return math.prod(self.axes.values())


@dataclass(frozen=True)
class TraceOptions:
    """How a function is traced.

    ``donate_argnums`` are positions of whole arguments; ``leaf_roles`` names a role for each leaf
    of all arguments in flattening order, and may be empty. ``platform`` and ``device_kind`` are
    JAX's names, the second for what differs between generations, such as attention kernels.
    ``numbers`` are parameters that were given Python numbers, for the error that their values are
    needed.
    """

    donate_argnums: tuple[int, ...] = ()
    leaf_roles: tuple[str, ...] = ()
    name: str = ""
    platform: str = "tpu"
    device_kind: str = ""
    numbers: tuple[str, ...] = ()


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    *,
    axes: Mapping[str, int],
    options: TraceOptions | None = None,
) -> Program:
    """Trace ``function(*args)`` for a mesh and serialise it.

    Args:
        function: pure and jittable; a function that is already jitted will do.
        args: trees of arrays or ``spec``s. A ``NamedSharding`` on a leaf keeps its partition;
            its mesh axes must be among ``axes``.
        axes: mesh axis names and sizes; their product is the number of devices.
        options: donation, roles and a name.

    Raises:
        ShapeError: an array cannot be divided as its partition says.
        ArgumentTypeError: an argument is neither an array nor a ``spec``.
        ArgumentError: the function cannot be traced; the message names the line.

    Example:
        >>> import jax.numpy as jnp
        >>> p = trace(jnp.dot, (spec((8, 4)), spec((4, 2))), axes={"data": 1})
        >>> p.model_flops
        128.0
    """
    options = options or TraceOptions()
    mesh = abstract_mesh(axes, options.device_kind)
    paths, tree = jax.tree_util.tree_flatten_with_path(tuple(args))
    placed = [_place(leaf, _path(path), mesh) for path, leaf in paths]
    for number in options.donate_argnums:
        if not 0 <= number < len(args):
            raise ArgumentError(
                f"donate_argnums names argument {number}, and there are {len(args)} arguments."
            )
    donated = _donated(args, options.donate_argnums) or _donated_already(function, placed, tree)

    out_tree: list[Any] = []

    def flat(*leaves: Any) -> list[Any]:
        out = function(*jax.tree.unflatten(tree, leaves))
        out_tree[:] = [jax.tree.structure(out)]
        return jax.tree.leaves(out)

    name = options.name or getattr(function, "__name__", type(function).__name__)
    flat.__name__ = name if name.isidentifier() else "program"
    jitted = jax.jit(flat, donate_argnums=donated)
    with jax.sharding.use_abstract_mesh(mesh):  # for partitions that name its axes alone
        exported, jaxpr = _export(jitted, placed, name, options)
    if not jaxpr.out_avals:
        raise ArgumentError(f"{name} returns no array, so there is nothing to compile.")
    out = jax.tree.unflatten(out_tree[0], jaxpr.out_avals)
    carried = traits_module.recompiles(args, out, donate_argnums=options.donate_argnums)
    kept = exported.module_kept_var_idx
    roles = options.leaf_roles or ("argument",) * len(placed)
    leaves = tuple(_leaf(_path(paths[i][0]), roles[i], placed[i], mesh) for i in kept)
    return Program(
        name=name,
        serialized=bytes(exported.serialize()),
        fingerprint=fingerprint(exported.mlir_module()),
        axes=dict(axes),
        leaves=leaves,
        donated=tuple(kept.index(i) for i in donated if i in kept),
        model_flops=model_flops(jaxpr),
        output_bytes=sum(a.size * a.dtype.itemsize for a in exported.out_avals),
        platform=options.platform,
        unused=tuple(_path(paths[i][0]) for i in range(len(paths)) if i not in kept),
        output_tree=plain_tree.describe(out),
        captured=captured(jaxpr),
        traits=replace(traits_module.read(jaxpr), recompiles=carried),
    )


def _export(
    jitted: Any, placed: list[jax.ShapeDtypeStruct], name: str, options: TraceOptions
) -> tuple[export.Exported, Any]:
    """Return the program and its jaxpr; calls of the host are left out of the first."""
    pallas = export.DisabledSafetyCheck.custom_call("tpu_custom_call")
    try:
        with _deep_locations():
            traced = jitted.trace(*placed)
            if has_callbacks(traced.jaxpr):
                plain = without_callbacks(traced.jaxpr)
                donated = traced.donate_argnums
                plain.__name__ = name if name.isidentifier() else "program"
                jitted = jax.jit(plain, donate_argnums=donated)
            exported = export.export(
                jitted, platforms=[options.platform], disabled_checks=[pallas]
            )(*placed)
    except _CONCRETE as error:
        raise ArgumentError(
            f"{name} cannot be compiled: {_where(error)} needs the value of an array, and while "
            "a program is traced there are only shapes. Use jax.numpy instead of NumPy, jnp.where "
            "or jax.lax.cond instead of if, and keep float(), int() and print outside."
            + _fixing(name, options.numbers)
        ) from error
    except TraceContextError as error:
        raise ArgumentError(
            f"{name} changes a module that it was not given, at {_where(error)}: BatchNorm and "
            "Dropout, for example, change theirs. Give it the module as an argument: "
            "nx.preflight(lambda model, x: model(x), model, x, on=…), or the module alone: "
            f"nx.preflight(model, x, on=…). It said: {_first_line(error)}"
        ) from error
    except (TypeError, ValueError) as error:
        first = _first_line(error)
        told = f" ({_where(error)})"
        if _LACKING.search(first):
            told = f". What goes by name is given with functools.partial({name}, …)."
        raise ArgumentError(f"{name} cannot be traced with these shapes: {first}{told}") from error
    return exported, traced.jaxpr


_LACKING = re.compile(r"missing \d+ required (keyword-only|positional) argument")


def _fixing(name: str, numbers: tuple[str, ...]) -> str:
    """Say how Python numbers are made part of the program, if any are arguments."""
    if not numbers:
        return ""
    named = ", ".join(f"{number}=…" for number in numbers)
    return (
        f" Or is it the number {' or '.join(numbers)}? Python numbers are traced too; fix one with "
        f'functools.partial({name}, {named}) or jax.jit({name}, static_argnames="{numbers[0]}").'
    )


@contextmanager
def _deep_locations() -> Iterator[None]:
    """Keep enough of each operation's call stack to reach from a layer to the user's own line."""
    option = "jax_traceback_in_locations_limit"
    before = getattr(jax.config, option)
    jax.config.update(option, _FRAMES)
    try:
        yield
    finally:
        jax.config.update(option, before)


_FRAMES = 40
_CONCRETE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.TracerBoolConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not is_library(f.filename)]
    if not users:
        return "a line inside a library"
    return f"{users[-1].filename}:{users[-1].lineno} ({(users[-1].line or '').strip()})"


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def _donated(args: Sequence[Any], argnums: tuple[int, ...]) -> tuple[int, ...]:
    indices: list[int] = []
    position = 0
    for number, argument in enumerate(args):
        count = len(jax.tree.leaves(argument))
        if number in argnums:
            indices.extend(range(position, position + count))
        position += count
    return tuple(indices)


def _donated_already(function: Any, placed: Sequence[Any], tree: Any) -> tuple[int, ...]:
    """Return which leaves a function donates that ``jax.jit`` or ``nnx.jit`` compiled so."""
    if not hasattr(function, "trace") or not hasattr(function, "lower"):
        return ()
    try:
        traced = function.trace(*jax.tree.unflatten(tree, placed))
    except (TypeError, ValueError, jax.errors.JAXTypeError, TraceContextError):
        return ()  # it is told where the whole is traced
    traced = getattr(traced, "traced", traced)  # nnx.jit's stands around jax.jit's
    infos = jax.tree.leaves(traced.args_info, is_leaf=lambda info: hasattr(info, "donated"))
    return tuple(index for index, info in enumerate(infos) if info.donated)


def _path(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _place(leaf: Any, path: str, mesh: AbstractMesh) -> jax.ShapeDtypeStruct:
    if isinstance(leaf, (bool, int, float, complex)):
        leaf = jax.typeof(leaf)
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise ArgumentTypeError(
            f"Argument {path} is a {type(leaf).__name__}; arrays and nx.spec(shape, dtype) are "
            "what can be compiled for."
        )
    sharding = getattr(leaf, "sharding", None)
    if isinstance(leaf, PartitionedSpec):
        partition = leaf.partition
    else:
        partition = sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
    _check_divides(tuple(leaf.shape), partition, path, dict(mesh.shape))
    key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.ShapeDtypeStruct(
        tuple(leaf.shape),
        leaf.dtype if key else jax.dtypes.canonicalize_dtype(leaf.dtype),
        sharding=NamedSharding(mesh, partition),
        weak_type=getattr(leaf, "weak_type", False),
    )


def _check_divides(
    shape: tuple[int, ...], partition: PartitionSpec, path: str, axes: dict[str, int]
) -> None:
    if len(partition) > len(shape):
        raise ShapeError(
            f"Argument {path} has shape {shape}, and a partition for {len(partition)} axes."
        )
    for size, names in zip(shape, partition, strict=False):
        for name in _names(names):
            if name not in axes:
                raise ShapeError(
                    f"Argument {path} is divided over the mesh axis {name!r}; the mesh has "
                    f"{', '.join(f'{k}={v}' for k, v in axes.items())}."
                )
        parts = math.prod(axes[name] for name in _names(names))
        if size % parts:
            near = max(parts, size - size % parts)
            raise ShapeError(
                f"Argument {path} of shape {shape} cannot be divided: {size} over {parts} devices "
                f"leaves {size % parts}. Use a multiple of {parts}, such as {near}."
            )


def _names(entry: Any) -> tuple[str, ...]:
    if entry is None:
        return ()
    return entry if isinstance(entry, tuple) else (entry,)


def _leaf(path: str, role: str, placed: jax.ShapeDtypeStruct, mesh: AbstractMesh) -> Leaf:
    partition = placed.sharding.spec
    device_shape = list(placed.shape)
    if jax.numpy.issubdtype(placed.dtype, jax.dtypes.prng_key):
        device_shape = list(jax.eval_shape(jax.random.key_data, placed).shape)
    for axis, names in enumerate(partition):
        device_shape[axis] //= math.prod(mesh.shape[name] for name in _names(names))
    return Leaf(
        path=path,
        role=role,
        shape=tuple(placed.shape),
        dtype=str(placed.dtype),
        partition=tuple(partition),
        device_shape=tuple(device_shape),
    )

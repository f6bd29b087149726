"""What a program says of itself before it is compiled: products, callbacks, kernels, arguments.

Owns what is read from the jaxpr and the comparison of arguments with results. The optimised
program no longer shows these: a layer written twelve times is fused twelve ways, a callback is a
transfer among others, and a Python number is an array. It judges nothing (``findings``).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.source_files import SourceLine
from neurenix._jaxpr import Site, frames, source_line, subjaxprs, walk
from neurenix.compiler.flops import model_flops, ragged_sizes
from neurenix.compiler.leading_axis import Uses, uses_of_inputs

CALLBACKS = frozenset({"debug_callback", "debug_print", "io_callback", "pure_callback"})
"""Primitives of ``jax.debug.print``, ``jax.debug.callback``, ``io_callback``, ``pure_callback``."""

_DIGITS = re.compile(r"\d+")
_TRANSFORM = re.compile(r"\w+\(|\)")


@dataclass(frozen=True)
class WrittenProduct:
    """A matrix product as written, over all devices.

    ``written`` identifies products at one place of the program with equal sizes, such as those of
    identical layers in a Python loop. ``count`` is how often loops (``scan``, a counted ``while``,
    a kernel's grid) repeat it. ``groups`` is the number of results over parts of the depth, as in
    the gradient of ``jax.lax.ragged_dot``; else 0.
    """

    batch: int
    rows: int
    depth: int
    columns: int
    dtypes: tuple[str, str]
    count: int
    in_kernel: bool
    written: int
    scope: str
    source: SourceLine | None
    groups: int = 0

    @property
    def flops(self) -> float:
        """Two for each multiply-add, over all repetitions and devices."""
        return 2.0 * self.batch * self.rows * self.depth * self.columns * self.count


@dataclass(frozen=True)
class Callback:
    """A host callback: primitive, arguments and results, and calls per step."""

    primitive: str
    num_bytes: int
    count: int
    source: SourceLine | None


@dataclass(frozen=True)
class Kernel:
    """A Pallas kernel: its name and the line that calls it."""

    name: str
    source: SourceLine | None


@dataclass(frozen=True)
class Recompile:
    """An argument that makes a later call compile again.

    ``after`` is the result in its place. For a Python number it is empty, and ``before`` is the
    number.
    """

    path: str
    before: str
    after: str = ""


@dataclass(frozen=True)
class Traits:
    """Properties of one program.

    ``divided_axes`` are the mesh axes in its ``shard_map``s and sharding constraints.
    ``row_by_row`` has the uses of each used argument, if all of them take it apart along its
    leading axis. ``steps_per_call``, the steps in one call, is given rather than read.
    ``steps_counted`` is how many of them are visible as loops of the compiled program; a loop whose
    length is an argument counts 1.
    """

    products: tuple[WrittenProduct, ...] = ()
    callbacks: tuple[Callback, ...] = ()
    kernels: tuple[Kernel, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    divided_axes: tuple[str, ...] = ()
    row_by_row: tuple[Uses, ...] = ()
    steps_per_call: int = 1
    steps_counted: int = 1


def read(jaxpr: Any) -> Traits:
    """Walk over a jaxpr and its callees.

    Example:
        >>> import jax.numpy as jnp
        >>> def f(x):
        ...     jax.debug.print("{}", x[0, 0])
        ...     return x @ x
        >>> seen = read(jax.jit(f).trace(jnp.ones((8, 8))).jaxpr)
        >>> seen.products[0].depth, seen.callbacks[0].count
        (8, 1)
    """
    products: list[WrittenProduct] = []
    callbacks: list[Callback] = []
    kernels: list[Kernel] = []
    divided: set[str] = set()
    for site in walk(jaxpr, into=_dearest):
        if site.equation.primitive.name in ("dot_general", "ragged_dot_general"):
            products.append(_product(site))
    for equation, count, _ in walk(jaxpr):
        divided |= _divided_by(equation)
        name = equation.primitive.name
        if name in CALLBACKS:
            sent = sum(_bytes(v.aval) for v in (*equation.invars, *equation.outvars))
            callbacks.append(Callback(name, sent, count, source_line(equation)))
        elif name == "pallas_call":
            kernels.append(Kernel(_kernel_name(equation), source_line(equation)))
    return Traits(
        tuple(products),
        tuple(callbacks),
        tuple(kernels),
        divided_axes=tuple(sorted(divided)),
        row_by_row=uses_of_inputs(jaxpr),
    )


def recompiles(
    args: Sequence[Any],
    out: Any,
    *,
    donate_argnums: tuple[int, ...] = (),
) -> tuple[Recompile, ...]:
    """Compare the arguments with those of the next call.

    Args:
        args: the caller's trees of arrays or specs, with Python numbers unconverted.
        out: the tree of abstract results.
        donate_argnums: donated arguments: state that is carried between calls. Only these are
            compared, each with the only unclaimed result of its structure and shapes; if there are
            several, nothing is reported.

    Example:
        >>> spec = jax.ShapeDtypeStruct
        >>> state, new = spec((4,), "bfloat16"), spec((4,), "float32")
        >>> recompiles((state,), new, donate_argnums=(0,))[0].after
        'float32[4]'
    """
    found = [
        Recompile(leaf_path((jax.tree_util.SequenceKey(i), *path)), repr(leaf))
        for i, argument in enumerate(args)
        for path, leaf in jax.tree_util.tree_flatten_with_path(argument)[0]
        if isinstance(leaf, (bool, int, float, complex)) and not isinstance(leaf, np.generic)
    ]
    for number, after in _carried(args, out, donate_argnums):
        old = jax.tree_util.tree_flatten_with_path(args[number])[0]
        for (path, leaf), new in zip(old, after, strict=True):
            if _described(leaf) != _described(new):
                whole = leaf_path((jax.tree_util.SequenceKey(number), *path))
                found.append(Recompile(whole, _described(leaf), _described(new)))
    return tuple(found)


def _carried(
    args: Sequence[Any], out: Any, donated: Sequence[int]
) -> Iterator[tuple[int, list[Any]]]:
    """Yield the donated arguments that certainly return with other types, and their new leaves.

    Arguments that return unchanged claim their results first: donated ones anywhere, others at the
    top level of the result. The remainder must be the only result of its structure and shapes, for
    one argument only.
    """
    leaves, structure = jax.tree.flatten(out)
    numbered = jax.tree.unflatten(structure, range(len(leaves)))
    top = [numbered, *numbered] if isinstance(numbered, (tuple, list)) else [numbered]
    taken: set[int] = set()

    def results(argument: Any, places: Sequence[Any], look: Callable[[Any], Any]) -> list[Any]:
        """Return the leaf numbers of each result that resembles the argument."""
        wanted = [look(leaf) for leaf in jax.tree.leaves(argument)]
        found = [jax.tree.leaves(part) for place in places for part in _parts(place, argument)]
        return [f for f in found if not taken & {*f} and [look(leaves[i]) for i in f] == wanted]

    left: list[int] = []
    others = [number for number in range(len(args)) if number not in donated]
    for number in (*donated, *others):
        argument = args[number]
        shallow = [node for node in top if jax.tree.structure(node) == jax.tree.structure(argument)]
        same = results(argument, [numbered] if number in donated else shallow, _described)
        if same:
            taken.update(same[0])
        elif number in donated:
            left.append(number)
    wanted = {number: results(args[number], [numbered], np.shape) for number in left}
    claims = Counter(i for found in wanted.values() for f in found for i in f)
    for number, found in wanted.items():
        if len(found) == 1 and all(claims[i] == 1 for i in found[0]):
            yield number, [leaves[i] for i in found[0]]


def _parts(tree: Any, like: Any) -> list[Any]:
    """Return the subtrees with the structure of ``like``."""
    structure = jax.tree.structure(like)

    def same(node: Any) -> bool:
        return jax.tree.structure(node) == structure

    return [part for part in jax.tree.leaves(tree, is_leaf=same) if same(part)]


def leaf_path(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf from the root, such as ``0.layers.3.kernel``."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _described(leaf: Any) -> str:
    """Return the parts of jit's cache key for a leaf: dtype, shape, weak type."""
    aval = jax.typeof(leaf) if isinstance(leaf, (bool, int, float, complex)) else leaf
    weak = " (weak type)" if getattr(aval, "weak_type", False) else ""
    return f"{aval.dtype}[{','.join(map(str, aval.shape))}]{weak}"


def _dearest(equation: Any) -> list[Any]:
    """Return the jaxprs that an equation runs; of a ``cond`` the branch with most arithmetic."""
    inside = subjaxprs(equation)
    return [max(inside, key=model_flops)] if equation.primitive.name == "cond" else inside


def _product(site: Site) -> WrittenProduct:
    equation = site.equation
    kernel = next((one for one in site.callers if one.primitive.name == "pallas_call"), None)
    left, right = (variable.aval for variable in equation.invars[:2])
    batch, rows, depth, columns = _sizes(equation)
    scope = str(equation.source_info.name_stack)
    numbers = [str(value) for name, value in equation.params.items() if name.endswith("_numbers")]
    sizes = (left.shape, right.shape, *numbers)
    return WrittenProduct(
        batch=batch,
        rows=rows,
        depth=depth,
        columns=columns,
        dtypes=(str(left.dtype), str(right.dtype)),
        count=site.count,
        in_kernel=kernel is not None,
        written=hash((tuple(frames(equation)), _DIGITS.sub("#", scope), sizes)),
        scope=_TRANSFORM.sub("", scope),
        source=source_line(equation if kernel is None else kernel),
        groups=_groups(equation),
    )


def _groups(equation: Any) -> int:
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    if numbers is None or numbers.rhs_group_dimensions:
        return 0
    return equation.invars[2].aval.shape[-1]


def _sizes(equation: Any) -> tuple[int, int, int, int]:
    """Return batch, rows, depth and columns."""
    if equation.primitive.name == "ragged_dot_general":
        return ragged_sizes(equation)
    (contracted, _), (batched, _) = equation.params["dimension_numbers"]
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    depth = math.prod(left[axis] for axis in contracted)
    batch = math.prod(left[axis] for axis in batched)
    shared = max(1, batch * depth)
    return batch, math.prod(left) // shared, depth, math.prod(right) // shared


def _bytes(aval: Any) -> int:
    shape, dtype = getattr(aval, "shape", None), getattr(aval, "dtype", None)
    return math.prod(shape) * dtype.itemsize if shape is not None and dtype is not None else 0


def _divided_by(equation: Any) -> set[str]:
    """Return the mesh axes over which an equation shards arrays."""
    params = equation.params
    if equation.primitive.name == "axis_index":
        return _axis_names(params.get("axis_name"))
    told = (value for key, value in params.items() if "shard" in key or key.endswith("_specs"))
    return set[str]().union(*map(_axis_names, told))


def _axis_names(value: Any) -> set[str]:
    """Return the axis names in shardings, partitions or trees of them."""
    if isinstance(value, str):
        return {value}
    if isinstance(value, jax.sharding.NamedSharding):
        value = value.spec
    if isinstance(value, (tuple, list, jax.sharding.PartitionSpec)):
        return set[str]().union(*map(_axis_names, value))
    return set()


def _kernel_name(equation: Any) -> str:
    info = equation.params.get("name_and_src_info")
    return str(getattr(info, "name", "") or equation.params.get("name") or "kernel")

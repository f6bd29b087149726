"""Loss and metric functions whose value for one example depends on the rest of the batch.

Owns the test for that dependence. A function that has it (a contrastive loss, the root of a mean)
changes its meaning when a batch is padded or split. Does not own what follows from the answer
(``neurenix.train``, ``neurenix.metrics``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._jaxpr import walk
from neurenix._user_functions.alignment import aligned

_TOLERANCE = 1e-3  # relative; float32 sums in another order differ by far less
_MAX_NUMBERS = 2**24  # entries of the drawn output
_ROWS = 16  # drawn examples
_MAX_CONSTANTS = 16
# Results by function and by shapes: a metric asks at every update.
_known: WeakKeyDictionary[Any, dict[Any, Coupling]] = WeakKeyDictionary()


class Coupling(IntEnum):
    """How a function of a batch depends on several examples at once; falsy if it does not."""

    NONE = 0
    PER_EXAMPLE = 1  # one number for each example, computed from other examples too
    SCALAR = 2  # one number that is not a mean over the examples and cannot be weighted


def coupling_of(function: Callable[..., Any], y_true: Any, y_pred: Any) -> Coupling:
    """Return whether a function of a batch treats each example independently.

    Calls the function on a drawn batch and on each of its examples alone, and compares the values.
    The draws include negative numbers, predictions that equal their targets, and the constants of
    the function's program, such as the label that a mask ignores. A draw on which the function is
    not finite is skipped.

    Args:
        function: takes targets and predictions.
        y_true: targets of a batch, (N, …), or their shapes and dtypes.
        y_pred: shapes and dtypes of the predictions, (N, …).

    Example:
        >>> spec = jax.ShapeDtypeStruct((4, 1), jnp.float32)
        >>> coupling_of(lambda t, p: jnp.sqrt(jnp.mean((t - p) ** 2)), spec, spec).name
        'SCALAR'
        >>> coupling_of(lambda t, p: p / jnp.mean(p), spec, spec).name
        'PER_EXAMPLE'
        >>> coupling_of(lambda t, p: jnp.mean((t - p) ** 2), spec, spec).name
        'NONE'
    """
    specs = jax.tree.map(spec_of, (y_true, y_pred))
    leaves, treedef = jax.tree.flatten(specs)
    if any(not isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(y_true)):
        return _judged(function, specs, y_true)
    try:
        known = _known.setdefault(function, {})
    except TypeError:  # not hashable, or no weak references
        known = {}
    key = (treedef, *((leaf.shape, leaf.dtype) for leaf in leaves))
    if key not in known:
        known[key] = _judged(function, specs, None)
    return known[key]


def spec_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of an array, or of a value that becomes one."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))


def of_each_alone(function: Callable[..., Any], y_true: Any, y_pred: Any) -> jax.Array:
    """Return the function's values for batches of one example each, (N, …).

    Args:
        function: takes targets and predictions.
        y_true: targets, (N, …).
        y_pred: predictions, (N, …). A leaf of another leading size, such as a penalty, is passed
            whole with every example.

    Example:
        >>> of_each_alone(lambda t, p: jnp.mean(t - p), jnp.ones((2, 3)), jnp.zeros((2, 3)))
        Array([1., 1.], dtype=float32)
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, (y_true, y_pred)))
    examples = jax.tree.leaves(y_true)[0].shape[0]
    axes = [0 if leaf.shape[:1] == (examples,) else None for leaf in leaves]

    def alone(*parts: Any) -> Any:
        rows = [q[None] if axis == 0 else q for q, axis in zip(parts, axes, strict=True)]
        return jnp.asarray(function(*jax.tree.unflatten(treedef, rows)))

    return jax.vmap(alone, in_axes=axes)(*leaves)


def _judged(function: Callable[..., Any], specs: Any, y_true: Any) -> Coupling:
    """Return the coupling of a function; ``y_true`` holds real targets, or is None."""

    def whole(y: Any, p: Any) -> Any:
        return function(aligned(function, y, p), p)

    def both(y: Any, p: Any) -> tuple[Any, Any]:
        y = aligned(function, y, p)
        value, alone = function(y, p), of_each_alone(function, y, p)
        return value, alone.reshape(value.shape) if value.ndim else jnp.mean(alone)

    found = jax.eval_shape(whole, *specs)
    if not hasattr(found, "ndim"):
        return Coupling.NONE  # no array; the caller reports that
    # A metric asks during a trace. One example alone may give NaN.
    with jax.ensure_compile_time_eval(), jax.debug_nans(False):
        drawn = next((one for one in _drawable(specs) if _takes(both, one)), None)
        if drawn is not None:
            compiled = jax.jit(both)
            tries = _draws(drawn, _constants(whole, drawn), y_true)
            results = (compiled(*one) for one in tries)
            if not found.ndim and jnp.issubdtype(found.dtype, jnp.floating):
                results = _without_guards(results)
            couples = any(_differ(*one) for one in results)
        else:  # it accepts batches of its own size only
            couples = not found.ndim or _depends_on_other_rows(whole, specs, found)
    if not couples:
        return Coupling.NONE
    return Coupling.PER_EXAMPLE if found.ndim else Coupling.SCALAR


def _drawable(specs: Any) -> Iterator[Any]:
    """Yield the shapes of small batches to draw, the cheapest first.

    Only the number of rows changes, unless such a batch is large, as of the logits of a language
    model. Then long axes are shortened: all of them, one of them, or none.
    """
    leaves = jax.tree.leaves(specs)
    count = leaves[0].shape[0]
    sizes = {size for leaf in leaves for size in leaf.shape}
    rows = next(n for n in range(_ROWS, 2 * _ROWS + len(sizes)) if n not in sizes)
    long = sorted(size for size in sizes - {count} if size > 4 * _ROWS)
    shorter = {size: 2 * _ROWS * position for position, size in enumerate(long, 1)}
    inner = sum(math.prod(leaf.shape[1:]) for leaf in leaves)
    if rows * inner > _MAX_NUMBERS // 16:
        yield _resized(specs, shorter, count, rows)
        for size in reversed(long):
            yield _resized(specs, {size: shorter[size]}, count, rows)
    yield _resized(specs, {}, count, max(2, min(rows, _MAX_NUMBERS // max(inner, 1))))


def _resized(specs: Any, sizes: dict[int, int], count: int, rows: int) -> Any:
    def resized(leaf: Any) -> jax.ShapeDtypeStruct:
        first = [rows if size == count else sizes.get(size, size) for size in leaf.shape[:1]]
        rest = [sizes.get(size, size) for size in leaf.shape[1:]]
        return jax.ShapeDtypeStruct((*first, *rest), leaf.dtype)

    return jax.tree.map(resized, specs)


def _takes(function: Callable[..., Any], specs: Any) -> bool:
    try:
        jax.eval_shape(function, *specs)
    except Exception:  # any error of the user's function on such shapes
        return False
    return True


def _constants(whole: Callable[..., Any], specs: Any) -> list[float]:
    """Return NaN and the first finite numbers in a function's program."""
    traced = jax.make_jaxpr(whole)(*specs)
    atoms = [atom for site in walk(traced) for atom in site.equation.invars]
    values = [*traced.consts, *(atom.val for atom in atoms if hasattr(atom, "val"))]
    numbers = [np.ravel(np.asarray(one)) for one in values if np.size(one) <= _MAX_CONSTANTS]
    real = [one.astype(float) for one in numbers if one.dtype.kind in "biuf"]
    found = dict.fromkeys(float(one) for array in real for one in array if np.isfinite(one))
    return [math.nan, *found][: _MAX_CONSTANTS + 1]


def _draws(specs: Any, constants: list[float], y_true: Any) -> Iterator[tuple[Any, Any]]:
    """Yield targets and predictions to compare on: real targets first, where the shapes agree."""
    random = np.random.default_rng(0)
    y, p = (_drawn(random, spec, 0.1, 0.9) for spec in specs)
    signed_y, signed_p = (_drawn(random, spec, -2, 2) for spec in specs)
    zero_or_one = jax.tree.map(jnp.round, _drawn(random, specs[0], 0, 1))
    if _same_inner_shapes(y_true, specs[0]):
        yield jax.tree.map(lambda leaf, spec: _repeated(leaf, spec.shape), y_true, specs[0]), p
    yield from ((zero_or_one, p), (y, p), (zero_or_one, signed_p), (signed_y, signed_p))
    if isinstance(y, jax.Array) and isinstance(p, jax.Array) and y.size == p.size:
        yield y, jnp.where(random.random(p.shape) < 0.5, y.reshape(p.shape).astype(p.dtype), p)
    for constant in constants:
        yield _with_constant(random, y, constant), p
        yield y, _with_constant(random, p, constant)


def _drawn(random: np.random.Generator, specs: Any, low: float, high: float) -> Any:
    def one(leaf: Any) -> jax.Array:
        numbers = random.uniform(low, high, leaf.shape)
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.asarray(numbers if floating else numbers > 0.5, leaf.dtype)

    return jax.tree.map(one, specs)


def _with_constant(random: np.random.Generator, tree: Any, constant: float) -> Any:
    """Put a constant, and numbers close to it, in some rows and in single entries."""

    def one(leaf: jax.Array) -> jax.Array:
        step = 0.01 * max(1, abs(constant)) if jnp.issubdtype(leaf.dtype, jnp.floating) else 1
        rows = random.random((*leaf.shape[:1], *[1] * (leaf.ndim - 1))) < 0.3
        here = rows | (random.random(leaf.shape) < 0.2)
        numbers = constant + step * random.choice([0, 0, -1, 1], rows.shape)
        return jnp.where(here, jnp.asarray(numbers).astype(leaf.dtype), leaf)

    return jax.tree.map(one, tree)


def _same_inner_shapes(y_true: Any, specs: Any) -> bool:
    shapes = [np.shape(leaf)[1:] for leaf in jax.tree.leaves(y_true)]
    return shapes == [spec.shape[1:] for spec in jax.tree.leaves(specs)]


def _repeated(leaf: Any, shape: tuple[int, ...]) -> jax.Array:
    """Return the first rows of ``leaf``, repeated where ``shape`` has more rows."""
    return jnp.asarray(leaf[np.arange(shape[0]) % len(leaf)] if shape else leaf)


def _differ(whole: jax.Array, alone: jax.Array) -> bool:
    """Return whether two results differ where the first one is finite."""
    both = np.stack([np.asarray(whole, float), np.asarray(alone, float)])
    both = both[:, np.isfinite(both[0])]
    off = np.max(np.abs(both[0] - both[1]), initial=0)
    return not off <= _TOLERANCE * np.max(np.abs(both), initial=0)


def _without_guards(results: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """Leave out results that repeat a number.

    ``jnp.nan_to_num(loss)`` replaces each NaN by one number. The draws that contain NaN make such a
    number appear twice.
    """
    results = [*results]
    numbers = Counter(float(value) for value, _ in results)
    return [one for one in results if numbers[float(one[0])] == 1]


def _depends_on_other_rows(whole: Callable[..., Any], specs: Any, found: Any) -> bool:
    """Return whether rows of a result change with the other rows of a batch of fixed size."""
    leaves = jax.tree.leaves(specs)
    count = leaves[0].shape[0]
    if found.size % count:
        return True  # the result has no rows of examples
    if sum(leaf.size for leaf in leaves) > _MAX_NUMBERS:
        return False

    def with_odd_rows_replaced(leaf: jax.Array) -> jax.Array:
        if leaf.shape[:1] != (count,):
            return leaf
        return leaf.at[1::2].set(leaf[0])

    def even_rows(draw: Any) -> jax.Array:
        return compiled(*draw).reshape(count, -1)[::2]

    compiled = jax.jit(whole)
    draws = [*_draws(specs, _constants(whole, specs), None)]
    return any(
        _differ(even_rows(draw), even_rows(jax.tree.map(with_odd_rows_replaced, draw)))
        for draw in draws
    )

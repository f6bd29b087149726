"""Functions that couple the examples of a batch: a contrastive loss, the root of a mean.

Owns finding out whether a function of a batch treats each example alone: one number as the mean
over them, or a number for each made of that one. One that does not becomes another function when
a batch is filled up or divided. It does not own what is then done (``neurenix.train``,
``neurenix.metrics``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from typing import Any
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._user_functions.alignment import aligned

_TOLERANCE = 1e-3  # relative; a mean in another order of float32 sums differs by far less
_MOST_NUMBERS = 2**24  # of the output to try with; of a larger one, fewer examples
# What was found of functions, for shapes alone: a metric asks at every update.
_known: WeakKeyDictionary[Any, dict[Any, Coupling]] = WeakKeyDictionary()
_SIZES = (1009, 1013, 1019, 1021)  # primes: an axis of a multiple of one is the examples'


class Coupling(IntEnum):
    """How a function of a batch couples its examples; false if it does not."""

    NONE = 0
    PER_EXAMPLE = 1  # a number for each, but made of other examples too
    SCALAR = 2  # one number that is no mean over them, so it cannot be weighted either


def coupling_of(function: Callable[..., Any], y_true: Any, y_pred: Any) -> Coupling:
    """Tell whether a function of a batch treats each of its examples alone.

    Its operations are looked at first: what is summed over the examples may be added and scaled
    to be their mean, and nothing else. Whether one number is their mean, and not their sum say,
    and whether those of rows that were moved about are of one example each, is then tried on
    predictions from 0.1 to 0.9, which any loss takes: together and one example at a time.

    Args:
        function: of targets and predictions.
        y_true: targets of a batch, (N, …), or their shapes and dtypes, and some are drawn.
        y_pred: shapes and dtypes of the predictions for it, (N, …).

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
        return _judged(function, y_true, y_pred, specs)
    try:
        known = _known.setdefault(function, {})
    except TypeError:  # it has no hash, or cannot be referred to weakly
        known = {}
    key = (treedef, *((leaf.shape, leaf.dtype) for leaf in leaves))
    if key not in known:
        known[key] = _judged(function, y_true, y_pred, specs)
    return known[key]


def _judged(function: Callable[..., Any], y_true: Any, y_pred: Any, specs: Any) -> Coupling:
    def whole(y: Any, p: Any) -> Any:
        return function(aligned(function, y, p), p)

    y_spec, p_spec = specs
    found = jax.eval_shape(whole, y_spec, p_spec)
    if not hasattr(found, "ndim"):
        return Coupling.NONE  # no array: whoever calls the function says so
    of_rows = bool(found.ndim)
    couples = _by_operations(whole, y_spec, p_spec, of_rows) or _by_trial(
        function, y_true, y_pred, of_rows
    )
    if not couples:
        return Coupling.NONE
    return Coupling.PER_EXAMPLE if of_rows else Coupling.SCALAR


def spec_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of an array, or of what will be one."""
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype))


def of_each_alone(function: Callable[..., Any], y_true: Any, y_pred: Any) -> jax.Array:
    """Return what a function says of batches of one example each, (N, …).

    Args:
        function: of targets and predictions.
        y_true: targets, (N, …).
        y_pred: predictions, (N, …); of several, one that has no rows, such as a penalty, is given
            to every example whole.

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


# By its operations


class _Kind(IntEnum):
    """What a value has to do with the examples; the greatest of two is what both make together."""

    FIXED = 0  # nothing
    APART = 1  # one row for each, made of that example alone
    SUMMED = 2  # sums over them, added and scaled
    UNKNOWN = 3
    COUPLED = 4


_LINEAR = frozenset(
    "add sub add_any neg convert_element_type reduce_sum reshape squeeze expand_dims copy copy_p "
    "broadcast_in_dim transpose rev slice concatenate pad stop_gradient reduce_precision name "
    "optimization_barrier cumsum split real imag psum".split()
)
_CALLS = frozenset(
    "jit pjit closed_call core_call custom_jvp_call custom_vjp_call custom_vjp_call_jaxpr remat "
    "remat2 checkpoint".split()
)
_BRANCHES = frozenset("cond scan while".split())


def _by_operations(whole: Callable[..., Any], y_spec: Any, p_spec: Any, of_rows: bool) -> bool:
    """Tell whether the operations couple examples; False where they do not say so."""
    leaves, treedef = jax.tree.flatten((y_spec, p_spec))
    count = next((leaf.shape[0] for leaf in leaves if leaf.shape), 0)
    others = [size for leaf in leaves for size in leaf.shape if size != count]
    rows = next((n for n in _SIZES if all(size % n for size in others)), _SIZES[0])
    batched = [leaf.shape[:1] == (count,) for leaf in leaves]
    larger = [
        jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype) if has else leaf
        for leaf, has in zip(leaves, batched, strict=True)
    ]
    try:
        traced = jax.make_jaxpr(whole)(*jax.tree.unflatten(treedef, larger))
    except Exception:  # it takes only batches of its own size: the trial has to tell
        return False
    kinds = [_Kind.APART if has else _Kind.FIXED for has in batched]
    found = set(_kinds_of(traced.jaxpr, kinds, rows))
    return _Kind.COUPLED in found or of_rows and _Kind.SUMMED in found


def _kinds_of(jaxpr: Any, inputs: list[_Kind], rows: int) -> list[_Kind]:
    """Return the kinds of a program's results, from those of its arguments."""
    known = dict(zip(jaxpr.invars, inputs, strict=True))

    def kind(atom: Any) -> _Kind:
        return _Kind.FIXED if hasattr(atom, "val") else known.get(atom, _Kind.FIXED)

    for equation in jaxpr.eqns:
        found = _outcome(equation, list(map(kind, equation.invars)), rows)
        known.update(zip(equation.outvars, found, strict=True))
    return list(map(kind, jaxpr.outvars))


def _outcome(equation: Any, kinds: list[_Kind], rows: int) -> list[_Kind]:
    """Return the kinds of an operation's results, from those of its operands."""
    name, params, results = equation.primitive.name, equation.params, equation.outvars
    worst = max(kinds, default=_Kind.FIXED)
    if worst in (_Kind.FIXED, _Kind.COUPLED):
        return [worst] * len(results)
    inside = []
    if name in _CALLS:
        inside = [params[key] for key in ("jaxpr", "call_jaxpr", "fun_jaxpr") if key in params]
    elif name == "cond" and kinds[0] is _Kind.FIXED:
        inside, kinds = params["branches"], kinds[1:]
    if inside:
        programs = [getattr(one, "jaxpr", one) for one in inside]
        if any(len(program.invars) != len(kinds) for program in programs):
            return [_Kind.UNKNOWN] * len(results)
        found = [_kinds_of(program, kinds, rows) for program in programs]
        return [max(each) for each in zip(*found, strict=True)]
    if _Kind.SUMMED in kinds:
        return [_of_sums(equation, kinds)] * len(results)
    if worst is _Kind.UNKNOWN:
        return [worst] * len(results)
    return [_of_rows(equation, result.aval.shape, rows) for result in results]


def _of_sums(equation: Any, kinds: list[_Kind]) -> _Kind:
    """Return the kind of a result some of whose operands are sums over the examples."""
    name, worst, operands = equation.primitive.name, max(kinds), equation.invars
    if name == "is_finite" or name == "ne" and operands[0] is operands[1]:
        return _Kind.FIXED  # a guard: of finite numbers it is one constant
    if name == "eq" and any(np.all(np.isinf(getattr(x, "val", 0))) for x in operands):
        return _Kind.FIXED
    if name in _BRANCHES:
        return _Kind.UNKNOWN
    scaled = name in ("mul", "dot_general") and min(kinds) is _Kind.FIXED
    divided = name == "div" and kinds[1] is _Kind.FIXED
    selected = name == "select_n" and kinds[0] is _Kind.FIXED
    taken = name in ("gather", "dynamic_slice") and max(kinds[1:]) is _Kind.FIXED
    if name in _LINEAR or scaled or divided or selected or taken:
        return worst
    return _Kind.COUPLED


def _of_rows(equation: Any, shape: tuple[int, ...], rows: int) -> _Kind:
    """Return the kind of a result of ``shape`` whose operands have rows of examples."""
    name, operands = equation.primitive.name, [x.aval.shape for x in equation.invars]
    axes = _axes(equation)
    crossed = any(operands[0][axis] % rows == 0 for axis in axes)
    if name == "dot_general":
        (left, _), _ = equation.params["dimension_numbers"]
        if any(operands[0][axis] % rows == 0 for axis in left):
            return _Kind.SUMMED
    elif name == "reduce_sum" and crossed:
        return _Kind.SUMMED
    elif name in ("reduce_max", "reduce_min", "rev") and crossed:
        return _Kind.UNKNOWN  # softmax may subtract the greatest of all, which changes nothing
    elif crossed:
        return _Kind.COUPLED
    elif name == "scan" and equation.params["length"] % rows == 0:
        return _Kind.UNKNOWN
    count = sum(_multiples(size, rows) for size in shape)
    if count == 1:
        return _Kind.APART
    if name in ("scatter-add", "scatter_add"):
        return _Kind.SUMMED
    return _Kind.COUPLED if count else _Kind.UNKNOWN  # every two of them, or some of them


def _axes(equation: Any) -> tuple[int, ...]:
    """Return the axes of the first operand along which an operation looks at several numbers."""
    name, params = equation.primitive.name, equation.params
    if name.startswith(("reduce_", "arg")):
        return tuple(params.get("axes", ()))
    if name.startswith("cum"):
        return (params["axis"],)
    if name == "sort":
        return (params["dimension"],)
    if name == "top_k":
        return (params.get("axis", -1),)
    return tuple(params["dimensions"]) if name == "rev" else ()


def _multiples(size: int, rows: int) -> int:
    count = 0
    while size and size % rows == 0:
        size, count = size // rows, count + 1
    return count


# By a trial


def _by_trial(function: Callable[..., Any], y_true: Any, y_pred: Any, of_rows: bool) -> bool:
    """Tell whether the function says something else of a batch than of one example at a time."""

    def values(y: Any, p: Any) -> tuple[Any, Any]:
        y = aligned(function, y, p)
        whole, alone = function(y, p), of_each_alone(function, y, p)
        return whole, alone.reshape(whole.shape) if of_rows else jnp.mean(alone)

    if of_rows and 2 * _numbers_of_one(y_pred) > _MOST_NUMBERS:
        return False  # such as logits of a language model: the operations have to tell
    specs = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(y_true))
    # A metric asks while the step is traced; NaN of one example alone is an answer.
    with jax.ensure_compile_time_eval(), jax.debug_nans(False):
        tries = [_some_of(y_true, y_pred, draw) for draw in ((0, 1) if specs else (1,))]
        try:
            jax.eval_shape(values, *tries[0])
        except Exception:  # it cannot be called on one example alone
            return not of_rows  # rows may be made for one size of batch, and a mean may not
        compiled = jax.jit(values)
        return any(_differ(*compiled(*one)) for one in tries)


def _numbers_of_one(tree: Any) -> int:
    return sum(math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(tree))


def _differ(whole: jax.Array, alone: jax.Array) -> bool:
    """Compare; where already the whole is not finite, nothing is known."""
    both = np.stack([np.asarray(whole, float), np.asarray(alone, float)])
    both = both[:, np.isfinite(both[0])]
    off = np.max(np.abs(both[0] - both[1]), initial=0)
    return not off <= _TOLERANCE * np.max(np.abs(both), initial=0)


def _some_of(y_true: Any, y_pred: Any, draw: int) -> tuple[Any, Any]:
    """Return the targets and predictions of as many examples as are cheap to try, 2 at least.

    Args:
        y_true: arrays, or shapes and dtypes of what is drawn.
        y_pred: shapes and dtypes.
        draw: 0 draws targets that are 0 or 1, 1 draws such as lie between.
    """
    examples = jax.tree.leaves(y_true)[0].shape[0]
    count = min(examples, max(2, _MOST_NUMBERS // max(_numbers_of_one(y_pred), 1)))
    random = np.random.default_rng(0)

    def drawn(leaf: Any, *, whole: bool = False) -> jax.Array:
        shape = (count, *leaf.shape[1:]) if leaf.shape[:1] == (examples,) else leaf.shape
        floating = jnp.issubdtype(leaf.dtype, jnp.floating)
        low, high = (0, 1) if whole or not floating else (0.1, 0.9)
        numbers = random.uniform(low, high, shape)
        return jnp.asarray(np.round(numbers) if whole else numbers, leaf.dtype)

    def target(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf[:count] if np.shape(leaf)[:1] == (examples,) else leaf
        return drawn(leaf, whole=draw == 0 or not jnp.issubdtype(leaf.dtype, jnp.floating))

    return jax.tree.map(target, y_true), jax.tree.map(drawn, y_pred)

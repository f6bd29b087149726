"""Whether a program computes with the number of its rows: a counter of examples, a scale of 1 / N.

Such a program gives each row what the others' numbers do not change, and rows that are added still
do. It is traced for two numbers of rows; nothing is compiled. Owns the comparison of the traces. It
does not own what follows from it (``padding_check.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from neurenix._jit.random_keys import numbers_of


def uses_row_count(
    function: Callable[[Any, Any], Any], model: Any, x: Any, one: int, other: int
) -> bool:
    """Tell whether the traces for two numbers of rows differ in more than the shapes of arrays.

    One that differs may compute the same: of an index from the end, for one, ``x[-1]``.

    Args:
        function: of a model and a batch's inputs.
        model: its arrays, of which shapes and dtypes count.
        x: inputs, (N, …).
        one: a number of rows.
        other: another.

    Example:
        >>> x = np.ones((4, 2), np.float32)
        >>> uses_row_count(lambda model, x: x / x.shape[0], (), x, 4, 3)
        True
        >>> uses_row_count(lambda model, x: x / x.shape[1], (), x, 4, 3)
        False
    """

    def described(leaf: Any, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(leaf.dtype))

    def traced(rows: int) -> Any:
        inputs = jax.tree.map(lambda leaf: described(leaf, (rows, *leaf.shape[1:])), x)
        return jax.make_jaxpr(function)(held, inputs)

    held = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), model)
    return not _same_numbers(traced(one), traced(other))


def _same_numbers(one: Any, other: Any) -> bool:
    """Compare two programs, which are jaxprs, open or closed."""
    consts = zip(getattr(one, "consts", ()), getattr(other, "consts", ()), strict=False)
    if not all(_same(a, b) for a, b in consts):
        return False
    one, other = getattr(one, "jaxpr", one), getattr(other, "jaxpr", other)
    return len(one.eqns) == len(other.eqns) and all(map(_same_equation, one.eqns, other.eqns))


def _same_equation(one: Any, other: Any) -> bool:
    if one.primitive is not other.primitive or len(one.invars) != len(other.invars):
        return False
    atoms = zip(one.invars, other.invars, strict=True)
    if not all(_same(getattr(a, "val", None), getattr(b, "val", None)) for a, b in atoms):
        return False
    inside, others = list(_programs(one.params)), list(_programs(other.params))
    return len(inside) == len(others) and all(map(_same_numbers, inside, others))


def _programs(params: Any) -> Iterator[Any]:
    for value in jax.tree.leaves(list(params.values()), is_leaf=_is_program):
        if _is_program(value):
            yield value


def _is_program(value: Any) -> bool:
    return hasattr(value, "eqns") or hasattr(value, "jaxpr")


def _same(one: Any, other: Any) -> bool:
    """Compare two constants; of those that have other shapes nothing is said."""
    if one is None or other is None:
        return one is other
    one, other = map(_numbers, (one, other))
    return one.shape != other.shape or one.tobytes() == other.tobytes()


def _numbers(constant: Any) -> np.ndarray:
    return np.asarray(numbers_of(constant) if hasattr(constant, "dtype") else constant)

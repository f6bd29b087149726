"""How often an equation runs the jaxprs inside it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from neurenix._core.trip_count import MIRRORED, trip_count


def repetitions(equation: Any) -> int:
    """Return how often an equation runs its jaxprs, on all devices together.

    A ``scan`` runs as often as it is long, ``shard_map`` once on each device, and a Pallas kernel
    once for each place of its grid. A ``while`` is counted if its counter starts at a number, is
    compared with a number, and is changed by a number. What depends on data counts 1.

    Example:
        >>> import jax
        >>> loop = lambda x: jax.lax.fori_loop(2, 10, lambda i, x: 2 * x, x)
        >>> [repetitions(equation) for equation in jax.make_jaxpr(loop)(1.0).eqns]
        [8]
    """
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return params["length"]
    if name == "while":
        return _while_count(equation)
    if name == "shard_map":
        mesh = params["mesh"]
        manual = params.get("manual_axes") or mesh.axis_names
        return math.prod(mesh.shape[axis] for axis in manual)
    if name == "pallas_call":
        return math.prod(size for size in kernel_grid(equation) if isinstance(size, int))
    return 1


def kernel_grid(equation: Any) -> tuple[Any, ...]:
    """Return the grid of a Pallas kernel. A size that depends on data is not an ``int``."""
    return tuple(getattr(equation.params.get("grid_mapping"), "grid", ()))


def _while_count(equation: Any) -> int:
    """Return how often a ``while`` runs; 1 if that depends on data."""
    params = equation.params
    condition, body = (params[name].jaxpr for name in ("cond_jaxpr", "body_jaxpr"))
    of_condition, of_body = params["cond_nconsts"], params["body_nconsts"]
    compare = _maker(condition, condition.outvars[0])
    comparison = str(getattr(compare, "primitive", "")).upper()
    if compare is None or comparison not in MIRRORED:
        return 1
    left, right = compare.invars
    if _number(left) is not None:
        left, right, comparison = right, left, MIRRORED[comparison]
    if left not in condition.invars[of_condition:]:
        return 1
    position = condition.invars.index(left) - of_condition
    bound = _number(right)
    if bound is None and right in condition.invars[:of_condition]:
        bound = _number(equation.invars[condition.invars.index(right)])
    start = _number(equation.invars[of_condition + of_body + position])
    step = _maker(body, body.outvars[position])
    if bound is None or start is None or step is None or len(step.invars) != 2:
        return 1
    name, (first, second) = step.primitive.name, step.invars
    if name in ("add", "mul") and _number(first) is not None:
        first, second = second, first
    number = _number(second)
    if number is None or first is not body.invars[of_body + position]:
        return 1
    growth = {"add": (1, number), "sub": (1, -number), "mul": (number, 0)}.get(name)
    count = trip_count(start, bound, comparison, *growth) if growth else None
    return 1 if count is None else count


def _maker(jaxpr: Any, variable: Any) -> Any:
    """Return the equation whose result is ``variable``, or None."""
    return next((e for e in jaxpr.eqns if any(v is variable for v in e.outvars)), None)


def _number(variable: Any) -> int | None:
    """Return the integer that is written in the jaxpr in place of a variable, or None."""
    value = getattr(variable, "val", None)
    if value is None or np.ndim(value) or not np.issubdtype(np.asarray(value).dtype, np.integer):
        return None
    return int(value)

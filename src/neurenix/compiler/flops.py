"""Model FLOPs: the arithmetic that the program was written to do.

Owns the count over a jaxpr: matrix products and convolutions, loops by their length, recomputation
left out. It does not count what the compiler makes of it, nor element-wise work.

A product of ``(m, k)`` and ``(k, n)`` is ``2 m k n`` operations, as in the MFU of PaLM
(Chowdhery et al. 2022, appendix B).
"""

from __future__ import annotations

import math
from typing import Any

_RECOMPUTED = "rematted_computation"


def model_flops(jaxpr: Any) -> float:
    """Count the floating-point operations of one call, of all devices together.

    A ``cond`` counts its dearest branch. A ``while`` whose length only the data knows counts once.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((8, 16))
        >>> def f(x):
        ...     return jax.lax.scan(lambda c, _: (c @ jnp.ones((16, 16)), None), x, length=3)
        >>> model_flops(jax.jit(f).trace(x).jaxpr)
        12288.0
    """
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    return float(sum(_equation(equation) for equation in jaxpr.eqns))


def _equation(equation: Any) -> float:
    if _RECOMPUTED in str(equation.source_info.name_stack):
        return 0.0
    name = equation.primitive.name
    if name == "dot_general":
        return _dot(equation)
    if name == "conv_general_dilated":
        return _convolution(equation)
    if name == "cond":
        return max(model_flops(branch) for branch in equation.params["branches"])
    times = _times(equation)
    return times * sum(model_flops(inner) for inner in _inner(equation.params))


def _times(equation: Any) -> int:
    if equation.primitive.name == "scan":
        return equation.params["length"]
    if equation.primitive.name == "shard_map":
        mesh = equation.params["mesh"]
        manual = equation.params.get("manual_axes") or mesh.axis_names
        return math.prod(mesh.shape[axis] for axis in manual)
    if equation.primitive.name == "pallas_call":
        grid = getattr(equation.params.get("grid_mapping"), "grid", ())
        return math.prod(size for size in grid if isinstance(size, int))
    return 1


def _inner(params: dict[str, Any]) -> list[Any]:
    found: list[Any] = []
    for value in params.values():
        for candidate in value if isinstance(value, (tuple, list)) else (value,):
            candidate = getattr(candidate, "jaxpr", candidate)
            if hasattr(candidate, "eqns"):
                found.append(candidate)
    return found


def _dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth


def _convolution(equation: Any) -> float:
    """Count two operations for each weight that touches each output element, dilation included.

    A gradient with respect to the input is a convolution with ``lhs_dilation``; the zeros between
    its rows are no work, so the count is divided by the dilation. A gradient with respect to the
    weights has a kernel the size of the image and is counted like any other.
    """
    kernel = equation.invars[1].aval.shape
    numbers = equation.params["dimension_numbers"]
    out_axis, in_axis, *spatial = numbers.rhs_spec
    del out_axis
    depth = kernel[in_axis] * math.prod(kernel[axis] for axis in spatial)
    dilation = math.prod(equation.params["lhs_dilation"])
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth / dilation

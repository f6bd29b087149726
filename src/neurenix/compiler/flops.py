"""Model FLOPs: the arithmetic that the program was written to do.

Owns the count over a jaxpr: matrix products and convolutions, loops by their length, what is
recomputed once. It does not count what the compiler makes of it, nor element-wise work.

A product of ``(m, k)`` and ``(k, n)`` is ``2 m k n`` operations, as in the MFU of PaLM
(Chowdhery et al. 2022, appendix B). Causal attention by JAX's splash kernel counts half, and with
a sliding window what lies in it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._jax import live_equations
from neurenix._jaxpr import CHECKPOINTS, kernel_grid, open_jaxpr, repetitions, subjaxprs
from neurenix.compiler.attention_kernels import attention_model_flops, window_of

_RECOMPUTED = "rematted_computation"
_AGAIN, _INSIDE = "again", "inside"


def model_flops(jaxpr: Any) -> float:
    """Return the floating-point operations of one call on all devices.

    A ``cond`` counts its most expensive branch. A ``while`` counts its iterations if its counter
    starts at a constant, is compared with one, and changes by constant sums or factors; otherwise
    once. A Pallas kernel with a data-dependent grid counts its stated cost. Recomputation by
    ``jax.checkpoint`` counts once, also if only the recomputation remains: the forward pass of a
    loss whose value is unused.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> x = jnp.ones((8, 16))
        >>> def f(x):
        ...     return jax.lax.scan(lambda c, _: (c @ jnp.ones((16, 16)), None), x, length=3)
        >>> model_flops(jax.jit(f).trace(x).jaxpr)
        12288.0
    """
    return _once(_collect(jaxpr, _Place()))


def without_dead_code(closed: Any) -> Any:
    """Return a closed jaxpr without equations that no result or effect needs.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def f(x):
        ...     _ = x @ x
        ...     return 2 * x
        >>> model_flops(without_dead_code(jax.jit(f).trace(jnp.ones((8, 8))).jaxpr))
        0.0
    """
    return closed.replace(jaxpr=live_equations(closed.jaxpr))


_Run = tuple[str, ...]
"""The checkpoints around an equation and the recomputations that it is in, the outermost first;
empty for what is not recomputed."""
_Operations = dict[tuple[Hashable, _Run], float]
"""Operations by what was written and by the run of it."""


@dataclass(frozen=True)
class _Place:
    """The position of an equation: window of attention, run, and direction.

    A recomputation is in the backward pass but is itself a forward pass; ``backward`` is false
    there.
    """

    window: int | None = None
    run: _Run = ()
    backward: bool = False

    def of(self, equation: Any) -> _Place:
        """Return the place of an equation among those at this one."""
        scope = str(equation.source_info.name_stack)
        _, again, inner = scope.rpartition(_RECOMPUTED)
        return _Place(
            window=window_of(scope) or self.window,
            run=(*self.run, _AGAIN) if again else self.run,
            backward="transpose(" in inner or (self.backward and not again),
        )

    def within(self, equation: Any) -> _Place:
        """Return the place of the callee of an equation at this one."""
        inside = equation.primitive.name in CHECKPOINTS
        return replace(self, run=(*self.run, _INSIDE)) if inside else self


def _once(found: _Operations) -> float:
    """Sum the written operations, each by its run with the most live operations.

    Dead operations of a run do not count: those of a forward pass under a checkpoint whose results
    are unused, and those of a recomputation that the policy has saved.
    """
    most: dict[Hashable, float] = {}
    for (written, _), operations in found.items():
        most[written] = max(most.get(written, 0.0), operations)
    return float(sum(most.values()))


def _collect(jaxpr: Any, around: _Place) -> _Operations:
    """Collect the operations of one call."""
    found: _Operations = defaultdict(float)
    for equation in open_jaxpr(jaxpr).eqns:
        place = around.of(equation)
        operations = _operations(equation, place.window)
        if operations is not None:
            run = place.run if _AGAIN in place.run else ()
            found[(_written(equation), place.backward), run] += operations
            continue
        called = [_collect(inner, place.within(equation)) for inner in subjaxprs(equation)]
        if equation.primitive.name == "cond":
            called = [max(called, key=_once)]
        times = repetitions(equation)
        for inner in called:
            for key, operations in inner.items():
                found[key] += times * operations
    return found


def _written(equation: Any) -> Hashable:
    """Return a key that distinguishes written products.

    A recomputed product has the same traceback object as the written one.
    """
    numbers = [str(value) for name, value in equation.params.items() if name.endswith("_numbers")]
    shapes = [variable.aval.shape for variable in equation.invars[:2]]
    name = equation.params.get("name", equation.primitive.name)
    return id(equation.source_info.traceback), str(name), *shapes, *numbers


def _operations(equation: Any, window: int | None) -> float | None:
    """Return the operations of one equation; None if those of its callee count."""
    name = equation.primitive.name
    if name == "dot_general":
        return _dot(equation)
    if name == "ragged_dot_general":
        return _ragged(equation)
    if name == "conv_general_dilated":
        return _convolution(equation)
    if name != "pallas_call":
        return None
    stated = equation.params.get("cost_estimate")
    if stated is not None and not all(isinstance(size, int) for size in kernel_grid(equation)):
        return float(stated.flops)  # how often it runs is data: which experts have how many tokens
    return attention_model_flops(
        str(equation.params.get("name") or ""),
        [(str(v.aval.dtype), v.aval.shape) for v in equation.invars],
        [v.aval.shape for v in equation.outvars],
        window,
    )


def _dot(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    depth = math.prod(left[axis] for axis in contracted)
    out = equation.outvars[0].aval
    # A complex multiply and add is four of each of real numbers.
    each = 8.0 if jnp.issubdtype(out.dtype, jnp.complexfloating) else 2.0
    return each * math.prod(out.shape) * depth


def _ragged(equation: Any) -> float:
    batch, rows, depth, columns = ragged_sizes(equation)
    return 2.0 * batch * rows * depth * columns


def ragged_sizes(equation: Any) -> tuple[int, int, int, int]:
    """Return batch, rows, depth and columns of a grouped product (``jax.lax.ragged_dot``).

    Each row, or each part of the depth, meets the weights of one group, so groups add no work.
    """
    numbers = equation.params["ragged_dot_dimension_numbers"]
    (of_left, of_right), (batch_left, batch_right) = numbers.dot_dimension_numbers
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    others = {*of_right, *batch_right, *numbers.rhs_group_dimensions}
    batch = math.prod(left[axis] for axis in batch_left)
    depth = math.prod(left[axis] for axis in of_left)
    columns = math.prod(size for axis, size in enumerate(right) if axis not in others)
    return batch, math.prod(left) // max(1, batch * depth), depth, columns


def _convolution(equation: Any) -> float:
    """Count two operations for each weight that meets an input element.

    Padding and the zeros of a dilated operand do not count, so a convolution and its two gradients,
    which JAX writes as convolutions, have equal counts.
    """
    image, kernel = (variable.aval.shape for variable in equation.invars[:2])
    out = equation.outvars[0].aval.shape
    params = equation.params
    numbers = params["dimension_numbers"]
    meetings = math.prod(
        _meetings(image[i], kernel[k], out[o], stride=s, padding=p, dilations=(left, right))
        for i, k, o, s, p, left, right in zip(
            numbers.lhs_spec[2:],
            numbers.rhs_spec[2:],
            numbers.out_spec[2:],
            params["window_strides"],
            (low for low, _ in params["padding"]),
            params["lhs_dilation"],
            params["rhs_dilation"],
            strict=True,
        )
    )
    batch, features = (out[axis] for axis in numbers.out_spec[:2])
    return 2.0 * batch * features * kernel[numbers.rhs_spec[1]] * meetings


def _meetings(
    image: int, kernel: int, out: int, *, stride: int, padding: int, dilations: tuple[int, int]
) -> int:
    """Return the number of pairs of output position and weight that meet an input along an axis."""
    left, right = dilations
    at = np.arange(out)[:, None] * stride + np.arange(kernel)[None, :] * right - padding
    return int(np.count_nonzero((at >= 0) & (at <= (image - 1) * left) & (at % left == 0)))

"""Loops and conditionals: Scan, Loop and If."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from neurenix._jax import scan_counts
from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed
from neurenix.interop.onnx.lowering.elementwise import convert
from neurenix.interop.onnx.lowering.registry import Program, lower, lowers

_BOOL = np.dtype(bool)


@lowers("scan")
def _scan(b: Builder, equation: Any, *operands: Operand, program: Program) -> list[Operand]:
    params = equation.params
    constants, carried = scan_counts(equation)
    length, back = params["length"], params["reverse"]
    fixed, carry = operands[:constants], operands[constants : constants + carried]
    over = operands[constants + carried :]
    avals = [variable.aval for variable in equation.outvars]
    if isinstance(length, int) and params.get("unroll", 1) >= length > 0:
        return _unrolled(b, params, fixed, carry, over, avals, program)
    body = Builder(b)
    states = [_enter(body, "state", one) for one in carry]
    slices = [body.enter("slice", computed(x.dtype), tuple(x.shape[1:])) for x in over]
    inputs = [b.plain(x) for x in over]
    if not inputs:  # Scan has to run over something
        body.enter("step", np.dtype(np.int64), ())
        inputs = [b.emit("Expand", b.ints(0), b.dimension(length))]
    outs = lower(body, params["jaxpr"], [*fixed, *states, *slices], program)
    for out in outs:
        body.leave(body.plain(out), out_dtype(out), tuple(out.shape))
    names = b.emit(
        "Scan",
        *(b.plain(one) for one in carry),
        *inputs,
        outputs=len(outs),
        body=body,
        num_scan_inputs=len(inputs),
        scan_input_directions=[1] * len(inputs) if back else None,
        scan_output_directions=[1] * (len(outs) - carried)
        if back and len(outs) > carried
        else None,
    )
    return _values(b, names, avals)


def _unrolled(
    b: Builder, params: dict[str, Any], fixed: Sequence[Operand], carry: Sequence[Operand],
    over: Sequence[Operand], avals: Sequence[Any], program: Program,
) -> list[Operand]:  # fmt: skip
    """Return a scan without a loop."""
    steps = range(params["length"])
    stacked: list[list[Operand]] = []
    for step in reversed(steps) if params["reverse"] else steps:
        ins = [*fixed, *carry, *(_row(b, x, step) for x in over)]
        outs = lower(b, params["jaxpr"], ins, program)
        carry = outs[: len(carry)]
        stacked.append(outs[len(carry) :])
    if params["reverse"]:
        stacked.reverse()
    results = list(carry)
    for rows, aval in zip(zip(*stacked, strict=True), avals[len(carry) :], strict=True):
        parts = [b.emit("Unsqueeze", b.plain(row), b.ints(0)) for row in rows]
        results.append(b.value(b.emit("Concat", *parts, axis=0), aval.shape, aval.dtype))
    return results


def _row(b: Builder, x: Operand, number: int) -> Operand:
    if isinstance(x, np.ndarray):
        return x[number]
    name = b.emit("Gather", b.plain(x), b.constant(np.int64(number)), axis=0)
    return b.value(name, x.shape[1:], x.dtype)


def out_dtype(operand: Operand) -> np.dtype:
    """Return the dtype in which an operand is computed."""
    return computed(operand.dtype)


def _enter(body: Builder, name: str, operand: Operand) -> Value:
    return body.enter(name, out_dtype(operand), tuple(operand.shape))


def _values(b: Builder, names: Any, avals: Sequence[Any]) -> list[Operand]:
    names = [names] if isinstance(names, str) else names
    return [b.value(n, aval.shape, aval.dtype) for n, aval in zip(names, avals, strict=True)]


@lowers("while")
def _while(b: Builder, equation: Any, *operands: Operand, program: Program) -> list[Operand]:
    params = equation.params
    of_test, of_body = params["cond_nconsts"], params["body_nconsts"]
    for_test, for_body = operands[:of_test], operands[of_test : of_test + of_body]
    carry = operands[of_test + of_body :]
    avals = [variable.aval for variable in equation.outvars]
    (begins,) = lower(b, params["cond_jaxpr"], [*for_test, *carry], program)
    body = Builder(b)
    body.enter("iteration", np.dtype(np.int64), ())
    body.enter("runs", _BOOL, ())
    states = [_enter(body, "state", one) for one in carry]
    outs = lower(body, params["body_jaxpr"], [*for_body, *states], program)
    (goes_on,) = lower(body, params["cond_jaxpr"], [*for_test, *outs], program)
    body.leave(body.plain(goes_on), _BOOL, ())
    for out in outs:
        body.leave(body.plain(out), out_dtype(out), tuple(out.shape))
    starts = [b.plain(one) for one in carry]
    names = b.emit("Loop", "", b.plain(begins), *starts, outputs=len(outs), body=body)
    return _values(b, names, avals)


@lowers("cond")
def _cond(
    b: Builder, equation: Any, which: Operand, *operands: Operand, program: Program
) -> list[Operand]:
    branches = equation.params["branches"]
    if isinstance(which, np.ndarray):
        number = int(np.clip(which, 0, len(branches) - 1))
        return lower(b, branches[number], operands, program)
    avals = [variable.aval for variable in equation.outvars]
    return _choose(b, which, branches, operands, program, avals)


def _choose(
    b: Builder, which: Value, branches: Sequence[Any], operands: Sequence[Operand],
    program: Program, avals: Sequence[Any],
) -> list[Operand]:  # fmt: skip
    if len(branches) == 1:
        return lower(b, branches[0], operands, program)
    # The last branch is of all larger numbers, the first of all smaller ones.
    number = convert(b, which, np.int64)
    last = b.constant(np.int64(len(branches) - 1))
    test = b.emit("GreaterOrEqual", b.plain(number), last)
    yes, no = Builder(b), Builder(b)
    for graph, results in (
        (yes, lower(yes, branches[-1], operands, program)),
        (no, _choose(no, which, branches[:-1], operands, program, avals)),
    ):
        for out in results:
            graph.leave(graph.plain(out), out_dtype(out), tuple(out.shape))
    names = b.emit("If", test, outputs=len(avals), then_branch=yes, else_branch=no)
    return _values(b, names, avals)


@lowers("platform_index")
def _platform_index(b: Builder, equation: Any) -> np.ndarray:
    """Choose the portable branch of ``lax.platform_dependent``: the last, which is the default."""
    platforms = equation.params["platforms"]
    default = next((n for n, of in enumerate(platforms) if of is None), len(platforms) - 1)
    return np.asarray(default, np.int32)


@lowers("debug_callback", "debug_print")
def _no_effect(b: Builder, equation: Any, *_: Operand, **__: Any) -> list[Operand]:
    return []

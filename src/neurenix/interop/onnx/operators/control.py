"""Branches and loops. What is known when the program is traced decides then; the rest is XLA's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import as_jax, is_known
from neurenix.interop.onnx.registry import operator

# A loop whose number of runs is known and at most this is written out: its shapes may change, and
# what it computes from known values stays known.
_WRITTEN_OUT = 8
# Runs of a loop over known values, which are computed while the program is traced.
_MOST_RUNS = 65_536


@operator("If", nested=True)
def if_(condition, *, then_branch, else_branch, run):
    if is_known(condition):
        return run(then_branch if bool(np.reshape(condition, ())) else else_branch, [])

    def branch(graph: Any) -> Any:
        return lambda: [as_jax(each) for each in run(graph, [])]

    try:
        return lax.cond(jnp.reshape(condition, ()), branch(then_branch), branch(else_branch))
    except TypeError as error:
        raise ConversionError(
            "the two branches give different shapes or dtypes, and the condition is computed from "
            "the data."
        ) from error


def _collects(node: Any) -> tuple[int, ...]:
    """Return the number of runs and the condition, where a loop collects a result of each run."""
    return (0, 1) if len(node.outputs) > len(node.inputs) - 2 else ()


@operator("Loop", nested=True, also_known=_collects)
def loop(limit=None, condition=None, *carried, body, run):
    count = None if limit is None else limit.reshape(())
    going = True if condition is None else condition.reshape(())
    if (count is None or is_known(count)) and (going is True or is_known(going)):
        found = _written_out(count, bool(going), list(carried), body, run)
        if found is not None:
            return found
    if count is not None and is_known(count):
        return _scanned(int(count), going, carried, body, run)
    return _while(count, going, carried, body, run)


def _written_out(
    count: Any, going: bool, carried: list[Any], body: Any, run: Any
) -> list[Any] | None:
    """Run a loop as long as its condition stays known; None where it does not, or goes on."""
    collected: list[list[Any]] = [[] for _ in range(len(body.outputs) - 1 - len(carried))]
    if count is not None and int(count) > _WRITTEN_OUT and not _is_all_known(carried):
        return None
    number = 0
    while going and (count is None or number < int(count)):
        if number == _MOST_RUNS:
            raise ConversionError(f"it runs more than {_MOST_RUNS} times on known values.")
        results = run(body, [np.asarray(number, np.int64), np.asarray(True), *carried])
        if not is_known(results[0]):
            return None
        going = bool(results[0].reshape(()))
        carried = results[1 : 1 + len(carried)]
        for each, value in zip(collected, results[1 + len(carried) :], strict=True):
            each.append(value)
        number += 1
    return [*carried, *(_stacked(each) for each in collected)]


def _is_all_known(*values: Sequence[Any]) -> bool:
    return all(is_known(each) for row in values for each in row)


def _stacked(values: list[Any]) -> Any:
    if not values:
        raise ConversionError("it runs no time, so the shape of what it collects is unknown.")
    if _is_all_known(values):
        return np.stack(values)
    return jnp.stack([as_jax(value) for value in values])


def _scanned(count: int, going: Any, carried: Sequence[Any], body: Any, run: Any) -> list[Any]:
    """Run a loop of a known number of runs that may end earlier."""
    start = [as_jax(each) for each in carried]

    def step(state: Any, number: Any) -> Any:
        active, values = state
        results = [as_jax(each) for each in run(body, [number, active, *values])]
        after = results[1 : 1 + len(values)]
        kept = [jnp.where(active, new, old) for new, old in zip(after, values, strict=True)]
        return (active & results[0].reshape(()), kept), (active, results[1 + len(values) :])

    first = jnp.asarray(True if going is True else going).reshape(())
    (_, values), (active, collected) = lax.scan(
        step, (first, start), jnp.arange(count, dtype=jnp.int32)
    )
    if collected and not _ends_never(body):
        raise ConversionError(
            "it collects a number of results that depends on the data, which has no fixed shape."
        )
    del active
    return [*values, *collected]


def _ends_never(body: Any) -> bool:
    """Tell whether the condition of a loop's body is the one that it was given, or a constant."""
    name = body.outputs[0].name
    for node in reversed(body.nodes):
        if name in node.outputs:
            if node.op == "Constant":
                return True
            if node.op != "Identity":
                return False
            name = node.inputs[0]
    constant = body.constants.get(name)
    return constant is not None or name == body.inputs[1].name


def _while(count: Any, going: Any, carried: Sequence[Any], body: Any, run: Any) -> list[Any]:
    if len(body.outputs) - 1 > len(carried):
        raise ConversionError(
            "it collects a number of results that depends on the data, which has no fixed shape."
        )
    start = [as_jax(each) for each in carried]

    def unfinished(state: Any) -> Any:
        number, active, _ = state
        return active if count is None else active & (number < count)

    def step(state: Any) -> Any:
        number, active, values = state
        results = [as_jax(each) for each in run(body, [number, active, *values])]
        return number + 1, results[0].reshape(()), results[1:]

    first = jnp.asarray(True if going is True else going).reshape(())
    return lax.while_loop(unfinished, step, (jnp.zeros((), jnp.int32), first, start))[2]


@operator("Scan", since=9, nested=True)
def scan(
    *inputs, body, num_scan_inputs, run, scan_input_axes=None, scan_input_directions=None,
    scan_output_axes=None, scan_output_directions=None,
):  # fmt: skip
    values = [as_jax(each) for each in inputs]
    states, rows = values[: len(values) - num_scan_inputs], values[len(values) - num_scan_inputs :]
    input_axes = scan_input_axes or [0] * len(rows)
    backwards = scan_input_directions or [0] * len(rows)
    rows = [
        jnp.flip(jnp.moveaxis(row, axis, 0), 0) if back else jnp.moveaxis(row, axis, 0)
        for row, axis, back in zip(rows, input_axes, backwards, strict=True)
    ]

    def step(state: Any, row: Any) -> Any:
        results = [as_jax(each) for each in run(body, [*state, *row])]
        return results[: len(states)], results[len(states) :]

    last, collected = lax.scan(step, states, rows)
    output_axes = scan_output_axes or [0] * len(collected)
    turned = scan_output_directions or [0] * len(collected)
    return [*last, *(
        jnp.moveaxis(jnp.flip(each, 0) if back else each, 0, axis)
        for each, axis, back in zip(collected, output_axes, turned, strict=True)
    )]  # fmt: skip


@operator("Scan", since=8, nested=True)
def scan_8(lengths, *inputs, body, num_scan_inputs, run, directions=None):
    if lengths is not None:
        raise ConversionError("sequence lengths of its version 8 are not computed here.")

    def one(*values: Any) -> Any:
        return scan(
            *values, body=body, num_scan_inputs=num_scan_inputs, run=run,
            scan_input_directions=directions,
        )  # fmt: skip

    return list(jax.vmap(one)(*map(as_jax, inputs)))

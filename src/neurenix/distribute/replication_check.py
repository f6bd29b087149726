"""Dataflow analysis of a replica's jaxpr: which values are replicated, which states only grow.

Owns two questions: may a value differ between replicas, and is it a metric state plus something.
An unknown operation makes a value that may differ and is no such sum. Does not own what follows
from the answers (``sync_state.py``).

``jax.shard_map(check_vma=True)`` does not replace this analysis. Under it the gradient with respect
to a replicated parameter is already summed over the replicas, so the ``all_reduce`` of a training
loop would scale it by their number. A ``scan`` or ``cond`` whose values start replicated and become
varying, such as zeros to which a share is added, raises TypeError in the user's code. The result of
``all_gather`` counts as varying. Its types also do not say whether a metric's state is the old
state plus something, which decides between a sum and an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from neurenix._jax import scan_counts
from neurenix._jaxpr import called_jaxpr, open_jaxpr, subjaxprs
from neurenix.distribute.mesh import DATA_AXIS

_ALIKE = {"psum", "pmax", "pmin", "all_gather"}  # results are replicated
_ADDITIONS = {"add", "add_any", "sub", "scatter-add"}


class Flow(NamedTuple):
    """What one value depends on.

    Attributes:
        differs: whether it may differ between replicas.
        grown: index of a state, if the value is that state plus something; else None.
        reads: whether the value, or what was added to the state, depends on a state.
    """

    differs: bool = False
    grown: int | None = None
    reads: bool = False


def flows_of(jaxpr: Any, inputs: Sequence[Flow]) -> list[Flow]:
    """Return the flow of each output of a jaxpr.

    Args:
        jaxpr: open or closed.
        inputs: the flow of each input; constants are replicated.

    Example:
        >>> import jax
        >>> jaxpr = jax.make_jaxpr(lambda total, x: (total + x, 2 * total))(1.0, 2.0)
        >>> for flow in flows_of(jaxpr, [Flow(grown=0), Flow(differs=True)]):
        ...     print(flow)
        Flow(differs=True, grown=0, reads=False)
        Flow(differs=False, grown=None, reads=True)
    """
    plain = open_jaxpr(jaxpr)
    known = dict(zip(plain.invars, inputs, strict=True))

    def flow(variable: Any) -> Flow:
        # Literals are not hashable; they are replicated
        return Flow() if hasattr(variable, "val") else known.get(variable, Flow())

    for equation in plain.eqns:
        after = _after(equation, [*map(flow, equation.invars)])
        known.update(zip(equation.outvars, after, strict=True))
    return [*map(flow, plain.outvars)]


def _after(equation: Any, flows: list[Flow]) -> list[Flow]:
    name, params, count = equation.primitive.name, equation.params, len(equation.outvars)
    if name in _LOOPS:
        return _LOOPS[name](equation, flows)
    if (called := called_jaxpr(equation)) is not None:
        return flows_of(called, flows)
    mixed = _mixed(flows)
    if _tells_replicas_apart(equation):
        mixed = mixed._replace(differs=True)
    elif _is_along_data(params):
        mixed = mixed._replace(differs=False)
    elif name in _ADDITIONS:
        mixed = _sum(name, flows) or mixed
    elif name == "select_n":
        mixed = _under(flows[0], [_join(flows[1:])])[0]
    elif len(flows) == 1 and equation.invars[0].aval.shape == equation.outvars[0].aval.shape:
        mixed = flows[0] if name in ("convert_element_type", "copy", "reshape") else mixed
    return [mixed] * count


def _is_along_data(params: dict[str, Any]) -> bool:
    names = params.get("axes", params.get("axis_name"))
    return DATA_AXIS in (names if isinstance(names, tuple) else (names,))


def _tells_replicas_apart(equation: Any) -> bool:
    """Return whether replicated inputs may have outputs that differ."""
    name, params = equation.primitive.name, equation.params
    if _is_along_data(params):
        return name not in _ALIKE or params.get("axis_index_groups") is not None
    inside = (one for body in subjaxprs(equation) for one in open_jaxpr(body).eqns)
    return name == "io_callback" or any(map(_tells_replicas_apart, inside))


def _after_scan(equation: Any, flows: list[Flow]) -> list[Flow]:
    params, (first, carried) = equation.params, scan_counts(equation)
    last = first + carried
    constants, carry, rows = flows[:first], flows[first:last], [*map(_apart, flows[last:])]
    while True:
        out = flows_of(params["jaxpr"], [*constants, *carry, *rows])
        joined = [_join(pair) for pair in zip(carry, out[: len(carry)], strict=True)]
        if joined == carry:
            return [*carry, *map(_apart, out[len(carry) :])]
        carry = joined


def _after_while(equation: Any, flows: list[Flow]) -> list[Flow]:
    params = equation.params
    first = params["cond_nconsts"]
    last = first + params["body_nconsts"]
    tested, constants, carry = flows[:first], flows[first:last], flows[last:]
    while True:
        out = flows_of(params["body_jaxpr"], [*constants, *carry])
        out = _under(flows_of(params["cond_jaxpr"], [*tested, *carry])[0], out)
        joined = [_join(pair) for pair in zip(carry, out, strict=True)]
        if joined == carry:
            return carry
        carry = joined


def _after_cond(equation: Any, flows: list[Flow]) -> list[Flow]:
    branches = [flows_of(branch, flows[1:]) for branch in equation.params["branches"]]
    return _under(flows[0], [_join(outs) for outs in zip(*branches, strict=True)])


_LOOPS = {"scan": _after_scan, "while": _after_while, "cond": _after_cond}


def _sum(name: str, flows: list[Flow]) -> Flow | None:
    """Return the flow of a state plus something, or None for any other sum."""
    terms = flows[:2] if name.startswith("add") else flows[:1]
    grown = [flow for flow in flows if flow.grown is not None]
    if len(grown) != 1 or not any(flow is grown[0] for flow in terms):
        return None
    return Flow(_mixed(flows).differs, grown[0].grown, any(flow.reads for flow in flows))


def _mixed(flows: Sequence[Flow]) -> Flow:
    reads = any(flow.reads or flow.grown is not None for flow in flows)
    return Flow(any(flow.differs for flow in flows), None, reads)


def _join(flows: Sequence[Flow]) -> Flow:
    """Return the flow of a value that is one of several."""
    if len({flow.grown for flow in flows}) > 1:
        return _mixed(flows)
    differs, reads = any(flow.differs for flow in flows), any(flow.reads for flow in flows)
    return Flow(differs, flows[0].grown, reads)


def _under(choice: Flow, flows: list[Flow]) -> list[Flow]:
    """Return ``flows`` of values that depend on a condition."""
    choice = _apart(choice)
    return [
        Flow(flow.differs or choice.differs, flow.grown, flow.reads or choice.reads)
        for flow in flows
    ]


def _apart(flow: Flow) -> Flow:
    """Return the flow of a part of a value, which is not a state plus something."""
    return _mixed([flow])

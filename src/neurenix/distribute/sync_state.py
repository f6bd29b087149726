"""Synchronise the state of modules after the replicas ran.

Owns which variables are averaged, which are summed, and which must be equal on all replicas. Does
not own the dataflow analysis (``replication_check.py``) or the run (``run_replicas.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx
from neurenix.distribute.mesh import DATA_AXIS
from neurenix.distribute.replication_check import Flow, flows_of

_OWN_METRICS = "neurenix.metrics."


@dataclass(frozen=True)
class _State:
    """A variable, its path from the name of its module, and the metric that holds it."""

    variable: Any
    path: str
    metric: Any


class States:
    """The variables of some modules, in the order of their graph.

    Args:
        modules: arguments of the replica's function.
    """

    def __init__(self, modules: tuple[Any, ...]) -> None:
        metrics = [node for _, node in nnx.iter_graph(modules) if isinstance(node, nnx.Metric)]
        owner = {id(value): metric for metric in metrics for value in vars(metric).values()}
        names: dict[Any, str] = {n: type(module).__name__ for n, module in enumerate(modules)}
        self._states = [
            _State(
                variable,
                ".".join([names[path[0]], *map(str, path[1:])]),
                owner.get(id(variable), variable),
            )
            for path, variable in nnx.graph.flatten(modules)[1]
            if isinstance(variable, nnx.Variable)
        ]

    def together(
        self, name: str, jaxpr: Any, apart: list[bool], before: list[Any], after: list[Any]
    ) -> list[Any]:
        """Return the synchronised variables.

        Args:
            name: of the function.
            jaxpr: its inputs are the variables and then all other arrays; its outputs are the
                results and then the variables.
            apart: for each other array, whether it is sharded over the replicas.
            before: the variables before the call.
            after: the variables of this replica after the call.

        Raises:
            ArgumentError: a variable may differ between replicas, or a metric's state cannot be
                summed.
        """
        first = [
            Flow(grown=number if isinstance(state.variable, nnx.metrics.MetricState) else None)
            for number, state in enumerate(self._states)
        ]
        flows = flows_of(jaxpr, [*first, *(Flow(differs=one) for one in apart)])
        flows = flows[len(flows) - len(after) :]
        summed = self._summed(name, flows)
        merged = []
        for number, (state, flow, new) in enumerate(zip(self._states, flows, after, strict=True)):
            if number in summed:
                new = before[number] + jax.lax.psum(new - before[number], DATA_AXIS)
            elif isinstance(state.variable, nnx.BatchStat) and flow.differs:
                new = jax.lax.pmean(new, DATA_AXIS)
            elif flow.differs and not isinstance(state.variable, nnx.RngState):
                raise ArgumentError(_differs(name, state))
            merged.append(new)
        return merged

    def _summed(self, name: str, flows: Sequence[Flow]) -> set[int]:
        """Return the indices of metric states to which each replica adds.

        A metric whose states are replicated is left unchanged.
        """
        parts: dict[int, list[int]] = {}
        for number, state in enumerate(self._states):
            if isinstance(state.variable, nnx.metrics.MetricState):
                parts.setdefault(id(state.metric), []).append(number)
        summed: set[int] = set()
        for numbers in parts.values():
            wrong = [n for n in numbers if not _is_sum(n, self._states[n], flows[n])]
            if not wrong:
                summed.update(numbers)
            elif any(flows[number].differs for number in numbers):
                state, flow = self._states[wrong[0]], flows[wrong[0]]
                raise ArgumentError(_no_sum(name, state, flow))
        return summed


def _is_sum(number: int, state: _State, flow: Flow) -> bool:
    """Return whether the replicas' additions to a state can be summed.

    An addition must not depend on the metric's states, as in a running mean. The metrics of
    ``nx.metrics`` are sums by contract.
    """
    classes = type(state.metric).__mro__
    own = any(f"{base.__module__}.".startswith(_OWN_METRICS) for base in classes)
    return flow.grown == number and (own or not flow.reads)


def _differs(name: str, state: _State) -> str:
    return (
        f"{name} may leave {state.path} different on each replica, and a variable has one value "
        "for all of them. Bring together what it is computed from, gradients or a statistic: "
        'nx.distribute.get_replica_context().all_reduce("mean", value) (nx.Optimizer does so with '
        "gradients), or return it from the function."
    )


def _no_sum(name: str, state: _State, flow: Flow) -> str:
    if flow.grown is None and not flow.reads:
        return (
            f"{name} sets {state.path}, the state of a metric, anew on each replica, as reset() "
            "does; to what was there before each replica can only add. Reset the metric before the "
            "call, outside of the function."
        )
    return (
        f"{name} changes {state.path}, the state of a metric, in another way than by adding what "
        "does not depend on it, so that those of the replicas cannot be summed. Give the metric "
        "the values of all replicas, nx.distribute.get_replica_context().all_gather(values), or "
        "return them and update it outside of the function."
    )

"""Parameters that are not trained: the implementation of ``Module.freeze`` and ``unfreeze``.

Changes the type of a variable in place: training updates every ``nnx.Param`` and skips ``Frozen``
ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._jit.training_mode import FROZEN, keep_statistics
from neurenix._nnx import nnx, set_variable_type
from neurenix.nn.summary import Summary
from neurenix.train.module_split import Frozen

_KIND = "thawed_kind"  # metadata of a variable that was of a subclass of nnx.Param


@dataclass(frozen=True)
class FrozenSummary(Summary):
    """A summary of a module with frozen parameters, which are included in its numbers.

    Attributes:
        frozen_parameters: number of frozen values.
    """

    frozen_parameters: int

    def __str__(self) -> str:
        """Return the table and the numbers of trainable and frozen parameters."""
        trainable = self.num_parameters - self.frozen_parameters
        return f"{super().__str__()}\n{trainable:,} trainable, {self.frozen_parameters:,} frozen"


def freeze(module: nnx.Module) -> None:
    """Turn every ``nnx.Param`` of ``module`` into a ``Frozen``; see ``Module.freeze``.

    The type of the variable itself changes, so that a shared variable stays shared.
    """
    thawed = [variable for variable in _variables(module) if isinstance(variable, nnx.Param)]
    for variable in thawed:
        if type(variable) is not nnx.Param:
            variable.set_metadata(_KIND, type(variable))
        set_variable_type(variable, Frozen)
    for node in _modules(module):
        if thawed or not hasattr(node, FROZEN):  # bound functions notice the new number
            setattr(node, FROZEN, getattr(node, FROZEN, 0) + 1)
        keep_statistics(node)


def unfreeze(module: nnx.Module) -> None:
    """Turn every ``Frozen`` of ``module`` back into its original ``nnx.Param`` type."""
    for variable in _variables(module):
        if isinstance(variable, Frozen):
            kind = variable.get_metadata().get(_KIND, nnx.Param)
            set_variable_type(variable, kind)
            if variable.has_metadata(_KIND):
                variable.del_metadata(_KIND)
    for node in _modules(module):
        if hasattr(node, FROZEN):
            delattr(node, FROZEN)


def num_parameters(module: nnx.Module) -> int:
    """Return the total size of the parameters, frozen ones included."""
    return _size(module, nnx.Any(nnx.Param, Frozen))


def with_frozen(module: nnx.Module, summarize: Callable[[Any], Summary]) -> Summary:
    """Return the summary of a module, counting frozen parameters as parameters."""
    frozen = _size(module, Frozen)
    if not frozen:
        return summarize(module)
    graph, state = nnx.split(module)
    thawed = nnx.merge(graph, jax.tree.map(lambda leaf: leaf, state))  # with new variables
    unfreeze(thawed)
    found = summarize(thawed)
    return FrozenSummary(
        found.rows, found.num_parameters, found.parameter_bytes, found.state_bytes, frozen
    )


def _size(module: nnx.Module, kinds: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, kinds)))


def _variables(module: nnx.Module) -> list[Any]:
    return [leaf for _, leaf in nnx.graph.flatten(module)[1] if isinstance(leaf, nnx.Variable)]


def _modules(module: nnx.Module) -> list[Any]:
    return [node for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)]

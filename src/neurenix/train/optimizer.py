"""An optimizer with its state, for training loops of one's own.

Owns ``nx.Optimizer``. The rules themselves are optax's (``neurenix.optim``).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from neurenix import optim
from neurenix._core.errors import ArgumentTypeError, ShapeError
from neurenix._nnx import nnx
from neurenix.distribute import get_replica_context


class Optimizer(nnx.Pytree):
    """The state of an optimizer for one module, updated in place.

    Args:
        model: any NNX module; its ``nnx.Param`` variables are trained.
        optimizer: a name, one of ``nx.optim``, or an optax transformation.

    Example:
        >>> from neurenix import nn
        >>> model = nn.Linear(2, 1)
        >>> optimizer = Optimizer(model, optim.SGD(0.1))
        >>> gradients = jax.tree.map(jnp.ones_like, nnx.state(model, nnx.Param))
        >>> optimizer.update(model, gradients)
        >>> optimizer.step
        1
    """

    def __init__(self, model: nnx.Module, optimizer: Any = "adam") -> None:
        if not isinstance(model, nnx.Module):
            raise ArgumentTypeError(
                f"Optimizer: model is {type(model).__name__}, expected a module. The order is "
                "Optimizer(model, optimizer)."
            )
        self.transformation = optim.get(optimizer)
        self._count = nnx.OptState(jnp.zeros((), jnp.int32))
        parameters = _parameters(model)
        self._trained = tuple(_shapes(parameters).items())
        state = self.transformation.init(parameters)
        self.state = nnx.data(jax.tree.map(nnx.OptState, state))

    @property
    def step(self) -> Any:
        """Updates made: an int, or a traced scalar inside a compiled function."""
        count = self._count.get_value()
        return count if isinstance(count, Tracer) else int(count)

    def update(self, model: nnx.Module, gradients: Any) -> None:
        """Change the model's parameters by one step along ``gradients``.

        Inside ``strategy.run`` the gradients of all replicas are summed first; with a loss from
        ``compute_average_loss`` the sum is the gradient of the mean over the global batch.

        Args:
            model: the module that the optimizer was made for.
            gradients: as ``nx.grad`` or ``nx.value_and_grad`` return them for it.

        Raises:
            ArgumentTypeError: ``model`` is no module; says so when the two are swapped.
            ShapeError: the gradients are those of another model, or the model's parameters are no
                longer those that the optimizer was made for.
        """
        if not isinstance(model, nnx.Module):
            swapped = " They are the other way round." if isinstance(gradients, nnx.Module) else ""
            raise ArgumentTypeError(
                f"Optimizer.update: model is {type(model).__name__}, expected a module. The order "
                f"is update(model, gradients).{swapped}"
            )
        gradients, parameters = nnx.as_pure(gradients), _parameters(model)
        needed = _shapes(parameters)
        _check_gradients(_shapes(gradients), needed)
        _check_same(dict(self._trained), needed)
        gradients = get_replica_context().all_reduce("sum", gradients)

        def is_variable(leaf: Any) -> bool:
            return isinstance(leaf, nnx.Variable)

        state = jax.tree.map(lambda leaf: leaf.get_value(), self.state, is_leaf=is_variable)
        updates, after = self.transformation.update(gradients, state, parameters)
        nnx.update(model, optax.apply_updates(parameters, updates))
        jax.tree.map(
            lambda variable, new: variable.set_value(new), self.state, after, is_leaf=is_variable
        )
        self._count.set_value(self._count.get_value() + 1)


def _parameters(model: nnx.Module) -> Any:
    return nnx.as_pure(nnx.state(model, nnx.Param))


def _check_same(before: dict[str, Any], now: dict[str, Any]) -> None:
    if before == now:
        return
    first = next(name for name in {**before, **now} if before.get(name) != now.get(name))
    raise ShapeError(
        f"Optimizer.update: the optimizer was made for other parameters: {first} was "
        f"{before.get(first, 'not there')}, and is {now.get(first, 'not trained')}. Make the "
        "optimizer after freezing, unfreezing or replacing layers."
    )


def _check_gradients(given: dict[str, Any], needed: dict[str, Any]) -> None:
    if given == needed:
        return
    wrong = [name for name in {**needed, **given} if given.get(name) != needed.get(name)]
    first, missing = wrong[0], "nothing"
    raise ShapeError(
        f"Optimizer.update: the gradients are not those of this model: {len(wrong)} of "
        f"{len({**needed, **given})} differ, such as {first}: {given.get(first, missing)} in the "
        f"gradients, {needed.get(first, missing)} in the model. Take them by nx.grad with respect "
        "to this model."
    )


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): jnp.shape(leaf)
        for path, leaf in leaves
    }

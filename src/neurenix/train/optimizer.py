"""``nx.Optimizer``: an optimizer with its state, for custom training loops.

The update rules are in ``neurenix.optim``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import optax
from jax.core import Tracer

from neurenix import optim
from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, did_you_mean
from neurenix._core.names import MissingAttributeError
from neurenix._jit.loop_errors import STEP
from neurenix._migration.optimizers import METHODS
from neurenix._nnx import nnx
from neurenix.distribute import get_replica_context
from neurenix.optim.extra import needs_value, takes_value
from neurenix.train.learning_rate import BaseLearningRate

_PUBLIC = ("learning_rate", "state", "step", "transformation", "update")


class _Updates(int):
    """The number of updates; explains what to do if it is called like PyTorch's ``step``."""

    def __call__(self, *args: Any, **options: Any) -> NoReturn:
        raise ArgumentTypeError(
            "optimizer.step is the number of updates made. In place of loss.backward() and "
            f"optimizer.step(): {STEP}."
        )


class Optimizer(nnx.Pytree):
    """The state of an optimizer for one module, updated in place.

    Args:
        model: any NNX module; its ``nnx.Param`` variables are trained.
        optimizer: a name, one of ``nx.optim``, or an optax transformation.

    Example:
        >>> from flax import nnx
        >>> import jax
        >>> from neurenix import nn
        >>> model = nn.Linear(2, 1)
        >>> optimizer = nx.Optimizer(model, nx.optim.SGD(0.1))
        >>> gradients = jax.tree.map(nx.ones_like, nnx.state(model, nnx.Param))
        >>> optimizer.update(model, gradients)
        >>> optimizer.step
        1
        >>> optimizer.learning_rate = 0.05
        >>> optimizer.learning_rate
        0.05
    """

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "learning_rate":  # a variable's value; NNX would note a new attribute
                self._set_learning_rate(value)
                return
            if type(self) is Optimizer and not name.startswith("_") and name not in _PUBLIC:
                raise AttributeError(
                    f"Optimizer has no attribute {name!r}, so setting it would change nothing."
                    f"{did_you_mean(name, _PUBLIC)} The learning rate is set by "
                    "optimizer.learning_rate = …; other options are those of nx.optim."
                )
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> NoReturn:
            if name.startswith("_") or hasattr(type(self), name):
                object.__getattribute__(self, name)  # fails again, as it did
            known = _PUBLIC if type(self) is Optimizer else dir(self)
            raise MissingAttributeError("'Optimizer' object", name, lambda: known, METHODS)

    def __init__(self, model: nnx.Module, optimizer: Any = "adam") -> None:
        if not isinstance(model, nnx.Module):
            raise ArgumentTypeError(
                f"Optimizer: model is {type(model).__name__}, expected a module. The order is "
                "Optimizer(model, optimizer)."
            )
        self.transformation = optim.get(optimizer)
        self._own_rate = BaseLearningRate(optimizer)
        self._count = nnx.OptState(jnp.zeros((), jnp.int32))
        self._learning_rate_scale = nnx.OptState(jnp.ones((), jnp.float32))
        parameters = _parameters(model)
        self._trained = tuple(_shapes(parameters).items())
        state = self.transformation.init(parameters)
        self.state = nnx.data(jax.tree.map(nnx.OptState, state))

    @property
    def step(self) -> Any:
        """Updates made: an int, or a traced scalar inside a compiled function."""
        count = self._count.get_value()
        return count if isinstance(count, Tracer) else _Updates(count)

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the next update: a float, or a traced scalar when compiled.

        Setting it sets a factor on the optimizer's own rate or schedule. The factor is a variable,
        so a compiled step reads its current value, and it is saved with the optimizer's state.

        Raises:
            ArgumentError: the optimizer is an optax transformation, which hides its rate; the
                value is not a valid rate; or the optimizer's own rate is 0.
        """
        own, scale = self._own_rate.at(self.step), self._learning_rate_scale.get_value()
        return own * (scale if isinstance(scale, Tracer) else float(scale))

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None: ...

    def _set_learning_rate(self, value: Any) -> None:
        kept = self._learning_rate_scale.get_value()
        factor = jnp.asarray(self._own_rate.factor(value, self.step, kept=kept), kept.dtype)
        if not isinstance(factor, Tracer) and not isinstance(kept, Tracer) and kept.committed:
            factor = jax.device_put(factor, kept.sharding)  # elsewhere it would compile anew
        self._learning_rate_scale.set_value(factor)

    def update(self, model: nnx.Module, gradients: Any, *, value: Any = None) -> None:
        """Change the model's parameters by one step along ``gradients``.

        Inside ``strategy.run`` the gradients of all replicas, and ``value``, are summed first; with
        a loss from ``compute_average_loss`` the sum is the gradient of the mean over the global
        batch.

        Args:
            model: the module that the optimizer was made for.
            gradients: as ``nx.grad`` or ``nx.value_and_grad`` return them for it.
            value: the loss, for transformations that use it, such as
                ``optax.contrib.reduce_on_plateau``; others ignore it.

        Raises:
            ArgumentError: the optimizer needs ``value``, and it is missing.
            ArgumentTypeError: ``model`` is not a module, such as when both are swapped.
            ShapeError: the gradients are of another model, or the model's parameters have changed
                since the optimizer was made.
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
        extra: dict[str, Any] = {}
        if value is None and needs_value(self.transformation):
            raise ArgumentError(
                "Optimizer.update: this optimizer looks at the loss: update(model, gradients, "
                "value=loss)."
            )
        if value is not None and takes_value(self.transformation):
            extra["value"] = get_replica_context().all_reduce("sum", value)
        gradients = get_replica_context().all_reduce("sum", gradients)

        def is_variable(leaf: Any) -> bool:
            return isinstance(leaf, nnx.Variable)

        state = jax.tree.map(lambda leaf: leaf.get_value(), self.state, is_leaf=is_variable)
        rule: Any = self.transformation
        updates, after = rule.update(gradients, state, parameters, **extra)
        scale = self._learning_rate_scale.get_value()
        updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
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

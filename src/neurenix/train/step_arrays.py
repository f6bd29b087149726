"""The state of a trainer as its step takes it, for a step that was compiled elsewhere.

Owns handing it out and taking it back. It does not own the step (``step_program.py``), nor files of
it (``trainer_checkpoint.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError, differing_names
from neurenix._jit.random_keys import like, numbers_of
from neurenix.train.ema import averaging
from neurenix.train.trainer_state import Kept

if TYPE_CHECKING:
    from neurenix.train.device_state import Session


class StepStates:
    """The part of a ``Trainer`` that a step of ``nx.load_compiled`` works on."""

    _kept: Kept

    if TYPE_CHECKING:

        def _session(self) -> Session: ...

    def step_state(self) -> Any:
        """Return copies of all arrays that a training step takes and returns.

        The step of a model, compiled by ``nx.compile_for`` or ``neurenix compile``, is called with
        it and a batch: a dict of ``x``, ``y`` and, where the step was compiled with it,
        ``weight``, with a first axis of K where the model has ``steps_per_execution=K``. Random
        keys are their numbers in it.

        Raises:
            ArgumentError: the module is abstract, or its arrays are gone.

        Example:
            >>> import neurenix as nx
            >>> model = nx.nn.Linear(3, 1).compile("adam", "mse")
            >>> artefact = nx.compile_for(model, on="cpu", path="fit.nxc", input_shape=(8, 3))
            >>> step, state = nx.load_compiled("fit.nxc"), model.trainer.step_state()
            >>> for _ in range(3):
            ...     state, logs = step(state, {"x": nx.ones((8, 3)), "y": nx.ones((8, 1))})
            >>> model.trainer.take_step_state(state)
            >>> model.trainer.steps_made
            3
        """
        emas = averaging(self._kept.callbacks.callbacks)
        state = self._session().initial_state(emas)
        return jax.tree.map(lambda leaf: jnp.copy(numbers_of(leaf)), state)

    def take_step_state(self, state: Any) -> None:
        """Make the module and the trainer hold the state that a step returned.

        ``fit``, ``evaluate`` and ``save`` go on from it.

        Args:
            state: of ``step_state``, or what a step that was given it returned.

        Raises:
            ArgumentTypeError: it lacks an array, or has one more, or something that is none.
            ArgumentError: an array is gone, because a step was given it.
            ShapeError: one has another shape.
        """
        session = self._session()
        emas = averaging(self._kept.callbacks.callbacks)
        own = session.initial_state(emas)
        held, treedef = jax.tree_util.tree_flatten_with_path(own)
        given = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}
        names = [_name(path) for path, _ in held]
        if said := differing_names(names, given):
            raise ArgumentTypeError(f"That is no state of this step: {said}")
        leaves = [
            _like(name, given[name], leaf) for name, (_, leaf) in zip(names, held, strict=True)
        ]
        state = jax.tree.unflatten(treedef, leaves)
        session.keep(state, emas)
        self._kept.standing.steps_made = int(state.step)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _like(name: str, given: Any, own: jax.Array) -> jax.Array:
    """Return a copy of what was given, as the array that is held and where that lies."""
    if isinstance(given, jax.Array) and given.is_deleted():
        raise ArgumentError(
            f"{name} of the state is gone: a step was given it, and has reused its memory. Take "
            "the state that the step returned."
        )
    if isinstance(given, (str, bytes)) or not hasattr(given, "shape"):
        raise ArgumentTypeError(f"{name} of the state is no array; got {type(given).__name__}.")
    held = numbers_of(own)
    if given.shape != held.shape:
        raise ShapeError(
            f"{name} of the state has shape {given.shape}; the trainer's has {held.shape}."
        )
    return jax.device_put(like(own, jnp.array(given, held.dtype)), own.sharding)

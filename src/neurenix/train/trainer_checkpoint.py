"""The state of a trainer in one safetensors file, from which another process goes on training.

Owns what the file holds, and what is compared before anything is read into a trainer. It does not
own how arrays are written and read (``neurenix.checkpoint``), nor when (``file_callbacks.py``).

Names begin with what they are of: ``weights.layers.0.kernel`` and ``random.dropout.key`` of the
module, ``optimizer.0.mu.layers.0.kernel`` of the optimizer, ``callbacks.0.average.kernel`` of what
callbacks keep. Numbers are in the file's metadata.
"""

from __future__ import annotations

import os
from typing import Any, Self

import jax
import numpy as np

from neurenix._core.errors import CheckpointError
from neurenix._jit.random_keys import is_key, like, numbers_of
from neurenix._nnx import nnx
from neurenix.checkpoint.safetensors_file import (
    TRAINER,
    differences,
    part_of,
    read_tensors,
    write_tensors,
)
from neurenix.checkpoint.weights import WEIGHTS, put_into, variables_of
from neurenix.train.trainer_state import Kept

_RANDOM, _OPTIMIZER, _CALLBACKS = "random.", "optimizer.", "callbacks."


class Resumable:
    """The part of a ``Trainer`` that is written to a file and read from it."""

    _kept: Kept

    @property
    def steps_made(self) -> int:
        """Optimizer steps made; those that diverged are not counted."""
        return self._kept.standing.steps_made

    @steps_made.setter
    def steps_made(self, value: int) -> None:
        self._kept.standing.steps_made = value

    @property
    def optimizer_state(self) -> Any:
        """The state of the optimizer, as optax has it; None before the first step."""
        return self._kept.standing.optimizer_state

    @optimizer_state.setter
    def optimizer_state(self, value: Any) -> None:
        self._kept.standing.optimizer_state = value

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all that training goes on from to a safetensors file, whole or not at all.

        That is the module's parameters, other state and random streams, the optimizer's state, the
        steps and the passes over the data made, what was set on the learning rate, and the state
        of every callback of the latest ``fit`` (``Callback.state``).

        Args:
            path: the file; its folder is made where there is none.

        Raises:
            CheckpointError: the file cannot be written.
            ArgumentError: the module is abstract, or its arrays are gone.
            ArgumentTypeError: the state of a callback holds what no file does.

        Example:
            >>> import tempfile
            >>> from neurenix import Trainer, nn
            >>> x, y = np.ones((8, 2)), np.ones((8, 1))
            >>> trainer = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> again = Trainer(nn.Linear(2, 1), optimizer="adam", loss="mse")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     _ = trainer.fit(x, y, epochs=1, verbose=False)
            ...     trainer.save(f"{folder}/trainer.safetensors")
            ...     _ = again.load(f"{folder}/trainer.safetensors")
            >>> history = again.fit(x, y, epochs=2, initial_epoch=1, verbose=False)
            >>> trainer.steps_made, again.steps_made, history.epochs
            (1, 2, [1])
        """
        definition, standing = self._kept.prepared().definition, self._kept.standing
        definition.model.check_arrays()
        optimizer = standing.optimizer_state
        if optimizer is None:
            optimizer = definition.optimizer.init(definition.model.read()[0])
        arrays = _values(self._kept.module) | _named(_OPTIMIZER, optimizer)
        about = {
            "format": TRAINER,
            "steps_made": str(standing.steps_made),
            "passes": str(standing.passes),
            "batches_of_pass": str(standing.batches_of_pass),
            "learning_rate_scale": repr(float(standing.learning_rate_scale)),
        }
        numbers = {
            name: np.asarray(numbers_of(array)) if is_key(array) else array
            for name, array in arrays.items()
        }
        about["callbacks"], kept = self._kept.callbacks.pack()
        numbers |= {_CALLBACKS + name: array for name, array in kept.items()}
        write_tensors(numbers, path, about, what="trainer's state")

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Read a file of ``save`` into the trainer and its module, all or nothing.

        ``fit`` with ``initial_epoch`` then goes on as if it had never ended, schedules and the
        order of shuffled data (of the same ``nx.seed``) included; with ``steps_per_epoch`` it goes
        on within a pass over the data (but not of a generator, which whoever made it winds on).
        After a file that was written within an epoch of a whole pass it goes on with the next
        pass. A callback can load in
        ``on_train_begin``. Callbacks of the next ``fit`` get the states of those of their class
        and ``monitor`` that were saved; one that cannot go on so is named in a warning.

        Args:
            path: the file.

        Returns:
            The trainer itself.

        Raises:
            CheckpointError: the file is not there, is damaged, was not written by ``save``, or is
                of another model or optimizer; what differs is named.
            ArgumentError: the module is abstract, or its arrays are gone.
        """
        definition, standing = self._kept.prepared().definition, self._kept.standing
        definition.model.check_arrays()
        tensors, about = read_tensors(path, what="a trainer's state")
        if about.get("format") != TRAINER:
            raise CheckpointError(
                f"The file {path} holds no trainer's state: Trainer.save has not written it. "
                "Weights alone are read by model.load, or load_weights."
            )
        values = _values(self._kept.module)
        optimizer = jax.eval_shape(definition.optimizer.init, definition.model.read()[0])
        moments = _named(_OPTIMIZER, optimizer)
        _compare(values, moments, tensors, path)
        read = {n: _like(leaf, tensors[n]) for n, leaf in (values | moments).items()}
        variables = variables_of(self._kept.module)
        put_into(variables, {n: read[_prefix(v) + n] for n, v in variables.items()})
        leaves = [read[name] for name in moments]
        standing.optimizer_state = jax.tree.unflatten(jax.tree.structure(optimizer), leaves)
        standing.steps_made, standing.passes = int(about["steps_made"]), int(about["passes"])
        standing.batches_of_pass = int(about["batches_of_pass"])
        standing.learning_rate_scale = float(about["learning_rate_scale"])
        self._kept.callbacks.unpack(about.get("callbacks"), part_of(tensors, _CALLBACKS))
        return self


def _prefix(variable: Any) -> str:
    return _RANDOM if isinstance(variable, nnx.RngState) else WEIGHTS


def _values(module: nnx.Module) -> dict[str, Any]:
    """Return the array of every variable, by its name in the file."""
    return {_prefix(v) + name: v[...] for name, v in variables_of(module).items()}


def _named(prefix: str, tree: Any) -> dict[str, Any]:
    """Return the leaves of ``tree`` in order, by their names in the file."""
    return {
        prefix + jax.tree_util.keystr(path, simple=True, separator="."): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _compare(
    values: dict[str, Any],
    moments: dict[str, Any],
    tensors: dict[str, Any],
    path: str | os.PathLike[str],
) -> None:
    """Raise CheckpointError when the file is of another model or optimizer, and say which."""
    parts = {
        WEIGHTS: (values, "model", "another model"),
        _RANDOM: (values, "model", "a model with other random streams"),
        _OPTIMIZER: (moments, "optimizer", "another optimizer, or other layers are frozen"),
    }
    for prefix, (arrays, owner, other) in parts.items():
        needed = {name: _shape(array) for name, array in part_of(arrays, prefix).items()}
        problems = differences(needed, part_of(tensors, prefix), owner)
        if problems:
            raise CheckpointError(f"The trainer's state in {path} is of {other}:\n{problems}")


def _shape(leaf: Any) -> Any:
    return jax.eval_shape(numbers_of, leaf) if is_key(leaf) else leaf


def _like(leaf: Any, stored: Any) -> Any:
    """Return ``stored``, on the host, in the dtype of ``leaf``; a random key where that is one."""
    return like(leaf, stored) if is_key(leaf) else np.asarray(stored).astype(leaf.dtype)

"""The state of a trainer in safetensors files, and as the arrays of a step compiled elsewhere.

Does not own the content of the state (``trainer_state.py``), how arrays are written and read
(``neurenix.checkpoint``), or when a file is written (``file_callbacks.py``).

Names in a file begin with their part of the tree: ``weights.layers.0.kernel``,
``random.dropout.key``, ``optimizer.0.mu.layers.0.kernel``, ``callbacks.0.average.kernel``. Numbers
are in the file's metadata.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    CheckpointError,
    ShapeError,
    differing_names,
)
from neurenix._jit.random_keys import like, numbers_of
from neurenix.checkpoint.safetensors_file import part_of, read_tensors, write_tensors
from neurenix.checkpoint.tensor_files import TRAINER
from neurenix.train.ema import averaging
from neurenix.train.step import StepState
from neurenix.train.trainer_state import TrainerState

_ARRAYS = ("weights", "random", "optimizer", "callbacks")
_COUNTERS = ("steps_made", "passes", "batches_of_pass")


def save(state: TrainerState, path: str | os.PathLike[str]) -> None:
    """Write the state to a safetensors file, atomically; see ``Trainer.save``."""
    tree = state.to_tree()
    arrays = {f"{part}.{name}": leaf for part in _ARRAYS for name, leaf in tree[part].items()}
    about = {name: str(tree[name]) for name in _COUNTERS} | {
        "format": TRAINER,
        "learning_rate_scale": repr(tree["learning_rate_scale"]),
        "callbacks": tree["callback_states"],
    }
    write_tensors(arrays, path, about, what="trainer's state")


def load(state: TrainerState, path: str | os.PathLike[str]) -> None:
    """Replace the state by that of a file of ``save``; see ``Trainer.load``."""
    tensors, about = read_tensors(path, what="a trainer's state")
    if about.get("format") != TRAINER:
        raise CheckpointError(
            f"The file {path} holds no trainer's state: Trainer.save has not written it. "
            "Weights alone are read by model.load, or load_weights."
        )
    tree: dict[str, Any] = {
        part: {name: np.asarray(leaf) for name, leaf in part_of(tensors, f"{part}.").items()}
        for part in _ARRAYS
    }  # on the host: one device may not have the memory for the whole state
    tree |= {name: int(about[name]) for name in _COUNTERS}
    tree["learning_rate_scale"] = float(about["learning_rate_scale"])
    tree["callback_states"] = about.get("callbacks")  # absent in files of earlier versions
    state.load_tree(tree, source=str(path))


def step_state(state: TrainerState) -> StepState:
    """Return copies of the arrays that a step takes; see ``Trainer.step_state``."""
    own = state.on_devices().initial_state(averaging(state.callbacks.callbacks))
    return jax.tree.map(lambda leaf: jnp.copy(numbers_of(leaf)), own)


def take_step_state(state: TrainerState, given: Any) -> None:
    """Store the arrays that a step returned; see ``Trainer.take_step_state``."""
    device, emas = state.on_devices(), averaging(state.callbacks.callbacks)
    held, treedef = jax.tree_util.tree_flatten_with_path(device.initial_state(emas))
    leaves = {_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(given)}
    names = [_name(path) for path, _ in held]
    if said := differing_names(names, leaves):
        raise ArgumentTypeError(f"That is no state of this step: {said}")
    taken = [_like(name, leaves[name], own) for name, (_, own) in zip(names, held, strict=True)]
    after = jax.tree.unflatten(treedef, taken)
    device.keep(after, emas)
    state.steps_made = int(after.step)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _like(name: str, given: Any, own: jax.Array) -> jax.Array:
    """Return a copy of ``given`` with the dtype and sharding of ``own``."""
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

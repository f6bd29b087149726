"""Save and load the weights of one module in one safetensors file.

Owns the names of a module's arrays: the path of attributes, joined by dots, ``layers.0.kernel``.
Every array of the module is written, in a variable or not, except random streams. The format of the
file is ``safetensors_file.py``'s, the state of a trainer ``neurenix.train.trainer_checkpoint``'s.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import CheckpointError
from neurenix._jit.process_arrays import put
from neurenix._jit.random_keys import numbers_of
from neurenix._nnx import nnx
from neurenix._processes import gathered
from neurenix.checkpoint.safetensors_file import (
    TRAINER,
    differences,
    part_of,
    read_tensors,
    write_tensors,
)

WEIGHTS = "weights."
"""The prefix of the weights' names in a file of a trainer's state."""


def save_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Write every array of ``module`` except random streams. The file is written atomically.

    Every process must call it for a module whose arrays several processes share; see
    ``write_tensors``.

    Args:
        module: any NNX module.
        path: the file; a missing folder is created.

    Raises:
        CheckpointError: the file cannot be written.
        ArgumentError: the suffix of ``path`` belongs to another format, such as ``.h5``.
    """
    tensors = {name: variable[...] for name, variable in weights_of(module).items()}
    write_tensors(tensors, path, {"format": "neurenix"}, what="weights")


def load_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save_weights`` into ``module``, in place, on the devices of its arrays.

    Floating-point values are cast to the module's dtypes. A file that does not fit changes nothing.
    From a file of ``Trainer.save``, only the weights are read.

    Args:
        module: a module with the names and shapes of the saved one.
        path: the file.

    Raises:
        CheckpointError: the file is missing or damaged, or its names, shapes or kinds of dtype
            differ.
    """
    stored, about = read_tensors(path, what="weights")
    if about.get("format") == TRAINER:
        stored = part_of(stored, WEIGHTS)
    variables = weights_of(module)
    problems = differences({name: v[...] for name, v in variables.items()}, stored)
    if problems:
        raise CheckpointError(f"The weights in {path} do not fit this model:\n{problems}")
    put_into(variables, stored)


class Attribute:
    """An array that a module holds outside of variables, with the interface of a variable.

    Args:
        module: the module.
        path: attribute names, keys and indices from the module to the array.
        array: the array, of NumPy or JAX.
    """

    def __init__(self, module: nnx.Module, path: tuple[Any, ...], array: Any) -> None:
        self._module, self._path, self._array = module, path, array

    def __getitem__(self, _: Any) -> jax.Array:
        return jnp.asarray(self._array)

    def __setitem__(self, _: Any, value: jax.Array) -> None:
        self._array = np.asarray(value) if isinstance(self._array, np.ndarray) else value
        _replace(self._module, self._path, self._array)


def _replace(node: Any, path: tuple[Any, ...], array: Any) -> Any:
    """Set the array at ``path`` and return ``node``; a tuple is replaced by a new one."""
    key, rest = path[0], path[1:]
    if isinstance(node, tuple):
        new = _replace(node[key], rest, array) if rest else array
        return (*node[:key], new, *node[key + 1 :])
    by_name = isinstance(key, str) and not isinstance(node, dict)
    old = getattr(node, key) if by_name else node[key]
    new = _replace(old, rest, array) if rest else array
    if by_name and new is not old:
        setattr(node, key, nnx.data(new))
    elif new is not old:
        node[key] = new
    return node


def weights_of(module: nnx.Module) -> dict[str, Any]:
    """Return every variable and other array of ``module`` except random streams, by name."""
    every = variables_of(module)
    return {name: v for name, v in every.items() if not isinstance(v, nnx.RngState)}


def variables_of(module: nnx.Module) -> dict[str, Any]:
    """Return every variable of ``module`` by name, and an ``Attribute`` for every other array."""
    return {
        ".".join(map(str, path)): (
            leaf if isinstance(leaf, nnx.Variable) else Attribute(module, path, leaf)
        )
        for path, leaf in nnx.graph.flatten(module)[1]
    }


def variables_held(module: nnx.Module) -> dict[str, Any]:
    """Return the array of every variable of ``module``, random streams included, by name."""
    every = variables_of(module)
    return {name: v[...] for name, v in every.items() if isinstance(v, nnx.Variable)}


def put_back(module: nnx.Module, arrays: dict[str, Any]) -> None:
    """Set the variables of ``module`` to arrays that ``variables_held`` returned."""
    every = variables_of(module)
    put_into({name: every[name] for name in arrays}, arrays)


def is_held(module: nnx.Module, arrays: dict[str, Any]) -> bool:
    """Return whether the variables of ``module`` equal ``arrays`` bit for bit."""
    held = variables_held(module)
    return held.keys() == arrays.keys() and all(
        np.array_equal(gathered(numbers_of(held[name])), gathered(numbers_of(array)))
        for name, array in arrays.items()
    )


def put_into(variables: dict[str, Any], values: dict[str, Any]) -> None:
    """Set the variables, in their dtypes and shardings; on an error, none is changed."""
    old = {name: variable[...] for name, variable in variables.items()}
    new = {}
    for name, array in old.items():
        value = values[name]
        value = value if value.dtype == array.dtype else value.astype(array.dtype)
        new[name] = put(value, array.sharding)
    for name, variable in variables.items():
        variable[...] = new[name]

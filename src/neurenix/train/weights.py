"""Weights of one module in one safetensors file.

Owns names, the checksum, atomic writing and the comparison on reading. It does not own when they
are written (``file_callbacks.py``), nor what a trainer keeps beside them
(``trainer_checkpoint.py``).

Names are the path of attributes joined by dots: ``layers.0.kernel``. Every array that the module
keeps is written, in a variable or not, but random streams.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax

from neurenix._core.errors import ArgumentTypeError, CheckpointError, did_you_mean
from neurenix._core.files import write_whole
from neurenix._jit.random_keys import numbers_of
from neurenix._nnx import nnx
from neurenix.train.file_formats import check_name, described

TRAINER = "neurenix-trainer"  # the format of files that hold the state of a trainer
WEIGHTS = "weights."  # what the names of weights begin with there
_SHOWN = 8


def save_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Write every array of ``module`` but random streams; the file appears whole or not at all.

    Args:
        module: any NNX module.
        path: the file; its folder is made where there is none.

    Raises:
        CheckpointError: the file cannot be written.
        ArgumentError: ``path`` ends as the files of another format do, such as ``….h5``.
    """
    tensors = {name: variable[...] for name, variable in weights_of(module).items()}
    write_tensors(tensors, path, {"format": "neurenix"}, what="weights")


def load_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save_weights`` into ``module``, in place, where its arrays lie.

    Floating-point values are cast to the module's dtype. The module changes only when everything
    fits. Of a file of ``Trainer.save`` the weights are read.

    Args:
        module: a module with the names and shapes of the one that was saved.
        path: the file.

    Raises:
        CheckpointError: no such file, a damaged file, or other names, shapes or kinds of dtype.
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
    """An array that a module holds in no variable, read and set like one.

    Args:
        module: the module.
        path: of attributes and places, from the module to the array.
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
    """Return ``node`` with the array at ``path``: itself, but for a tuple, which is made anew."""
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
    """Return every variable and other array of ``module`` but random streams, by name."""
    every = variables_of(module)
    return {name: v for name, v in every.items() if not isinstance(v, nnx.RngState)}


def variables_of(module: nnx.Module) -> dict[str, Any]:
    """Return every variable of ``module`` by name; of another array, what stands for one."""
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
    """Set the variables of ``module`` to those that ``variables_held`` has returned."""
    every = variables_of(module)
    put_into({name: every[name] for name in arrays}, arrays)


def is_held(module: nnx.Module, arrays: dict[str, Any]) -> bool:
    """Tell whether these are the numbers of the variables of ``module``, bit for bit."""
    held = variables_held(module)
    return held.keys() == arrays.keys() and all(
        np.array_equal(numbers_of(held[name]), numbers_of(array)) for name, array in arrays.items()
    )


def put_into(variables: dict[str, Any], values: dict[str, Any]) -> None:
    """Set the variables, where their arrays lie and in their dtypes; all, or none on an error."""
    old = {name: variable[...] for name, variable in variables.items()}
    new = {}
    for name, array in old.items():
        value = values[name]
        value = value if value.dtype == array.dtype else value.astype(array.dtype)
        new[name] = jax.device_put(value, array.sharding)
    for name, variable in variables.items():
        variable[...] = new[name]


def part_of(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return those whose names begin with ``prefix``, without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def write_tensors(
    tensors: dict[str, Any], path: str | os.PathLike[str], about: dict[str, str], *, what: str
) -> None:
    """Write a safetensors file with a checksum; it appears whole or not at all.

    Args:
        tensors: the arrays by name.
        path: the file; its folder is made where there is none.
        about: what else it says, by name; ``"format"`` is who wrote it.
        what: the words of an error for the contents.

    Raises:
        CheckpointError: the file cannot be written.
        ArgumentError: ``path`` ends as the files of another format do.
        ArgumentTypeError: ``path`` is none.
    """
    target = _path(path)
    check_name(target)
    data = safetensors.flax.save(tensors, about | {"crc32": str(_checksum(tensors, about))})
    write_whole(target, data, error=CheckpointError, what=what)


def read_tensors(
    path: str | os.PathLike[str], *, what: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a safetensors file by name, and what else it says.

    Raises:
        CheckpointError: no such file, or a damaged one.
        ArgumentTypeError: ``path`` is none.
    """
    path = _path(path)
    try:
        with safetensors.safe_open(path, framework="flax") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file of {what} at {path}.") from error
    except (safetensors.SafetensorError, OSError) as error:
        if path.exists() and (known := described(path)):
            raise CheckpointError(f"{path} is no file of {what}. {known}") from error
        raise CheckpointError(
            f"The file {path} is damaged, incomplete or no safetensors file: {error}."
        ) from error
    checksum = about.pop("crc32", None)
    if checksum is not None and checksum != str(_checksum(tensors, about)):
        raise CheckpointError(
            f"The file {path} is damaged: its values do not have the checksum it was saved with."
        )
    return tensors, about


def differences(expected: dict[str, Any], stored: dict[str, Any], owner: str = "model") -> str:
    """Return in lines how a file's arrays differ from those expected; empty where they fit.

    Args:
        expected: what has a shape and a dtype, by name.
        stored: the arrays of the file.
        owner: whose arrays are expected.
    """
    problems = []
    for name in sorted(expected.keys() - stored.keys()):
        problems.append(f"{name}: missing in the file.{did_you_mean(name, stored, shown=1)}")
    for name in sorted(stored.keys() - expected.keys()):
        problems.append(f"{name}: in the file, not in the {owner}")
    for name in sorted(expected.keys() & stored.keys()):
        want, have = expected[name], stored[name]
        if want.shape != have.shape:
            problems.append(f"{name}: the {owner} has shape {want.shape}, the file {have.shape}")
        elif _kind(want.dtype) != _kind(have.dtype):
            problems.append(f"{name}: the {owner} has {want.dtype}, the file {have.dtype}")
    more = len(problems) - _SHOWN
    shown = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
    return "\n".join(f"  - {line}" for line in shown)


def _kind(dtype: Any) -> str:
    return "float" if jnp.issubdtype(dtype, jnp.floating) else str(dtype)


def _checksum(tensors: dict[str, Any], about: dict[str, str]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        values = np.ascontiguousarray(np.asarray(tensors[name]))
        total = zlib.crc32(values.tobytes(), total)
    if about.get("format") == TRAINER:  # what others add to a file of weights does no harm
        for name in sorted(about):
            total = zlib.crc32(f"{name}={about[name]}".encode(), total)
    return total


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"The argument `path` is a path, got {type(path).__name__}.")
    if not Path(path).name:
        raise CheckpointError(f"The path {str(path)!r} names no file.")
    return Path(path)

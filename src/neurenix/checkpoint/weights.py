"""Save and load the weights of one module in safetensors files.

Owns the names of a module's arrays in files: the path of attributes, joined by dots,
``layers.0.kernel``, or what ``FileNames`` in the metadata of a variable says. Every array of the
module is written, in a variable or not, except random streams. The format of the files is
``safetensors_file.py``'s and ``tensor_files.py``'s, the state of a trainer
``neurenix.train.trainer_checkpoint``'s.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import CheckpointError
from neurenix._jit.process_arrays import put
from neurenix._jit.random_keys import numbers_of
from neurenix._nnx import nnx
from neurenix._processes import gathered, is_shared
from neurenix.checkpoint.safetensors_file import differences, write_tensors
from neurenix.checkpoint.tensor_files import TRAINER, Index, Renamed, Tensors, open_tensors

WEIGHTS = "weights."
"""The prefix of the weights' names in a file of a trainer's state."""
FILE_NAMES = "file_names"
"""The metadata of a variable that has ``FileNames``."""


@dataclass(frozen=True)
class FileNames:
    """How files name the array of a variable, where that is not the variable's path.

    Attributes:
        path: the path that the names replace: the variable's own, from the module that has it.
        rows: the names. A stacked variable has several rows, one for each index of its first axis.
            An array that has several names is written under all of them, and read from any.
        is_stacked: whether each row is one index of the first axis.
        is_stored: whether files have it. Other arrays are computed when a model is made.
    """

    path: str
    rows: tuple[tuple[str, ...], ...]
    is_stacked: bool = False
    is_stored: bool = True


def save_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Write every array of ``module`` except random streams. The file is written atomically.

    Every process must call it for a module whose arrays several processes share; see
    ``write_tensors``.

    Args:
        module: any NNX module.
        path: the file; a missing folder is created.

    Raises:
        CheckpointError: the file cannot be written, or an array is a shape without values.
        ArgumentError: the suffix of ``path`` belongs to another format, such as ``.h5``.
    """
    variables = weights_of(module)
    arrays = {name: value_of(variable) for name, variable in variables.items()}
    if empty := [name for name, array in arrays.items() if _is_shape(array)]:
        raise CheckpointError(
            f"{len(empty)} arrays of the module are shapes without values, such as {empty[0]}: "
            "load weights before you save it."
        )
    names = {name: names_of(name, variable) for name, variable in variables.items()}

    def arrange(whole: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: whole[path][row] if found.is_stacked else whole[path]
            for path, found in names.items() if found.is_stored
            for row, each in enumerate(found.rows) for name in each
        }  # fmt: skip

    foreign = all(variable_names(variable) for variable in variables.values())
    # Readers of PyTorch's names ask for the format "pt".
    about = {"format": "pt" if foreign and variables else "neurenix"}
    write_tensors(arrays, path, about, what="weights", arrange=arrange)


def load_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save_weights`` into ``module``, in place, on the devices of its arrays.

    Floating-point values are cast to the module's dtypes. A file that does not fit changes nothing.
    From a file of ``Trainer.save``, only the weights are read. Each process reads the parts of the
    arrays that its devices hold.

    Args:
        module: a module with the names and shapes of the saved one.
        path: the file, an index of several files (``model.safetensors.index.json``), or the folder
            of either.

    Raises:
        CheckpointError: the file is missing or damaged, or its names, shapes or kinds of dtype
            differ.
    """
    load_tensors(module, open_tensors(path, what="weights"), path)


def load_tensors(
    module: nnx.Module,
    tensors: Tensors,
    path: str | os.PathLike[str],
    shardings: Mapping[str, jax.sharding.Sharding] | None = None,
) -> None:
    """Read open files of weights into ``module``, in place, as ``load_weights`` does.

    The checksum of a file of Neurenix is compared where no other process shares the arrays: it
    needs all values.

    Args:
        module: the module. Its arrays may be shapes, which become arrays.
        tensors: the open files.
        path: what the messages call them.
        shardings: of arrays that are shapes, by path; by default they are on the default device.

    Raises:
        CheckpointError: names, shapes or kinds of dtype differ, or a file is damaged.
    """
    variables = weights_of(module)
    names = {name: names_of(name, variable) for name, variable in variables.items()}
    if tensors.about.get("format") == TRAINER:  # which has the variables as they are
        own = {n.removeprefix(WEIGHTS): n for n in tensors.types if n.startswith(WEIGHTS)}
        tensors = Renamed(tensors, own)
        names = {name: FileNames(name, ((name,),)) for name in variables}
    old = {name: value_of(variable) for name, variable in variables.items()}
    if problems := _problems(names, old, tensors):
        raise CheckpointError(f"The weights in {path} do not fit this model:\n{problems}")
    if not any(map(is_shared, old.values())):
        tensors.check()
    new = {}
    for name, array in old.items():
        if names[name].is_stored:
            sharding = (shardings or {}).get(name) if _is_shape(array) else array.sharding
            read = _reader(tensors, names[name], np.dtype(array.dtype))
            new[name] = _placed(array, sharding, read)
    _set(variables, new)


def _problems(names: Mapping[str, FileNames], arrays: Mapping[str, Any], tensors: Tensors) -> str:
    """Describe how the tensors of files differ from the arrays of a module."""
    expected, others = {}, set[str]()
    for path, found in names.items():
        shape = arrays[path].shape[1:] if found.is_stacked else arrays[path].shape
        for row in found.rows:
            if not found.is_stored:
                others.update(row)  # that older programs wrote
                continue
            there = [name for name in row if name in tensors.types] or row[:1]
            others.update(row)
            expected |= {n: jax.ShapeDtypeStruct(shape, arrays[path].dtype) for n in there}
    stored = {n: t for n, t in tensors.types.items() if n in expected or n not in others}
    return differences(expected, stored)


def _reader(tensors: Tensors, names: FileNames, dtype: np.dtype) -> Callable[[Index], np.ndarray]:
    """Return a function that reads a part of a variable from files, in its dtype."""

    def one(row: tuple[str, ...], index: Index) -> np.ndarray:
        first, *others = [name for name in row if name in tensors.types]
        values = tensors.read(first, index)
        for other in others:
            if not np.array_equal(values, tensors.read(other, index), equal_nan=True):
                raise CheckpointError(
                    f"{first} and {other} are one array of this model, and differ in the file."
                )
        return _as_dtype(values, dtype, first)

    def read(index: Index) -> np.ndarray:
        if not names.is_stacked:
            return one(names.rows[0], index)
        number, rest = index[0], index[1:]
        rows = names.rows[number] if isinstance(number, slice) else (names.rows[number],)
        return np.stack([one(row, rest) for row in rows])

    return read


def _as_dtype(values: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """Return values in another dtype.

    Raises:
        CheckpointError: an integer does not fit.
    """
    if values.dtype == dtype:
        return values
    if jnp.issubdtype(dtype, jnp.integer) and values.size:
        limits = jnp.iinfo(dtype)
        if values.min() < limits.min or values.max() > limits.max:
            raise CheckpointError(f"An integer of {name} in the file does not fit into {dtype}.")
    return values.astype(dtype)


def _placed(
    array: Any, sharding: jax.sharding.Sharding | None, read: Callable[[Index], np.ndarray]
) -> jax.Array:
    """Return an array with a sharding whose parts are read; equal ones once."""
    if sharding is None:
        return jnp.asarray(read((slice(None),) * len(array.shape)))
    known: dict[str, np.ndarray] = {}

    def part(index: Any) -> np.ndarray:
        if (key := repr(index)) not in known:
            known[key] = read(tuple(index))
        return known[key]

    return jax.make_array_from_callback(array.shape, sharding, part)


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


def value_of(variable: Any) -> Any:
    """Return the array of a variable, or its shape where it has no values."""
    return variable.get_value() if isinstance(variable, nnx.Variable) else variable[...]


def variable_names(variable: Any) -> FileNames | None:
    """Return the ``FileNames`` of a variable, if it has any."""
    is_variable = isinstance(variable, nnx.Variable)
    return variable.get_metadata().get(FILE_NAMES) if is_variable else None


def names_of(path: str, variable: Any) -> FileNames:
    """Return how files name the variable at a path of a module."""
    found = variable_names(variable)
    if found is None or not path.endswith(found.path):
        return FileNames(path, ((path,),))
    prefix = path.removesuffix(found.path)
    rows = tuple(tuple(prefix + name for name in row) for row in found.rows)
    return FileNames(path, rows, found.is_stacked, found.is_stored)


def put_into(variables: dict[str, Any], values: dict[str, Any]) -> None:
    """Set the variables, in their dtypes and shardings; on an error, none is changed."""
    old = {name: variable[...] for name, variable in variables.items()}
    new = {}
    for name, array in old.items():
        value = values[name]
        value = value if value.dtype == array.dtype else value.astype(array.dtype)
        new[name] = put(value, array.sharding)
    _set(variables, new)


def _set(variables: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for name, array in new.items():
        if _is_shape(value_of(variables[name])):
            variables[name].set_value(array)
        else:
            variables[name][...] = array


def _is_shape(array: Any) -> bool:
    return isinstance(array, jax.ShapeDtypeStruct)

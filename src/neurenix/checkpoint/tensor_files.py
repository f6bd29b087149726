"""Read named tensors from safetensors files, part by part.

Owns one file, several files with an index, and a folder of them, as Hugging Face's libraries write
them. An array is read only where it is sliced, so that each process reads its own shards. Does not
own whose names these are (``weights.py``).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import safetensors

from neurenix._core.errors import ArgumentTypeError, CheckpointError
from neurenix.checkpoint.file_formats import described

TRAINER = "neurenix-trainer"
"""The format of a file that holds the state of a trainer."""
INDEX = ".index.json"
_NAMES = ("model.safetensors", f"model.safetensors{INDEX}", "pytorch_model.bin",
          f"pytorch_model.bin{INDEX}")  # fmt: skip
_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32",
    "I32": "int32", "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16",
    "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
}  # fmt: skip

Index = tuple[slice | int, ...]


class Tensors(Protocol):
    """Named tensors that are read part by part."""

    @property
    def about(self) -> Mapping[str, str]:
        """Metadata of the file."""
        ...

    @property
    def types(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of each tensor."""
        ...

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default.

        Raises:
            CheckpointError: the file cannot be read.
        """
        ...

    def check(self) -> None:
        """Compare all values with the checksum that they were saved with, if there is one.

        Raises:
            CheckpointError: they differ.
        """
        ...


class SafetensorsFile:
    """The tensors of one safetensors file.

    Args:
        path: the file.
        what: the name of the contents in error messages.

    Raises:
        CheckpointError: the file is missing, damaged or of another format.
    """

    def __init__(self, path: Path, what: str) -> None:
        self._path = path
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                self.about = file.metadata() or {}
            header, self._start = _header(path)
        except FileNotFoundError as error:
            raise CheckpointError(f"There is no file of {what} at {path}.") from error
        except (safetensors.SafetensorError, OSError) as error:
            if path.exists() and (known := described(path)):
                raise CheckpointError(f"{path} is no file of {what}. {known}") from error
            raise CheckpointError(
                f"The file {path} is damaged, incomplete or no safetensors file: {error}."
            ) from error
        self._offsets = {name: entry["data_offsets"][0] for name, entry in header.items()}
        self.types = {name: self._type(name, entry) for name, entry in header.items()}

    def _type(self, name: str, entry: Mapping[str, Any]) -> jax.ShapeDtypeStruct:
        if entry["dtype"] not in _DTYPES:
            raise CheckpointError(
                f"{name} in {self._path} has the dtype {entry['dtype']}, which JAX does not have."
            )
        dtype = np.dtype(getattr(jnp, _DTYPES[entry["dtype"]]))
        return jax.ShapeDtypeStruct(tuple(entry["shape"]), dtype)

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default."""
        return np.array(self._mapped(name)[index])

    def check(self) -> None:
        """Compare all values with the checksum in the metadata, if there is one."""
        wanted = self.about.get("crc32")
        about = {name: value for name, value in self.about.items() if name != "crc32"}
        if wanted is not None and wanted != str(checksum(self.types, self._mapped, about)):
            raise CheckpointError(
                f"The file {self._path} is damaged: its values do not have the checksum it was "
                "saved with."
            )

    def _mapped(self, name: str) -> np.ndarray:
        """Return an array whose bytes are read from the file when they are used."""
        kind = self.types[name]
        if not kind.size:
            return np.zeros(kind.shape, kind.dtype)
        size = kind.size * kind.dtype.itemsize
        raw = np.memmap(
            self._path, np.uint8, "r", offset=self._start + self._offsets[name], shape=(size,)
        )
        return raw.view(kind.dtype).reshape(kind.shape)


class SeveralFiles:
    """The tensors of several files, of which an index says where each is.

    Args:
        path: the index, ``….index.json``.
        what: the name of the contents in error messages.
        open_file: opens one of the files.

    Raises:
        CheckpointError: the index or a file is missing or damaged, or a file lacks tensors.
    """

    about: Mapping[str, str] = {}

    def __init__(self, path: Path, what: str, open_file: OpenFile) -> None:
        places = _read_index(path, what)
        self._files = {name: open_file(path.parent / name, what) for name in set(places.values())}
        lacking = [
            f"{name} ({file})" for name, file in places.items()
            if name not in self._files[file].types
        ]  # fmt: skip
        if lacking:
            raise CheckpointError(
                f"The files of {path} lack tensors that it names: {', '.join(sorted(lacking)[:8])}."
            )
        self._places = places
        self.types = {name: self._files[file].types[name] for name, file in places.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default."""
        return self._files[self._places[name]].read(name, index)

    def check(self) -> None:
        """Compare the values of each file with its checksum, if there is one."""
        for file in self._files.values():
            file.check()


class Renamed:
    """Tensors under other names.

    Args:
        tensors: the tensors.
        names: new name → name in ``tensors``; others are left out.
    """

    def __init__(self, tensors: Tensors, names: Mapping[str, str]) -> None:
        self._tensors, self._names, self.about = tensors, names, tensors.about
        self.types = {new: tensors.types[old] for new, old in names.items()}

    def read(self, name: str, index: Index = ()) -> np.ndarray:
        """Return a part of one tensor; all of it by default."""
        return self._tensors.read(self._names[name], index)

    def check(self) -> None:
        """Compare all values with their checksum, if there is one."""
        self._tensors.check()


OpenFile = Callable[[Path, str], Tensors]


def open_tensors(
    path: str | os.PathLike[str], *, what: str, open_file: OpenFile = SafetensorsFile
) -> Tensors:
    """Open a file of tensors, several files by their index, or a folder of such files.

    Args:
        path: a file; an index, ``model.safetensors.index.json``; or a folder with one of them.
        what: the name of the contents in error messages.
        open_file: opens one file; by default a safetensors file.

    Raises:
        CheckpointError: a file is missing or damaged.
        ArgumentTypeError: ``path`` has the wrong type.
    """
    path = checked_path(path)
    if path.is_dir():
        path = _found_in(path, what)
    if path.name.endswith(INDEX):
        return SeveralFiles(path, what, open_file)
    return open_file(path, what)


def checked_path(path: Any) -> Path:
    """Return a path that names a file or folder.

    Raises:
        ArgumentTypeError: it is no path.
        CheckpointError: it is empty.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"The argument `path` is a path, got {type(path).__name__}.")
    if not Path(path).name:
        raise CheckpointError(f"The path {str(path)!r} names no file.")
    return Path(path)


def checksum(
    names: Mapping[str, Any], array: Callable[[str], np.ndarray], about: Mapping[str, str]
) -> int:
    """Return the checksum of named arrays, and of the metadata of a trainer's state.

    Args:
        names: the names.
        array: the array of a name; one is used at a time.
        about: the metadata.
    """
    total = 0
    for name in sorted(names):
        total = zlib.crc32(name.encode(), total)
        values = np.asarray(array(name), order="C").reshape(-1).view(np.uint8)
        total = zlib.crc32(values.data, total)
    if about.get("format") == TRAINER:  # other programs may add metadata to a file of weights
        for name in sorted(about):
            total = zlib.crc32(f"{name}={about[name]}".encode(), total)
    return total


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """Return the entry of each tensor, and where their bytes begin."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(size))
    header.pop("__metadata__", None)
    return header, 8 + size


def _found_in(folder: Path, what: str) -> Path:
    """Return the file of weights in a folder."""
    known = [folder / name for name in _NAMES if (folder / name).is_file()]
    others = sorted(folder.glob("*.safetensors")) or sorted(folder.glob(f"*.safetensors{INDEX}"))
    if known:
        return known[0]
    if len(others) == 1:
        return others[0]
    if said := described(folder):
        raise CheckpointError(f"{folder} is no file of {what}. {said}")
    raise CheckpointError(f"{folder} is a folder, and which file of {what} in it is meant is open.")


def _read_index(path: Path, what: str) -> dict[str, str]:
    """Return the file, by its name, of each tensor."""
    try:
        places = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        good = all(isinstance(name, str) and _is_inside(file) for name, file in places.items())
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file of {what} at {path}.") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"The file {path} is damaged or no index of {what}: it has no weight_map that names "
            "the file of each tensor."
        ) from error
    if not good or not places:
        raise CheckpointError(f"The weight_map of {path} names no files, or files elsewhere.")
    return places


def _is_inside(file: Any) -> bool:
    """Tell whether a path of an index stays in its folder."""
    parts = PurePosixPath(file).parts
    return bool(parts) and not PurePosixPath(file).is_absolute() and ".." not in parts

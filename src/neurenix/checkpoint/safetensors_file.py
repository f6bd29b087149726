"""Write and read safetensors files of named arrays, with a checksum.

Owns the format of a file and the comparison of its arrays with those expected. It does not own what
a module names its arrays (``weights.py``), nor atomic writing (``neurenix._core.files``).
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.flax

from neurenix._core.errors import ArgumentTypeError, CheckpointError, did_you_mean
from neurenix._core.files import write_whole
from neurenix._processes import by_first, gathered, is_shared
from neurenix.checkpoint.file_formats import check_name, described

TRAINER = "neurenix-trainer"
"""The format of a file that holds the state of a trainer."""
_SHOWN = 8


def part_of(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix``, by their names without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def write_tensors(
    tensors: dict[str, Any], path: str | os.PathLike[str], about: dict[str, str], *, what: str
) -> None:
    """Write a safetensors file with a checksum, atomically.

    Arrays that several processes share are gathered, process 0 writes the file, and the others
    wait for it: all of them must call this function.

    Args:
        tensors: the arrays by name.
        path: the file; a missing folder is created.
        about: further metadata by name; ``"format"`` names the writer.
        what: the name of the contents in error messages.

    Raises:
        CheckpointError: the file cannot be written.
        ArgumentError: the suffix of ``path`` belongs to another format.
        ArgumentTypeError: ``path`` has the wrong type.
    """
    target = _path(path)
    check_name(target)
    shared = any(map(is_shared, tensors.values()))
    if shared:
        tensors = {name: gathered(tensor) for name, tensor in tensors.items()}

    def write() -> None:
        data = safetensors.flax.save(tensors, about | {"crc32": str(_checksum(tensors, about))})
        write_whole(target, data, error=CheckpointError, what=what)

    if shared:
        by_first(write)
    else:
        write()


def read_tensors(
    path: str | os.PathLike[str], *, what: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arrays of a safetensors file by name, and its metadata.

    Raises:
        CheckpointError: the file is missing or damaged.
        ArgumentTypeError: ``path`` has the wrong type.
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
    """Describe, line by line, how a file's arrays differ from those expected; empty if they fit.

    Args:
        expected: arrays, or their shapes and dtypes, by name.
        stored: the arrays of the file.
        owner: the object that the arrays are for, for the message.
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
    if about.get("format") == TRAINER:  # other programs may add metadata to a file of weights
        for name in sorted(about):
            total = zlib.crc32(f"{name}={about[name]}".encode(), total)
    return total


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ArgumentTypeError(f"The argument `path` is a path, got {type(path).__name__}.")
    if not Path(path).name:
        raise CheckpointError(f"The path {str(path)!r} names no file.")
    return Path(path)

"""Write and read safetensors files of named arrays, with a checksum.

Owns the format of a file and the comparison of its arrays with those expected. It does not own what
a module names its arrays (``weights.py``), nor atomic writing (``neurenix._core.files``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from neurenix._core.errors import CheckpointError, did_you_mean
from neurenix._core.files import write_whole
from neurenix._processes import by_first, gathered, is_shared
from neurenix.checkpoint.file_formats import check_name
from neurenix.checkpoint.tensor_files import SafetensorsFile, checked_path, checksum

_SHOWN = 8


def part_of(tensors: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix``, by their names without it."""
    return {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}


def write_tensors(
    tensors: dict[str, Any],
    path: str | os.PathLike[str],
    about: dict[str, str],
    *,
    what: str,
    arrange: Callable[[dict[str, np.ndarray]], dict[str, np.ndarray]] = dict,
) -> None:
    """Write a safetensors file with a checksum, atomically.

    Arrays that several processes share are gathered, process 0 writes the file, and the others
    wait for it: all of them must call this function.

    Args:
        tensors: the arrays by name.
        path: the file; a missing folder is created.
        about: further metadata by name; ``"format"`` names the writer.
        what: the name of the contents in error messages.
        arrange: returns the arrays that the file has for ``tensors`` on the host.

    Raises:
        CheckpointError: the file cannot be written.
        ArgumentError: the suffix of ``path`` belongs to another format.
        ArgumentTypeError: ``path`` has the wrong type.
    """
    target = checked_path(path)
    check_name(target)
    shared = any(map(is_shared, tensors.values()))
    whole = {name: gathered(tensor) for name, tensor in tensors.items()}

    def write() -> None:
        arrays = {name: np.asarray(array, order="C") for name, array in arrange(whole).items()}
        found = str(checksum(arrays, arrays.__getitem__, about))
        data = safetensors.numpy.save(arrays, about | {"crc32": found})
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
    file = SafetensorsFile(checked_path(path), what)
    file.check()
    about = {name: value for name, value in file.about.items() if name != "crc32"}
    return {name: file.read(name) for name in file.types}, about


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
    kinds = {"float": jnp.floating, "integer": jnp.integer, "complex": jnp.complexfloating}
    return next((name for name, kind in kinds.items() if jnp.issubdtype(dtype, kind)), str(dtype))

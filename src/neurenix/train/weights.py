"""Weights of one module in one safetensors file.

Owns names, the checksum, atomic writing and the comparison on reading. It does not own when
they are written (``recorders.py``).

Names are the path of attributes joined by dots: ``layers.0.kernel``. Everything that the module
keeps is written but random streams.
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

from neurenix._core.errors import CheckpointError, did_you_mean
from neurenix._nnx import nnx

_SHOWN = 8


def save_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Write every variable of ``module`` but random streams; the file appears whole or not at all.

    Args:
        module: any NNX module.
        path: the file; its folder is made where there is none.

    Raises:
        CheckpointError: the file cannot be written.
    """
    tensors = {name: variable[...] for name, variable in _variables(module).items()}
    metadata = {"format": "neurenix", "crc32": str(_checksum(tensors))}
    data = safetensors.flax.save(tensors, metadata)
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise CheckpointError(f"The weights cannot be written to {target}: {error}.") from error
    finally:
        if temporary.exists():
            temporary.unlink()


def load_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Read a file of ``save_weights`` into ``module``, in place, where its arrays lie.

    Floating-point values are cast to the module's dtype. The module changes only when everything
    fits.

    Args:
        module: a module with the names and shapes of the one that was saved.
        path: the file.

    Raises:
        CheckpointError: no such file, a damaged file, or other names, shapes or kinds of dtype.
    """
    stored = _read(Path(path))
    variables = _variables(module)
    problems = _differences({name: v[...] for name, v in variables.items()}, stored)
    if problems:
        more = len(problems) - _SHOWN
        shown = [*problems[:_SHOWN], *([f"and {more} more"] if more > 0 else [])]
        lines = "\n".join(f"  - {line}" for line in shown)
        raise CheckpointError(f"The weights in {path} do not fit this model:\n{lines}")
    for name, variable in variables.items():
        old = variable[...]
        variable[...] = jax.device_put(stored[name].astype(old.dtype), old.sharding)


def _variables(module: nnx.Module) -> dict[str, Any]:
    return {
        ".".join(map(str, path)): leaf
        for path, leaf in nnx.graph.flatten(module)[1]
        if isinstance(leaf, nnx.Variable) and not isinstance(leaf, nnx.RngState)
    }


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with safetensors.safe_open(path, framework="flax") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file of weights at {path}.") from error
    except (safetensors.SafetensorError, OSError) as error:
        raise CheckpointError(
            f"The file {path} is damaged, incomplete or no safetensors file: {error}."
        ) from error
    if "crc32" in metadata and metadata["crc32"] != str(_checksum(tensors)):
        raise CheckpointError(
            f"The file {path} is damaged: its values do not have the checksum it was saved with."
        )
    return tensors


def _differences(expected: dict[str, jax.Array], stored: dict[str, Any]) -> list[str]:
    problems = []
    for name in sorted(expected.keys() - stored.keys()):
        problems.append(f"{name}: missing in the file.{did_you_mean(name, stored, shown=1)}")
    for name in sorted(stored.keys() - expected.keys()):
        problems.append(f"{name}: in the file, not in the model")
    for name in sorted(expected.keys() & stored.keys()):
        want, have = expected[name], stored[name]
        if want.shape != have.shape:
            problems.append(f"{name}: the model has shape {want.shape}, the file {have.shape}")
        elif _kind(want.dtype) != _kind(have.dtype):
            problems.append(f"{name}: the model has {want.dtype}, the file {have.dtype}")
    return problems


def _kind(dtype: Any) -> str:
    return "float" if jnp.issubdtype(dtype, jnp.floating) else str(dtype)


def _checksum(tensors: dict[str, Any]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(name.encode(), total)
        values = np.ascontiguousarray(np.asarray(tensors[name]))
        total = zlib.crc32(values.tobytes(), total)
    return total

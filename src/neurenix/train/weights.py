"""Weights of a module in a safetensors file.

Owns the file's names and its atomic writing. It does not own whole checkpoints with the optimizer's
state.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save

from neurenix._core.errors import CheckpointError, did_you_mean
from neurenix._nnx import nnx


def save_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Write every variable of ``module`` but random streams; atomically.

    Args:
        module: any NNX module.
        path: the file; it is replaced only when the new one is complete.

    Raises:
        CheckpointError: the file cannot be written.
    """
    tensors = {name: jnp.asarray(v.get_value()) for name, v in _named(module).items()}
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(save(tensors))
            os.replace(temporary, target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise CheckpointError(f"The weights cannot be written to {target}: {error}.") from error


def load_weights(module: nnx.Module, path: str | os.PathLike[str]) -> None:
    """Read what ``save_weights`` wrote into ``module``; all of it or nothing.

    Every array keeps the dtype and the devices that the module's own has.

    Raises:
        CheckpointError: there is no such file, it is damaged, or its tensors are not the module's.
    """
    variables = _named(module)
    try:
        with safe_open(os.fspath(path), framework="numpy") as file:
            found = set(file.keys())
            _check_names(found, set(variables), path)
            loaded = {name: _read(file, name) for name in variables}
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no file of weights at {path}.") from error
    except SafetensorError as error:
        raise CheckpointError(f"{path} is damaged or no safetensors file: {error}.") from error
    for name, variable in variables.items():
        if variable.get_value().shape != loaded[name].shape:
            raise CheckpointError(
                f"{path}: {name} has shape {loaded[name].shape}, the model's has "
                f"{variable.get_value().shape}."
            )
    for name, variable in variables.items():
        own = variable.get_value()
        variable.set_value(jax.device_put(loaded[name].astype(own.dtype), own.sharding))


def _named(module: nnx.Module) -> dict[str, Any]:
    return {
        ".".join(map(str, path)): leaf
        for path, leaf in nnx.graph.flatten(module)[1]
        if isinstance(leaf, nnx.Variable) and not isinstance(leaf, nnx.RngState)
    }


def _read(file: Any, name: str) -> np.ndarray:
    return file.get_tensor(name)


def _check_names(found: set[str], wanted: set[str], path: Any) -> None:
    missing, unknown = sorted(wanted - found), sorted(found - wanted)
    if not missing and not unknown:
        return
    text = f"{path} is not of this model."
    if missing:
        text += f" Missing: {', '.join(missing[:5])}{' …' if len(missing) > 5 else ''}."
        text += did_you_mean(missing[0], unknown)
    if unknown:
        text += f" Not in the model: {', '.join(unknown[:5])}{' …' if len(unknown) > 5 else ''}."
    raise CheckpointError(text)

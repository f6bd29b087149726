"""Dtypes and arrays of PyTorch as those of JAX.

64-bit numbers become 32-bit ones, as everywhere in JAX without ``jax_enable_x64``.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError


def load_torch(name: str = "torch") -> Any:
    """Return PyTorch, or a module of it, imported at the first call.

    Raises:
        ImportError: it is not installed; ``import_torch`` says what to do.
    """
    return importlib.import_module(name)


def schema_of(target: Any) -> Any:
    """Return the schema of an operator of PyTorch, which has no public name; None for others."""
    return getattr(target, "__dict__", {}).get("_schema")


_ALIASES = {"float": "float32", "double": "float64", "half": "float16", "long": "int64"}


def jax_dtype(dtype: Any) -> np.dtype:
    """Return JAX's dtype for a ``torch.dtype``.

    Raises:
        ArgumentError: JAX has none, such as for a quantized dtype.
    """
    name = str(dtype).removeprefix("torch.")
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(_ALIASES.get(name, name)))
    except TypeError as error:
        raise ArgumentError(
            f"JAX has no dtype for {dtype}. Convert a model of floating-point parameters; a "
            "quantized one is converted before it is quantized."
        ) from error


def is_abstract(tensor: Any) -> bool:
    """Tell whether a tensor has a shape and no values: one on ``meta``, or a ``FakeTensor``."""
    return (
        getattr(getattr(tensor, "device", None), "type", "") == "meta"
        or type(tensor).__name__ == "FakeTensor"
    )


def to_shape(tensor: Any) -> jax.ShapeDtypeStruct:
    """Return shape and dtype of a tensor."""
    return jax.ShapeDtypeStruct(tuple(map(int, tensor.shape)), jax_dtype(tensor.dtype))


def to_jax(tensor: Any) -> Any:
    """Return a copy of a tensor as a NumPy array of a dtype that JAX has; its shape if abstract.

    Raises:
        ArgumentError: an integer does not fit into 32 bits.
    """
    torch = load_torch()

    tensor = tensor.detach()
    if is_abstract(tensor):
        return to_shape(tensor)
    wanted = jax_dtype(tensor.dtype)
    tensor = tensor.cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(jnp.bfloat16).copy()
    if str(tensor.dtype).startswith("torch.float8"):
        return tensor.view(torch.uint8).numpy().view(wanted).copy()
    values = tensor.resolve_conj().resolve_neg().numpy()
    if values.dtype == np.int64 and wanted == np.int32 and values.size:
        if values.min() < -(2**31) or values.max() >= 2**31:
            raise ArgumentError(
                f"An integer of a tensor of shape {tuple(tensor.shape)} does not fit into the 32 "
                "bits that JAX has by default. Make it smaller, or set jax_enable_x64."
            )
    return np.array(values, dtype=wanted, copy=True)


def to_torch(array: Any, like: Any = None) -> Any:
    """Return an array as a tensor, with the dtype and device of another if one is given."""
    torch = load_torch()

    values = np.asarray(array)
    if values.dtype == jnp.bfloat16:
        tensor = torch.from_numpy(values.view(np.int16).copy()).view(torch.bfloat16)
    elif "float8" in str(values.dtype):
        dtype = getattr(torch, str(values.dtype))
        tensor = torch.from_numpy(values.view(np.uint8).copy()).view(dtype)
    else:
        tensor = torch.from_numpy(np.array(values, copy=True))
    return tensor if like is None else tensor.to(dtype=like.dtype, device=like.device)

"""Encode a tree of plain values and arrays as JSON text and named arrays, without loss.

Owns the types of values that are supported. Does not own the file (``trainer_checkpoint.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._jit.random_keys import is_key
from neurenix._processes import gathered

# Dtypes that JAX keeps, with jax_enable_x64 or without.
_READABLE = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "float16", "bfloat16", "float32",
)  # fmt: skip


def packed(value: Any, name: str, arrays: dict[str, Any], *, where: str) -> Any:
    """Return ``value`` as JSON values, and add its arrays to ``arrays``.

    Args:
        value: None, bool, int, float, str, an array or a scalar of NumPy or JAX, or a list, tuple
            or dict of these.
        name: prefix of the names of its arrays.
        arrays: receives the arrays, by name.
        where: how an error names ``value``.

    Raises:
        ArgumentTypeError: it has a value of another type.
        ArgumentError: an array was donated to a compiled step.

    Example:
        >>> arrays = {}
        >>> text = packed({"best": 0.5, "weights": (np.ones(2),)}, "a", arrays, where="state")
        >>> list(arrays)
        ['a.weights.0']
        >>> unpacked(text, arrays)
        {'best': 0.5, 'weights': (array([1., 1.]),)}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return _plain(value)
    if isinstance(value, dict):
        items = []
        for key, item in value.items():
            if not (key is None or isinstance(key, (bool, int, float, str))):
                raise ArgumentTypeError(
                    f"{where} has the key {key!r}; keys are strings or numbers."
                )
            item = packed(item, f"{name}.{key}", arrays, where=f"{where}[{key!r}]")
            items.append([_plain(key), item])
        return {"dict": items}
    if type(value) in (list, tuple):
        items = [
            packed(item, f"{name}.{number}", arrays, where=f"{where}[{number}]")
            for number, item in enumerate(value)
        ]
        return items if isinstance(value, list) else {"tuple": items}
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return _packed_array(value, name, arrays, where)
    cure = "Return None, bool, int, float, str, arrays, and lists, tuples and dicts of these"
    if isinstance(value, Mapping):
        cure += "; nnx.to_pure_dict(…) makes a dict of a State"
    raise ArgumentTypeError(f"{where} is a {type(value).__name__}, which no file holds. {cure}.")


def _plain(value: Any) -> Any:
    """Return a number or string of a subclass, such as ``np.float64``, as that of the base type."""
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _packed_array(value: Any, name: str, arrays: dict[str, Any], where: str) -> Any:
    if isinstance(value, jax.Array) and value.is_deleted():
        raise ArgumentError(
            f"{where} is gone: a training step was given it, and has reused its memory. Keep a "
            "copy: jax.tree.map(jnp.copy, …)."
        )
    while name in arrays:  # the keys 1 and "1" of a dict
        name += "_"
    if isinstance(value, jax.Array) and is_key(value):
        arrays[name] = gathered(jax.random.key_data(value))
        return {"array": name, "kind": "key", "key": str(jax.random.key_impl(value))}
    kind = "jax" if isinstance(value, jax.Array) else "scalar" if value.shape == () else "numpy"
    kind = "numpy" if kind == "scalar" and isinstance(value, np.ndarray) else kind
    held = gathered(value)
    about = {"array": name, "kind": kind}
    if held.dtype.name not in _READABLE:
        if held.dtype.hasobject or held.dtype.names:
            raise ArgumentTypeError(
                f"{where} is an array of {held.dtype}, which no file holds. Use numbers."
            )
        held = np.asarray(held, held.dtype.newbyteorder("="), order="C")
        dtype = held.dtype.str if held.dtype.kind in "USMm" else held.dtype.name
        about |= {"dtype": dtype, "shape": list(held.shape)}
        held = np.frombuffer(held.tobytes(), np.uint8)
    arrays[name] = held
    return about


def unpacked(text: Any, arrays: Mapping[str, Any]) -> Any:
    """Return the value that ``packed`` was given; NumPy's arrays can be written to."""
    if isinstance(text, list):
        return [unpacked(item, arrays) for item in text]
    if not isinstance(text, dict):
        return text
    if "dict" in text:
        return {key: unpacked(item, arrays) for key, item in text["dict"]}
    if "tuple" in text:
        return tuple(unpacked(item, arrays) for item in text["tuple"])
    held = arrays[text["array"]]
    if text["kind"] == "key":
        return jax.random.wrap_key_data(jnp.asarray(held), impl=text["key"])
    if "dtype" in text:
        held = np.frombuffer(np.asarray(held).tobytes(), text["dtype"]).reshape(text["shape"])
    if text["kind"] == "jax":
        return jnp.asarray(held)
    return np.array(held) if text["kind"] == "numpy" else np.asarray(held)[()]

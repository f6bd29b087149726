"""The kind of device that a function is traced for, when the process has other devices.

The compiler sets it, and layers with a kernel for some kinds read it. ``AbstractMesh`` has a device
kind, too (``abstract_device``), but inside ``shard_map`` it is that of the real mesh.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax

_KIND = jax.make_user_context(None)  # part of the keys of JAX's caches of traced functions


def tracing_for(kind: str) -> AbstractContextManager[None]:
    """Set the device kind of traced functions inside a ``with`` block.

    Args:
        kind: JAX's name, such as ``"TPU v5 lite"``; empty for the devices of the process.

    Example:
        >>> with tracing_for("TPU v5 lite"):
        ...     traced_kind()
        'TPU v5 lite'
    """
    return _KIND(kind or None)


def traced_kind() -> str | None:
    """Return the device kind that is traced for, or None if unknown.

    Example:
        >>> traced_kind() is None
        True
    """
    if _KIND.value is not None:
        return _KIND.value
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else device.device_kind

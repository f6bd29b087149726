"""The kind of device that a function is traced for, where that is not one of this process's.

Owns that one word of the trace: the compiler sets it, and layers that have a kernel for some kinds
read it. A mesh says it too (``AbstractMesh.abstract_device``), but inside ``shard_map`` over a mesh
of real devices that one is theirs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import jax

_KIND = jax.make_user_context(None)  # part of the keys of JAX's caches of traced functions


def tracing_for(kind: str) -> AbstractContextManager[None]:
    """Say, while entered, that what is traced is for devices of a kind.

    Args:
        kind: as JAX names it, such as ``"TPU v5 lite"``; empty for what the process has.

    Example:
        >>> with tracing_for("TPU v5 lite"):
        ...     traced_kind()
        'TPU v5 lite'
    """
    return _KIND(kind or None)


def traced_kind() -> str | None:
    """Return the kind of device that is traced for, where it is known.

    Example:
        >>> traced_kind() is None
        True
    """
    if _KIND.value is not None:
        return _KIND.value
    device = jax.sharding.get_abstract_mesh().abstract_device
    return None if device is None else device.device_kind

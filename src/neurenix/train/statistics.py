"""Layers that take statistics of a batch, and batches that the replicas cannot share evenly.

Owns refusing the two together: to give every replica as many examples, each batch would be filled
up with repeated ones. Weights keep these out of the loss and the metrics (``batch.py``), and
nothing keeps them out of the statistics of a ``BatchNorm``.
"""

from __future__ import annotations

from typing import Any

from neurenix._core.errors import ArgumentError
from neurenix._nnx import nnx


def check_shares(module: Any, size: int, replicas: int) -> None:
    """Check that examples added for the replicas' sake enter no statistics.

    Args:
        module: in training mode.
        size: examples of a batch.
        replicas: how many share it.

    Raises:
        ArgumentError: the batch does not divide by the replicas, and a layer takes its statistics.

    Example:
        >>> check_shares(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), 20, 8)
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentError: Batches of 20 do not divide by the 8 replicas: each \
would be filled up to 24 with repeated examples, which BatchNorm takes into its statistics. Use \
batches of 16 or 24.
    """
    below, rest = divmod(size, replicas)
    layer = _with_statistics(module) if rest else None
    if layer is None:
        return
    sizes = [count * replicas for count in (below, below + 1) if count]
    raise ArgumentError(
        f"Batches of {size} do not divide by the {replicas} replicas: each would be filled up to "
        f"{sizes[-1]} with repeated examples, which {layer} takes into its statistics. Use "
        f"batches of {' or '.join(map(str, sizes))}."
    )


def _with_statistics(module: Any) -> str | None:
    """Return the name of the first layer whose output depends on the whole batch."""
    for path, node in nnx.iter_graph(module):
        # False in training; a layer that is frozen, or has none of the batch, says otherwise.
        if isinstance(node, nnx.Module) and getattr(node, "use_running_average", None) is False:
            if any(isinstance(value, nnx.BatchStat) for value in vars(node).values()):
                name = ".".join(map(str, path))
                return f"{name} ({type(node).__name__})" if name else type(node).__name__
    return None

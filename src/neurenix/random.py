"""The random stream of the process: what layers, shuffles and ``nx.randn`` draw from.

Owns one seed and one counter. Keys are made from the two at each call, so that asking inside a
traced function is safe, and nothing is created on a device before somebody asks. It does not own
the streams of ``nnx.Rngs``, which start from a key of this one. It owns the warning of draws that
are made once where one for each call was meant.

The first seed is 0 in every process: the processes of a slice must draw the same parameters.
"""

from __future__ import annotations

import operator
import threading
from typing import TYPE_CHECKING

import jax

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._core.names import names_of
from neurenix.simulation import simulated

_KEYED = "with a key of nx.random.next_key()"
_ELSEWHERE = {
    "Generator": "nnx.Rngs (from flax import nnx)",
    "PRNGKey": "nx.random.next_key, or jax.random.key",
    "RandomState": "nnx.Rngs (from flax import nnx)",
    "SeedGenerator": "nnx.Rngs (from flax import nnx)",
    "default_rng": "nnx.Rngs (from flax import nnx)",
    "fold_in": "jax.random.fold_in",
    "integers": "nx.randint",
    "key": "nx.random.next_key, or jax.random.key",
    "manual_seed": "nx.seed",
    "normal": "nx.randn",
    "rand": "nx.rand",
    "randint": "nx.randint",
    "randn": "nx.randn",
    "random": "nx.rand",
    "set_seed": "nx.seed",
    "shuffle": f"jax.random.permutation, {_KEYED}",
    "split": "jax.random.split",
    "standard_normal": "nx.randn",
    "uniform": "nx.rand",
    **{
        name: f"jax.random.{name}, {_KEYED}"
        for name in (
            "bernoulli", "beta", "categorical", "choice", "exponential", "gamma", "gumbel",
            "permutation", "poisson", "truncated_normal",
        )
    },
}  # fmt: skip
_lock = threading.Lock()
_seed = 0
_drawn = 0


class FrozenDrawWarning(UserWarning):
    """``nx.randn``, ``nx.rand`` or ``nx.randint`` drew while a function was being compiled.

    The compiled function returns these same numbers at every call.
    """


def seed(value: int) -> None:
    """Start the process's random stream again.

    Args:
        value: any integer from 0 to 2**32 - 1.

    Raises:
        ArgumentTypeError: not an integer.
        ArgumentError: out of range.

    Example:
        >>> import neurenix as nx
        >>> nx.seed(7)
        >>> first = nx.random.next_key()
        >>> nx.seed(7)
        >>> bool(first == nx.random.next_key())
        True
    """
    global _seed, _drawn
    try:
        number = operator.index(value)
    except TypeError as error:
        raise ArgumentTypeError(
            f"seed(value) needs an integer, got {type(value).__name__} {value!r}."
        ) from error
    if not 0 <= number < 2**32:
        raise ArgumentError(f"seed(value) needs 0 <= value < 2**32, got {number}.")
    with _lock:
        _seed, _drawn = number, 0


def current_seed() -> int:
    """Return the number that the stream was started with last; nothing is drawn.

    Example:
        >>> import neurenix as nx
        >>> nx.seed(7)
        >>> nx.random.current_seed()
        7
    """
    return _seed


def next_key() -> jax.Array:
    """Return a key that was not returned before, and move the stream on.

    Inside a traced function the key is a constant of the trace: a compiled function that calls it
    uses the same key at each run. Pass keys in instead, or take them of an ``nnx.Rngs`` that the
    module keeps, as ``nn.Dropout`` does.

    Returns:
        A typed key, shape ``()``, as ``jax.random.key`` makes it.

    Example:
        >>> import jax, neurenix as nx
        >>> jax.random.normal(nx.random.next_key(), (2, 3)).shape
        (2, 3)
    """
    global _drawn
    simulated()
    with _lock:
        start, count = _seed, _drawn
        _drawn += 1
    return jax.random.fold_in(jax.random.key(start), count)


if not TYPE_CHECKING:  # a type checker would take any name for one that exists
    __getattr__ = names_of(
        __name__, ("FrozenDrawWarning", "current_seed", "next_key", "seed"), _ELSEWHERE
    )

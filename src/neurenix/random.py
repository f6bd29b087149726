"""The random stream of the process, used by layers, shuffles and ``nx.randn``.

The state is one seed and one counter; a key is computed from both at each call, so a call inside a
traced function is safe and import creates nothing on a device. An ``nnx.Rngs`` starts from a key of
this stream and is independent afterwards.

The initial seed is 0 in every process, because all processes of a slice must draw the same
parameters.
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
    """Restart the process's random stream from a seed.

    Args:
        value: an integer from 0 to 2**32 - 1.

    Raises:
        ArgumentTypeError: ``value`` is not an integer.
        ArgumentError: ``value`` is out of range.

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
    """Return the last seed; draws nothing.

    Example:
        >>> import neurenix as nx
        >>> nx.seed(7)
        >>> nx.random.current_seed()
        7
    """
    return _seed


def next_key() -> jax.Array:
    """Return the next key of the process's stream.

    Inside a traced function the key is a constant: the compiled function uses the same key at every
    call. Pass keys as arguments instead, or draw them from an ``nnx.Rngs`` kept in the module, as
    ``nn.Dropout`` does.

    Returns:
        A typed key, shape ``()``, like those of ``jax.random.key``.

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


if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(
        __name__, ("FrozenDrawWarning", "current_seed", "next_key", "seed"), _ELSEWHERE
    )

"""Look up vectors in a table by integer index."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from neurenix._core.errors import ArgumentTypeError, DataError
from neurenix._nnx import nnx
from neurenix.nn._checks import expect_array, positive
from neurenix.nn._parameters import parameter_dtype, rngs_or_default, standard_normal
from neurenix.nn.module import Module


class Embedding(Module, nnx.Embed):
    """Integers (...) → vectors (..., embedding_dim).

    Initial values are drawn from N(0, 1), as in PyTorch. An index outside the table, negative
    ones included, raises if its value is known. In a compiled program, which cannot raise, it gives
    NaN; ``fit``, ``evaluate`` and ``predict`` raise when such a NaN appears.

    Args:
        num_embeddings: number of rows of the table.
        embedding_dim: size of a vector.
        dtype: of the table and the output; float32 by default.
        rngs: random streams; those of the process by default.

    Attributes:
        embedding: (num_embeddings, embedding_dim).

    Raises:
        ArgumentTypeError: the input is not of an integer dtype.
        DataError: outside compiled functions, an index is outside the table.

    Example:
        >>> nn.Embedding(100, 16)(nx.tensor([[1, 2, 3]])).shape
        (1, 3, 16)
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        dtype: jax.typing.DTypeLike | None = None,
        rngs: nnx.Rngs | None = None,
    ) -> None:
        num_embeddings, embedding_dim = positive(
            num_embeddings=num_embeddings, embedding_dim=embedding_dim
        )
        nnx.Embed.__init__(
            self,
            num_embeddings,
            embedding_dim,
            param_dtype=parameter_dtype(dtype),
            embedding_init=standard_normal,
            rngs=rngs_or_default(rngs),
        )

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the rows of the table."""
        expect_array("Embedding", x)
        if not jnp.issubdtype(x.dtype, jnp.integer):
            raise ArgumentTypeError(
                f"Embedding looks up integers; its input is {x.dtype}, shape {x.shape}."
            )
        return rows_of(self.embedding[...], x, name="Embedding")

    def attend(self, query: jax.Array) -> jax.Array:
        """Return the products of (..., embedding_dim) with every row: (..., num_embeddings).

        The output layer of a language model with tied weights.
        """
        return query @ self.embedding[...].astype(query.dtype).T


def rows_of(table: jax.Array, numbers: jax.Array, *, name: str) -> jax.Array:
    """Return rows of a table: (rows, ...) and integers (*shape) → (*shape, ...).

    In a compiled program, an index outside the table gives NaN.

    Args:
        table: (rows, ...), floating-point.
        numbers: integers, any shape.
        name: of the table, for the error.

    Raises:
        DataError: an index whose value is known is outside the table.

    Example:
        >>> rows_of(nx.tensor([[1.0], [2.0]]), nx.tensor([1, 0]), name="The table").tolist()
        [[2.0], [1.0]]
    """
    _check_range(table.shape[0], numbers, name)
    # jnp.take would count negative indices from the end.
    return table.at[numbers].get(mode="fill", wrap_negative_indices=False)


def _check_range(rows: int, x: jax.Array, name: str) -> None:
    if isinstance(x, Tracer) or not x.size or not getattr(x, "is_fully_addressable", True):
        return
    numbers = np.asarray(x)
    outside = (numbers >= rows) | (numbers < 0)
    if outside.any():
        where = tuple(int(i) for i in np.argwhere(outside)[0])
        raise DataError(
            f"{name} has {rows} rows, 0 … {rows - 1}; its input holds {numbers[where]} at index "
            f"{where}."
        )

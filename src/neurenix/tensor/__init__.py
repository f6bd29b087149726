"""Tensors, which are ``jax.Array``s, and the functions on them.

``creation`` makes them, ``elementwise`` and ``arrays`` are ``jax.numpy``'s own functions,
``dtypes`` knows the names. ``__all__`` is what ``neurenix`` offers under its own name.
"""

from neurenix.tensor import arrays, creation, dtypes, elementwise
from neurenix.tensor.arrays import *  # noqa: F403  each has __all__
from neurenix.tensor.creation import *  # noqa: F403  each has __all__
from neurenix.tensor.dtypes import *  # noqa: F403  each has __all__
from neurenix.tensor.elementwise import *  # noqa: F403  each has __all__

__all__: list[str] = []
__all__ += arrays.__all__
__all__ += creation.__all__
__all__ += dtypes.__all__
__all__ += elementwise.__all__

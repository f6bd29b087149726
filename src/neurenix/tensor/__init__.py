"""Tensors, which are ``jax.Array``s, and the functions on them.

``creation`` and ``sampling`` create them. ``elementwise``, ``arrays`` and ``constants`` re-export
``jax.numpy``; ``dtypes`` lists the dtypes. ``__all__`` is re-exported by ``neurenix``. The module
is callable: ``nx.tensor([1, 2])``.
"""

from neurenix._core.callable_module import make_callable
from neurenix.tensor import arrays, constants, creation, dtypes, elementwise, sampling
from neurenix.tensor.arrays import *  # noqa: F403  each has __all__
from neurenix.tensor.constants import *  # noqa: F403  each has __all__
from neurenix.tensor.creation import *  # noqa: F403  each has __all__
from neurenix.tensor.dtypes import *  # noqa: F403  each has __all__
from neurenix.tensor.elementwise import *  # noqa: F403  each has __all__
from neurenix.tensor.sampling import *  # noqa: F403  each has __all__

__all__: list[str] = []
__all__ += arrays.__all__
__all__ += constants.__all__
__all__ += creation.__all__
__all__ += sampling.__all__
__all__ += dtypes.__all__
__all__ += elementwise.__all__

make_callable(__name__, "array")

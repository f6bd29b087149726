"""The one place that imports ``flax.nnx``; everything else takes it from here.

Owns the version-dependent parts of NNX. It does not own layers (``neurenix.nn``).
"""

from __future__ import annotations

from typing import Any

from flax import nnx
from flax.errors import TraceContextError

__all__ = ["TraceContextError", "get_array", "nnx", "set_array"]

# The array behind a variable, read and written at C speed. The public ``get_raw_value`` and
# ``set_raw_value`` cost a Python frame for each of a thousand variables, at every compiled call.
_slot: Any = vars(nnx.Variable)["_raw_value"]
get_array, set_array = _slot.__get__, _slot.__set__

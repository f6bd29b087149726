"""The one place that imports ``flax.nnx``; everything else takes it from here.

Owns the names of Flax that are private, and what depends on its version. Layers are in
``neurenix.nn``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flax import nnx
from flax.errors import TraceContextError

from neurenix._core.unstable_names import find

__all__ = ["TraceContextError", "get_array", "nnx", "set_array", "set_variable_type"]

# The array of a variable, read and written at C speed. The public ``get_raw_value`` and
# ``set_raw_value`` cost a Python frame for each of a thousand variables, at every compiled call.
_slot: Any = find("flax.nnx:Variable._raw_value")
_is_slot = hasattr(_slot, "__get__") and hasattr(_slot, "__set__")
get_array: Callable[[Any], Any] = _slot.__get__ if _is_slot else nnx.Variable.get_raw_value
set_array: Callable[[Any, Any], None] = _slot.__set__ if _is_slot else nnx.Variable.set_raw_value


def set_variable_type(variable: nnx.Variable, kind: type[nnx.Variable]) -> None:
    """Change the type of a variable in place, so that a shared one stays shared.

    NNX has no public way; a new variable would have to replace the old one in every module.
    """
    object.__setattr__(variable, "__class__", kind)

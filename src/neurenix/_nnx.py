"""The one place that imports ``flax.nnx``; everything else takes it from here.

Owns the version-dependent parts of NNX. It does not own layers (``neurenix.nn``).
"""

from __future__ import annotations

from flax import nnx
from flax.errors import TraceContextError

__all__ = ["TraceContextError", "nnx"]

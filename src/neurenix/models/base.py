"""What all models here share: construction without memory, and their sharding rules.

Owns the base class. It does not own configurations (``configs``).
"""

from __future__ import annotations

from typing import Any, Self

from neurenix._nnx import nnx
from neurenix.models.remat import POLICIES
from neurenix.nn.module import Module

Rules = tuple[tuple[str, tuple[Any, ...]], ...]


class Model(Module):
    """A model of a configuration: ``Model(config, rngs=…)``."""

    config: Any

    def __init__(self, config: Any, *, rngs: nnx.Rngs | None = None) -> None:
        self.config = config

    @classmethod
    def abstract(cls, config: Any) -> Self:
        """Return the model with shapes in place of arrays: it takes no memory at any size.

        It can be compiled (``compile``) and given to ``nx.preflight``; it cannot compute.

        Example:
            >>> from neurenix import models
            >>> model = models.Decoder.abstract(models.get("llama3.1-70b"))
            >>> round(model.num_parameters / 1e9, 1)
            70.6
        """
        return nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0)))

    @property
    def remat_policies(self) -> tuple[str, ...]:
        """Names of the policies of recomputation that ``with_remat`` takes."""
        return POLICIES if hasattr(self.config, "remat") else ("none",)

    @property
    def remat(self) -> str:
        """The policy of recomputation; ``"custom"`` for one that names values."""
        own = getattr(self.config, "remat", "none")
        return own if isinstance(own, str) else "custom"

    def with_remat(self, policy: str) -> Self:
        """Return the model of shapes with another policy of recomputation, for comparisons.

        Example:
            >>> from neurenix import models
            >>> models.Decoder.abstract(models.get("tiny")).with_remat("full").remat
            'full'
        """
        return type(self).abstract(self.config.replace(remat=policy))

    def sharding_rules(self) -> Rules:
        """Return pairs of a pattern on a parameter's path and the mesh axes of its last axes.

        For ``neurenix.distribute.ShardingRules``. Axes that a mesh does not have are left out.
        """
        return ()

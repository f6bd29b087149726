"""The base class of models: construction without memory, and sharding rules."""

from __future__ import annotations

from typing import Any, Self

from neurenix._nnx import nnx
from neurenix.models.remat import POLICIES
from neurenix.nn.module import Module

Rules = tuple[tuple[str, tuple[Any, ...]], ...]


class Model(Module):
    """A model built from a configuration: ``Model(config, rngs=…)``."""

    config: Any

    def __init__(self, config: Any, *, rngs: nnx.Rngs | None = None) -> None:
        self.config = config

    @classmethod
    def abstract(cls, config: Any) -> Self:
        """Return the model with abstract arrays, which uses no memory at any size.

        It can be passed to ``compile`` and ``nx.preflight``; it cannot compute.

        Example:
            >>> from neurenix import models
            >>> model = models.Decoder.abstract(models.get("llama3.1-70b"))
            >>> round(model.num_parameters / 1e9, 1)
            70.6
        """
        return nnx.eval_shape(lambda: cls(config, rngs=nnx.Rngs(0)))

    @property
    def remat_policies(self) -> tuple[str, ...]:
        """Names of the rematerialization policies that ``with_remat`` accepts."""
        return POLICIES if hasattr(self.config, "remat") else ("none",)

    @property
    def remat(self) -> str:
        """The name of the rematerialization policy; ``"custom"`` for a ``Remat``."""
        own = getattr(self.config, "remat", "none")
        return own if isinstance(own, str) else "custom"

    def with_remat(self, policy: str) -> Self:
        """Return the abstract model with another rematerialization policy, for comparisons.

        Example:
            >>> from neurenix import models
            >>> models.Decoder.abstract(models.get("tiny")).with_remat("full").remat
            'full'
        """
        return type(self).abstract(self.config.replace(remat=policy))

    def sharding_rules(self) -> Rules:
        """Return pairs of a pattern for parameter paths and the mesh axes of their last axes.

        For ``neurenix.distribute.ShardingRules``. Axes that a mesh does not have are ignored.
        """
        return ()

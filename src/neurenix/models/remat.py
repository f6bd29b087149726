"""Rematerialization: which values are stored for the backward pass and which are recomputed.

Owns the named policies. The values are named in ``layers``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._core.errors import ArgumentError, unknown_name

# Values of a layer that a policy can name, in the order of computation.
NAMES = (
    "decoder_layer_input",
    "query_proj",
    "key_proj",
    "value_proj",
    "context",
    "out_proj",
    "mlp_up",
    "mlp_gate",
    "mlp_down",
)

POLICIES = ("none", "minimal", "full")


@dataclass(frozen=True)
class Remat:
    """The values of a layer that are stored for the backward pass; all others are recomputed.

    Attributes:
        save: names of values stored in HBM.
        offload: names of values stored in host memory.

    The names are ``decoder_layer_input``, ``query_proj``, ``key_proj``, ``value_proj``,
    ``context`` (the output of attention, with its log-sum-exp), ``out_proj``, ``mlp_up``,
    ``mlp_gate`` and ``mlp_down``.

    Raises:
        UnknownNameError: unknown value name.
        ArgumentError: a name is in both.

    Example:
        >>> nx.models.Remat(save=("context",), offload=("decoder_layer_input",)).offload
        ('decoder_layer_input',)
    """

    save: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for field in ("save", "offload"):
            names = getattr(self, field)
            object.__setattr__(self, field, (names,) if isinstance(names, str) else tuple(names))
        for name in self.save + self.offload:
            if name not in NAMES:
                raise unknown_name("remat value", name, NAMES)
        both = sorted(set(self.save) & set(self.offload))
        if both:
            raise ArgumentError(f"Remat: {both} can be saved or offloaded, not both.")


def check_remat(remat: str | Remat) -> None:
    """Raise UnknownNameError unless ``remat`` is a policy."""
    if not isinstance(remat, Remat) and remat not in POLICIES:
        raise unknown_name("remat policy", str(remat), POLICIES)


def checkpointed(
    function: Callable[..., Any], remat: str | Remat, *, in_scan: bool
) -> Callable[..., Any]:
    """Return ``function`` with the rematerialization policy applied.

    Args:
        function: one layer.
        remat: ``"none"`` stores everything the gradient needs, ``"full"`` only the layer's input,
            ``"minimal"`` the results of products with weights; or a ``Remat``.
        in_scan: whether it is the body of a scan, where XLA cannot undo the recomputation.
    """
    if remat == "none":
        return function
    return jax.checkpoint(function, policy=_policy(remat), prevent_cse=not in_scan)


def _policy(remat: str | Remat) -> Any:
    policies = jax.checkpoint_policies
    if isinstance(remat, str):
        return policies.dots_with_no_batch_dims_saveable if remat == "minimal" else None
    if not remat.offload:
        return policies.save_only_these_names(*remat.save)
    return policies.save_and_offload_only_these_names(
        names_which_can_be_saved=list(remat.save),
        names_which_can_be_offloaded=list(remat.offload),
        offload_src="device",
        offload_dst="pinned_host",
    )

"""Whether a program is like the published runs that the model of time was fitted to.

Owns the judgement, whose answer widens the interval. Those runs are training steps of dense
language models of 8 billion parameters and more; how wide the interval gets is ``calibration``'s.
"""

from __future__ import annotations

import math

from neurenix.compiler.program import Program
from neurenix.compiler.training import is_training_step

_LEAST_FLOPS_PER_TOKEN = 2.4e10
"""Half of what a token of the smallest model of those runs takes, forwards and backwards."""
_TOKENS = ("int32", "uint32", "int64", "uint64")


def unlike_the_runs(program: Program) -> str:
    """Return what sets a program apart from the published runs, or nothing.

    A mixture of experts is told by the products of ``jax.lax.ragged_dot``; one that is written with
    dense products over one-hot routes is not told from a dense model.

    Example:
        >>> unlike_the_runs(Program("predict", "", {"data": 1}, (), (), 0.0, 0))
        'no training step'
    """
    if not is_training_step(program):
        return "no training step"
    if any(product.groups > 1 for product in program.traits.products):
        return "a mixture of experts"
    batches = [leaf for leaf in program.leaves if leaf.role == "batch" and leaf.dtype in _TOKENS]
    tokens = max((math.prod(leaf.shape) for leaf in batches if len(leaf.shape) > 1), default=0)
    if not tokens or program.model_flops < _LEAST_FLOPS_PER_TOKEN * tokens:
        return "no large language model"
    return ""

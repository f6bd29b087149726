"""Decide whether a program resembles the published runs of the calibration.

A program that does not gets a wider interval (``calibration``). Those runs are training steps of
dense language models with at least 8 billion parameters.
"""

from __future__ import annotations

import math

from neurenix.compiler.program import Program
from neurenix.compiler.training import is_training_step

_LEAST_FLOPS_PER_TOKEN = 2.4e10
"""Half of the training FLOPs per token of the smallest model of those runs."""
_TOKENS = ("int32", "uint32", "int64", "uint64")


def unlike_the_runs(program: Program) -> str:
    """Return what distinguishes a program from the published runs, or an empty string.

    A mixture of experts is recognised by the products of ``jax.lax.ragged_dot``. One with dense
    products over one-hot routes is not.

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

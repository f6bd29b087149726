"""The comparison of a converted module with PyTorch: outputs, losses, gradients.

Owns what is compared and when it is an error.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Verification:
    """The largest differences from PyTorch, relative to the largest number of an array.

    Attributes:
        evaluation: of the outputs in evaluation.
        training: of the outputs in training; None where dropout or the like is random.
        gradients: of the gradients of the mean of squared outputs; None as well.
        depends_on_input: whether other inputs give other outputs.
    """

    evaluation: float
    training: float | None
    gradients: float | None
    depends_on_input: bool


def verify(module, converted, args, kwargs):
    return None

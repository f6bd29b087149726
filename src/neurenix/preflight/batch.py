"""What one step works on: examples and, of a program that reads token ids, tokens.

Owns the reading of a program's batch. Rates and costs are made from it elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurenix.compiler.program import Leaf, Program
from neurenix.compiler.training import is_training_step

_TOKEN_TYPES = ("int32", "int64", "uint32")


@dataclass(frozen=True)
class Batch:
    """The global batch of one step.

    ``examples`` is ``None`` where the program has no known batch, ``sequence_length`` where it has
    no tokens; ``tokens_path`` is the argument that holds the ids.
    """

    examples: int | None = None
    sequence_length: int | None = None
    tokens_path: str = ""

    @property
    def tokens(self) -> int | None:
        """Tokens of one step: examples × sequence length."""
        if self.examples is None or self.sequence_length is None:
            return None
        return self.examples * self.sequence_length


def batch_of(program: Program) -> Batch:
    """Return the batch of a program.

    Token ids are an array ``(N, T)`` of integers of 32 bits or more that a training step takes:
    among the inputs of a model, or the first of a batch that a function with an optimizer is given.
    Elsewhere integers are whatever the function makes of them.
    """
    leaves = [leaf for leaf in program.leaves if leaf.role == "batch"]
    of_model = [leaf for leaf in leaves if "x" in leaf.path.split(".")[:2]]
    for leaf in of_model or leaves[:1]:
        if is_training_step(program) and _is_tokens(leaf):
            return Batch(leaf.shape[0], leaf.shape[1], leaf.path)
    sizes = [leaf.shape[0] for leaf in of_model or leaves if leaf.shape]
    return Batch(sizes[0] if sizes else None)


def _is_tokens(leaf: Leaf) -> bool:
    return len(leaf.shape) == 2 and leaf.shape[1] > 1 and leaf.dtype in _TOKEN_TYPES

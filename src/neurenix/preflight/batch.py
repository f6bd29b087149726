"""What one step works on: examples and, of a program that reads token ids, tokens.

Owns the reading of a program's batch. Rates and costs are made from it elsewhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurenix.compiler.program import Leaf, Program


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

    Token ids are the first integer array of rank 2, ``(N, T)``, among the inputs of a model, or
    among all arguments of a plain function.
    """
    leaves = [leaf for leaf in program.leaves if leaf.role == "batch"]
    of_model = [leaf for leaf in leaves if "x" in leaf.path.split(".")[:2]]
    plain = [leaf for leaf in program.leaves if leaf.role == "argument"]
    for leaf in of_model or leaves or plain:
        if _is_tokens(leaf):
            return Batch(leaf.shape[0], leaf.shape[1], leaf.path)
    sizes = [leaf.shape[0] for leaf in of_model or leaves if leaf.shape]
    return Batch(sizes[0] if sizes else None)


def _is_tokens(leaf: Leaf) -> bool:
    return len(leaf.shape) == 2 and leaf.shape[1] > 1 and leaf.dtype.startswith(("int", "uint"))

"""The examples and tokens of one step, derived from a program's arguments."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.leading_axis import Uses
from neurenix.compiler.program import Program
from neurenix.compiler.training import is_training_step

_TOKEN_TYPES = ("int32", "int64", "uint32")


@dataclass(frozen=True)
class Batch:
    """The global batch of one step.

    Attributes:
        examples: None if the program has no known batch.
        sequence_length: None if the program reads no tokens.
        tokens_path: the argument with the token ids.
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


def batch_of(program: Program, examples: int | None = None) -> Batch:
    """Return the batch of a program.

    Token ids are an integer array ``(N, T)`` of 32 bits or more among a model's inputs, or the
    first batch argument of a function with an optimizer. Other integers have no known meaning.

    Microbatches ``(K, N, …)``, over which a loop accumulates gradients or makes whole steps, count
    as ``K × N`` examples. If a loop iterates over the leading axis in another way, such as over the
    time steps of a recurrent network, the number of examples is unknown.

    Args:
        program: of any function.
        examples: of one call, if the caller knows them.
    """
    leaves = [leaf for leaf in program.leaves if leaf.role == "batch"]
    several = program.traits.steps_per_call > 1  # whose batches are stacked
    if several:
        leaves = [replace(leaf, shape=leaf.shape[1:]) for leaf in leaves]
    of_model = [leaf for leaf in leaves if "x" in leaf.path.split(".")[:2]]
    axes = 1 if several else _axes_of_examples(program, of_model or leaves)
    for leaf in of_model or leaves[:1]:
        if axes and is_training_step(program) and _is_tokens(leaf, axes):
            known = examples or math.prod(leaf.shape[:axes])
            return Batch(known, leaf.shape[axes], leaf.path)
    sizes = [leaf.shape for leaf in of_model or leaves if leaf.shape]
    return Batch(examples or (math.prod(sizes[0][:axes]) if sizes and axes else None))


def _is_tokens(leaf: Leaf, axes: int) -> bool:
    rest = leaf.shape[axes:]
    return len(rest) == 1 and rest[0] > 1 and leaf.dtype in _TOKEN_TYPES


def _axes_of_examples(program: Program, batch: Sequence[Leaf]) -> int:
    """Return how many leading axes of the batch count its examples; 0 if unknown."""
    if len(program.traits.row_by_row) != len(program.leaves):
        return 1
    uses_of = dict(
        zip((leaf.path for leaf in program.leaves), program.traits.row_by_row, strict=True)
    )
    arrays = [leaf for leaf in batch if leaf.shape]
    apart = [leaf for leaf in arrays if uses_of[leaf.path]]
    if not apart or apart[0] is not arrays[0]:
        return 1
    parameters = Counter(leaf.shape for leaf in program.leaves if leaf.role == "parameters")
    axes = min(_axes_of(uses_of[leaf.path], parameters) for leaf in apart)
    while axes > 1 and not _agree([leaf.shape for leaf in apart], axes):
        axes -= 1
    return axes


def _axes_of(uses: Uses, parameters: Counter[tuple[int, ...]]) -> int:
    """Return how many leading axes count examples, by the loops over them; 0 if unknown.

    Iterations of a loop have separate examples if the loop carries only scalars, such as a sum of
    losses, or arrays of every parameter's shape, such as gradients. The backward pass of a loop is
    the same loop.
    """
    if not uses:
        return 1
    ahead = [use for use in uses if not use.backwards] or list(uses)
    for use in ahead:
        if use.carried is None or (any(use.carried) and parameters - Counter(use.carried)):
            return 0
    inside = min(_axes_of(use.within, parameters) for use in ahead)
    return inside and inside + 1


def _agree(shapes: Sequence[tuple[int, ...]], axes: int) -> bool:
    """Return whether the arrays agree along these axes, and at least one has further axes."""
    return len({shape[:axes] for shape in shapes}) == 1 and max(map(len, shapes)) > axes

"""Attention masks that no input decides: causal ones and windows, told by their values.

Models of transformers materialise a causal mask when they are exported, which no fused kernel
takes. Computed while the program is traced, such a mask turns out to be a lower triangle, and the
attention is given ``is_causal`` in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix.interop.torch.program import Operation, Program, Value, map_values, values_in

ATTENTION = "aten::scaled_dot_product_attention.default"


class Masks:
    """The masks of one run of a program.

    Args:
        program: the program.
        values: its values so far, by number.
    """

    def __init__(self, program: Program, values: Sequence[Any]) -> None:
        self._program, self._values = program, values
        self._makers = {operation.output: operation for operation in program.operations}

    def told(self, mask: Any) -> dict[str, Any]:
        """Return arguments of an attention that replace its mask; none if they cannot.

        Args:
            mask: the argument of the operation, a ``Value`` where it is made outside of a loop.
        """
        if not isinstance(mask, Value):
            return {}
        made = self._values[mask.index]
        if made is None or made.ndim < 2 or made.shape[-1] != made.shape[-2]:
            return {}
        known = self._program.masks
        key = (mask.index, made.shape)
        if key not in known:
            needed = self._needed(mask.index)
            known[key] = {} if needed is None else _classified(self._checked(needed, mask.index))
        return known[key]

    def _needed(self, index: int) -> list[Operation] | None:
        """Return the operations that make a value, in their order; None if an input decides it."""
        given = {*self._program.inputs, *self._program.weights}
        wanted, found = [index], dict[int, Operation]()
        while wanted:
            number = wanted.pop()
            if number in found or not isinstance(self._values[number], jax.Array):
                continue  # sizes and constants are there
            operation = self._makers.get(number)
            if number in given or operation is None or operation.is_random:
                return None
            if operation.operator is not None and operation.operator.nested:
                return None
            found[number] = operation
            wanted += [value.index for value in values_in(operation.arguments)]
        return [operation for operation in self._program.operations if operation.output in found]

    def _checked(self, operations: Sequence[Operation], index: int) -> Any:
        """Compute a mask once more, of constants alone, and what it is like."""

        def check() -> Any:
            made: dict[int, Any] = {}

            def read(leaf: Any) -> Any:
                if not isinstance(leaf, Value):
                    return leaf
                return made[leaf.index] if leaf.index in made else self._values[leaf.index]

            for operation in operations:
                positional, named = map_values(read, operation.arguments)
                known = operation.operator
                function: Any = operation.function if known is None else known.function
                made[operation.output] = function(*positional, **named)
            return _likeness(made[index])

        with jax.ensure_compile_time_eval(), jax.sharding.use_abstract_mesh(_NO_MESH):
            return [np.asarray(each) for each in jax.jit(check)()]


_NO_MESH = jax.sharding.AbstractMesh((), ())


def _likeness(mask: jax.Array) -> tuple[jax.Array, ...]:
    """Return whether all is seen, what is before, what is in a window, and how long that is."""
    if mask.dtype == bool:
        seen, sound = mask, jnp.bool_(True)
    else:
        seen = mask == 0
        sound = jnp.all(seen | (mask <= jnp.finfo(mask.dtype).min / 2))
    size = mask.shape[-1]
    ahead = jnp.arange(size)[:, None] - jnp.arange(size)
    window = jnp.max(jnp.sum(seen, -1))
    before = ahead >= 0
    within = before & (ahead < window)
    return (
        sound & jnp.all(seen),
        sound & jnp.all(seen == before),
        sound & jnp.all(seen == within),
        window,
    )


def _classified(likeness: Any) -> dict[str, Any]:
    everything, causal, windowed, window = likeness
    if everything:
        return {"attn_mask": None}
    if causal:
        return {"attn_mask": None, "is_causal": True}
    if windowed:
        return {"attn_mask": None, "is_causal": True, "window": int(window)}
    return {}

"""Computing a program in JAX: each operation at its line of the user's PyTorch code.

Owns the order, the dtypes of results, random keys and loops over repeated layers. Does not own the
operators (``operators``).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ArgumentError
from neurenix._core.source_files import SourceLine
from neurenix.interop.torch.program import Operation, Program, Value, map_values
from neurenix.interop.torch.repeats import Carried, Local, Loop, Stacked

Key = Callable[[], jax.Array]


def compute(
    steps: Sequence[Operation | Loop],
    program: Program,
    weights: Mapping[str, Any],
    inputs: Sequence[Any],
    *,
    key: jax.Array | None = None,
    product_dtype: Any = None,
) -> tuple[list[Any], dict[str, Any]]:
    """Compute a program.

    Args:
        steps: its operations, repeated ones as loops.
        program: the program.
        weights: arrays by name; those of a loop also under ``StackedName``.
        inputs: the user's inputs, flat.
        key: random key of this call, for dropout; None where nothing is random.
        product_dtype: dtype of the operands of matrix products and convolutions, where that is
            smaller than the one that the module was written in (mixed precision).

    Returns:
        the user's results, flat, and the new values of buffers by name.

    Raises:
        ArgumentError: the program draws random numbers and there is no key.
    """
    return _Computation(weights, key, product_dtype).run(steps, program, inputs)


class _Computation:
    def __init__(self, weights: Mapping[str, Any], key: Any, product_dtype: Any) -> None:
        self._weights, self._key, self._product_dtype = weights, key, product_dtype

    def run(
        self, steps: Sequence[Operation | Loop], program: Program, inputs: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = [None] * program.num_values
        for index, constant in program.constants.items():
            values[index] = constant
        for index, name in program.weights.items():
            values[index] = self._weights[name]
        for index, given in zip(program.inputs, inputs, strict=True):
            values[index] = given

        def read(leaf: Any) -> Any:
            return values[leaf.index] if isinstance(leaf, Value) else leaf

        for step in steps:
            if isinstance(step, Loop):
                self._loop(step, values, read)
            else:
                values[step.output] = self._compute(step, read, self._key)
        results = [read(result.value) for result in program.results]
        pairs = list(zip(program.results, results, strict=True))
        buffers = {result.buffer: value for result, value in pairs if result.buffer is not None}
        return [value for result, value in pairs if result.buffer is None], buffers

    def _loop(self, loop: Loop, values: list[Any], read: Callable[[Any], Any]) -> None:
        stacked = [self._stack(names) for names in loop.weights]
        start = [jnp.asarray(read(value)) for value in loop.starts]

        def body(carry: list[Any], each: tuple[jax.Array, list[Any]]) -> tuple[Any, Any]:
            number, weights = each
            local: list[Any] = [None] * len(loop.operations)
            key = None if self._key is None else jax.random.fold_in(self._key, number)

            def inside(leaf: Any) -> Any:
                if isinstance(leaf, Local):
                    return local[leaf.position]
                if isinstance(leaf, Carried):
                    return carry[leaf.number]
                if isinstance(leaf, Stacked):
                    return weights[leaf.number]
                return read(leaf)

            for position, operation in enumerate(loop.operations):
                local[position] = self._compute(operation, inside, key)
            return [local[p] for p in loop.carried], [local[p] for p in loop.collected]

        last, collected = jax.lax.scan(body, start, (jnp.arange(loop.count), stacked))
        for found, indices in zip(collected, loop.collected_values, strict=True):
            for number, index in enumerate(indices):
                if index is not None:
                    values[index] = jax.tree.map(lambda leaf, n=number: leaf[n], found)
        for value, index in zip(last, loop.last_values, strict=True):
            if index is not None:
                values[index] = value

    def _stack(self, names: tuple[str, ...]) -> Any:
        whole = getattr(self._weights, "stacked", lambda _: None)(names)
        return jnp.stack([self._weights[name] for name in names]) if whole is None else whole

    def _compute(
        self, operation: Operation, read: Callable[[Any], Any], key: jax.Array | None
    ) -> Any:
        positional, named = map_values(read, operation.arguments)
        known = operation.operator
        if operation.function is not None:
            return operation.function(*positional, **named)
        if known is None:
            raise ArgumentError(f"{operation.name} at {operation.line} has no function here.")
        if known.nested:
            named["run"] = self._nested
        if known.random is not None:
            named["rng"] = self._key_of(operation, key)
        if known.product and self._product_dtype is not None:
            positional, named = map_values(self._narrowed, (positional, named))
        call = _standing_at(operation.line) if operation.line else _called
        with jax.named_scope(operation.scope or "torch"):
            result = call(known.function, positional, named)
            return _cast(result, operation.results, self._product_dtype)

    def _nested(self, program: Program, inputs: Sequence[Any]) -> list[Any]:
        return self.run(program.operations, program, inputs)[0]

    def _narrowed(self, leaf: Any) -> Any:
        wide = isinstance(leaf, jax.Array) and leaf.dtype == jnp.float32
        return leaf.astype(self._product_dtype) if wide else leaf

    def _key_of(self, operation: Operation, key: jax.Array | None) -> Key:
        def draw() -> jax.Array:
            if key is None:
                raise ArgumentError(
                    f"{operation.name} at {operation.line} draws random numbers, and there is no "
                    "random key for it in evaluation. Call model.train(), or draw the numbers "
                    "outside of the model."
                )
            return jax.random.fold_in(key, operation.output)

        return draw


def _cast(result: Any, expected: Any, product_dtype: Any) -> Any:
    """Return a result in the dtype that it has in PyTorch, or in that of mixed precision."""
    if isinstance(expected, list):
        if not isinstance(result, (list, tuple)):
            return result
        pairs = zip(result, expected, strict=False)
        return [_cast(each, one, product_dtype) for each, one in pairs]
    if expected is None or not isinstance(result, (jax.Array, np.ndarray, np.generic)):
        return result
    _, dtype = expected
    if result.dtype == dtype or (dtype == jnp.float32 and result.dtype == product_dtype):
        return result
    return result.astype(dtype)


def _called(function: Callable[..., Any], positional: Any, named: Any) -> Any:
    return function(*positional, **named)


@functools.lru_cache(maxsize=4096)
def _standing_at(line: SourceLine) -> Callable[..., Any]:
    """Return a function that calls another one from a line of the user's.

    JAX records the lines behind an operation, and the TPU compiler passes them on: so they name the
    user's PyTorch code.
    """
    code = _CALL.replace(
        co_filename=line.file,
        co_firstlineno=line.line,
        co_name=line.function,
        co_qualname=line.function,
    )
    return types.FunctionType(code, {})


# On one line, so that all of it stands at the first line of its code.
_CALL = (lambda function, positional, named: function(*positional, **named)).__code__

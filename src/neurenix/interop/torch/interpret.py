"""Computing a program in JAX: each operation at its line of the user's PyTorch code.

Owns the order, the dtypes of results, random keys and loops over repeated layers. Does not own the
operators (``operators``).
"""

from __future__ import annotations

import functools
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from neurenix._core.errors import ArgumentError
from neurenix._core.source_files import SourceLine, converted_function
from neurenix.distribute.mesh import BATCH_AXES
from neurenix.interop.torch.masks import ATTENTION, Masks
from neurenix.interop.torch.program import Operation, Program, Value, map_values
from neurenix.interop.torch.repeats import Carried, Local, Loop, Stacked
from neurenix.models.remat import checkpointed

Key = Callable[[], jax.Array]


def compute(
    steps: Sequence[Operation | Loop],
    program: Program,
    weights: Mapping[str, Any],
    inputs: Sequence[Any],
    *,
    key: jax.Array | None = None,
    product_dtype: Any = None,
    remat: str = "none",
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
        remat: what the backward pass recomputes in each layer of a loop, or, without a loop, in the
            whole program: a policy of ``models.remat``.

    Returns:
        the user's results, flat, and the new values of buffers by name.

    Raises:
        ArgumentError: the program draws random numbers and there is no key.
    """
    computation = _Computation(weights, key, product_dtype, remat, batch_size(inputs))
    return computation.run(steps, program, inputs)


class _Computation:
    def __init__(
        self, weights: Mapping[str, Any], key: Any, product_dtype: Any, remat: str, batch: int
    ) -> None:
        self._weights, self._key, self._product_dtype = weights, key, product_dtype
        self._remat, self._batch = remat, batch
        self._masks: Masks | None = None

    def run(
        self, steps: Sequence[Operation | Loop], program: Program, inputs: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        values: list[Any] = [None] * program.num_values
        for index, constant in program.constants.items():
            # NumPy arrays have no ``.at``, and cannot be indexed by what is traced.
            values[index] = jnp.asarray(constant) if hasattr(constant, "dtype") else constant
        for index, name in program.weights.items():
            values[index] = self._weights[name]
        for index, given in zip(program.inputs, inputs, strict=True):
            values[index] = given

        def read(leaf: Any) -> Any:
            return values[leaf.index] if isinstance(leaf, Value) else leaf

        around, self._masks = self._masks, Masks(program, values)
        for step in steps:
            if isinstance(step, Loop):
                self._loop(step, values, read)
            else:
                values[step.output] = self._compute(step, read, self._key)
        self._masks = around
        results = [read(result.value) for result in program.results]
        pairs = list(zip(program.results, results, strict=True))
        buffers = {result.buffer: value for result, value in pairs if result.buffer is not None}
        return [value for result, value in pairs if result.buffer is None], buffers

    def _loop(self, loop: Loop, values: list[Any], read: Callable[[Any], Any]) -> None:
        stacked = [self._stack(names) for names in loop.weights]
        start = [jnp.asarray(read(value)) for value in loop.starts]

        def body(carry: list[Any], each: tuple[jax.Array, list[Any]]) -> tuple[Any, Any]:
            number, weights = each
            carry = [on_replicas(value, self._batch) for value in carry]
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

        each = (jnp.arange(loop.count), stacked)
        line = loop.operations[-1].line  # of the loop itself: what it stacks, copies and keeps
        layer = checkpointed(body, self._remat, in_scan=True)
        last, collected = at_line(line, jax.lax.scan, layer, start, each)
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
        if operation.name == ATTENTION and self._masks is not None:
            named |= self._masks.told(operation.arguments[1].get("attn_mask"))
        if known.nested:
            named["run"] = self._nested
        if known.random is not None:
            named["rng"] = self._key_of(operation, key)
        if known.product and self._product_dtype is not None:
            positional, named = map_values(self._narrowed, (positional, named))
        run = functools.partial(known.function, *positional, **named)
        with jax.named_scope(operation.scope or "torch"):
            return at_line(operation.line, self._result, run, operation)

    def _result(self, run: Callable[[], Any], operation: Operation) -> Any:
        result = _cast(run(), operation.results, self._product_dtype)
        is_product = operation.operator is not None and operation.operator.product
        return on_replicas(result, self._batch) if is_product else result

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


def batch_size(inputs: Sequence[Any]) -> int:
    """Return the size of the first axis of the first input that has one; 0 if none has."""
    return next((value.shape[0] for value in inputs if getattr(value, "shape", ())), 0)


def on_replicas(value: Any, batch: int) -> Any:
    """Constrain an array whose first axis is the batch to be divided over the replicas.

    Its other axes are left to the compiler. Without this, it may divide activations as the weights
    are divided, and gather the batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.manual_axes or not isinstance(value, jax.Array):
        return value
    axes = tuple(name for name in BATCH_AXES if mesh.shape.get(name, 1) > 1)
    parts = math.prod(mesh.shape[name] for name in axes)
    if not axes or value.ndim == 0 or value.shape[0] != batch or batch % parts:
        return value
    rest = (PartitionSpec.UNCONSTRAINED,) * (value.ndim - 1)
    return jax.lax.with_sharding_constraint(value, PartitionSpec(axes, *rest))


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


def at_line(line: SourceLine | None, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, called from a line of the user's.

    JAX records the lines behind an operation, and the TPU compiler passes them on: so they name the
    user's PyTorch code.
    """
    return function(*args) if line is None else _standing_at(line)(function, args)


@functools.lru_cache(maxsize=4096)
def _standing_at(line: SourceLine) -> Callable[..., Any]:
    name = converted_function(line.function)
    code = _CALL.replace(
        co_filename=line.file, co_firstlineno=line.line, co_name=name, co_qualname=name
    )
    return types.FunctionType(code, {})


# On one line, so that all of it stands at the first line of its code.
_CALL = (lambda function, args: function(*args)).__code__

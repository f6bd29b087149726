"""Control flow of a program, and what only asserts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix.interop.torch.registry import operator

Array = Any


@operator("higher_order::cond", nested=True)
def cond(pred: Any, true_fn: Any, false_fn: Any, operands: Any = (), *, run: Any) -> Any:
    """Compute one of two nested programs; both are compiled."""
    return jax.lax.cond(
        jnp.asarray(pred).reshape(()).astype(bool),
        lambda given: run(true_fn, given),
        lambda given: run(false_fn, given),
        list(operands),
    )


@operator("higher_order::while_loop", nested=True)
def while_loop(
    cond_fn: Any, body_fn: Any, carried_inputs: Any, additional_inputs: Any = (), *, run: Any
) -> Any:
    fixed = list(additional_inputs)
    start = [jnp.asarray(value) for value in carried_inputs]
    return jax.lax.while_loop(
        lambda now: jnp.asarray(run(cond_fn, [*now, *fixed])[0]).reshape(()).astype(bool),
        lambda now: [
            jnp.asarray(new, old.dtype)
            for new, old in zip(run(body_fn, [*now, *fixed]), now, strict=True)
        ],
        start,
    )


@operator("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
          "sym_constrain_range_for_size")  # fmt: skip
def nothing(*_: Any, **__: Any) -> None:
    return None

"""Control flow of a program, and what only asserts."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ConversionError
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


@operator("higher_order::with_effects")
def with_effects(token: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """Leave out what only checks or prints; linear algebra then gives NaN where it fails.

    Raises:
        ConversionError: the operator does something else.
    """
    if op.name().partition(".")[0] not in _CHECKS:
        raise ConversionError(
            f"{op.name()} has an effect besides its result, which a compiled program cannot have. "
            "Call it outside of the model."
        )
    return (token,)


_CHECKS = {"aten::_linalg_check_errors", "aten::_print", "aten::_assert_async"}


@operator("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
          "sym_constrain_range_for_size")  # fmt: skip
def nothing(*_: Any, **__: Any) -> None:
    return None

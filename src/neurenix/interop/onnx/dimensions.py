"""Sizes that depend on the batch: JAX's symbolic dimensions as integer expressions.

A size is an ``int`` or a symbolic dimension of ``jax.export``, whose text (``"2*batch + 1"``,
``"floordiv(batch, 2)"``) is its public form.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, TypeVar

from neurenix._core.errors import ConversionError

Number = TypeVar("Number")

_OPERATORS = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Pow: "pow"}


def is_static(shape: tuple[Any, ...]) -> bool:
    """Tell whether all sizes of a shape are known."""
    return all(isinstance(size, int) for size in shape)


def is_one(size: Any) -> bool:
    """Tell whether a size is known to be 1."""
    return isinstance(size, int) and size == 1


def evaluate(
    size: Any,
    constant: Callable[[int], Number],
    symbol: Callable[[str], Number],
    apply: Callable[[str, Number, Number], Number],
) -> Number:
    """Return the value of a size.

    Args:
        size: an ``int`` or a symbolic dimension.
        constant: makes a number of an integer.
        symbol: returns the number that a symbol stands for.
        apply: combines two numbers by ``"add"``, ``"sub"``, ``"mul"``, ``"pow"``, ``"floordiv"``,
            ``"mod"``, ``"max"`` or ``"min"``.

    Raises:
        ConversionError: the text of the dimension has another form.

    Example:
        >>> import jax, operator
        >>> (size,) = jax.export.symbolic_shape("2*b + 1")
        >>> evaluate(size, int, {"b": 5}.get, lambda name, x, y: getattr(operator, name)(x, y))
        11
    """

    def visit(node: ast.expr) -> Number:
        match node:
            case ast.Constant(value=int(number)):
                return constant(number)
            case ast.Name(id=name):
                return symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=inner):
                return apply("sub", constant(0), visit(inner))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return apply(_OPERATORS[type(op)], visit(left), visit(right))
            case ast.Call(
                func=ast.Name(id=("floordiv" | "mod" | "max" | "min") as name), args=args
            ):
                first, *others = map(visit, args)
                for other in others:
                    first = apply(name, first, other)
                return first
        raise ConversionError(
            f"The size {size} depends on the batch in a way that ONNX cannot say."
        )

    return visit(ast.parse(str(size).replace("^", "**"), mode="eval").body)

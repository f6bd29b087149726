"""Primitives that compute each element on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix.interop.onnx.builder import Builder, Operand, Value
from neurenix.interop.onnx.element_types import computed, element_type, stored_type
from neurenix.interop.onnx.lowering.registry import CannotLowerError, lowers

_SAME = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "ceil": "Ceil", "cos": "Cos", "cosh": "Cosh", "erf": "Erf",
    "exp": "Exp", "floor": "Floor", "log": "Log", "logistic": "Sigmoid", "neg": "Neg",
    "sign": "Sign", "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "add": "Add", "add_any": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow",
}  # fmt: skip
_COMPARISONS = {
    "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual",
    # In the order of sorting, in which NaN is the last number: the same of all others.
    "lt_to": "Less", "le_to": "LessOrEqual",
}  # fmt: skip
_LOGIC = {"and": "And", "or": "Or", "xor": "Xor", "max": "Or", "min": "And"}
_ON_NUMBERS = {
    "and": "BitwiseAnd", "or": "BitwiseOr", "xor": "BitwiseXor", "max": "Max", "min": "Min",
}  # fmt: skip


class Formula:
    """Writes formulas over operands of one shape and dtype: ``f("Add", x, 1.0)``.

    Args:
        builder: the graph.
        aval: shape and dtype of every result.
    """

    def __init__(self, builder: Builder, aval: Any) -> None:
        self.builder, self.aval = builder, aval
        self.dtype = computed(aval.dtype)

    def __call__(self, op: str, *operands: Operand | float, **attributes: Any) -> Value:
        """Add an operator; numbers become constants."""
        return self.builder.elementwise(op, self._arrays(operands), self.aval, **attributes)

    def test(self, op: str, *operands: Operand | float) -> Value:
        """Add an operator whose result is boolean, of operands of the dtype."""
        aval = _Aval(self.aval.shape, np.dtype(bool))
        return self.builder.elementwise(op, self._arrays(operands), aval, dtype=self.dtype)

    def logic(self, op: str, *operands: Operand) -> Value:
        """Add an operator of booleans."""
        return self.builder.elementwise(op, operands, _Aval(self.aval.shape, np.dtype(bool)))

    def where(self, condition: Operand, yes: Operand | float, no: Operand | float) -> Value:
        """Return ``yes`` where the condition holds, else ``no``."""
        return choose(self.builder, condition, *self._arrays([yes, no]), aval=self.aval)

    def polynomial(self, x: Operand, coefficients: Sequence[float]) -> Value:
        """Return a polynomial, whose highest coefficient comes first."""
        total: Any = coefficients[0]
        for number in coefficients[1:]:
            total = self("Add", self("Mul", total, x), number)
        return total

    def _arrays(self, operands: Sequence[Operand | float]) -> list[Operand]:
        return [
            x if isinstance(x, (Value, np.ndarray)) else np.asarray(x, self.dtype) for x in operands
        ]


class _Aval:
    def __init__(self, shape: Any, dtype: np.dtype) -> None:
        self.shape, self.dtype = shape, dtype


def choose(builder: Builder, condition: Operand, yes: Operand, no: Operand, *, aval: Any) -> Value:
    """Return ``yes`` where a condition holds, else ``no``."""
    values = [builder.value_of(operand) for operand in (condition, yes, no)]
    (test, *names), arrangement = builder.together(values, aval.shape)
    dtype = computed(aval.dtype)
    if dtype.kind == "b":
        first = builder.emit("And", test, names[0])
        second = builder.emit("And", builder.emit("Not", test), names[1])
        return builder.value(builder.emit("Or", first, second), aval.shape, dtype, **arrangement)
    from_kernel = builder.where(test, *names, dtype=dtype)
    return builder.value(from_kernel, aval.shape, dtype, **arrangement)


def _aval(equation: Any) -> Any:
    return equation.outvars[0].aval


@lowers(*_SAME)
def _same(b: Builder, equation: Any, *operands: Operand) -> Value:
    aval, name = _aval(equation), equation.primitive.name
    if jnp.issubdtype(aval.dtype, jnp.bool_):
        raise CannotLowerError("booleans are not numbers in ONNX")
    if name == "sub" and aval.dtype.kind == "f" and b.is_fixed(operands[1]):
        # onnxruntime folds what is added to a convolution into it, and not what is subtracted.
        x, y = operands
        minus = -y if isinstance(y, np.ndarray) else Formula(b, y)("Neg", y)
        return Formula(b, aval)("Add", x, minus)
    if name == "neg" and aval.dtype.kind == "u":
        return Formula(b, aval)("Sub", 0, *operands)
    return b.elementwise(_SAME[name], operands, aval)


@lowers(*_COMPARISONS, "ne")
def _compare(b: Builder, equation: Any, *operands: Operand) -> Value:
    name, dtype = equation.primitive.name, operands[0].dtype
    formula = Formula(b, _Aval(_aval(equation).shape, dtype))
    if np.dtype(dtype).kind == "b" and name not in ("eq", "ne"):
        whole = _Aval(_aval(equation).shape, np.dtype(np.int32))
        numbers = [b.elementwise("Cast", [x], whole, dtype=bool, to=6) for x in operands]
        return Formula(b, whole).test(_COMPARISONS[name], *numbers)
    if name == "ne":
        return formula.logic("Not", formula.test("Equal", *operands))
    return formula.test(_COMPARISONS[name], *operands)


@lowers(*_ON_NUMBERS)
def _logic(b: Builder, equation: Any, *operands: Operand) -> Value:
    name, aval = equation.primitive.name, _aval(equation)
    if name == "max" and computed(aval.dtype).kind == "f":
        rest = [x for x in operands if not (isinstance(x, np.ndarray) and not x.any())]
        if len(rest) == 1 and rest[0].shape == aval.shape:
            return b.elementwise("Relu", rest, aval)
    return b.elementwise((_LOGIC if aval.dtype == bool else _ON_NUMBERS)[name], operands, aval)


@lowers("not")
def _not(b: Builder, equation: Any, x: Operand) -> Value:
    aval = _aval(equation)
    return b.elementwise("Not" if aval.dtype == bool else "BitwiseNot", [x], aval)


@lowers("rem")
def _rem(b: Builder, equation: Any, *operands: Operand) -> Value:
    return b.elementwise("Mod", operands, _aval(equation), fmod=1)


@lowers("shift_left", "shift_right_logical", "shift_right_arithmetic")
def _shift(b: Builder, equation: Any, x: Operand, by: Operand) -> Value:
    name, aval = equation.primitive.name, _aval(equation)
    f = Formula(b, aval)
    if aval.dtype.kind == "u":
        return f("BitShift", x, by, direction="LEFT" if name == "shift_left" else "RIGHT")
    if name == "shift_right_logical" or not isinstance(by, np.ndarray):
        raise CannotLowerError("ONNX shifts unsigned integers only; cast to jnp.uint32 before")
    factor = (np.ones((), aval.dtype) << by).astype(aval.dtype)
    if name == "shift_left":
        return f("Mul", x, factor)
    return f("Div", f("Sub", x, f("Mod", x, factor)), factor)


@lowers("rsqrt")
def _rsqrt(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    return f("Div", 1.0, f("Sqrt", x))


@lowers("square")
def _square(b: Builder, equation: Any, x: Operand) -> Value:
    return b.elementwise("Mul", [x, x], _aval(equation))


@lowers("integer_pow")
def _integer_pow(b: Builder, equation: Any, x: Operand) -> Value:
    f, power = Formula(b, _aval(equation)), equation.params["y"]
    if f.dtype.kind not in "f":
        total: Any = x
        for _ in range(power - 1):
            total = f("Mul", total, x)
        return total
    if power == -1:
        return f("Div", 1.0, x)
    return f("Mul", x, x) if power == 2 else f("Pow", x, float(power))


@lowers("exp2")
def _exp2(b: Builder, equation: Any, x: Operand) -> Value:
    return Formula(b, _aval(equation))("Pow", 2.0, x)


@lowers("cbrt")
def _cbrt(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    return f("Mul", f("Sign", x), f("Pow", f("Abs", x), 1 / 3))


@lowers("log1p")
def _log1p(b: Builder, equation: Any, x: Operand) -> Value:
    # Kahan's: the rounding error of 1 + x cancels in the quotient.
    f = Formula(b, _aval(equation))
    whole = f("Add", x, 1.0)
    tiny = f.test("Equal", whole, 1.0)
    rest = f.where(tiny, 1.0, f("Sub", whole, 1.0))
    infinite = f.test("Greater", whole, float(np.finfo(f.dtype).max))
    exact = f("Mul", f("Log", whole), f.where(infinite, 1.0, f("Div", x, rest)))
    return f.where(tiny, x, exact)


@lowers("expm1")
def _expm1(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    return f("Mul", f("Tanh", f("Mul", x, 0.5)), f("Add", f("Exp", x), 1.0))


@lowers("erfc")
def _erfc(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    return f("Sub", 1.0, f("Erf", x))


# Giles 2010, "Approximating the erfinv function", table 5 (single precision).
_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
         -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
        -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


@lowers("erf_inv")
def _erf_inv(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    inside = f("Mul", f("Sub", 1.0, x), f("Add", 1.0, x))
    w = f("Neg", f("Log", inside))
    near = f.polynomial(f("Sub", w, 2.5), _NEAR)
    far = f.polynomial(f("Sub", f("Sqrt", w), 3.0), _FAR)
    found = f("Mul", f.where(f.test("Less", w, 5.0), near, far), x)
    ends = f.test("Equal", f("Abs", x), 1.0)
    return f.where(ends, f("Mul", x, float("inf")), found)


@lowers("atan2")
def _atan2(b: Builder, equation: Any, y: Operand, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    upper = f.test("GreaterOrEqual", y, 0.0)
    half = f.where(upper, math.pi / 2, -math.pi / 2)
    turn = f.where(f.test("Less", x, 0.0), f("Mul", half, 2.0), 0.0)
    slope = f("Add", f("Atan", f("Div", y, x)), turn)
    on_axis = f.where(f.test("Equal", y, 0.0), 0.0, half)
    return f.where(f.test("Equal", x, 0.0), on_axis, slope)


@lowers("round")
def _round(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _aval(equation))
    if int(equation.params["rounding_method"]) == 1:  # to the nearest even number
        return f("Round", x)
    return f("Mul", f("Sign", x), f("Floor", f("Add", f("Abs", x), 0.5)))


@lowers("is_finite")
def _is_finite(b: Builder, equation: Any, x: Operand) -> Value:
    f = Formula(b, _Aval(_aval(equation).shape, x.dtype))
    return f.logic("Not", f.logic("Or", f.test("IsNaN", x), f.test("IsInf", x)))


@lowers("clamp")
def _clamp(b: Builder, equation: Any, low: Operand, x: Operand, high: Operand) -> Value:
    f = Formula(b, _aval(equation))
    return f("Min", f("Max", x, low), high)


@lowers("select_n")
def _select_n(b: Builder, equation: Any, which: Operand, *cases: Operand) -> Operand:
    aval = _aval(equation)
    if which.dtype == bool:
        if isinstance(which, np.ndarray) and which.size and (which == which.flat[0]).all():
            chosen = cases[int(which.flat[0])]
            if chosen.shape == aval.shape:
                return chosen
        return choose(b, which, cases[-1], cases[0], aval=aval)
    f = Formula(b, _Aval(aval.shape, which.dtype))
    chosen = cases[-1]
    for number in reversed(range(len(cases) - 1)):
        chosen = choose(b, f.test("Equal", which, number), cases[number], chosen, aval=aval)
    return chosen


@lowers("convert_element_type")
def _convert_element_type(b: Builder, equation: Any, x: Operand) -> Operand:
    aval = _aval(equation)
    if isinstance(x, Value) and x.dtype == computed(aval.dtype):
        return x
    return convert(b, x, aval.dtype)


def convert(b: Builder, x: Operand, dtype: Any) -> Value:
    """Return an operand in another dtype, arranged as it is."""
    x = b.value_of(x)
    name = b.cast(x.name, x.dtype, computed(dtype))
    return replace(x, name=name, dtype=computed(dtype), scope=b)


@lowers("reduce_precision")
def _reduce_precision(b: Builder, equation: Any, x: Operand) -> Value:
    bits = equation.params["exponent_bits"], equation.params["mantissa_bits"]
    narrow = {(8, 7): "BFLOAT16", (5, 10): "FLOAT16", (8, 23): "FLOAT"}.get(bits)
    if narrow is None:
        raise CannotLowerError(f"ONNX has no numbers of {bits[0]} and {bits[1]} bits")
    x = b.value_of(x)
    name = b.emit("Cast", x.name, to=element_type(narrow))
    name = b.emit("Cast", name, to=stored_type(x.dtype))
    return replace(x, name=name, scope=b)


@lowers(
    "copy", "device_put", "name", "optimization_barrier", "sharding_constraint", "stop_gradient"
)
def _unchanged(b: Builder, equation: Any, *operands: Operand) -> list[Operand]:
    return list(operands)

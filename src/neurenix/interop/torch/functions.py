"""Classes of ``torch.autograd.Function`` in a program, with the backward pass that they have.

``torch.export`` sees the forward pass alone. So each call becomes an operator of its own in the
graph, and forward and backward pass are exported together, as one program of the inputs and the
gradients of the outputs; ``jax.custom_vjp`` computes both from it.

Owns these operators. Does not own how anything is exported (``export``).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._core.errors import ConversionError
from neurenix._core.source_files import SourceLine
from neurenix.interop.torch import registry
from neurenix.interop.torch.dtypes import load_torch
from neurenix.interop.torch.interpret import compute
from neurenix.interop.torch.problems import line_now
from neurenix.interop.torch.program import Program, pruned
from neurenix.interop.torch.registry import Operator, always

NAMESPACE = "neurenix_functions"
_INLINE = "CheckpointFunction"  # torch.utils.checkpoint: its gradient is that of what it calls
_numbers = itertools.count()

Export = Callable[[Any, tuple[Any, ...], Any], Any]
"""Exports a module: of its example inputs and dynamic shapes."""
Read = Callable[[Any], Program]
"""Reads an exported program."""


@dataclass(eq=False)
class Function:
    """One kind of call: a class, its arguments that are no tensors, and shapes.

    Attributes:
        cls: the class of ``torch.autograd.Function``.
        name: of the operator that stands for it in a graph.
        arguments: the arguments, with None for tensors.
        tensors: which of them are tensors.
        shapes: shape with its free axes as None, example shape, dtype, device of each tensor.
        single: whether it returns one tensor, and not several.
        line: the first line that calls it.
        floating: which results have a gradient.
        given: which tensors the backward pass returned a gradient for.
    """

    cls: Any
    name: str
    arguments: tuple[Any, ...]
    tensors: tuple[int, ...]
    shapes: list[tuple[Any, ...]]
    line: SourceLine | None
    single: bool = True
    floating: list[bool] = field(default_factory=list)
    given: list[bool] = field(default_factory=list)

    def merged(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the arguments of a call with these tensors."""
        merged = list(self.arguments)
        for place, tensor in zip(self.tensors, tensors, strict=True):
            merged[place] = tensor
        return merged

    def forward(self, tensors: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Compute the forward pass; return the context and the results.

        Raises:
            ConversionError: it changes an input, or returns something else than tensors.
        """
        torch = load_torch()
        context, arguments = _Context(len(self.arguments)), self.merged(tensors)
        if "setup_context" in _own_methods(self.cls):
            found = self.cls.forward(*arguments)
            self.cls.setup_context(context, tuple(arguments), found)
        else:
            found = self.cls.forward(context, *arguments)
        self.single = isinstance(found, torch.Tensor)
        results = [found] if self.single else found
        if not isinstance(results, (list, tuple)) or not all(
            isinstance(each, torch.Tensor) for each in results
        ):
            raise ConversionError(f"its forward pass returns a {type(found).__name__}")
        self.floating = [
            each.is_floating_point() and not any(each is other for other in context.no_gradient)
            for each in results
        ]
        return context, list(results)


class _Context:
    """The ``ctx`` of a Function: what it keeps is kept, and all inputs need gradients."""

    def __init__(self, count: int) -> None:
        self.saved_tensors: tuple[Any, ...] = ()
        self.no_gradient: tuple[Any, ...] = ()
        self.needs_input_grad = (True,) * count

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        pass

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self.no_gradient = tensors

    def set_materialize_grads(self, value: bool) -> None:
        pass

    def mark_dirty(self, *tensors: Any) -> None:
        raise ConversionError("it changes an input in place (ctx.mark_dirty)")


def refused(cls: Any, why: str, line: SourceLine | None) -> ConversionError:
    """Return the error that a class is refused by, and what to do."""
    at = f" at {line}" if line else ""
    return ConversionError(
        f"{cls.__name__}{at} is a torch.autograd.Function that cannot be converted: "
        f"{why}. Say how it is computed in JAX, with jax.custom_vjp for a gradient of its own: "
        f"nx.register_torch_op({cls.__name__}, function)."
    )


@contextmanager
def watched() -> Iterator[list[Function]]:
    """Have calls of Functions become operators of a graph while entered.

    Yields:
        the kinds of call so far.
    """
    torch = load_torch()
    kind = torch.autograd.Function
    original, found = vars(kind)["apply"], list[Function]()

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__.startswith("GeneratedBackwardFor_"):
            # Of torch.library: the operator itself is exported, and has a function here or not.
            return original.__get__(None, cls)(*args, **kwargs)
        if cls.__name__ == _INLINE and cls.__module__ == "torch.utils.checkpoint":
            return args[0](*args[2:])
        return _called(cls, args, kwargs, found)

    kind.apply = classmethod(apply)
    try:
        yield found
    finally:
        kind.apply = original


def add_operators(functions: Sequence[Function], export: Export, read: Read) -> None:
    """Make the operators of Functions known, with their forward and backward pass.

    Args:
        functions: the kinds of call.
        export: exports a module.
        read: reads what it returns.

    Raises:
        ConversionError: a backward pass cannot be exported; the message names the class.
    """
    for function in functions:
        rule = registry.find_function(function.cls)
        if rule is None:
            rule = _exported(function, export, read)
        else:
            rule = Operator(_by_rule(function, rule.function), rule.random)
        registry.add(f"{NAMESPACE}::{function.name}", rule)


def _called(cls: Any, args: tuple[Any, ...], kwargs: Any, found: list[Function]) -> Any:
    """Call the operator that stands for a Function, made for its first call of a kind."""
    torch = load_torch()
    line = line_now()
    if kwargs:
        raise refused(cls, "it is called with named arguments", line)
    places = tuple(i for i, each in enumerate(args) if isinstance(each, torch.Tensor))
    if not places or any(isinstance(each, (list, tuple, dict)) for each in args):
        raise refused(cls, "tensors are nested in its arguments, or there are none", line)
    tensors = [args[place] for place in places]
    rest = tuple(None if i in places else each for i, each in enumerate(args))
    shapes = [_described(tensor) for tensor in tensors]
    known = next(
        (f for f in found if f.cls is cls and f.tensors == places and f.shapes == shapes
         and repr(f.arguments) == repr(rest)), None
    )  # fmt: skip
    if known is None:
        name = f"{cls.__name__}_{next(_numbers)}"
        known = Function(cls, name, rest, places, shapes, line)
        try:
            known.forward(tensors)  # says how many results there are; the nodes are unused
        except ConversionError as error:
            raise refused(cls, str(error), line) from error
        _define(known)
        found.append(known)
    return getattr(getattr(torch.ops, NAMESPACE), known.name)(*tensors)


def _described(tensor: Any) -> tuple[Any, ...]:
    sizes = tuple(size if isinstance(size, int) else str(size) for size in tensor.shape)
    example = tuple(s if isinstance(s, int) else int(s.node.hint) for s in tensor.shape)
    return sizes, example, tensor.dtype, tensor.device


def _define(function: Function) -> None:
    """Define an operator whose results are those of the forward pass, and new."""
    torch = load_torch()
    name = f"{NAMESPACE}::{function.name}"

    def run(*tensors: Any) -> Any:
        # A result that is an input, as of a reversal of gradients, is a new tensor here.
        _, results = function.forward(tensors)
        found = [torch.empty_like(each) for each in results]
        return found[0] if function.single else found

    arguments = ", ".join(f"Tensor x{number}" for number in range(len(function.tensors)))
    many = len(function.floating)
    returns = "Tensor" if function.single else f"({', '.join(['Tensor'] * many)})"
    torch.library.define(name, f"({arguments}) -> {returns}")
    torch.library.register_fake(name, run if function.single else lambda *t: tuple(run(*t)))


def _exported(function: Function, export: Export, read: Read) -> Operator:
    torch = load_torch()
    tensors = [torch.zeros(shape, dtype=dtype, device=device)
               for _, shape, dtype, device in function.shapes]  # fmt: skip
    try:
        _, results = function.forward(tensors)
        module = _both(torch, function)
        slopes = [torch.zeros_like(r) for r, good in zip(results, function.floating, strict=True)
                  if good]  # fmt: skip
        auto = torch.export.Dim.AUTO
        free = [{axis: auto for axis, size in enumerate(sizes) if isinstance(size, str)}
                for sizes, *_ in function.shapes]  # fmt: skip
        of_slopes = [dict.fromkeys(range(s.ndim if any(free) else 0), auto) for s in slopes]
        dynamic = ((*free, *of_slopes),)
        exported = export(module, (*tensors, *slopes), dynamic)
        program = read(exported)
    except Exception as error:  # of PyTorch's compiler, or of the user's code
        raise refused(function.cls, str(error).strip().rstrip("."), function.line) from error
    for constant in exported.constants.values():
        if isinstance(constant, torch.Tensor) and constant.requires_grad:
            why = "it uses a parameter that is not one of its arguments"
            raise refused(function.cls, why, function.line)
    is_random = any(operation.is_random for operation in program.operations)
    run = _differentiable(function, program, is_random)
    return Operator(run, always if is_random else None)


def _both(torch: Any, function: Function) -> Any:
    """Return a module of forward and backward pass."""
    count = len(function.tensors)

    class Both(torch.nn.Module):
        def forward(self, *given: Any) -> Any:
            context, results = function.forward(given[:count])
            slopes = iter(given[count:])
            incoming = [
                next(slopes) if good else torch.zeros_like(result)
                for result, good in zip(results, function.floating, strict=True)
            ]
            own = _own_methods(function.cls)
            backward = function.cls.backward if "backward" in own else function.cls.vjp
            outgoing = backward(context, *incoming)
            outgoing = outgoing if isinstance(outgoing, (tuple, list)) else (outgoing,)
            if len(outgoing) < len(function.arguments):
                raise ConversionError(
                    f"its backward pass returns {len(outgoing)} gradients, and the forward pass "
                    f"takes {len(function.arguments)} arguments"
                )
            wanted = [outgoing[place] for place in function.tensors]
            function.given = [each is not None for each in wanted]
            return (*results, *(each for each in wanted if each is not None))

    return Both()


def _differentiable(function: Function, program: Program, is_random: bool) -> Callable[..., Any]:
    """Return a function of JAX with the gradient of the backward pass."""
    num_results = len(function.floating)
    first = pruned(program, program.results[:num_results])
    second = pruned(program, program.results[num_results:])

    def results_of(tensors: Sequence[Any], key: Any) -> tuple[Any, ...]:
        inputs = [*tensors, *[None] * sum(function.floating)]
        return tuple(compute(first.operations, first, {}, inputs, key=key)[0])

    @jax.custom_vjp
    def call(key: Any, *tensors: Any) -> Any:
        return results_of(tensors, key)

    def forward(key: Any, *tensors: Any) -> Any:
        return results_of(tensors, key), (key, tensors)

    def backward(kept: Any, slopes: Any) -> Any:
        key, tensors = kept
        given = [s for s, good in zip(slopes, function.floating, strict=True) if good]
        found = iter(compute(second.operations, second, {}, [*tensors, *given], key=key)[0])
        gradients: list[Any] = [None]
        for tensor, there in zip(tensors, function.given, strict=True):
            slope = next(found) if there else None
            floating = jnp.issubdtype(tensor.dtype, jnp.inexact)
            if slope is not None and floating and slope.shape != tensor.shape:
                extra = slope.ndim - tensor.ndim  # summed, as PyTorch does
                axes = [extra + i for i, size in enumerate(tensor.shape) if size == 1]
                slope = slope.sum(tuple(range(extra)) + tuple(axes)).reshape(tensor.shape)
            gradients.append(slope.astype(tensor.dtype) if slope is not None and floating else None)
        return tuple(gradients)

    call.defvjp(forward, backward)

    def run(*tensors: Any, rng: Any = None, **named: Any) -> Any:
        found = call(rng() if is_random else None, *tensors, *named.values())
        return found[0] if function.single else list(found)

    return run


def _by_rule(function: Function, rule: Callable[..., Any]) -> Callable[..., Any]:
    def run(*tensors: Any, rng: Any = None, **named: Any) -> Any:
        arguments = function.merged([*tensors, *named.values()])
        return rule(*arguments) if rng is None else rule(*arguments, rng=rng)

    return run


def _own_methods(cls: Any) -> set[str]:
    """Return the methods that a class has, without those of PyTorch's base class."""
    base = load_torch().autograd.Function
    return {name for each in cls.__mro__ if not issubclass(base, each) for name in vars(each)}

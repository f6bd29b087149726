"""The table of operators: from the name of an ATen operator to the JAX function that computes it.

Owns the table and how an operator is looked up. Does not own the functions (``operators``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from neurenix._core.errors import ArgumentError, ArgumentTypeError

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Operator:
    """How an operator of PyTorch is computed.

    Attributes:
        function: takes the operator's arguments by the names of its schema, ``self`` as ``x``, and
            dtypes as JAX's. It returns what the operator returns: an array, a number, or a list.
        random: for an operator that may draw random numbers: whether a call with these arguments,
            by name, does. ``function`` then takes ``rng``, a function that returns a random key.
        product: whether it multiplies matrices: in mixed precision its operands are narrowed.
        nested: whether it takes ``run``, a function of a nested program and its inputs that
            returns the list of its results.
    """

    function: Callable[..., Any]
    random: Callable[[dict[str, Any]], bool] | None = None
    product: bool = False
    nested: bool = False


_OPERATORS: dict[str, Operator] = {}
_FUNCTIONS: dict[type, Operator] = {}


def always(arguments: dict[str, Any]) -> bool:
    """Say that every call of an operator draws random numbers."""
    return True


def operator(
    *names: str,
    random: Callable[[dict[str, Any]], bool] | None = None,
    product: bool = False,
    nested: bool = False,
) -> Callable[[Function], Function]:
    """Register a function for operators of the namespace ``aten``, or of another one.

    Args:
        names: ``"add"`` for all overloads of ``aten.add``, ``"max.dim"`` for one of them,
            ``"torchvision::nms"`` for another namespace.
        random: as in ``Operator``.
        product: as in ``Operator``.
        nested: as in ``Operator``.
    """

    def register(function: Function) -> Function:
        for name in names:
            _OPERATORS[_qualified(name)] = Operator(function, random, product, nested)
        return function

    return register


def find(namespace: str, name: str, overload: str) -> Operator | None:
    """Return the operator for one overload: its own function, or that of all overloads.

    Example:
        >>> import neurenix.interop.torch.operators
        >>> find("aten", "relu", "default").product
        False
    """
    packet = f"{namespace}::{name}"
    return _OPERATORS.get(f"{packet}.{overload}") or _OPERATORS.get(packet)


def add(name: str, found: Operator) -> None:
    """Add an operator by its whole name, ``"my_lib::my_op"``."""
    _OPERATORS[name] = found


def find_function(cls: type) -> Operator | None:
    """Return what ``register_torch_op`` was given for a ``torch.autograd.Function``, if it was."""
    return _FUNCTIONS.get(cls)


def register_torch_op(
    name: str | type, function: Callable[..., Any], *, random: bool = False
) -> None:
    """Say how an operator of your own is computed, for every later ``nx.from_torch``.

    Args:
        name: ``"my_lib::my_op"``, as in ``torch.library.custom_op``; with ``".overload"`` behind it
            for one overload alone. An operator of PyTorch itself, ``"aten::…"``, is replaced. Or a
            class of ``torch.autograd.Function``: ``function`` then takes what its ``apply`` takes.
            Without that, its forward and backward pass are converted.
        function: takes JAX arrays and Python values by the names of the operator's schema, in its
            order. (An argument that is called ``self`` there is called ``x``.) Its gradient is
            JAX's; give a ``jax.custom_vjp`` for another.
        random: whether ``function`` takes one more argument, ``rng``: a function without arguments
            that returns a random key.

    Raises:
        ArgumentError: ``name`` has no namespace.
        ArgumentTypeError: ``function`` is not callable.

    Example:
        >>> import jax.numpy as jnp
        >>> nx.register_torch_op("my_lib::double", lambda x: 2 * x)
    """
    if isinstance(name, type) and callable(function):
        _FUNCTIONS[name] = Operator(function, always if random else None)
        return
    if not isinstance(name, str) or name.count("::") != 1 or not all(name.split("::")):
        raise ArgumentError(
            f'The name of an operator is "namespace::name", such as "my_lib::my_op"; got {name!r}.'
        )
    if not callable(function):
        raise ArgumentTypeError(
            f"register_torch_op({name!r}, …) takes a function; got {type(function).__name__}."
        )
    _OPERATORS[name] = Operator(function, always if random else None)


def _qualified(name: str) -> str:
    return name if "::" in name else f"aten::{name}"

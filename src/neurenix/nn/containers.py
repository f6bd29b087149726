"""Containers of layers: Sequential, ModuleList, ModuleDict, Residual; and Flatten."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax

from neurenix._core.errors import ArgumentTypeError, ShapeError
from neurenix._nnx import nnx
from neurenix.nn._callables import expect_layer
from neurenix.nn._checks import axis_of, expect_array
from neurenix.nn.module import Module


class Sequential(Module):
    """Apply layers or functions one after the other.

    Args:
        layers: modules, or functions of one argument. A function is part of the structure that
            compilation is cached by: pass named functions, not a new ``lambda`` each time.

    Raises:
        ArgumentTypeError: a layer is not callable, or is an object of another class or library
            whose parameters would not be trained.

    Example:
        >>> model = nn.Sequential(nx.tanh, nn.Flatten())
        >>> model(nx.ones((2, 3, 4))).shape
        (2, 12)
    """

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        for index, layer in enumerate(layers):
            expect_layer(f"Layer {index} of Sequential", layer)
        self.layers: nnx.List[Any] = nnx.List(layers)

    def __call__(self, x: Any) -> Any:
        """Return the last layer's output."""
        for number, layer in enumerate(self.layers):
            # The scope names the layer in compiled programs, profiles and findings.
            with jax.named_scope(f"{_name(layer)}_{number}"):
                x = layer(x) if not isinstance(x, tuple) else self._of_tuple(number, layer, x)
        return x

    def _of_tuple(self, number: int, layer: Callable[[Any], Any], x: tuple[Any, ...]) -> Any:
        """Call a layer with the tuple that the previous layer returned.

        Raises:
            ArgumentTypeError: the layer takes one array.
        """
        try:
            return layer(x)
        except (TypeError, AttributeError) as error:
            if not number:
                raise
            before, name = _name(self.layers[number - 1]), _name(layer)
            raise ArgumentTypeError(
                f"Layer {number - 1} ({before}) of Sequential returned a tuple of {len(x)}, and "
                f"layer {number} ({name}) cannot take it: {error} Put a function between them "
                "that picks one: def first(results): return results[0]."
            ) from error

    def __len__(self) -> int:
        """Return the number of layers."""
        return len(self.layers)

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        """Iterate over the layers."""
        return iter(self.layers)

    def __getitem__(self, index: int | slice) -> Any:
        """Return a layer, or for a slice a Sequential that shares the layers' parameters."""
        if isinstance(index, slice):
            return Sequential(*self.layers[index])
        return self.layers[index]


class ModuleList(nnx.List):
    """A list of layers as an attribute: trained, moved and saved with the module that holds it.

    It is not callable: iterate over it in the module's ``__call__``. A plain list of layers as an
    attribute raises, because its layers would not be trained.

    Args:
        layers: an iterable of modules.

    Example:
        >>> class Steps(nn.Module):
        ...     def __init__(self):
        ...         self.steps = nn.ModuleList([nn.Flatten(), nn.Residual(nx.square)])
        ...     def __call__(self, x):
        ...         for step in self.steps:
        ...             x = step(x)
        ...         return x
        >>> Steps()(nx.ones((2, 3, 4))).shape
        (2, 12)
    """


class ModuleDict(nnx.Dict):
    """A dict of layers as an attribute; like :class:`ModuleList`, by name.

    Args:
        layers: a mapping from names to modules, or keyword arguments.

    Example:
        >>> sorted(nn.ModuleDict({"flat": nn.Flatten(), "deep": nn.Flatten(2)}))
        ['deep', 'flat']
    """


class Residual(Module):
    """``x + layer(x)``, or ``shortcut(x) + layer(x)``.

    Args:
        layer: a module or a function.
        shortcut: applied to the input before the sum, such as a 1 x 1 convolution; identity by
            default.

    Raises:
        ArgumentTypeError: an argument is neither a module nor a function.
        ShapeError: the two shapes differ; they are not broadcast.

    Example:
        >>> print(nn.Residual(nx.square)(nx.tensor([3.0])))
        [12.]
    """

    def __init__(
        self, layer: Callable[[Any], Any], shortcut: Callable[[Any], Any] | None = None
    ) -> None:
        expect_layer("The argument `layer` of Residual", layer)
        if shortcut is not None:
            expect_layer("The argument `shortcut` of Residual", shortcut)
        self.layer = layer
        self.shortcut = nnx.data(None) if shortcut is None else shortcut

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return the sum."""
        y = self.layer(x)
        around = x if self.shortcut is None else self.shortcut(x)
        if y.shape != around.shape:
            raise ShapeError(
                f"Residual adds shapes {around.shape} (around) and {y.shape} (through); they must "
                "be equal. Give a `shortcut` that makes them so."
            )
        return around + y


class Flatten(Module):
    """Join the axes from ``start_dim`` to ``end_dim``: (N, ...) → (N, size).

    Args:
        start_dim: first axis to join; 1 keeps the batch axis.
        end_dim: last axis to join, inclusive.

    Raises:
        ArgumentTypeError: an argument is not an integer.

    Example:
        >>> nn.Flatten()(nx.ones((2, 3, 4))).shape
        (2, 12)
        >>> nn.Flatten(0, 1)(nx.ones((2, 3, 4))).shape
        (6, 4)
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        self.start_dim = axis_of("start_dim", start_dim)
        self.end_dim = axis_of("end_dim", end_dim)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Return ``x`` with its axes joined, in row-major order (channels innermost)."""
        expect_array("Flatten", x)
        first = self.start_dim % x.ndim if -x.ndim <= self.start_dim < 0 else self.start_dim
        end = self.end_dim + x.ndim if self.end_dim < 0 else self.end_dim
        # A batch of scalars has no axis to join: (N,) → (N, 1).
        if not (0 <= first <= x.ndim and end < x.ndim and first <= end + 1):
            raise ShapeError(
                f"Flatten(start_dim={self.start_dim}, end_dim={self.end_dim}) names axes that "
                f"shape {x.shape} does not have."
            )
        joined = math.prod(x.shape[first : end + 1])
        return x.reshape(*x.shape[:first], joined, *x.shape[end + 1 :])


def _name(layer: Callable[..., Any]) -> str:
    kind = type(layer).__name__
    return kind if isinstance(layer, nnx.Module) else getattr(layer, "__name__", kind)

"""Nested arguments and results of a PyTorch module as flat lists, and back.

Owns ``Structure``, read once from a ``TreeSpec`` of PyTorch, which needs no PyTorch later, and
``Outputs``, which a model returns where its PyTorch module returns a dataclass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax

from neurenix._core.errors import ArgumentTypeError, differing_names


class Outputs(dict[str, Any]):
    """Named results of a model: ``outputs["logits"]`` and ``outputs.logits`` are the same.

    Example:
        >>> Outputs(logits=1.0).logits
        1.0
    """

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(
                f"The model returns no {name!r}; it returns {', '.join(self) or 'nothing'}."
            ) from None


def _flatten_outputs(outputs: Outputs) -> tuple[tuple[Any, ...], tuple[str, ...]]:
    return tuple(outputs.values()), tuple(outputs)


def _flatten_with_keys(outputs: Outputs) -> tuple[list[Any], tuple[str, ...]]:
    return [(jax.tree_util.DictKey(name), value) for name, value in outputs.items()], tuple(outputs)


jax.tree_util.register_pytree_with_keys(
    Outputs,
    _flatten_with_keys,
    lambda names, values: Outputs(zip(names, values, strict=True)),
    _flatten_outputs,
)


@dataclass(frozen=True)
class Structure:
    """How values are nested.

    Attributes:
        kind: ``"leaf"``, ``"list"``, ``"tuple"``, ``"dict"`` or ``"outputs"``.
        names: the keys of a dict, in their order.
        children: the structures inside.
    """

    kind: str
    names: tuple[Any, ...] = ()
    children: tuple[Structure, ...] = ()

    @classmethod
    def of(cls, spec: Any) -> Structure:
        """Read a ``torch.utils._pytree.TreeSpec``."""
        if spec.type is None:
            return cls("leaf")
        children = tuple(cls.of(child) for child in spec.children())
        if spec.type in (list, tuple):
            return cls(spec.type.__name__, (), children)
        names = _names(spec)
        if names is None or len(names) != len(children):
            return cls("tuple", (), children)
        plain = issubclass(spec.type, dict) and spec.type.__module__ in ("builtins", "collections")
        return cls("dict" if plain else "outputs", names, children)

    def flatten(self, tree: Any, where: str = "the argument") -> list[Any]:
        """Return the leaves of values that are nested so.

        Raises:
            ArgumentTypeError: they are nested otherwise; ``where`` is what the message calls them.
        """
        return list(self._leaves(tree, where))

    def _leaves(self, tree: Any, where: str) -> Iterator[Any]:
        if self.kind == "leaf":
            yield tree
            return
        if self.kind in ("list", "tuple"):
            if not isinstance(tree, (list, tuple)) or len(tree) != len(self.children):
                raise ArgumentTypeError(
                    f"{where} is a {self.kind} of {len(self.children)} in the example inputs; got "
                    f"{_described(tree)}."
                )
            items = list(enumerate(tree))
        else:
            found = dict(tree) if isinstance(tree, dict) else _fields(tree)
            if found is not None and self.kind == "outputs":
                found = {name: value for name, value in found.items() if name in self.names}
            if found is None or set(found) != set(self.names):
                given = () if found is None else map(str, found)
                wrong = differing_names(map(str, self.names), given) or _described(tree)
                raise ArgumentTypeError(f"{where} has other names than the example inputs: {wrong}")
            items = [(name, found[name]) for name in self.names]
        for (name, item), child in zip(items, self.children, strict=True):
            yield from child._leaves(item, f"{where}[{name!r}]")

    def unflatten(self, leaves: Iterator[Any]) -> Any:
        """Return values nested so, taken from an iterator of leaves."""
        if self.kind == "leaf":
            return next(leaves)
        inside = [child.unflatten(leaves) for child in self.children]
        if self.kind == "list":
            return inside
        if self.kind == "tuple":
            return tuple(inside)
        named = dict(zip(self.names, inside, strict=True))
        return named if self.kind == "dict" else Outputs(named)


def _names(spec: Any) -> tuple[Any, ...] | None:
    """Return the names that the context of a TreeSpec has: of a dict, a dataclass, ModelOutput."""
    context = spec.context
    if (
        isinstance(spec.type, type)
        and issubclass(spec.type, dict)
        and isinstance(context, (list, tuple))
    ):
        if len(context) == 2 and isinstance(context[1], (list, tuple)):  # OrderedDict, defaultdict
            return tuple(context[1])
        return tuple(context)
    if isinstance(context, (list, tuple)):
        first = context[0] if len(context) and isinstance(context[0], (list, tuple)) else context
        if all(isinstance(name, str) for name in first):
            return tuple(first)
    fields = getattr(spec.type, "_fields", None)
    return None if fields is None else tuple(fields)


def _fields(tree: Any) -> dict[str, Any] | None:
    if hasattr(tree, "_asdict"):
        return tree._asdict()
    return dict(vars(tree)) if hasattr(tree, "__dataclass_fields__") else None


def _described(tree: Any) -> str:
    size = f" of {len(tree)}" if isinstance(tree, (list, tuple)) else ""
    return f"{type(tree).__name__}{size}"

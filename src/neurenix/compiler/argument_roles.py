"""Recognise the roles of a plain JAX training step's arguments: parameters, optimizer, batch.

It looks for optax state and for arguments of its structure. If the structure is ambiguous, every
leaf is an ``"argument"``. Models and trainers set their roles themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

ARGUMENT = "argument"


def roles_of(args: Sequence[Any], out: Any, donated: Sequence[int]) -> tuple[str, ...]:
    """Return a role for each leaf of the arguments, in flattening order.

    ``"optimizer"`` is optax state; ``"parameters"`` has the structure and shapes of its moments;
    ``"batch"`` is all other arrays that are neither donated nor returned, if they have equal row
    counts.

    Args:
        args: trees of arrays or specs.
        out: the tree of abstract results.
        donated: indices of the donated leaves.

    Example:
        >>> import optax
        >>> params, x = {"w": jax.ShapeDtypeStruct((4, 2), "float32")}, jax.numpy.ones((8, 4))
        >>> state = jax.eval_shape(optax.adam(1e-3).init, params)
        >>> roles_of((params, state, x), (params, state), ())
        ('parameters', 'optimizer', 'optimizer', 'optimizer', 'batch')
    """
    moments = set(_moments(args))
    unknown = (ARGUMENT,) * jax.tree.structure(tuple(args)).num_leaves
    if not moments:
        return unknown
    roles = [_of_argument(argument, moments) for argument in args]
    found = sum(own.count("parameters") for own in roles)
    one_array = any(jax.tree_util.treedef_is_leaf(structure) for structure, _ in moments)
    if not found or (found > 1 and one_array):
        return unknown
    for number in _batch(args, roles, out, donated):
        roles[number] = ["batch"] * len(roles[number])
    return tuple(role for own in roles for role in own)


def _of_argument(argument: Any, moments: set[Any]) -> list[str]:
    roles: list[str] = []
    for node in jax.tree.leaves(
        argument, is_leaf=lambda node: _is_optax(node) or _signature(node) in moments
    ):
        role = ARGUMENT
        if _is_optax(node):
            role = "optimizer"
        elif _signature(node) in moments:
            role = "parameters"
        roles += [role] * jax.tree.structure(node).num_leaves
    return roles


def _batch(
    args: Sequence[Any], roles: Sequence[Sequence[str]], out: Any, donated: Sequence[int]
) -> list[int]:
    """Return the positions of the arguments that form the batch."""
    results = {_signature(result) for result in (out, *parts(out))}
    found: list[int] = []
    first = 0
    for number, (argument, own) in enumerate(zip(args, roles, strict=True)):
        last = first + len(own)
        state = set(own) != {ARGUMENT} or any(first <= index < last for index in donated)
        if not state and all(map(_has_rows, jax.tree.leaves(argument))):
            if _signature(argument) not in results:
                found.append(number)
        first = last
    rows = {leaf.shape[0] for number in found for leaf in jax.tree.leaves(args[number])}
    return found if len(rows) == 1 else []


def parts(out: Any) -> Sequence[Any]:
    """Return the children of a result that is a container."""
    if isinstance(out, dict):
        return list(out.values())
    return out if isinstance(out, (tuple, list)) else ()


def _has_rows(leaf: Any) -> bool:
    return len(getattr(leaf, "shape", ())) > 0 and not jax.numpy.issubdtype(
        leaf.dtype, jax.dtypes.prng_key
    )


def _is_optax(node: Any) -> bool:
    return isinstance(node, tuple) and type(node).__module__.partition(".")[0] == "optax"


def _moments(args: Any) -> Iterator[Any]:
    """Yield structure and shapes of everything in optax states, except scalars."""
    for node in jax.tree.leaves(args, is_leaf=_is_optax):
        for value in node if _is_optax(node) else ():
            inner = list(_moments(value))
            signature = _signature(value)
            if inner:
                yield from inner
            elif any(shape for shape in signature[1]):
                yield signature


def _signature(tree: Any) -> Any:
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple(tuple(getattr(leaf, "shape", ())) for leaf in leaves)

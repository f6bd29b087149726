"""The weights of a PyTorch module as variables of a Neurenix module, under PyTorch's names.

Owns which variables there are: parameters, buffers, tied ones once, those of repeated layers
stacked, and the names that files have for them. Does not own files (``weight_files``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._nnx import nnx
from neurenix.checkpoint.weights import FILE_NAMES, FileNames
from neurenix.train.module_split import Frozen

_NUMBER = re.compile(r"\.(\d+)(?=\.)|^(\d+)(?=\.)")


class Buffer(nnx.BatchStat):
    """A buffer of a PyTorch module, such as a running mean: state that is not trained."""


@dataclass(frozen=True)
class Weight:
    """One variable.

    Attributes:
        path: where it is in the module: ``"layers.0-31.attention.weight"`` for stacked ones.
        names: the names in PyTorch; several, one for each layer, where it is stacked.
        kind: ``"parameter"``, ``"frozen"`` or ``"buffer"``.
        dtype: the one that it has in PyTorch.
        files: how files name it.
    """

    path: str
    names: tuple[str, ...]
    kind: str
    dtype: np.dtype
    files: FileNames

    @property
    def is_stacked(self) -> bool:
        """Whether its first axis is the number of the layer."""
        return len(self.names) > 1


def plan_weights(
    kinds: Mapping[str, str],
    types: Mapping[str, Any],
    stacks: Sequence[tuple[str, ...]],
    file_names: Mapping[str, tuple[str, ...]],
) -> list[Weight]:
    """Return the variables for weights by name, some of them stacked.

    Args:
        kinds: name → kind.
        types: name → ``jax.ShapeDtypeStruct``.
        stacks: names that a loop takes together.
        file_names: name → all names that files have for it, none where they do not have it.
    """
    weights, taken = [], set[str]()

    def weight(path: str, names: tuple[str, ...]) -> Weight:
        rows = tuple(file_names[name] or (name,) for name in names)
        files = FileNames(path, rows, len(names) > 1, bool(file_names[names[0]]))
        return Weight(path, names, kinds[names[0]], types[names[0]].dtype, files)

    for names in stacks:
        known = all(name in kinds for name in names)
        facts = {
            (kinds[n], types[n].shape, types[n].dtype, bool(file_names[n])) for n in names if known
        }
        if len(facts) == 1:
            weights.append(weight(_stacked_path(names, weights), names))
            taken |= set(names)
    weights += [weight(name, (name,)) for name in kinds if name not in taken]
    order = {name: number for number, name in enumerate(kinds)}
    return sorted(weights, key=lambda weight: order[weight.names[0]])


def _stacked_path(names: tuple[str, ...], others: Sequence[Weight]) -> str:
    """Return ``"layers.0-3.weight"`` for the names of four layers."""
    first, last = names[0], names[-1]
    for found in _NUMBER.finditer(first):
        end = _NUMBER.match(last, found.start()) or _NUMBER.search(last, found.start())
        if end is None or end.group() == found.group():
            continue
        numbers = f"{found.group().lstrip('.')}-{end.group().lstrip('.')}"
        dot = "." if found.group().startswith(".") else ""
        path = f"{first[: found.start()]}{dot}{numbers}{first[found.end() :]}"
        if all(other.path != path for other in others):
            return path
        break
    return f"{first}@{len(names)}"


class WeightView(Mapping[str, Any]):
    """Arrays by their names in PyTorch, of variables some of which are stacked."""

    def __init__(self, weights: Sequence[Weight], arrays: Mapping[str, Any]) -> None:
        self._arrays = arrays
        self._places = {n: (w, i) for w in weights for i, n in enumerate(w.names)}
        self._stacks = {w.names: w for w in weights if w.is_stacked}

    def __getitem__(self, name: str) -> Any:
        weight, number = self._places[name]
        array = self._arrays[weight.path]
        return array[number] if weight.is_stacked else array

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def stacked(self, names: tuple[str, ...]) -> Any:
        """Return the array of all layers for these names, or None if it is not stored so."""
        weight = self._stacks.get(names)
        return None if weight is None else self._arrays[weight.path]


def variable_for(weight: Weight, arrays: Sequence[Any]) -> nnx.Variable:
    """Return a variable for a weight: of its array, or of the arrays of all layers."""
    value: Any = arrays[0]
    if weight.is_stacked and isinstance(value, jax.ShapeDtypeStruct):
        value = jax.ShapeDtypeStruct((len(arrays), *value.shape), value.dtype)
    elif weight.is_stacked:
        value = np.stack(arrays)
    if not isinstance(value, jax.ShapeDtypeStruct):
        value = jnp.asarray(value)
    kind = {"parameter": nnx.Param, "frozen": Frozen, "buffer": Buffer}[weight.kind]
    return kind(value, **{FILE_NAMES: weight.files})

"""Ensembles of decision trees: every row goes down every tree at once, a level at a time.

Letters: ``N`` rows, ``F`` features, ``T`` trees, ``K`` targets or classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.operators.ml import as_float, labels_of, transformed
from neurenix.interop.onnx.registry import operator

Array = Any
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_MEMBER = _MODES.index("MEMBER")
_LEAF = -1
# Levels of a tree; more are a cycle.
_DEEPEST = 4096
_AGGREGATES = "AVERAGE SUM MIN MAX".split()
_TRANSFORMS = "NONE SOFTMAX LOGISTIC SOFTMAX_ZERO PROBIT".split()


@dataclass(frozen=True, eq=False)
class _Forest:
    """Nodes of all trees in one table; a leaf follows itself.

    Attributes:
        modes: index into ``_MODES`` of each node, or ``_LEAF``.
        features: which feature a node compares.
        values: what it compares the feature with.
        children: the nodes for "no" and "yes", (2, nodes).
        missing: whether NaN means "yes".
        roots: the first node of each tree.
        members: sets for MEMBER, filled with NaN, (nodes, largest); None without any.
    """

    modes: np.ndarray
    features: np.ndarray
    values: np.ndarray
    children: np.ndarray
    missing: np.ndarray
    roots: np.ndarray
    members: np.ndarray | None = None

    def leaves(self, x: Array) -> Array:
        """Return the leaf of each row in each tree, (N, T)."""
        inner = self.modes != _LEAF
        compared = self.features[inner]
        if compared.size and not 0 <= compared.min() <= compared.max() < x.shape[1]:
            raise ConversionError(
                f"its trees compare feature {compared.max()}, and the rows have {x.shape[1]}."
            )
        kinds = sorted(set(self.modes[inner].tolist()))
        # Thresholds of 64 bits come with rows of 64 bits, and both are rounded alike.
        values, missing = jnp.asarray(self.values, x.dtype), jnp.asarray(self.missing)
        features, children = jnp.asarray(self.features), jnp.asarray(self.children)
        modes = jnp.asarray(self.modes)
        members = None if self.members is None else jnp.asarray(self.members, x.dtype)
        follows_missing = bool(self.missing[inner].any())

        def down(_: Any, node: Array) -> Array:
            given = jnp.take_along_axis(x, features[node], 1)
            yes = jnp.zeros(node.shape, bool)
            for kind in kinds:
                found = _compared(_MODES[kind], given, values[node], members, node)
                yes = found if len(kinds) == 1 else jnp.where(modes[node] == kind, found, yes)
            if follows_missing:
                yes = yes | (missing[node] & jnp.isnan(given))
            return children[yes.astype(jnp.int32), node]

        start = jnp.broadcast_to(jnp.asarray(self.roots), (len(x), len(self.roots)))
        return jax.lax.fori_loop(0, self.levels()[0], down, start)

    def levels(self) -> tuple[int, int]:
        """Return how deep the trees are, and how many nodes something leads to."""
        level, reached = np.unique(self.roots), np.zeros(len(self.modes), bool)
        for depth in range(_DEEPEST):
            reached[level] = True
            level = np.unique(self.children[:, level[self.modes[level] != _LEAF]])
            if not level.size:
                return depth, int(reached.sum())
        raise ConversionError(f"its trees have a cycle, or are deeper than {_DEEPEST}.")


def _compared(kind: str, x: Array, value: Array, members: Any, node: Array) -> Array:
    if kind == "MEMBER":
        return (x[..., None] == members[node]).any(-1)
    return {
        "LEQ": jnp.less_equal, "LT": jnp.less, "GTE": jnp.greater_equal, "GT": jnp.greater,
        "EQ": jnp.equal, "NEQ": jnp.not_equal,
    }[kind](x, value)  # fmt: skip


def _given(values: Any, tensor: Any) -> np.ndarray:
    """Return an attribute that is a list of floats, or a tensor since version 3."""
    if tensor is not None and np.size(tensor):
        return np.ravel(tensor)
    return np.asarray(values if values is not None else [], np.float32)


def _forest(
    x: Array, nodes: dict[str, Any], trees: Sequence[int], ids: Sequence[int]
) -> tuple[_Forest, dict[tuple[int, int], int]]:
    """Return the trees of versions 1 to 3, and where each node of each tree is."""
    place = {key: number for number, key in enumerate(zip(trees, ids, strict=True))}
    if len(place) != len(trees):
        raise ConversionError("its trees have two nodes of one number.")
    modes = np.asarray([_mode(name) for name in nodes["modes"]])
    children = np.zeros((2, len(trees)), np.int32)
    is_child = np.zeros(len(trees), bool)
    for number, tree in enumerate(trees):
        for branch, name in enumerate(("falsenodeids", "truenodeids")):
            child = number
            if modes[number] != _LEAF:
                child = place.get((tree, nodes[name][number]), -1)
                if child < 0:
                    raise ConversionError(f"tree {tree} has no node {nodes[name][number]}.")
                is_child[child] = True
            children[branch, number] = child
    missing = np.asarray(nodes["missing"] or [0] * len(trees), bool)
    roots = np.flatnonzero(~is_child).astype(np.int32)
    features = np.where(modes == _LEAF, 0, np.asarray(nodes["featureids"], np.int32))
    values = _given(nodes["values"], nodes["values_tensor"])
    forest = _Forest(modes, features, values, children, missing, roots)
    if len(roots) != len(set(trees)) or forest.levels()[1] != len(trees):
        raise ConversionError(
            f"{len(set(trees))} trees have {len(roots)} nodes to which nothing leads, or a cycle."
        )
    return forest, place


def _mode(name: str) -> int:
    if name == "LEAF":
        return _LEAF
    if name.removeprefix("BRANCH_") not in _MODES[:_MEMBER]:
        raise ConversionError(f"a node of its trees is {name!r}.")
    return _MODES.index(name.removeprefix("BRANCH_"))


def _weights(
    place: dict[tuple[int, int], int], count: int, keys: Any, targets: Any, weights: np.ndarray,
    fill: float,
) -> np.ndarray:  # fmt: skip
    """Return what each node adds to each target, (nodes, K)."""
    table = np.full((len(place), count), fill, weights.dtype)
    for key, target, weight in zip(keys, targets, weights, strict=True):
        if key not in place or not 0 <= target < count:
            raise ConversionError(f"a weight is for node {key} and target {target}.")
        if fill:
            table[place[key], target] = weight
        else:
            table[place[key], target] += weight
    return table


def _aggregated(found: Array, how: str, trees: int) -> Array:
    """Return what trees say together, from (N, T, K)."""
    if how in ("SUM", "AVERAGE"):
        return found.sum(1) / (trees if how == "AVERAGE" else 1)
    if how in ("MIN", "MAX"):
        return found.min(1) if how == "MIN" else found.max(1)
    raise ConversionError(f"aggregate_function is {how!r}.")


def _fill(how: str) -> float:
    return {"MIN": np.inf, "MAX": -np.inf}.get(how, 0.0)


@operator("ai.onnx.ml::TreeEnsembleRegressor")
def tree_ensemble_regressor(
    x, *, nodes_treeids, nodes_nodeids, nodes_featureids, nodes_modes, nodes_truenodeids,
    nodes_falsenodeids, target_treeids, target_nodeids, target_ids, n_targets=1, nodes_values=None,
    nodes_values_as_tensor=None, nodes_hitrates=None, nodes_hitrates_as_tensor=None,
    nodes_missing_value_tracks_true=None, target_weights=None, target_weights_as_tensor=None,
    base_values=None, base_values_as_tensor=None, aggregate_function="SUM", post_transform="NONE",
):  # fmt: skip
    x = as_float(x)
    nodes = {
        "modes": nodes_modes, "featureids": nodes_featureids, "truenodeids": nodes_truenodeids,
        "falsenodeids": nodes_falsenodeids, "missing": nodes_missing_value_tracks_true,
        "values": nodes_values, "values_tensor": nodes_values_as_tensor,
    }  # fmt: skip
    forest, place = _forest(x, nodes, nodes_treeids, nodes_nodeids)
    keys = zip(target_treeids, target_nodeids, strict=True)
    weights = _given(target_weights, target_weights_as_tensor)
    fill = _fill(aggregate_function)
    table = _weights(place, n_targets, keys, target_ids, weights, fill)
    found = jnp.asarray(table, x.dtype)[forest.leaves(x)]
    scores = _aggregated(found, aggregate_function, len(forest.roots))
    base = _given(base_values, base_values_as_tensor)
    scores = scores + jnp.asarray(base, x.dtype) if base.size else scores
    return transformed(scores, post_transform)


@operator("ai.onnx.ml::TreeEnsembleClassifier")
def tree_ensemble_classifier(
    x, *, nodes_treeids, nodes_nodeids, nodes_featureids, nodes_modes, nodes_truenodeids,
    nodes_falsenodeids, class_treeids, class_nodeids, class_ids, classlabels_int64s=None,
    classlabels_strings=None, nodes_values=None, nodes_values_as_tensor=None, nodes_hitrates=None,
    nodes_hitrates_as_tensor=None, nodes_missing_value_tracks_true=None, class_weights=None,
    class_weights_as_tensor=None, base_values=None, base_values_as_tensor=None,
    post_transform="NONE",
):  # fmt: skip
    x = as_float(x)
    nodes = {
        "modes": nodes_modes, "featureids": nodes_featureids, "truenodeids": nodes_truenodeids,
        "falsenodeids": nodes_falsenodeids, "missing": nodes_missing_value_tracks_true,
        "values": nodes_values, "values_tensor": nodes_values_as_tensor,
    }  # fmt: skip
    forest, place = _forest(x, nodes, nodes_treeids, nodes_nodeids)
    keys = zip(class_treeids, class_nodeids, strict=True)
    weights = _given(class_weights, class_weights_as_tensor)
    count = max(len(classlabels_int64s or classlabels_strings or ()), max(class_ids) + 1)
    table = _weights(place, count, keys, class_ids, weights, 0.0)
    scores = jnp.asarray(table, x.dtype)[forest.leaves(x)].sum(1)
    base = jnp.asarray(_given(base_values, base_values_as_tensor), x.dtype)
    if count > 2 or len(set(class_ids)) > 1:
        scores = scores + base if base.size else scores
        labels = labels_of(scores.argmax(1), classlabels_int64s)
        return [labels, transformed(scores, post_transform)]
    # Two classes, and weights for one: that of the second.
    score = scores[:, class_ids[0]] + (base[-1] if base.size else 0)
    if (weights >= 0).all():
        labels = labels_of((score > 0.5).astype(jnp.int32), classlabels_int64s)
        return [labels, jnp.stack([1 - score, score], 1)]
    labels = labels_of((score > 0).astype(jnp.int32), classlabels_int64s)
    return [labels, transformed(jnp.stack([-score, score], 1), post_transform)]


@operator("ai.onnx.ml::TreeEnsemble")
def tree_ensemble(
    x, *, tree_roots, nodes_featureids, nodes_modes, nodes_splits, nodes_truenodeids,
    nodes_falsenodeids, nodes_trueleafs, nodes_falseleafs, leaf_targetids, leaf_weights,
    n_targets=1, nodes_hitrates=None, nodes_missing_value_tracks_true=None, membership_values=None,
    aggregate_function=1, post_transform=0,
):  # fmt: skip
    x = as_float(x)
    count, leaves = len(nodes_modes), len(leaf_weights)
    children = np.zeros((2, count + leaves), np.int32)
    children[:] = np.arange(count + leaves)
    for branch, ids, are_leaves in (
        (0, nodes_falsenodeids, nodes_falseleafs), (1, nodes_truenodeids, nodes_trueleafs),
    ):  # fmt: skip
        ids, are_leaves = np.asarray(ids), np.asarray(are_leaves, bool)
        if not ((ids >= 0) & (ids < np.where(are_leaves, leaves, count))).all():
            raise ConversionError("its trees follow nodes that are not there.")
        children[branch, :count] = np.where(are_leaves, ids + count, ids)
    no = np.zeros(leaves, np.int32)
    modes = np.concatenate([np.asarray(nodes_modes, np.int32), no + _LEAF])
    missing = nodes_missing_value_tracks_true or [0] * count
    forest = _Forest(
        modes,
        np.concatenate([np.asarray(nodes_featureids, np.int32), no]),
        np.concatenate([np.asarray(nodes_splits), no.astype(nodes_splits.dtype)]),
        children,
        np.concatenate([np.asarray(missing, bool), no.astype(bool)]),
        np.asarray(tree_roots, np.int32),
        _members(modes, membership_values),
    )
    how = _AGGREGATES[aggregate_function]
    table = np.full((count + leaves, n_targets), _fill(how), np.asarray(leaf_weights).dtype)
    table[count + np.arange(leaves), np.asarray(leaf_targetids)] = leaf_weights
    found = jnp.asarray(table, x.dtype)[forest.leaves(x)]
    scores = _aggregated(found, how, len(forest.roots))
    return transformed(scores, _TRANSFORMS[post_transform])


def _members(modes: np.ndarray, values: Any) -> np.ndarray | None:
    """Return the sets of the nodes that ask for membership: lists that NaN ends."""
    nodes = np.flatnonzero(modes == _MEMBER)
    if not nodes.size:
        return None
    given = np.asarray([] if values is None else values)
    ends = np.flatnonzero(np.isnan(given))
    if len(ends) != len(nodes):
        raise ConversionError(f"{len(nodes)} of its nodes ask for sets, and it has {len(ends)}.")
    sets = np.split(given, ends + 1)[:-1]
    members = np.full((len(modes), max(map(len, sets))), np.nan, given.dtype)
    for node, values in zip(nodes, sets, strict=True):
        members[node, : len(values)] = values
    return members

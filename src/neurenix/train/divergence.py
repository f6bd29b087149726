"""Find the first layer whose output, or the first parameter whose gradient, is not finite.

Runs the module again, uncompiled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from neurenix._nnx import nnx
from neurenix.train.batch import Batch
from neurenix.train.batch_check import check_targets
from neurenix.train.module_split import call
from neurenix.train.step import StepDefinition, StepState


def explain(definition: StepDefinition, state: StepState, batch: Batch) -> str:
    """Return a sentence that names the source of the first value that is not finite.

    Args:
        definition: the step.
        state: the state before the step that diverged.
        batch: its batch.

    Raises:
        DataError: its targets are out of range.
    """
    output = jax.eval_shape(definition.predict, (state.parameters, state.model_state), batch.x)
    check_targets(definition.loss, batch.y, output)
    bad_input = _first_bad(batch)
    if bad_input is not None:
        return f"The batch itself has values that are not finite, in {bad_input}."
    bad_parameter = _first_bad(state.parameters)
    if bad_parameter is not None:
        return f"Parameter {bad_parameter} was not finite before the step already."
    module = definition.model.build(state.parameters, state.model_state, training=True)
    with _recording(module) as outputs:
        prediction = call(module, batch.x, training=True)
    for path, output in outputs:
        if not _finite(output):
            return f"The first output that is not finite is that of layer {path}."
    _, weight = batch.examples_and_weight()
    loss = definition.loss(batch.y, prediction, weight)
    if not _finite(loss):
        return (
            f"The model's output is finite; the loss {definition.loss.name} of it is not. Check "
            "from_logits, and targets outside of the loss's range."
        )

    def mean_loss(parameters: Any) -> Any:
        module = definition.model.build(parameters, state.model_state, training=True)
        return definition.loss(batch.y, call(module, batch.x, training=True), weight)

    bad_gradient = _first_bad(jax.grad(mean_loss)(state.parameters))
    if bad_gradient is not None:
        return f"The loss is finite; the gradient of parameter {bad_gradient} is not."
    return (
        "Computed once more outside of the step, in float32, everything is finite: the step's "
        "precision or its randomness makes the difference."
    )


@contextmanager
def _recording(module: nnx.Module) -> Iterator[list[tuple[str, Any]]]:
    """Record (path, output) of every submodule's call, in the order in which calls end."""
    paths = {
        id(node): ".".join(map(str, path)) or type(node).__name__
        for path, node in nnx.iter_graph(module)
        if isinstance(node, nnx.Module)
    }
    outputs: list[tuple[str, Any]] = []
    kinds = {type(node) for _, node in nnx.iter_graph(module) if isinstance(node, nnx.Module)}
    bases = {base for kind in kinds for base in kind.__mro__ if issubclass(base, nnx.Module)}
    own = {base: vars(base).get("__call__") for base in bases}
    originals = {base: method for base, method in own.items() if callable(method)}

    def recorded(original: Callable[..., Any]) -> Callable[..., Any]:
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            output = original(self, *args, **kwargs)
            # A layer that calls its base's __call__ is recorded twice, with the same verdict.
            name = f"{paths.get(id(self), '')} ({type(self).__name__})"
            outputs.append((name, output))
            return output

        return __call__

    for kind, original in originals.items():
        kind.__call__ = recorded(original)
    try:
        yield outputs
    finally:
        for kind, original in originals.items():
            kind.__call__ = original


def _finite(tree: Any) -> bool:
    return _first_bad(tree) is None


def _first_bad(tree: Any) -> str | None:
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(leaf.dtype, jnp.floating) and not bool(jnp.isfinite(leaf).all()):
            return jax.tree_util.keystr(path, simple=True, separator=".")
    return None

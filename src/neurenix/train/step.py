"""The training step, as pure functions of an explicit state.

``fit``, ``evaluate``, ``predict`` and preflight all compile these functions. The shardings of the
arguments decide where they run. Does not own loops over data.

Notation: N examples in a batch, A parts of gradient accumulation, K steps in one call.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from neurenix._core.errors import ArgumentError, ShapeError
from neurenix._jit.flat_modules import Binding, Structure
from neurenix._padding_mask import examples_among_rows
from neurenix.losses import Loss
from neurenix.optim.extra import takes_value
from neurenix.train.accumulation import join_parts, rows_of_parts, take_parts
from neurenix.train.batch import Batch, num_examples
from neurenix.train.ema_rule import AverageRule
from neurenix.train.module_split import ModuleSplit, OtherState, call
from neurenix.train.multi_output import OutputLosses, means_of

_TINY = 1e-30  # avoids 0 / 0 for a batch whose weights are all 0


class Totals(NamedTuple):
    """Sums over the examples of an epoch, float32: scalars, or (K,) of losses of K outputs.

    Attributes:
        loss: sum of weight times loss.
        weight: sum of weights.
    """

    loss: Any
    weight: Any

    @classmethod
    def zero(cls, shape: tuple[int, ...] = ()) -> Totals:
        """Return the totals of no example."""
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def add(self, mean_loss: jax.Array, weight: jax.Array) -> Totals:
        """Return the totals including another batch."""
        return Totals(self.loss + mean_loss * weight, self.weight + weight)

    @property
    def mean_loss(self) -> jax.Array:
        """Mean loss so far; 0 before the first example."""
        return jnp.sum(self.loss / jnp.maximum(self.weight, 1e-30))


class StepState(NamedTuple):
    """The state between two optimizer steps.

    Attributes:
        parameters: nested dict of arrays, by the module's attributes.
        model_state: every other array of the module, an ``OtherState``.
        optimizer: the state of the optax transformation.
        metrics: the variables of the metrics.
        totals: sums of loss and weight in this epoch.
        step: optimizer steps made, int32.
        learning_rate_scale: factor on the optimizer's learning rate, float32.
        diverged: whether a step had a loss, gradient or learning rate that is not finite. The rest
            of the state then stays unchanged: ``step`` is the number of that step.
        averages: moving averages of the weights, a tuple of ``Average``.
    """

    parameters: Any
    model_state: Any
    optimizer: Any
    metrics: list[Any]
    totals: Totals
    step: Any
    learning_rate_scale: Any
    diverged: Any
    averages: Any = ()


class Arrays(NamedTuple):
    """The fields of a ``StepState`` that hold arrays of any size."""

    parameters: Any
    model_state: Any
    optimizer: Any
    metrics: list[Any]
    averages: Any

    @classmethod
    def of(cls, state: StepState) -> Arrays:
        """Return these fields of ``state``."""
        return cls(*[getattr(state, name) for name in cls._fields])


ROLES = {
    "parameters": "parameters",
    "model_state": "model_state",
    "optimizer": "optimizer",
    "metrics": "metrics",
    "totals": "metrics",
    "step": "other",
    "learning_rate_scale": "other",
    "diverged": "other",
    "averages": "other",
}


def leaf_roles(state: StepState) -> tuple[str, ...]:
    """Return the role of each leaf of ``state``, in flatten order."""
    fixed = {"model_state": len(jax.tree.leaves(state.model_state.fixed))}  # its first leaves
    return tuple(
        "parameters" if number < fixed.get(field, 0) else ROLES[field]
        for field, part in state._asdict().items()
        for number, _ in enumerate(jax.tree.leaves(part))
    )


def counters() -> dict[str, Any]:
    """Return the scalar fields of a new state, on the host."""
    return {
        "step": np.int32(0),
        "learning_rate_scale": np.float32(1),
        "diverged": np.bool_(False),
    }


@dataclass(frozen=True, eq=False)
class StepDefinition:
    """The definition of a step; its methods are the pure functions that are compiled.

    Attributes:
        model: the module, split.
        loss: the loss.
        optimizer: an optax transformation.
        schedule: the optimizer's learning rate as a function of the step; None if it is constant
            or unknown.
        metrics: structure of the metrics.
        first_metrics: their variables before the first batch.
        metric_names: their names, in order.
        accumulate_steps: A.
        compute_dtype: dtype that parameters and inputs are cast to for the model, or None.
        check_gradients: skip the update if a gradient is not finite.
        remat: ``"dots"`` stores only results of matrix products for the backward pass.
        averages: rules of the moving averages of the weights.
    """

    model: ModuleSplit
    loss: Loss
    optimizer: optax.GradientTransformation
    schedule: optax.Schedule | None
    metrics: Structure
    first_metrics: list[Any]
    metric_names: tuple[str, ...]
    accumulate_steps: int
    compute_dtype: Any
    check_gradients: bool
    remat: str = "none"
    averages: tuple[AverageRule, ...] = ()

    @property
    def log_names(self) -> tuple[str, ...]:
        """Names of the entries of the logs vector that follow the divergence flag."""
        return ("loss", *self.metric_names)

    @property
    def first_totals(self) -> Totals:
        """The totals before the first example, on the host."""
        loss = self.loss
        return Totals.zero((len(loss.parts),) if isinstance(loss, OutputLosses) else ())

    def expect_whole_parts(self, examples: int) -> None:
        """Raise ShapeError unless A divides the number of examples in a batch."""
        if examples % self.accumulate_steps:
            raise ShapeError(
                f"A batch of {examples} does not divide by accumulate_steps="
                f"{self.accumulate_steps}."
            )

    def initial(self, parameters: Any, model_state: OtherState) -> StepState:
        """Return the state before the first step."""
        return StepState(
            parameters=parameters,
            model_state=model_state,
            optimizer=self.optimizer.init(parameters),
            metrics=self.first_metrics,
            totals=self.first_totals,
            **counters(),
            averages=tuple(rule.first((parameters, model_state)) for rule in self.averages),
        )

    def train(self, state: StepState, batch: Batch) -> tuple[StepState, jax.Array]:
        """Make one optimizer step.

        Args:
            state: the state before the step.
            batch: N examples.

        Returns:
            the state after the step, and the logs, a float32 vector: a flag that is 1 if training
            has diverged, the mean loss of the epoch so far, and the metrics.
        """
        state = self._advanced(state, batch)
        return state, self._logs(state)

    def _advanced(self, state: StepState, batch: Batch) -> StepState:
        """Return the state after one step; if it diverges, only ``diverged`` changes."""
        losses, weight, prediction, model_state, gradients = self._gradients(state, batch)
        loss = jnp.sum(losses)
        healthy = ~state.diverged & jnp.isfinite(loss)
        if self.schedule is not None:
            healthy &= jnp.isfinite(self.schedule(state.step))
        if self.check_gradients:
            healthy &= _all_finite(gradients)

        def update(arrays: Arrays) -> Arrays:
            # Some transformations take the loss, such as optax.contrib.reduce_on_plateau.
            followed = {"value": loss} if takes_value(self.optimizer) else {}
            updates, optimizer = self.optimizer.update(
                gradients, arrays.optimizer, arrays.parameters, **followed
            )
            scale = state.learning_rate_scale
            updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
            metrics = self._updated_metrics(arrays.metrics, batch, prediction)
            parameters = optax.apply_updates(arrays.parameters, updates)
            averages = tuple(
                rule.updated(average, (parameters, model_state))
                for rule, average in zip(self.averages, arrays.averages, strict=True)
            )
            return Arrays(parameters, model_state, optimizer, metrics, averages)

        # A branch, not a selection, which reads and writes the whole state again: 8 % of a step of
        # a 1024-wide MLP on a CPU, where the branch costs 1.5 %. Scalars stay outside: a small step
        # with few large arrays is 10 % faster.
        arrays = jax.lax.cond(healthy, update, lambda arrays: arrays, Arrays.of(state))
        counted = jnp.where(healthy, weight, 0)
        return state._replace(
            **arrays._asdict(),
            totals=state.totals.add(jnp.where(healthy, losses, 0), counted),
            step=state.step + healthy.astype(jnp.int32),
            diverged=~healthy,
        )

    def train_many(self, state: StepState, batches: Batch) -> tuple[StepState, jax.Array]:
        """Make K steps in one ``lax.scan``; leaves of ``batches`` are (K, N, …)."""

        def body(state: StepState, batch: Batch) -> tuple[StepState, None]:
            return self._advanced(state, batch), None

        state, _ = jax.lax.scan(body, state, batches)
        return state, self._logs(state)

    def train_up_to(
        self, state: StepState, batches: Batch, count: jax.Array
    ) -> tuple[StepState, jax.Array]:
        """Make the first ``count`` of at most K steps, in one loop on the device."""

        def body(index: Any, state: StepState) -> StepState:
            batch = jax.tree.map(lambda leaf: leaf[index], batches)
            return self._advanced(state, batch)

        state = jax.lax.fori_loop(0, count, body, state)
        return state, self._logs(state)

    def evaluate(
        self, model: tuple[Any, OtherState], sums: tuple[Totals, list[Any]], batch: Batch
    ) -> tuple[tuple[Totals, list[Any]], jax.Array]:
        """Add a batch to the sums of an evaluation; the logs are as in ``train``."""
        totals, metrics = sums
        loss, weight, prediction, _ = self._forward(*model, batch, training=False)
        totals = totals.add(loss, weight)
        metrics = self._updated_metrics(metrics, batch, prediction)
        return (totals, metrics), self._summary(False, totals, metrics)

    def predict(self, model: tuple[Any, OtherState], x: Any) -> Any:
        """Return the module's output for ``x`` in evaluation mode.

        It is float32 if there is a ``compute_dtype``, else of the module's own dtype.
        """
        return self._apply(*model, x, training=False)[0]

    def forward(self, model: tuple[Any, OtherState], x: Any) -> Any:
        """Return the output for ``x`` in training mode, and the module's other state after it.

        The padding mask says that all rows are examples.
        """
        with examples_among_rows(jnp.ones(num_examples(Batch(x)), bool)):
            return self._apply(*model, x, training=True)

    def _gradients(self, state: StepState, batch: Batch) -> tuple[Any, ...]:
        if self.accumulate_steps > 1:
            return self._accumulated(state, batch)
        aux, gradients = self._aux_and_grad(state.parameters, state.model_state, batch)
        return *aux, gradients

    def _aux_and_grad(
        self, parameters: Any, model_state: OtherState, batch: Batch, factor: Any = None
    ) -> Any:
        """Return the results of ``_forward``, and the gradients of the sum of its mean losses.

        ``factor`` is a function from their weights to their factors in that sum.
        """

        def mean_loss(parameters: Any) -> Any:
            aux = losses, weight, *_ = self._forward(parameters, model_state, batch, training=True)
            return jnp.sum(losses if factor is None else losses * factor(weight)), aux

        gradients, aux = jax.grad(mean_loss, has_aux=True)(parameters)
        return aux, gradients

    def _accumulated(self, state: StepState, batch: Batch) -> tuple[Any, ...]:
        def one_part(carry: Any, part: Batch) -> Any:
            model_state, gradients, loss, weight = carry
            aux, grads = self._aux_and_grad(state.parameters, model_state, part, factor)
            mean, more, prediction, model_state = aux
            # Weighted here, not in the loss, because a model may add to the gradients itself.
            by = share(more)
            gradients = jax.tree.map(lambda g, a: g + a.astype(g.dtype) * by, gradients, grads)
            return (model_state, gradients, loss + mean * more, weight + more), prediction

        share, factor = self._shares(state, batch)
        zero = jnp.zeros(np.shape(self.first_totals.weight), jnp.float32)
        # In float32: a bfloat16 sum of many parts stops growing, a float16 one overflows.
        gradients = jax.tree.map(_wide_zeros, state.parameters)
        carry: Any = state.model_state, gradients, zero, zero
        rows, predictions = rows_of_parts(num_examples(batch), self.accumulate_steps), []
        for index in rows:
            taken = jax.tree.map(functools.partial(take_parts, index=index), batch)
            carry, prediction = jax.lax.scan(one_part, carry, taken)
            predictions.append(prediction)
        model_state, gradients, loss, weight = carry
        scale = 1.0 / jnp.maximum(weight, _TINY)
        whole = jnp.ones(()) if factor else scale
        gradients = jax.tree.map(
            lambda g, p: (g * whole).astype(p.dtype), gradients, state.parameters
        )
        prediction = jax.tree.map(functools.partial(join_parts, rows=rows), *predictions)
        return loss * scale, weight, prediction, model_state, gradients

    def _shares(self, state: StepState, batch: Batch) -> tuple[Any, Any]:
        """Return two functions of a part's weights: the factor of its gradients, and of its losses.

        Gradients of one loss are weighted by its weight, and divided by the sum of all parts. The
        losses of several outputs may have different weights, whose sums over the whole batch are
        needed first: a part is then weighted by its share of them.
        """
        if not isinstance(self.loss, OutputLosses):
            return lambda weight: weight, None
        model = state.parameters, state.model_state
        output = jax.eval_shape(self.predict, model, batch.x)
        output = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), output)
        _, whole = self._means(batch, output)

        def share(weight: jax.Array) -> jax.Array:
            return jnp.sum(weight) / jnp.maximum(jnp.sum(whole), _TINY)

        def factor(weight: jax.Array) -> jax.Array:
            own = weight / jnp.maximum(whole, _TINY)
            return own / jnp.maximum(share(weight), _TINY)

        return share, factor

    def _means(self, batch: Batch, prediction: Any) -> tuple[jax.Array, jax.Array]:
        _, weight = batch.examples_and_weight()
        examples = jax.tree.leaves(batch.x)[0].shape[0]
        return means_of(self.loss, batch.y, prediction, weight, examples=examples)

    def _forward(
        self, parameters: Any, model_state: OtherState, batch: Batch, *, training: bool
    ) -> tuple[jax.Array, jax.Array, Any, OtherState]:
        """Return the weighted mean losses, their weights, the output, the model's state."""
        examples, weight = batch.examples_and_weight()
        with examples_among_rows(examples):
            prediction, after = self._apply(parameters, model_state, batch.x, training=training)
        if weight is not None:
            prediction = _counting(prediction, weight)
        return *self._means(batch, prediction), prediction, after

    def _apply(
        self, parameters: Any, model_state: OtherState, x: Any, *, training: bool
    ) -> tuple[Any, OtherState]:
        def applied(parameters: Any, x: Any) -> tuple[Any, OtherState]:
            used = model_state
            if self.compute_dtype is not None:
                cast = functools.partial(_cast, dtype=self.compute_dtype)
                parameters, x = cast(parameters), cast(x)
                used = self.model.with_frozen(model_state, cast)
            module = self.model.build(parameters, used, training=training)
            prediction = jax.tree.map(_as_array, call(module, x, training=training))
            after = self.model.other_of(module, used, model_state) if training else model_state
            if self.compute_dtype is not None:
                prediction = _cast(prediction, jnp.float32)
            return prediction, after

        if training and self.remat == "dots":
            applied = jax.checkpoint(applied, policy=_is_product)
        return applied(parameters, x)

    def _updated_metrics(self, leaves: list[Any], batch: Batch, prediction: Any) -> list[Any]:
        metrics = self.metrics.rebuild(leaves, ())
        _, weight = batch.examples_and_weight()
        for metric in metrics:
            metric.update(batch.y, prediction, sample_weight=weight)
        updated = self.metrics.leaves_of(metrics)
        if updated is None:
            raise ArgumentError("A metric changes its structure in update(); add no attributes.")
        for old, new in zip(leaves, updated, strict=True):
            if (old.shape, old.dtype) != (new.shape, new.dtype):
                raise ArgumentError(
                    f"A metric's update() makes a sum of {old.dtype}{list(old.shape)} one of "
                    f"{new.dtype}{list(new.shape)}. Begin with what it becomes: weights make a "
                    "count a float32."
                )
        return updated

    def _logs(self, state: StepState) -> jax.Array:
        return self._summary(state.diverged, state.totals, state.metrics)

    def _summary(self, flag: Any, totals: Totals, metrics: list[Any]) -> jax.Array:
        results = [metric.result() for metric in self.metrics.rebuild(metrics, ())]
        for name, result in zip(self.metric_names, results, strict=True):
            if np.shape(result) != ():
                raise ShapeError(
                    f"The metric {name} has a result of shape {np.shape(result)}; logs hold one "
                    "number for each metric. Return its mean, or give a metric for each part."
                )
        entries = [flag, totals.mean_loss, *results]
        return jnp.stack([jnp.asarray(entry, jnp.float32) for entry in entries])


def bind_metrics(metrics: Sequence[Any]) -> tuple[Structure, list[Any]]:
    """Return the structure and the first values of fresh metrics."""
    binding = Binding(tuple(metrics))
    return binding.structure, binding.read()


def _counting(prediction: Any, weight: jax.Array) -> Any:
    """Return the output without gradients to the examples of weight 0.

    Their losses have the factor 0, but an infinite loss has the gradient NaN, and 0 · NaN is NaN.
    """

    def one(leaf: jax.Array) -> jax.Array:
        if leaf.shape[:1] != weight.shape:
            return leaf
        counts = (weight != 0).reshape(-1, *[1] * (leaf.ndim - 1))
        return jnp.where(counts, leaf, jax.lax.stop_gradient(leaf))

    return jax.tree.map(one, prediction)


def _is_product(primitive: Any, *_: Any, **__: Any) -> bool:
    return primitive in (jax.lax.dot_general_p, jax.lax.conv_general_dilated_p)


def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )


def _as_array(output: Any) -> Any:
    """Return one output of a model as an array; it may be a Python number."""
    return output if hasattr(output, "dtype") else jnp.asarray(output)


def _wide_zeros(leaf: jax.Array) -> jax.Array:
    return jnp.zeros_like(leaf, dtype=jnp.promote_types(leaf.dtype, jnp.float32))


def _all_finite(tree: Any) -> jax.Array:
    """Return whether all values of ``tree`` are finite, from sums, which NaN and infinity reach.

    A sum over the leading axes compiles to the fastest loop: on a CPU it takes 0.4 times as long
    as a reduction by "and". Sums that overflow float32 count as not finite.
    """
    sums = [
        jnp.sum(leaf, axis=tuple(range(max(leaf.ndim - 1, 0))), dtype=jnp.float32)
        for leaf in jax.tree.leaves(tree)
    ]
    return functools.reduce(jnp.logical_and, [jnp.isfinite(part).all() for part in sums])

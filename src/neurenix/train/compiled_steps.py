"""The compiled functions of one step definition, and the choice of the program for a call.

Owns ``jax.jit`` for ``fit``, ``evaluate`` and ``predict``: flat leaves in and out, donation, and
state that keeps its sharding. Preflight compiles the same ``StepCall``. Does not own what a step
computes (``step.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, Sharding

from neurenix import _cpu
from neurenix._jit.flat_modules import uninterrupted
from neurenix._jit.recompilation import RecompilationWatch
from neurenix.distribute.mesh import known_mesh
from neurenix.train.batch import Batch
from neurenix.train.ema_rule import AverageRule
from neurenix.train.step import StepDefinition


@dataclass(frozen=True)
class StepCall:
    """One compiled call of a step.

    Attributes:
        steps: K, the maximum number of optimizer steps; if above 1, batches are stacked, (K, N, …).
        exact: whether every call makes K steps. Otherwise an argument is their number.
    """

    steps: int = 1
    exact: bool = True

    @classmethod
    def of(cls, steps: int, of_epoch: int | None) -> StepCall:
        """Return the call for ``steps_per_execution=steps``.

        Args:
            steps: K.
            of_epoch: optimizer steps of an epoch; None if uncertain.

        Example:
            >>> StepCall.of(4, 8), StepCall.of(4, 10).exact, StepCall.of(1, None).exact
            (StepCall(steps=4, exact=True), False, True)
        """
        return cls(steps, steps == 1 or (of_epoch is not None and of_epoch % steps == 0))

    def function(self, definition: StepDefinition) -> Callable[..., tuple[Any, Any]]:
        """Return ``(state, batch) -> (state, logs)``, or ``(state, batches, count) -> …``."""
        if self.steps == 1:
            return definition.train
        return definition.train_many if self.exact else definition.train_up_to

    def arguments(self, batch: Batch) -> tuple[Any, ...]:
        """Return shapes and dtypes of the arguments after the state, from those of one batch."""
        if self.steps == 1:
            return (batch,)

        def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.steps, *leaf.shape), leaf.dtype)

        batches = jax.tree.map(stacked, batch)
        return (batches,) if self.exact else (batches, jax.ShapeDtypeStruct((), jnp.int32))


def in_place(
    function: Callable[..., tuple[Any, Any]], sharding: NamedSharding | None, shardings: Any
) -> Callable[..., tuple[Any, Any]]:
    """Return ``function(state, *rest) -> (state, out)`` with a state that keeps its shardings.

    Args:
        function: the function to compile.
        sharding: over the mesh of the call; None on one device, without any constraint.
        shardings: a tree like the state, of the shardings of its leaves.
    """

    def placed(state: Any, *rest: Any) -> tuple[Any, Any]:
        with known_mesh(sharding):
            state, out = function(state, *rest)
            if sharding is not None:
                state = jax.lax.with_sharding_constraint(state, shardings)
        return state, out

    return placed


class FlatFunction:
    """``function(state, *rest) -> (state, out)``, compiled, with the state as a flat list.

    A list of arrays is passed to a compiled call several times faster than a tree.

    Args:
        function: the pure function.
        name: its name in reports and profiles.
        sharding: the sharding of replicated state. Every leaf keeps its own sharding.

    Attributes:
        compilations: number of programs compiled.
    """

    def __init__(self, function: Callable[..., Any], name: str, sharding: Sharding) -> None:
        self._function = function
        self._sharding = sharding if isinstance(sharding, NamedSharding) else None
        self._watch = RecompilationWatch(name)
        self._treedef: Any = None
        self._shardings: list[Sharding] = []
        self._results: list[tuple[list[Any], Any]] = []
        self.compilations = 0
        self._reported = 0

        _cpu.use_fast_lowerings()

        def program(leaves: list[Any], *rest: Any) -> tuple[list[Any], Any]:
            self.compilations += 1  # runs when JAX traces, which it does once for each program
            return self._flat(leaves, *rest)

        program.__name__ = name  # what profiles and compile logs show
        self._jitted = jax.jit(program, donate_argnums=0, compiler_options=_cpu.compiler_options())

    def flatten(self, state: Any) -> list[Any]:
        """Return the leaves of ``state``, which becomes the newest state."""
        leaves, self._treedef = jax.tree.flatten(state)
        if self._sharding is not None:
            self._shardings = [leaf.sharding for leaf in leaves]
        self._results = [(leaves, None)]
        return leaves

    def go_on_from(self, leaves: list[Any]) -> None:
        """Set the leaves of the newest state; its structure is that of the last ``flatten``."""
        self._results = [(leaves, None)]

    @property
    def leaves(self) -> list[Any]:
        """The leaves of the newest state: of the last successful call, or a later ``flatten``."""
        return self._results[-1][0]

    @property
    def state(self) -> Any:
        """The newest state: of the last successful call, even if Ctrl-C followed it."""
        return self._unflatten(self.leaves)

    def _unflatten(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self._treedef, leaves)

    def __call__(self, leaves: list[Any], *rest: Any) -> tuple[list[Any], Any]:
        """Return the leaves of the state after the call, and the function's second result."""
        results = self._results  # the last one is kept if this call fails
        uninterrupted(results, self._jitted, (leaves, *rest))
        del results[:-1]
        if self.compilations != self._reported:
            self._reported = self.compilations
            _cpu.compiled()
            self._watch.compiled(rest)
        return results[-1]

    def _flat(self, leaves: list[Any], *rest: Any) -> tuple[list[Any], Any]:
        shardings = self._unflatten(self._shardings) if self._sharding is not None else None
        function = in_place(self._function, self._sharding, shardings)
        state, out = function(self._unflatten(leaves), *rest)
        return jax.tree.leaves(state), out


class CompiledStep:
    """The compiled step of a trainer. It is compiled on its first call.

    Args:
        definition: the step.
        call: which program of it.
        sharding: the sharding of replicated state.
    """

    def __init__(self, definition: StepDefinition, call: StepCall, sharding: Sharding) -> None:
        self.call, self.steps, self.sharding = call, call.steps, sharding
        self.averages = definition.averages
        self.train = FlatFunction(call.function(definition), "train_step", sharding)
        self.takes_count = not call.exact


class _Prediction:
    """``predict`` of one step definition, compiled and watched.

    With several processes, the outputs are replicated, so that each process has all of them.
    """

    def __init__(self, definition: StepDefinition, sharding: Sharding) -> None:
        self._watch = RecompilationWatch("predict")
        self._compilations = self._reported = 0

        def predict(model: Any, x: Any) -> Any:
            self._compilations += 1  # runs when JAX traces
            out = definition.predict(model, x)
            if not sharding.is_fully_addressable:
                return jax.lax.with_sharding_constraint(out, sharding)
            return out

        self._jitted = jax.jit(predict, compiler_options=_cpu.compiler_options())

    def __call__(self, model: Any, x: Any) -> Any:
        """Return the model's outputs for a batch."""
        out = self._jitted(model, x)
        if self._compilations != self._reported:
            self._reported = self._compilations
            self._watch.compiled({"x": x})
        return out


class CompiledEvaluation:
    """``evaluate`` and ``predict`` of one step definition, compiled."""

    def __init__(self, definition: StepDefinition, sharding: Sharding) -> None:
        self.sharding = sharding

        def evaluate(sums: Any, model: Any, batch: Any) -> Any:
            return definition.evaluate(model, sums, batch)

        self.evaluate = FlatFunction(evaluate, "evaluation_step", sharding)
        self.predict = _Prediction(definition, sharding)


class CompiledFunctions:
    """The compiled functions of one step definition; those used last are cached."""

    def __init__(self, definition: StepDefinition) -> None:
        self._definition = definition
        self._step: CompiledStep | None = None
        self._evaluation: CompiledEvaluation | None = None

    @property
    def step_compilations(self) -> int:
        """Number of programs that the step was compiled to."""
        return 0 if self._step is None else self._step.train.compilations

    def step(
        self, call: StepCall, sharding: Sharding, averages: tuple[AverageRule, ...] = ()
    ) -> CompiledStep:
        """Return the step with these averages; the arguments are those of ``CompiledStep``."""
        known, asked = self._step, (call, sharding, averages)
        if known is None or (known.call, known.sharding, known.averages) != asked:
            definition = replace(self._definition, averages=averages)
            known = self._step = CompiledStep(definition, call, sharding)
        return known

    def evaluation(self, sharding: Sharding) -> CompiledEvaluation:
        """Return the functions of an evaluation whose sums have this sharding."""
        if self._evaluation is None or self._evaluation.sharding != sharding:
            self._evaluation = CompiledEvaluation(self._definition, sharding)
        return self._evaluation

"""The compiled functions of one step definition, and the choice of the program for a call.

Owns ``jax.jit`` for ``fit``, ``evaluate`` and ``predict``: flat leaves in and out, donation, and
state that keeps its sharding. Preflight describes the same ``StepCall``. Does not own what a step
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
        steps: K, optimizer steps that it makes at most; with more than 1 its batches are stacked,
            (K, N, …).
        exact: it makes all of them. Otherwise an argument says how many.
    """

    steps: int = 1
    exact: bool = True

    @classmethod
    def of(cls, steps: int, of_epoch: int | None) -> StepCall:
        """Return the call for ``steps_per_execution=steps``.

        Args:
            steps: K.
            of_epoch: optimizer steps of an epoch; None where they are not certain.

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
        """Return shapes and dtypes of all arguments but the state, from those of one batch."""
        if self.steps == 1:
            return (batch,)

        def stacked(leaf: Any) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.steps, *leaf.shape), leaf.dtype)

        batches = jax.tree.map(stacked, batch)
        return (batches,) if self.exact else (batches, jax.ShapeDtypeStruct((), jnp.int32))


def in_place(
    function: Callable[..., tuple[Any, Any]], sharding: NamedSharding | None, lie: Any
) -> Callable[..., tuple[Any, Any]]:
    """Return ``function(state, *rest) -> (state, out)`` with a state that stays where it lies.

    Args:
        function: what is compiled.
        sharding: over the mesh of the call; None on one device, where nothing is said.
        lie: the shardings of the state's leaves, a tree like it.
    """

    def placed(state: Any, *rest: Any) -> tuple[Any, Any]:
        with known_mesh(sharding):
            state, out = function(state, *rest)
            if sharding is not None:
                state = jax.lax.with_sharding_constraint(state, lie)
        return state, out

    return placed


class FlatFunction:
    """``function(state, *rest) -> (state, out)``, compiled, with the state as a flat list.

    A list of arrays crosses into the compiled call several times faster than a tree.

    Args:
        function: the pure function.
        name: what reports and profiles call it.
        sharding: where state lies that no rule divides. Every leaf stays where it lies.

    Attributes:
        compilations: programs that it has been compiled to.
    """

    def __init__(self, function: Callable[..., Any], name: str, sharding: Sharding) -> None:
        self._function = function
        self._sharding = sharding if isinstance(sharding, NamedSharding) else None
        self._watch = RecompilationWatch(name)
        self._treedef: Any = None
        self._lie: list[Sharding] = []
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
        """Return the leaves of ``state``, and take it for the newest one."""
        leaves, self._treedef = jax.tree.flatten(state)
        if self._sharding is not None:
            self._lie = [leaf.sharding for leaf in leaves]
        self._results = [(leaves, None)]
        return leaves

    def go_on_from(self, leaves: list[Any]) -> None:
        """Take these leaves, of a state like the one that was flattened, for the newest one."""
        self._results = [(leaves, None)]

    @property
    def leaves(self) -> list[Any]:
        """The newest state, flat: of the latest call to succeed, or ``flatten`` since."""
        return self._results[-1][0]

    @property
    def state(self) -> Any:
        """The newest state: of the latest call to succeed, even if Ctrl-C came right after it."""
        return self._unflatten(self.leaves)

    def _unflatten(self, leaves: list[Any]) -> Any:
        return jax.tree.unflatten(self._treedef, leaves)

    def __call__(self, leaves: list[Any], *rest: Any) -> tuple[list[Any], Any]:
        """Return the state's leaves after the call, and what else the function returns."""
        results = self._results  # the last one stays when this call fails
        uninterrupted(results, self._jitted, (leaves, *rest))
        del results[:-1]
        if self.compilations != self._reported:
            self._reported = self.compilations
            _cpu.compiled()
            self._watch.compiled(rest)
        return results[-1]

    def _flat(self, leaves: list[Any], *rest: Any) -> tuple[list[Any], Any]:
        lie = self._unflatten(self._lie) if self._sharding is not None else None
        function = in_place(self._function, self._sharding, lie)
        state, out = function(self._unflatten(leaves), *rest)
        return jax.tree.leaves(state), out


class CompiledStep:
    """What a trainer calls: each function compiled when it is first called, once.

    Args:
        definition: what is computed.
        call: which program of it.
        sharding: where the state lies.
    """

    def __init__(self, definition: StepDefinition, call: StepCall, sharding: Sharding) -> None:
        self.call, self.steps, self.sharding = call, call.steps, sharding
        self.averages = definition.averages
        self.train = FlatFunction(call.function(definition), "train_step", sharding)
        self.takes_count = not call.exact


class _Prediction:
    """``predict`` of one step definition, compiled and watched.

    Where other processes take part, every device gets the outputs whole, and so every process.
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
    """The compiled functions of one step definition that were asked for last."""

    def __init__(self, definition: StepDefinition) -> None:
        self._definition = definition
        self._step: CompiledStep | None = None
        self._evaluation: CompiledEvaluation | None = None

    @property
    def step_compilations(self) -> int:
        """Programs that the step has been compiled to."""
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
        """Return the functions of an evaluation whose sums lie like this."""
        if self._evaluation is None or self._evaluation.sharding != sharding:
            self._evaluation = CompiledEvaluation(self._definition, sharding)
        return self._evaluation

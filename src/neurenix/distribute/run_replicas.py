"""Compile a function once and run it on every replica.

Owns the replica's view: arguments sharded or replicated, modules rebuilt per replica. Does not own
the synchronisation of their state (``sync_state.py``) or the strategies.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial, update_wrapper
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from neurenix import _cpu
from neurenix._copy_host_arrays import owned
from neurenix._core.errors import (
    ArgumentError,
    ArgumentTypeError,
    RecompilationError,
    ShapeError,
)
from neurenix._jax import jaxpr_as_fun, trace_state_clean
from neurenix._jit import hooks
from neurenix._jit.arg_shardings import is_known, sharding_of
from neurenix._jit.closure_capture import lifted, name_of, refuse_captured_modules
from neurenix._jit.flat_modules import Bindings, is_module
from neurenix._jit.recompilation import RecompilationWatch
from neurenix._jit.static_arguments import explain, labels, refuse_hidden_modules
from neurenix._jit.static_values import Constants, apart, described
from neurenix._nnx import nnx
from neurenix.distribute.mesh import DATA_AXIS, place, replicas_of, replicated
from neurenix.distribute.replica import enter_replica
from neurenix.distribute.sync_state import States
from neurenix.distribute.values import PerReplica

SPLIT = PartitionSpec(DATA_AXIS)
WHOLE = PartitionSpec()


class ReplicatedFunction:
    """A function that runs on every replica of ``mesh``.

    Sharded arrays (``PerReplica``, or a batch from ``strategy.distribute``) arrive as the replica's
    share. All other arguments, and the modules, are replicated. After the call the variables of the
    modules are synchronised: batch statistics are averaged, metrics are summed, and random streams,
    which differ between replicas during the call, advance by the same amount. All other variables
    must be equal on all replicas. The traced program is checked for that once, before it runs.

    Raises:
        ArgumentError: ``function`` uses a module that is not an argument, a variable may differ
            between replicas, or a batch belongs to another strategy.
    """

    def __init__(self, function: Callable[..., Any], mesh: Mesh) -> None:
        self._function, self._first = lifted(function)
        self._mesh = mesh
        self._bindings = Bindings()
        self._constants = Constants()
        self._checked = False
        self._watch = RecompilationWatch(name_of(self._function))
        self.compilations = 0
        _cpu.use_fast_lowerings()
        # Used inside another traced function, where compiler options are not accepted.
        self._part = jax.jit(self._replicas, static_argnums=0, donate_argnums=1)

    @cached_property
    def _compiled(self) -> Any:
        """The compiled program, made at the first call."""
        options = _cpu.compiler_options()
        return jax.jit(self._replicas, static_argnums=0, donate_argnums=1, compiler_options=options)

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the function's results, each array as a ``PerReplica``."""
        args = (*self._first, *args)
        if not self._checked:
            refuse_captured_modules(self._function, args, kwargs)
            if trace_state_clean():
                hooks.first_call(self._announced(kwargs), args)
            self._checked = True
        return self._run(args, kwargs)

    def _announced(self, kwargs: dict[str, Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            return self._run(args, kwargs)

        update_wrapper(function, self._function, updated=())
        function.of_replicas = True  # pyright: ignore[reportFunctionMemberAccess]  for preflight
        return partial(function, **kwargs) if kwargs else function

    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = tuple(kwargs)
        everything = [*args, *kwargs.values()]
        positions = tuple(i for i, value in enumerate(everything) if is_module(value))
        modules = tuple(everything[i] for i in positions)
        rest = owned([None if i in positions else value for i, value in enumerate(everything)])
        binding, fresh = self._bindings.of(modules)
        if fresh:
            binding.check_held()
            # A placed array may share its buffer with the original
            binding.write(place(binding.read_apart(), replicated(self._mesh)))
        before = self.compilations
        try:
            leaves, treedef = jax.tree.flatten(rest, is_leaf=_is_per_replica)
            leaves, taken = apart(leaves, treedef, self._constants)
            placed, kinds = self._placed(leaves)
            static = (binding.structure, positions, len(args), names, taken, kinds)
            state = binding.read_apart()
            program = self._compiled if trace_state_clean() else self._part
            out = binding.update(program, static, state, binding.constants, placed)
        except (TypeError, IndexError) as error:
            self._explain(error, rest, len(args), names)
            raise
        except (RuntimeError, ValueError):
            binding.check_held()
            raise
        if self.compilations > before:
            _cpu.compiled()
            called = labels(self._function, len(args), names)
            told = map(described, everything, rest)
            self._watch.compiled(dict(zip(called, told, strict=True)))
        return jax.tree.map(PerReplica, out)

    def _explain(
        self, error: Exception, rest: list[Any], num_args: int, names: tuple[str, ...]
    ) -> None:
        """Raise an error that names the argument; see ``static_arguments.explain``."""
        name, called = self._watch.name, labels(self._function, num_args, names)
        leaves = jax.tree_util.tree_flatten_with_path(rest, is_leaf=_is_per_replica)[0]
        shown = [called[path[0].idx] + jax.tree_util.keystr(path[1:]) for path, _ in leaves]
        values = [leaf.stacked if _is_per_replica(leaf) else leaf for _, leaf in leaves]

        def way_out(label: str) -> str:
            given = f"{label}=…" if label.isidentifier() else "…"
            return f"Fix it, once and outside of the loop: functools.partial({name}, {given})."

        explain(error, name, shown, values, way_out)

    def _placed(self, leaves: list[Any]) -> tuple[list[Any], tuple[str, ...]]:
        placed, kinds = [], []
        for leaf in leaves:
            if isinstance(leaf, PerReplica):
                self._check_entries(leaf)
                kind, leaf = "entry", leaf.stacked
            else:
                kind = "share" if self._is_share(leaf) else "whole"
            spec = WHOLE if kind == "whole" else SPLIT
            placed.append(place(leaf, NamedSharding(self._mesh, spec)))
            kinds.append(kind)
        return placed, tuple(kinds)

    def _is_share(self, leaf: Any) -> bool:
        """Return whether an array is a batch that is sharded over these replicas.

        Raises:
            ArgumentError: it is sharded over the mesh of another strategy, or its sharding is
                unknown because a compiled function computes it.
        """
        if not is_known(leaf) and leaf.ndim and replicas_of(self._mesh) > 1:
            raise ArgumentError(
                f"{self._watch.name}: strategy.run was called in a compiled function, where it is "
                f"not known whether this array of shape {leaf.shape} is split over the replicas. "
                "Compile that function with nx.jit, give strategy.run the batch as nx.jit was "
                "given it, and compute in the function that strategy.run runs."
            )
        sharding = sharding_of(leaf)
        if sharding is None:
            return False
        first = sharding.spec[0]
        if DATA_AXIS not in (first if isinstance(first, tuple) else (first,)):
            return False
        if sharding.mesh == self._mesh:
            return True
        replicas = replicas_of(self._mesh)
        if replicas == 1:
            return False
        raise ArgumentError(
            f"{self._watch.name}: a batch of shape {leaf.shape} is split over the mesh "
            f"{dict(sharding.mesh.shape)} of another strategy, and would go whole to each of the "
            f"{replicas} replicas. Split it with distribute of the strategy that runs."
        )

    def _check_entries(self, value: PerReplica) -> None:
        replicas = replicas_of(self._mesh)
        if len(value) != replicas:
            raise ShapeError(
                f"{self._watch.name}: a PerReplica has {len(value)} entries, and there are "
                f"{replicas} replicas. Its leading axis has one entry for each replica; reshape a "
                f"batch of N examples to ({replicas}, N / {replicas}, …), or give it to "
                "strategy.distribute."
            )

    def _replicas(self, static: Any, state: Any, constants: Any, leaves: Any) -> tuple[Any, Any]:
        self.compilations += 1  # runs at each trace, once for each program
        kinds = static[-1]
        specs = [WHOLE if kind == "whole" else SPLIT for kind in kinds]
        return jax.shard_map(
            partial(self._one_replica, static),
            mesh=self._mesh,
            in_specs=(WHOLE, WHOLE, specs),
            out_specs=(SPLIT, WHOLE),
            check_vma=False,
        )(state, constants, leaves)

    def _one_replica(
        self, static: Any, state: list[Any], constants: list[Any], leaves: list[Any]
    ) -> tuple[Any, list[Any]]:
        seen: list[States] = []

        def program(state: list[Any], constants: list[Any], leaves: list[Any]) -> Any:
            out, after, states = self._called(static, state, constants, leaves)
            seen.append(states)
            return out, after

        jaxpr, shapes = jax.make_jaxpr(program, return_shape=True)(state, constants, leaves)
        results = jaxpr_as_fun(jaxpr)(*jax.tree.leaves((state, constants, leaves)))
        out, after = jax.tree.unflatten(jax.tree.structure(shapes), results)
        if replicas_of(self._mesh) == 1:
            return out, after
        shares = [leaf for leaf, kind in zip(leaves, static[-1], strict=True) if kind != "whole"]
        split = {id(leaf) for leaf in jax.tree.leaves(shares)}
        apart = [id(leaf) in split for leaf in jax.tree.leaves((constants, leaves))]
        return out, seen[0].together(self._watch.name, jaxpr, apart, state, after)

    def _called(
        self, static: Any, state: list[Any], constants: list[Any], leaves: list[Any]
    ) -> tuple[Any, list[Any], States]:
        """Return the function's result, the new state, and a description of that state."""
        structure, positions, num_args, names, taken, kinds = static
        own = [
            jax.tree.map(lambda x: x[0], leaf) if kind == "entry" else leaf
            for leaf, kind in zip(leaves, kinds, strict=True)
        ]
        everything = taken.back(own)
        refuse_hidden_modules(self._watch.name, everything)
        modules = structure.rebuild(state, constants)
        kept = _own_random_streams(modules)
        for position, module in zip(positions, modules, strict=True):
            everything[position] = module
        with enter_replica(replicas_of(self._mesh)):
            named = dict(zip(names, everything[num_args:], strict=True))
            out = self._function(*everything[:num_args], **named)
        for variable, key in kept:
            variable.set_value(key)
        after = structure.leaves_of(modules)
        if after is None:
            raise RecompilationError(
                f"{self._watch.name} changes the structure of a module (it adds "
                "or removes a layer, a variable or an attribute). Do that outside of strategy.run."
            )
        return jax.tree.map(self._entry, out), after, States(modules)

    def _entry(self, value: Any) -> Any:
        """Return a result as the replica's entry of a ``PerReplica``."""
        try:
            # asarray takes a string for the name of a dtype
            return jax.numpy.asarray(np.asarray(value) if isinstance(value, str) else value)[None]
        except TypeError as error:
            raise ArgumentTypeError(
                f"{self._watch.name} returns {value!r} ({type(value).__name__}), which is no "
                "array. What strategy.run runs returns arrays, or trees of them."
            ) from error


def _is_per_replica(value: Any) -> bool:
    return isinstance(value, PerReplica)


def _own_random_streams(modules: Any) -> list[tuple[Any, Any]]:
    """Fold the replica's index into each random key; return the variables and original keys."""
    replica = jax.lax.axis_index(DATA_AXIS)
    kept = []
    for _, variable in nnx.iter_graph(modules):
        if isinstance(variable, nnx.RngKey):
            key = variable.get_value()
            kept.append((variable, key))
            variable.set_value(jax.random.fold_in(key, replica))
    return kept

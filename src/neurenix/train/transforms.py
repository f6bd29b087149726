"""``nx.jit`` and its kin, for training loops of one's own.

Owns compiled functions of modules: they are bound to their variables at the first call, so that a
later call pays neither a walk over the module graph nor a second copy of the state. It does not own
the step that ``fit`` runs (``step.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding

from neurenix._binding import Binding, Bindings, is_module, mesh_of
from neurenix._core.errors import ArgumentError, ArgumentTypeError, RecompilationError
from neurenix._cpu_convolution import use_channels_last
from neurenix._nnx import nnx
from neurenix._recompilation import RecompilationWatch
from neurenix.compiler import intercept
from neurenix.distribute import get_strategy
from neurenix.distribute.input import stacked
from neurenix.distribute.mesh import known_mesh, replicated

grad = nnx.grad
value_and_grad = nnx.value_and_grad


class CompiledFunction:
    """A function of modules and arrays, compiled; see ``jit``.

    Attributes:
        compilations: programs that it has been compiled to.
    """

    def __init__(self, function: Callable[..., Any], *, donate: bool, steps: int | None) -> None:
        self._function = function
        self._donate = donate
        self._steps = steps
        self._bindings = Bindings()
        self._seen_call = False
        functools.update_wrapper(self, function, updated=())
        self._name = getattr(function, "__name__", type(function).__name__)
        self._watch = RecompilationWatch(self._name)
        self.compilations = 0
        once = self._once if steps is None else self._scanned

        use_channels_last()

        def program(static: Any, leaves: Any, constants: Any, rest: Any) -> Any:
            self.compilations += 1  # runs when JAX traces, which it does once for each program
            _refuse_hidden_modules(self._name, rest)
            return once(static, leaves, constants, rest)

        program.__name__ = self._name  # what profiles and compile logs show
        self._compiled = jax.jit(program, static_argnums=0, donate_argnums=1 if donate else ())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; modules among ``args`` are updated in place."""
        if self._steps is not None:
            args = self._with_batches(args, self._steps)
        everything = [*args, *kwargs.values()]
        positions = tuple([i for i, value in enumerate(everything) if is_module(value)])
        modules = tuple([everything[i] for i in positions])
        rest = [None if i in positions else value for i, value in enumerate(everything)]
        binding, fresh = self._bindings.of(modules)
        if fresh:
            self._prepare(binding, rest)
        if not self._seen_call:
            self._announce(args, kwargs)  # which may stop the call, and then any later one
            self._seen_call = True
        before = self.compilations
        static = (binding.structure, positions, len(args), tuple(kwargs), binding.sharding)
        leaves = binding.read_apart() if self._donate else binding.read()
        out = binding.update(self._compiled, static, leaves, binding.constants, rest)
        if self.compilations != before:
            self._watch.compiled(rest)
        return out

    def _announce(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Tell tools of the first call; of many steps in one, they see a single step."""
        single = self
        if self._steps is not None:
            single = CompiledFunction(self._function, donate=self._donate, steps=None)
            args = (*args[:-1], jax.tree.map(lambda x: x[0], args[-1]))
        intercept.first_call(functools.partial(single, **named) if named else single, args)

    def _with_batches(self, args: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
        if not args or not isinstance(args[-1], Iterator):
            raise ArgumentTypeError(
                f"multi_step({self._name}): the last argument must be an iterator of batches, got "
                f"{type(args[-1]).__name__ if args else 'no argument'}. Pass iter(dataset)."
            )
        return (*args[:-1], stacked(args[-1], steps))

    def _prepare(self, binding: Binding, rest: list[Any]) -> None:
        """Put a module's arrays where the other arguments are."""
        strategy = get_strategy()
        mesh = mesh_of(rest) or mesh_of(binding.read())
        if mesh is not None:
            binding.sharding = replicated(mesh)
        elif strategy is not None and strategy.num_replicas_in_sync > 1:
            binding.sharding = replicated(strategy.mesh)
        else:
            binding.sharding = _committed_to(rest)
        leaves = binding.read_apart()
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                continue
            if getattr(leaf, "weak_type", False):  # a step returns it strong: one compile more
                leaf = jax.lax.convert_element_type(leaf, leaf.dtype)
            if binding.sharding is not None and leaf.sharding != binding.sharding:
                leaf = jax.device_put(leaf, binding.sharding)
            leaves[index] = leaf
        binding.write(leaves)

    def _once(
        self,
        static: Any,
        leaves: list[Any],
        constants: list[Any],
        rest: list[Any],
    ) -> tuple[Any, list[Any]]:
        structure, positions, num_args, names, sharding = static
        modules = structure.rebuild(leaves, constants)
        everything = list(rest)
        for position, module in zip(positions, modules, strict=True):
            everything[position] = module
        named = dict(zip(names, everything[num_args:], strict=True))
        with known_mesh(sharding):
            out = self._function(*everything[:num_args], **named)
        after = structure.leaves_of(modules)
        if after is None:
            raise RecompilationError(
                f"{self._name} changes the structure of a module: it adds or removes a layer, a "
                "variable or an attribute (train() and eval() do, too). Do that outside of the "
                "compiled function; it is then compiled anew at its next call."
            )
        if isinstance(sharding, NamedSharding):
            after = [jax.lax.with_sharding_constraint(leaf, sharding) for leaf in after]
        return out, after

    def _scanned(
        self,
        static: Any,
        leaves: list[Any],
        constants: list[Any],
        rest: list[Any],
    ) -> tuple[Any, list[Any]]:
        last = static[2] - 1  # the batch is the last argument by position

        def body(leaves: list[Any], batch: Any) -> tuple[list[Any], Any]:
            single = [*rest[:last], batch, *rest[last + 1 :]]
            out, after = self._once(static, leaves, constants, single)
            return [_as_before(new, old) for new, old in zip(after, leaves, strict=True)], out

        after, out = jax.lax.scan(body, leaves, rest[last], length=self._steps)
        return out, after


def jit(function: Callable[..., Any] | None = None, *, donate: bool = True) -> Any:
    """Compile a function that takes modules, optimizers, metrics and arrays.

    Modules are updated in place, as ``nnx.jit`` does, at a fraction of its cost per call: the
    module graph is walked at the first call only, and again when an attribute was set. Modules are
    arguments of their own, not entries of a tuple or a dict.

    Args:
        function: a function; or leave it out to use ``@nx.jit(donate=False)``.
        donate: give the memory of the modules' arrays to the results, so that a step needs no
            second copy. An array taken out of a module before the call is deleted by it.

    Raises:
        RecompilationError: at the call, when the function changes a module's structure.
        ArgumentTypeError: at the call, when a module is inside a tuple or a dict.

    Example:
        >>> from neurenix import nn
        >>> import numpy as np
        >>> model = nn.Linear(2, 1)
        >>> forward = jit(lambda model, x: model(x))
        >>> forward(model, np.ones((3, 2), "float32")).shape
        (3, 1)
    """
    if function is None:
        return functools.partial(jit, donate=donate)
    if not callable(function):
        raise ArgumentTypeError(f"nx.jit: expected a function, got {type(function).__name__}.")
    return CompiledFunction(function, donate=donate, steps=None)


def multi_step(step: Callable[..., Any], *, steps: int) -> CompiledFunction:
    """Return a function that makes ``steps`` steps in one compiled call, a ``lax.scan``.

    Its last argument is an iterator of batches in place of ``step``'s batch; ``steps`` batches are
    taken from it, stacked, and moved to the device at once. The results of the steps are stacked.
    The weights are those of as many single calls: bit for bit where XLA compiles the body of the
    loop as it compiles the single step, else within float32 rounding.

    Args:
        step: a function whose last argument is a batch, compiled by ``nx.jit`` or not.
        steps: how many.

    Raises:
        ArgumentError: ``steps`` is not a whole number from 1.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ArgumentError(f"multi_step: steps must be a whole number from 1, got {steps!r}.")
    if isinstance(step, CompiledFunction):
        return CompiledFunction(step._function, donate=step._donate, steps=steps)
    return CompiledFunction(step, donate=True, steps=steps)


def _refuse_hidden_modules(name: str, rest: Any) -> None:
    if any(map(is_module, jax.tree.leaves(rest, is_leaf=is_module))):
        raise ArgumentTypeError(
            f"{name}: a module is inside a tuple, a list or a dict, where its updates would be "
            f"lost. Pass every module as an argument of its own: {name}(model, optimizer, batch)."
        )


def _committed_to(tree: Any) -> jax.sharding.Sharding | None:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer):
            if leaf.committed:
                return leaf.sharding
    return None


def _as_before(new: Any, old: Any) -> Any:
    if new.dtype != old.dtype:
        raise RecompilationError(
            f"A variable changes its dtype from {old.dtype} to {new.dtype} during a step. Keep it, "
            "with .astype, so that steps can follow one another in one loop."
        )
    return new

"""``nx.jit``, ``nx.multi_step``, ``nx.grad`` and ``nx.value_and_grad``, for custom training loops.

Owns compiled functions of modules. The first call binds a function to the variables of its modules;
later calls do not walk the module graph and do not copy the state. The step that ``fit`` runs is
``neurenix.train.step``'s.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import MethodType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding

from neurenix import _cpu
from neurenix._copy_host_arrays import owned
from neurenix._core.errors import ArgumentError, ArgumentTypeError, RecompilationError
from neurenix._core.names import answers
from neurenix._core.number_checks import whole_number
from neurenix._jax import trace_state_clean
from neurenix._jit import hooks
from neurenix._jit.arg_shardings import arg_shardings_of, known_arg_shardings, of_each_step
from neurenix._jit.closure_capture import lifted, name_of, refuse_captured_modules
from neurenix._jit.donated_arrays import explain_gone
from neurenix._jit.flat_modules import Binding, Bindings, is_module, mesh_of
from neurenix._jit.recompilation import Fixed, RecompilationWatch
from neurenix._jit.static_arguments import (
    Static,
    check_static,
    explain,
    explain_devices,
    labels,
    refuse_hidden_modules,
    static_of,
)
from neurenix._jit.static_values import Constant, Constants, described, without_constants
from neurenix._migration.trainer import OF_JIT
from neurenix._nnx import TraceContextError, nnx
from neurenix.distribute import get_strategy
from neurenix.distribute.batch_input import stacked
from neurenix.distribute.mesh import known_mesh, replicated
from neurenix.hardware.allocation import PROGRAM, out_of_memory

NOTHING_STATIC = Static()

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
Rest = ParamSpec("Rest")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)


class JitFunction(Protocol[P, Result]):
    """The type of the result of ``jit``: a function with the same arguments and result."""

    @property
    def compilations(self) -> int:
        """Number of programs that were compiled."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result:
        """Call the function and update modules among the arguments in place."""
        ...

    def __get__(
        self: JitFunction[Concatenate[Any, Rest], R], owner: Any, kind: type[Any] | None = None
    ) -> JitFunction[Rest, R]:
        """Bind to ``owner``, as a function in a class is bound."""
        ...


class CompiledFunction:
    """A function of modules and arrays, compiled; see ``jit``.

    Attributes:
        compilations: number of programs that were compiled.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        donate: bool,
        steps: int | None,
        static: Static = NOTHING_STATIC,
    ) -> None:
        self._function = function
        self._donate = donate
        self._steps = steps
        self._jit_info = static  # preflight reads it by the name that jax.jit uses
        self._bindings = Bindings()
        self._constants = Constants()
        self._seen_call = False
        functools.update_wrapper(self, function, updated=())
        self._name = name_of(function)
        self._watch = RecompilationWatch(self._name)
        self.compilations = 0
        once = self._once if steps is None else self._scanned

        _cpu.use_fast_lowerings()

        def program(static: Any, state: Any, constants: Any, rest: Any) -> Any:
            self.compilations += 1  # JAX traces once for each program
            refuse_hidden_modules(self._name, rest)
            out, after = once(static, state, constants, rest)
            sharding = static[4]
            if isinstance(sharding, NamedSharding):
                after = [jax.lax.with_sharding_constraint(leaf, sharding) for leaf in after]
            return out, after

        def part(static: Any, state: Any, constants: Any, rest: Any) -> Any:
            out, after = once(static, state, constants, rest)
            pairs = enumerate(zip(after, state, strict=True))
            return out, {place: new for place, (new, old) in pairs if new is not old}

        program.__name__ = part.__name__ = self._name  # shown in profiles and compile logs
        self._program = program
        self._part = jax.jit(part, static_argnums=0)

    @functools.cached_property
    def _compiled(self) -> Any:
        """The jitted program, made at the first call for the devices of that time."""
        return jax.jit(
            self._program,
            static_argnums=0,
            donate_argnums=1 if self._donate else (),
            compiler_options=_cpu.compiler_options(),
        )

    def __get__(self, owner: Any, kind: type[Any] | None = None) -> Any:
        """Bind to ``owner``, so that a method can be compiled."""
        return self if owner is None else MethodType(self, owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function and update modules among ``args`` in place."""
        if self._steps is not None:
            args = self._with_batches(args, self._steps)
        everything = [*args, *kwargs.values()]
        positions = tuple([i for i, value in enumerate(everything) if is_module(value)])
        modules = tuple([everything[i] for i in positions])
        fixed = self._fixed(everything, len(args), kwargs) if self._jit_info.static_argnames else ()
        apart = (*positions, *[place for place, _ in fixed])
        rest = owned([None if i in apart else value for i, value in enumerate(everything)])
        given, (rest, taken) = rest, without_constants(rest, self._constants)
        if not self._seen_call:
            refuse_captured_modules(self._function, args, kwargs)
        binding, fresh = self._bindings.of(modules)
        if fresh:
            self._prepare(binding, rest)
        before, sharding = self.compilations, binding.sharding
        structure, names, shardings = binding.structure, tuple(kwargs), arg_shardings_of(rest)
        static = (structure, positions, len(args), names, sharding, fixed, taken, shardings)
        if not trace_state_clean():
            return self._inside_of_a_trace(binding, static, rest)
        if not self._seen_call:
            self._announce(args, kwargs)  # may raise; then the next call announces again
            self._seen_call = True
        leaves = binding.read_apart() if self._donate else binding.read()
        try:
            out = binding.update(self._compiled, static, leaves, binding.constants, rest)
        except (TypeError, IndexError, AttributeError) as error:
            called = labels(self._function, len(args), kwargs)
            explain(error, self._name, called, rest, self._made_static)
            raise
        except (RuntimeError, ValueError) as error:
            if (told := out_of_memory(error, f"{self._name} {PROGRAM}")) is not None:
                raise told from error
            binding.check_held()
            self._explain_donated_twice(error, binding, leaves, rest)
            values = [nnx.state(v) if is_module(v) else v for v in everything]
            called = labels(self._function, len(args), kwargs)
            explain_devices(error, self._name, called, values)
            explain_gone(error, self._name)
            raise
        if self.compilations != before:
            _cpu.compiled()
            told = self._described(everything, given, fixed, len(args), kwargs)
            self._watch.compiled(told)
        return out

    def _explain_donated_twice(
        self, error: Exception, binding: Binding, leaves: list[Any], rest: list[Any]
    ) -> None:
        """Raise ArgumentError if an array of a module was also passed as another argument."""
        given = {id(leaf) for leaf in jax.tree.leaves(rest)}
        for path, leaf in zip(binding.paths, leaves, strict=True):
            if self._donate and id(leaf) in given:
                raise ArgumentError(
                    f"{self._name} was given the array {'.'.join(map(str, path[1:]))} of a module "
                    "as another argument too, and its memory goes to the module's new arrays. Give "
                    f"a copy, jnp.copy(…), or compile with nx.jit({self._name}, donate=False)."
                ) from error

    def _inside_of_a_trace(self, binding: Binding, static: Any, rest: list[Any]) -> Any:
        """Return the result inside a function that JAX traces (``jax.grad``, ``jax.vmap``).

        Nothing is donated: the outer function may need the arrays. Only arrays that change are
        written, and no tracer is written into a module from outside of the trace.
        """
        leaves = binding.read()
        out, changed = self._part(static, leaves, binding.constants, rest)
        for place, new in changed.items():
            if isinstance(new, Tracer) and not isinstance(leaves[place], Tracer):
                path = ".".join(map(str, binding.paths[place][1:]))
                raise ArgumentError(
                    f"{self._name} changes {path} of a module, and was called inside of a "
                    "function that JAX traces (jax.jit, jax.grad, jax.vmap, jax.lax.scan) and that "
                    "was not given the module: its new arrays would be lost. Use nx.jit or nx.grad "
                    "and pass the module as an argument, or module.eval() if it should not change."
                )
            leaves[place] = new
        binding.write(leaves)
        return out

    def _fixed(
        self, everything: list[Any], num_args: int, named: Iterable[str]
    ) -> tuple[tuple[int, Constant], ...]:
        """Return the position and value of each static argument; a module is never static."""
        named = tuple(named)
        places = self._jit_info.places(num_args, named)
        for place in places:
            if not is_module(everything[place]):
                label = labels(self._function, num_args, named)[place]
                check_static(self._name, label, everything[place])
        fixed = [i for i in places if not is_module(everything[i])]
        return tuple([(i, self._constants.of(everything[i])) for i in fixed])

    def _made_static(self, label: str) -> str:
        how = f'static_argnames="{label}"'
        if not label.isidentifier():
            how = f"static_argnums={label.rpartition(' ')[2]}"
        return f"Make it static: nx.jit({self._name}, {how})."

    def _described(
        self,
        everything: list[Any],
        rest: list[Any],
        fixed: Any,
        num_args: int,
        named: Iterable[str],
    ) -> dict[str, Any]:
        told = [*map(described, everything, rest)]
        for place, value in fixed:
            told[place] = Fixed(value.value)
        return dict(zip(labels(self._function, num_args, named), told, strict=True))

    def _announce(self, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Report the first call to the hooks; of a ``multi_step``, report a single step."""
        single = self
        if self._steps is not None:
            single = CompiledFunction(
                self._function, donate=self._donate, steps=None, static=self._jit_info
            )
            args = (*args[:-1], jax.tree.map(lambda x: x[0], args[-1]))
        hooks.first_call(functools.partial(single, **named) if named else single, args)

    def _with_batches(self, args: tuple[Any, ...], steps: int) -> tuple[Any, ...]:
        if not args or not isinstance(args[-1], Iterator):
            raise ArgumentTypeError(
                f"multi_step({self._name}): the last argument must be an iterator of batches, got "
                f"{type(args[-1]).__name__ if args else 'no argument'}. Pass iter(dataset)."
            )
        return (*args[:-1], stacked(args[-1], steps))

    def _prepare(self, binding: Binding, rest: list[Any]) -> None:
        """Move the arrays of modules to the devices and the mesh of the other arguments."""
        binding.check_held()
        strategy = get_strategy()
        mesh = mesh_of(rest) or mesh_of(binding.read())
        if mesh is not None:
            binding.sharding = replicated(mesh)
        elif strategy is not None and strategy.num_replicas_in_sync > 1:
            binding.sharding = replicated(strategy.mesh)
        else:
            binding.sharding = _committed_to(binding.read()) or _committed_to(rest)
        leaves = binding.read_apart()
        for index, leaf in enumerate(leaves):
            if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
                continue
            if getattr(leaf, "weak_type", False):  # a step returns it as strong
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
        structure, positions, num_args, names, sharding, fixed, taken, shardings = static
        modules = structure.rebuild(leaves, constants)
        everything = list(rest) if taken is None else taken.back(jax.tree.leaves(rest))
        for position, module in zip(positions, modules, strict=True):
            everything[position] = module
        for place, value in fixed:
            everything[place] = value.value
        named = dict(zip(names, everything[num_args:], strict=True))
        with known_mesh(sharding), known_arg_shardings(rest, shardings):
            out = self._function(*everything[:num_args], **named)
        after = structure.leaves_of(modules)
        if after is None:
            raise RecompilationError(
                f"{self._name} changes the structure of a module: it adds or removes a layer, a "
                "variable or an attribute (train() and eval() do, too). Do that outside of the "
                "compiled function; it is then compiled anew at its next call."
            )
        return out, after

    def _scanned(
        self,
        static: Any,
        leaves: list[Any],
        constants: list[Any],
        rest: list[Any],
    ) -> tuple[Any, list[Any]]:
        last = static[2] - 1  # the batch is the last argument by position
        *others, shardings = static
        before = len(jax.tree.leaves(rest[:last]))
        after_batch = before + len(jax.tree.leaves(rest[last]))
        of_batch = of_each_step(shardings[before:after_batch])
        of_step = (*shardings[:before], *of_batch, *shardings[after_batch:])
        static = (*others, of_step)

        def body(leaves: list[Any], batch: Any) -> tuple[list[Any], Any]:
            single = [*rest[:last], batch, *rest[last + 1 :]]
            out, after = self._once(static, leaves, constants, single)
            return [_as_before(new, old) for new, old in zip(after, leaves, strict=True)], out

        after, out = jax.lax.scan(body, leaves, rest[last], length=self._steps)
        return out, after


def _explained(transform: F) -> F:
    """Wrap ``nnx.grad`` or ``nnx.value_and_grad``: explain a change of a captured module."""

    @functools.wraps(transform)
    def made(*function: Any, **options: Any) -> Any:
        if not function and "f" not in options:
            return lambda function: made(function, **options)
        given = function[0] if function else options["f"]
        if not callable(given):
            raise ArgumentTypeError(
                f"nx.{transform.__name__}: expected a function, got {type(given).__name__}."
            )
        gradient, name = transform(*function, **options), name_of(given)

        @functools.wraps(gradient)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return gradient(*args, **kwargs)
            except TraceContextError as error:
                raise ArgumentError(
                    f"{name} changes a module that it was not given, which nx.{transform.__name__} "
                    "cannot keep: the random numbers of Dropout or of an nnx.Rngs, say, or the "
                    f"statistics of BatchNorm. Make it a further argument of {name}, after those "
                    "that gradients are taken of; draw before; or call module.eval()."
                ) from error

        return call

    return cast(F, made)


grad = _explained(nnx.grad)
value_and_grad = _explained(nnx.value_and_grad)


class BoundFunction(functools.partial):
    """A compiled function whose first arguments, modules, are bound."""

    @property
    def compilations(self) -> int:
        """Number of programs that were compiled."""
        return self.func.compilations


@overload
def jit(
    function: Callable[P, R],
    *,
    donate: bool = True,
    static_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
) -> JitFunction[P, R]: ...
@overload
def jit(
    function: None = None,
    *,
    donate: bool = True,
    static_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
) -> Callable[[Callable[P, R]], JitFunction[P, R]]: ...
@answers(OF_JIT)
def jit(
    function: Callable[..., Any] | None = None,
    *,
    donate: bool = True,
    static_argnames: str | Iterable[str] | None = None,
    static_argnums: int | Sequence[int] | None = None,
) -> Any:
    """Compile a function that takes modules, optimizers, metrics and arrays.

    Modules are updated in place, as by ``nnx.jit``, at a fraction of its cost per call: the module
    graph is walked at the first call, and again after an attribute was set. Pass each module as an
    argument, not inside a tuple or a dict, and not captured by closure.

    Functions, strings, enums, dtypes and dataclasses of these are static wherever they are in the
    arguments: each value compiles a program. They are compared by what they compute: a lambda with
    the same code and closure reuses the program, as do a rebuilt model and a rebuilt optimizer.

    Args:
        function: a function, a module, its method, or a ``functools.partial`` with modules. Leave
            it out in a decorator with options, ``@nx.jit(donate=False)``.
        donate: reuse the memory of the modules' arrays for the results, so that a step needs no
            second copy. The call deletes arrays that were read from a module before it.
        static_argnames: parameters whose values the function needs while it is traced, for an
            ``if`` or a shape. Values must be hashable; each compiles a program.
        static_argnums: the same by position, from 0; one of the two is enough.

    Raises:
        RecompilationError: at the call, the function changes a module's structure.
        ArgumentError: ``function`` has no such static parameter; or, at the first call, it captures
            a module by closure.
        ArgumentTypeError: an option does not exist; or, at the call, a module is inside a tuple or
            a dict, an argument is neither an array nor static, or the value of an array is needed.

    Example:
        >>> from neurenix import nn
        >>> import numpy as np
        >>> model = nn.Linear(2, 1)
        >>> forward = nx.jit(lambda model, x: model(x))
        >>> forward(model, np.ones((3, 2), "float32")).shape
        (3, 1)
        >>> nx.jit(model)(np.ones((3, 2), "float32")).shape
        (3, 1)
    """
    if function is None:
        return functools.partial(
            jit, donate=donate, static_argnames=static_argnames, static_argnums=static_argnums
        )
    if not callable(function):
        raise ArgumentTypeError(f"nx.jit: expected a function, got {type(function).__name__}.")
    plain, modules = lifted(function)
    static = static_of(plain, static_argnames, static_argnums, skipped=len(modules))
    compiled = CompiledFunction(plain, donate=donate, steps=None, static=static)
    return BoundFunction(compiled, *modules) if modules else compiled


def multi_step(step: Callable[..., Any], *, steps: int) -> JitFunction[..., Any]:
    """Return a function that runs ``steps`` steps in one compiled call, a ``lax.scan``.

    Its last argument is an iterator of batches in place of the batch of ``step``. Each call takes
    ``steps`` batches, stacks them, and moves them to the device at once. The results of the steps
    are stacked. The weights equal those of single calls: bit for bit where XLA compiles the body of
    the loop like the single step, else within float32 rounding.

    Args:
        step: a function whose last argument is a batch, jitted by ``nx.jit`` or not. Static
            arguments and donation of ``nx.jit`` are kept.
        steps: the number of steps in one call.

    Raises:
        ArgumentError: ``steps`` is not a positive integer.
    """
    steps = whole_number("multi_step: steps", steps)
    plain, modules = lifted(step)
    if isinstance(plain, CompiledFunction):
        many = CompiledFunction(
            plain._function, donate=plain._donate, steps=steps, static=plain._jit_info
        )
    else:
        many = CompiledFunction(plain, donate=True, steps=steps)
    return cast(JitFunction[..., Any], BoundFunction(many, *modules) if modules else many)


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

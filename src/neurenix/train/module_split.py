"""A module split once into its structure, its parameters and its other state, and its call.

Owns the order of a module's leaves for training, and how inputs and the mode are passed to it. Does
not own the training state as a whole (``step.py``).
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from neurenix._core.errors import ArgumentError, ArgumentTypeError, RecompilationError
from neurenix._jit.flat_modules import Binding
from neurenix._jit.training_mode import MARK, give_mode, inputs_only, set_mode
from neurenix._nnx import nnx

Tree = Any
# Every other variable holds numbers of the model, trained or not.
_NO_WEIGHTS = (nnx.BatchStat, nnx.RngState)
_NONE = object()


class Frozen(nnx.Variable):
    """A parameter that is not trained.

    It is not an ``nnx.Param``, so ``fit``, ``nx.grad`` and optimizers do not change it. It is
    saved, loaded, moved and counted like one.
    """


class OtherState(NamedTuple):
    """The arrays of a module that are not trained.

    Attributes:
        fixed: nested dict, by attribute path, of weights such as frozen ones; they are sharded like
            parameters.
        rest: batch statistics, random streams, and plain arrays.
    """

    fixed: Tree
    rest: list[Any]


class ModuleSplit:
    """A module as two static structures (training, evaluation) and two trees of arrays.

    ``parameters`` is a nested dict by attribute path, as optax masks expect it; ``other`` is an
    ``OtherState`` of every other variable and of plain arrays.

    Args:
        module: any NNX module. Its mode (``train()`` or ``eval()``) is unchanged.
    """

    def __init__(self, module: nnx.Module) -> None:
        keys: dict[Any, Any] = {}
        self._name = type(module).__name__
        before = [(node, dict(vars(node))) for _, node in nnx.iter_graph(module)
                  if isinstance(node, nnx.Pytree)]  # fmt: skip
        _switch(module, training=False)
        evaluation = Binding((module,), keys)
        _switch(module, training=True)
        self._binding = Binding((module,), keys)
        self._training, self._evaluation = self._binding.structure, evaluation.structure
        for node, attributes in before:
            for name in [name for name in vars(node) if name not in attributes]:
                object.__delattr__(node, name)
            for name, value in attributes.items():
                if vars(node).get(name, _NONE) is not value:
                    object.__setattr__(node, name, value)
        self._binding.accept()  # bound in training mode, whatever the module's mode is
        self._paths = [path[1:] for path in self._binding.paths]
        self._is_parameter = [isinstance(v, nnx.Param) for v in self._binding.variables]
        self._is_weight = [not isinstance(v, _NO_WEIGHTS) for v in self._binding.variables]
        self._is_frozen = [isinstance(v, Frozen) for v in self._binding.variables]

    @property
    def name(self) -> str:
        """The name of the module's class."""
        return self._name

    def check_trainable(self) -> None:
        """Raise ArgumentError if the module has no parameters, which only training needs."""
        if not any(self._is_parameter):
            raise ArgumentError(
                f"{self._name} has no parameters (nnx.Param), so there is nothing to train. Build "
                "its layers in __init__ and keep them as attributes; unfreeze() what was frozen."
            )

    def is_current(self) -> bool:
        """Return whether the module's attributes are unchanged; cheaper than a new split."""
        return self._binding.is_current()

    def renew(self, other: ModuleSplit) -> None:
        """Take over the module's attributes from ``other``, a split of the same structure."""
        self._binding = other._binding

    def first_array(self) -> Any:
        """Return the array of a parameter, else another array of the module, else None."""
        variables = self._binding.variables
        if any(self._is_parameter):
            return variables[self._is_parameter.index(True)].get_raw_value()
        return next(iter([*self._binding.read(), *self._binding.constants]), None)

    def check_arrays(self) -> None:
        """Raise ArgumentError if the module is abstract, or its arrays were donated."""
        if isinstance(self.first_array(), jax.ShapeDtypeStruct):
            raise ArgumentError(
                "The module is abstract: it holds shapes and no arrays, so it can be given to "
                "nx.preflight and not trained or called. Build it with its arrays for that: "
                "nx.models.build(…) and not nx.models.abstract(…)."
            )
        self._binding.check_held()

    def same_structure(self, other: ModuleSplit) -> bool:
        """Return whether both are splits of the same module with the same structure."""
        mine, theirs = self._binding, other._binding
        return (
            self._training.same_as(other._training)
            and self._evaluation.same_as(other._evaluation)
            and len(mine.variables) == len(theirs.variables)
            and all(a is b for a, b in zip(mine.variables, theirs.variables, strict=True))
        )

    def same_parameters(self, other: ModuleSplit) -> bool:
        """Return whether an optimizer's state for one is valid for the other.

        It is if the parameters have the same paths and shapes.
        """
        return self._described() == other._described()

    def _described(self) -> list[Any]:
        held = zip(self._paths, self._binding.read(), self._is_parameter, strict=True)
        return [(path, leaf.shape) for path, leaf, counts in held if counts]

    def read(self, *, constants: OtherState | None = None) -> tuple[Tree, OtherState]:
        """Return the module's current parameters and other state.

        Args:
            constants: other state whose plain arrays are returned instead of the module's.
        """
        plain = self._binding.constants if constants is None else self._plain(constants)
        return self.divide(self._binding.read(), plain)

    def held(self) -> list[Any]:
        """Return the array of every variable; a variable that is set later holds another one."""
        return self._binding.read()

    def weights(self) -> Tree:
        """Return the parameters and the fixed weights as one tree by attribute path."""
        tree: dict[Any, Any] = {}
        for path, leaf, counts in zip(
            self._paths, self._binding.read(), self._is_weight, strict=True
        ):
            if counts:
                _insert(tree, path, leaf)
        return tree

    def write(self, parameters: Tree, other: OtherState) -> None:
        """Set the module's variables."""
        leaves, _ = self._joined(parameters, other)
        self._binding.write(leaves)

    def divide(self, leaves: list[Any], constants: list[Any]) -> tuple[Tree, OtherState]:
        """Return ``leaves``, in the order of the graph, as parameters and other state."""
        parameters: dict[Any, Any] = {}
        other = OtherState({}, [])
        for path, leaf, is_parameter, is_weight in zip(
            self._paths, leaves, self._is_parameter, self._is_weight, strict=True
        ):
            if is_weight:
                _insert(parameters if is_parameter else other.fixed, path, leaf)
            else:
                other.rest.append(leaf)
        other.rest.extend(constants)
        return parameters, other

    def build(self, parameters: Tree, other: OtherState, *, training: bool) -> Any:
        """Return a new module that holds these arrays (usually tracers)."""
        leaves, constants = self._joined(parameters, other)
        structure = self._training if training else self._evaluation
        return structure.rebuild(leaves, constants)[0]

    def with_frozen(self, other: OtherState, change: Callable[[Any], Any]) -> OtherState:
        """Return ``other`` with ``change`` applied to its frozen parameters only.

        Other weights, such as moving averages, keep their dtype.
        """
        fixed: dict[Any, Any] = {}
        for path, is_parameter, is_weight, is_frozen in zip(
            self._paths, self._is_parameter, self._is_weight, self._is_frozen, strict=True
        ):
            if is_weight and not is_parameter:
                leaf = _look_up(other.fixed, path)
                _insert(fixed, path, change(leaf) if is_frozen else leaf)
        return other._replace(fixed=fixed)

    def other_of(self, module: Any, used: OtherState, old: OtherState) -> OtherState:
        """Return the other state of a module of ``build`` after its call.

        Args:
            module: the module.
            used: the other state that it was built with.
            old: the same before casts; returned for arrays that the call has not changed.

        Raises:
            RecompilationError: computing changed the module's structure.
        """
        leaves = self._training.leaves_of((module,))
        if leaves is None:  # ``sow`` may have added intermediate values
            nnx.pop(module, nnx.Intermediate)
            leaves = self._training.leaves_of((module,))
        if leaves is None:
            raise RecompilationError(
                f"Calling {type(module).__name__} changed its structure: it adds or removes a "
                "variable or an attribute (a counter, a lazily built layer). Make "
                "all variables in __init__."
            )
        _, other = self.divide(leaves, self._plain(old))
        return jax.tree.map(_kept, other, used, old)

    def _plain(self, other: OtherState) -> list[Any]:
        """Return the plain arrays among ``other``, which come last."""
        return other.rest[len(other.rest) - len(self._binding.constants) :]

    def _joined(self, parameters: Tree, other: OtherState) -> tuple[list[Any], list[Any]]:
        rest = iter(other.rest)
        leaves = [
            _look_up(parameters if is_parameter else other.fixed, path) if is_weight else next(rest)
            for path, is_parameter, is_weight in zip(
                self._paths, self._is_parameter, self._is_weight, strict=True
            )
        ]
        return leaves, list(rest)


def _switch(module: Any, *, training: bool) -> None:
    (module.train if training else module.eval)()
    if not hasattr(type(module), MARK):  # of another library: it may contain modules of ours
        set_mode(module, training=training)


def _insert(tree: dict[Any, Any], path: tuple[Any, ...], leaf: Any) -> None:
    *parents, last = map(str, path)
    for key in parents:
        tree = tree.setdefault(key, {})
    tree[last] = leaf


def _look_up(tree: dict[Any, Any], path: tuple[Any, ...]) -> Any:
    for key in path:
        tree = tree[str(key)]
    return tree


def _kept(new: Any, used: Any, old: Any) -> Any:
    if new is used:
        return old
    if new.shape != old.shape:
        raise RecompilationError(
            f"Calling the model changes a variable of shape {old.shape} to one of {new.shape}. A "
            "step is compiled for one shape: make the variable as large as it will be in __init__."
        )
    return new if new.dtype == old.dtype else new.astype(old.dtype)


def expect_callable(module: Any) -> None:
    """Raise ArgumentTypeError unless the module has a method ``__call__``.

    For an ``nn.Module`` with ``forward`` or ``call`` instead, the lookup raises with a hint.
    """
    if getattr(module, "__call__", None) is None:  # noqa: B004  callable() would not look it up
        raise ArgumentTypeError(
            f"{type(module).__name__} cannot be called: give it a method __call__."
        )


def call(module: Any, x: Any, *, training: bool) -> Any:
    """Call a module: a tuple is its positional arguments, a dict its keyword arguments.

    Mode arguments (``training``, ``train``, ``deterministic``) are added unless the dict has them.

    Raises:
        ArgumentTypeError: the module takes other arguments, or cannot be called.
    """
    expect_callable(module)
    positional, named = (), {}
    if isinstance(x, dict):
        named = x
    else:
        positional = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    signature = inspect.signature(module)
    inputs = inputs_only(signature)
    names = [name for name in signature.parameters if name not in inputs.parameters]
    try:
        bound = inputs.bind(*positional, **{k: v for k, v in named.items() if k not in names})
    except TypeError as error:
        bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        takes = signature.replace(parameters=bare, return_annotation=signature.empty)
        given = f"inputs named {', '.join(named)}" if named else _counted(len(positional))
        raise ArgumentTypeError(
            f"The model is {type(module).__name__}{takes}, and a batch has {given}: {error}. "
            "Several inputs of a model are a tuple of arrays, in its order, or a dict by name."
        ) from error
    if not names:
        return module(*positional, **named)
    flags = {name: named[name] for name in names if name in named}
    whole = inspect.BoundArguments(signature, OrderedDict(bound.arguments | flags))
    give_mode(whole, names, training)
    return module(*whole.args, **whole.kwargs)


def _counted(inputs: int) -> str:
    return "one input" if inputs == 1 else f"{inputs} inputs"

"""Modules as flat lists of arrays, so that a compiled call does not walk the module graph.

``nnx.jit`` walks every module at every call. A :class:`Binding` walks once: it keeps the variables,
reads and writes their arrays at C speed, and checks that the structure is unchanged. Does not
compile or place arrays.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from operator import is_
from sys import getrefcount
from typing import Any

import jax
from jax.core import Tracer

from neurenix._core.errors import ArgumentError, ArgumentTypeError
from neurenix._jit.static_keys import Equal, static_keys
from neurenix._nnx import get_array, nnx, set_array

_END = object()
_ALONE = 3
"""References to an array that one variable holds: the variable's, a list's and the counter's."""


class Structure:
    """The static part of some modules; ``keys`` interns what it is compared by.

    ``jax.jit`` compares static arguments at every call, and comparing two graph definitions of a
    24-layer transformer costs more than the call. A trace uses the objects of its own modules,
    never those of earlier, equal modules.
    """

    def __init__(
        self,
        graphdef: Any,
        is_variable: tuple[bool, ...],
        contents: tuple[Any, ...],
        keys: dict[Any, Any],
    ) -> None:
        self.graphdef = graphdef
        self.is_variable = is_variable
        static = nnx.graph.Static
        others = [(name, isinstance(held, static) or held) for name, held in graphdef.attributes]
        values = [held.value for _, held in graphdef.attributes if isinstance(held, static)]
        # The graph definition has only the types of lists and the like, so contents are added
        static_parts = static_keys([*values, *contents])
        key = (Equal((*graphdef.nodes,)), *others, is_variable, *static_parts)
        self._key = keys.setdefault(key, key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and other._key is self._key

    def __hash__(self) -> int:
        return id(self._key)

    def same_as(self, other: Structure) -> bool:
        """Return whether the modules of both differ only in their arrays."""
        return self._key == other._key

    def rebuild(self, leaves: Sequence[Any], constants: Sequence[Any]) -> tuple[Any, ...]:
        """Return new modules that hold ``leaves`` (usually tracers)."""
        variables, arrays = iter(leaves), iter(constants)
        merged = [next(variables) if flag else next(arrays) for flag in self.is_variable]
        return nnx.graph.unflatten(self.graphdef, merged)

    def leaves_of(self, modules: tuple[Any, ...]) -> list[Any] | None:
        """Return the leaves of ``modules``, or None if their structure differs."""
        graphdef, flat = nnx.graph.flatten(modules)
        if graphdef != self.graphdef:
            return None
        return [get_array(leaf) for _, leaf in flat if isinstance(leaf, nnx.Variable)]


class Binding:
    """Some modules and the flat list of their variables.

    Args:
        modules: the modules.
        keys: of structures; those with a shared ``keys`` are equal if they are the same.

    Attributes:
        structure: the static part of the modules.
        variables: every variable once, in graph order.
        paths: the path of each variable; the first entry is the module's position.
        constants: arrays that are plain attributes, not variables. They are read-only.
        sharding: the sharding that the arrays were transferred to, or None.
    """

    def __init__(self, modules: tuple[Any, ...], keys: dict[Any, Any] | None = None) -> None:
        self.sharding: jax.sharding.Sharding | None = None
        graphdef, flat = nnx.graph.flatten(modules)
        flags = tuple(isinstance(leaf, nnx.Variable) for _, leaf in flat)
        nodes = [node for _, node in nnx.iter_graph(modules) if isinstance(node, nnx.Pytree)]
        attributes = [vars(node).values() for node in nodes]
        inside = [view for values in attributes for value in values for view in _inside(value)]
        leaves = {id(leaf) for _, leaf in flat}
        contents = tuple([tuple([_named(item, leaves) for item in view]) for view in inside])
        self.structure = Structure(graphdef, flags, contents, {} if keys is None else keys)
        self.variables = [leaf for _, leaf in flat if isinstance(leaf, nnx.Variable)]
        self.paths = [path for path, leaf in flat if isinstance(leaf, nnx.Variable)]
        self.constants = [leaf for _, leaf in flat if not isinstance(leaf, nnx.Variable)]
        self._views = [*attributes, *inside, (_END,)]
        self.accept()

    def accept(self) -> None:
        """Record the current attributes as those of the binding."""
        self._seen = list(chain.from_iterable(self._views))

    def is_current(self) -> bool:
        """Return whether all attributes are unchanged since binding (or ``accept``).

        Includes items of lists, sets and dicts and fields of dataclasses.
        """
        return all(map(is_, chain.from_iterable(self._views), self._seen))

    def read(self) -> list[Any]:
        """Return the array of every variable."""
        return list(map(get_array, self.variables))

    def read_apart(self) -> list[Any]:
        """Return the array of every variable, without duplicates.

        Two variables may hold the same array (for example a target network after an update). It
        can be donated once only, so the second variable gets a copy.
        """
        leaves = self.read()
        # Reference counts find duplicates without allocating memory, which would evict the call's
        # data from the CPU caches.
        return apart(leaves) if max(map(getrefcount, leaves), default=0) > _ALONE else leaves

    def check_held(self) -> None:
        """Raise if an array of the modules was donated by another module's step.

        Raises:
            ArgumentError: an array was donated.
        """
        for path, array in zip(self.paths, self.read(), strict=True):
            concrete = isinstance(array, jax.Array) and not isinstance(array, Tracer)
            if concrete and array.is_deleted():
                raise ArgumentError(
                    f"The array {'.'.join(map(str, path[1:]))} of a module is gone: a training "
                    "step of another module that held it too has reused its memory. nnx.clone, "
                    "nnx.split, nnx.merge and nnx.update share arrays with the original. Copy "
                    "them, with copy.deepcopy(module) or nnx.update(target, jax.tree.map(jnp.copy, "
                    "nnx.state(module))), before the step, or compile the step with "
                    "nx.jit(step, donate=False)."
                )

    def write(self, leaves: Sequence[Any]) -> None:
        """Set the array of every variable."""
        deque(map(set_array, self.variables, leaves), 0)

    def update(self, function: Callable[..., tuple[Any, Any]], *arguments: Any) -> Any:
        """Call ``function -> (out, leaves)``, write the leaves, and return ``out``.

        The call donates the old leaves, so the new ones are written even if Ctrl-C arrives during
        the call or the write.
        """
        results: list[tuple[Any, Any]] = []
        try:
            uninterrupted(results, function, arguments)
        finally:
            if results:
                try:
                    self.write(results[0][1])
                except BaseException:  # raised by a signal; re-raised after the write
                    self.write(results[0][1])
                    raise
        return results[0][0]


def _inside(value: Any) -> Iterator[Iterable[Any]]:
    """Yield live views of the items, recursively, of a value that can change in place.

    Modules are excluded; the graph contains them.
    """
    if isinstance(value, nnx.Pytree):
        return
    if isinstance(value, dict):
        yield value.keys()
        items: Iterable[Any] = value.values()
    elif isinstance(value, (list, set)):
        items = value
    elif dataclasses.is_dataclass(value) and type(value).__hash__ is None:
        items = vars(value).values()
    else:
        return
    yield items
    for item in items:
        yield from _inside(item)


def _named(item: Any, leaves: set[int]) -> Any:
    """Return the part of an item that a structure keeps.

    A structure outlives its modules (``jax.jit`` keeps it), so it must not hold their arrays. Only
    the type is kept of leaves, of modules and of nested containers.
    """
    if isinstance(item, tuple):
        return (type(item), *[_named(part, leaves) for part in item])
    own = isinstance(item, (dict, list, set, nnx.Pytree)) or type(item).__hash__ is None
    return type(item) if own or id(item) in leaves else item


def apart(leaves: list[Any]) -> list[Any]:
    """Replace every repeated array in ``leaves`` by a copy, and return ``leaves``."""
    if len(set(map(id, leaves))) != len(leaves):
        seen: set[int] = set()
        for index, leaf in enumerate(leaves):
            if id(leaf) in seen:
                leaves[index] = leaf.copy()
            seen.add(id(leaf))
    return leaves


def uninterrupted(results: list[Any], function: Callable[..., Any], arguments: Any) -> None:
    """Append the result of a call to ``results`` without a chance for Ctrl-C in between.

    Python handles signals between bytecode instructions only, and here there is none between the
    end of the call and the append.
    """
    results.extend(map(function, *((argument,) for argument in arguments)))


def is_module(value: Any) -> bool:
    """Return whether ``value`` is a module, an optimizer or a metric."""
    return isinstance(value, nnx.Pytree)


def is_modules(kind: type) -> bool:
    """Return whether objects of a class are modules, including those of ``flax.linen``."""
    of_linen = all(callable(getattr(kind, name, None)) for name in ("init", "apply", "bind"))
    return issubclass(kind, nnx.Pytree) or of_linen


def expect_built(value: Any) -> None:
    """Raise if ``value`` is a class instead of an object.

    Raises:
        ArgumentTypeError: ``value`` is a class.
    """
    if isinstance(value, type):
        name = value.__name__
        raise ArgumentTypeError(f"{name} is a class; build it first: {name}(…).")


def mesh_of(tree: Any) -> jax.sharding.Mesh | None:
    """Return the mesh of several devices that an array of ``tree`` is on, or None."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        mesh = getattr(sharding, "mesh", None)
        if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1:
            return mesh
    return None


class Bindings:
    """The bindings of one compiled function.

    A binding is dropped when any of its modules is deleted, because it holds the variables of all
    of them, and a model must not keep the moments of a deleted optimizer alive.
    """

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], Binding]] = {}
        self._keys: dict[Any, Any] = {}

    def of(self, modules: tuple[Any, ...]) -> tuple[Binding, bool]:
        """Return the binding of ``modules`` and whether it is new."""
        if not modules:
            return self._empty, False
        key = tuple(map(id, modules))
        known = self._by_identity.get(key)
        if known is not None and known[1].is_current():
            return known[1], False
        binding = Binding(modules, self._keys)
        forget = self._forgetting(key)
        self._by_identity[key] = [weakref.ref(module, forget) for module in modules], binding
        return binding, True

    def _forgetting(self, key: tuple[int, ...]) -> Callable[[Any], None]:
        """Return a callback that drops an entry and holds no reference to this object."""
        own = weakref.ref(self)

        def forget(_: Any) -> None:
            bindings = own()
            if bindings is not None:
                bindings._by_identity.pop(key, None)

        return forget

    @cached_property
    def _empty(self) -> Binding:
        return Binding((), self._keys)

"""Modules as flat lists of arrays, so that a compiled call pays no walk over the module graph.

``nnx.jit`` walks every module at every call. A :class:`Binding` walks once: it remembers the
variables, reads and writes their arrays at C speed, and checks cheaply that the structure is the
one it saw. It owns no compilation and no placement.
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
"""References to an array of one variable: the variable's, a list's, and those of who counts."""


class Structure:
    """The static part of some modules; two of one key are equal, and hashing is free.

    ``jax.jit`` compares static arguments at every call; comparing two graph definitions of a
    24-layer transformer costs more than the call. A program is traced with the objects of the
    modules that it is traced for, never with those of equal ones that were there before.
    """

    def __init__(
        self, graphdef: Any, is_variable: tuple[bool, ...], contents: tuple[Any, ...] = ()
    ) -> None:
        self.graphdef = graphdef
        self.is_variable = is_variable
        static = nnx.graph.Static
        others = [(name, isinstance(held, static) or held) for name, held in graphdef.attributes]
        values = [held.value for _, held in graphdef.attributes if isinstance(held, static)]
        # Of lists and the like, which the graph definition only names, the contents as well
        keys = static_keys([*values, *contents])
        self._key = (Equal((*graphdef.nodes,)), *others, is_variable, *keys)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Structure) and other._key is self._key

    def __hash__(self) -> int:
        return id(self._key)

    def same_as(self, other: Structure) -> bool:
        """Tell whether modules of both differ in nothing but their arrays."""
        return self._key == other._key

    def interned(self, known: dict[Any, Any]) -> Structure:
        """Return this structure, equal to all of its key that were interned in ``known``."""
        self._key = known.setdefault(self._key, self._key)
        return self

    def rebuild(self, leaves: Sequence[Any], constants: Sequence[Any]) -> tuple[Any, ...]:
        """Return modules of their own that hold ``leaves`` (tracers, usually)."""
        variables, arrays = iter(leaves), iter(constants)
        merged = [next(variables) if flag else next(arrays) for flag in self.is_variable]
        return nnx.graph.unflatten(self.graphdef, merged)

    def leaves_of(self, modules: tuple[Any, ...]) -> list[Any] | None:
        """Return the leaves of ``modules``, or None when their structure is another one."""
        graphdef, flat = nnx.graph.flatten(modules)
        if graphdef != self.graphdef:
            return None
        return [get_array(leaf) for _, leaf in flat if isinstance(leaf, nnx.Variable)]


class Structures:
    """The structures that were seen, by their keys."""

    def __init__(self) -> None:
        self._keys: dict[Any, Any] = {}

    def intern(self, found: Structure) -> Structure:
        """Return the structure, which is equal to those that are the same and were seen before."""
        return found.interned(self._keys)


class Binding:
    """Some modules, bound to their variables.

    Attributes:
        structure: what is static about the modules.
        variables: every variable once, in the order of the graph.
        paths: the path of each variable; the first entry is the module's position.
        constants: arrays that are plain attributes, not variables. They are read-only.
        sharding: where the arrays were put for the compiled call, if they were.
    """

    def __init__(self, modules: tuple[Any, ...], structures: Structures | None = None) -> None:
        self.sharding: jax.sharding.Sharding | None = None
        graphdef, flat = nnx.graph.flatten(modules)
        flags = tuple(isinstance(leaf, nnx.Variable) for _, leaf in flat)
        nodes = [node for _, node in nnx.iter_graph(modules) if isinstance(node, nnx.Pytree)]
        attributes = [vars(node).values() for node in nodes]
        inside = [view for values in attributes for value in values for view in _inside(value)]
        leaves = {id(leaf) for _, leaf in flat}
        contents = tuple([tuple([_named(item, leaves) for item in view]) for view in inside])
        self.structure = (structures or Structures()).intern(Structure(graphdef, flags, contents))
        self.variables = [leaf for _, leaf in flat if isinstance(leaf, nnx.Variable)]
        self.paths = [path for path, leaf in flat if isinstance(leaf, nnx.Variable)]
        self.constants = [leaf for _, leaf in flat if not isinstance(leaf, nnx.Variable)]
        self._views = [*attributes, *inside, (_END,)]
        self.accept()

    def accept(self) -> None:
        """Take the attributes as they are now for those of the binding."""
        self._seen = list(chain.from_iterable(self._views))

    def is_current(self) -> bool:
        """Tell whether no attribute was set, added or removed since binding (or ``accept``).

        Nor an item of a list, a set or a dict, or a field of a dataclass, that is an attribute.
        """
        return all(map(is_, chain.from_iterable(self._views), self._seen))

    def read(self) -> list[Any]:
        """Return the array of every variable."""
        return list(map(get_array, self.variables))

    def read_apart(self) -> list[Any]:
        """Return the array of every variable, each in a buffer of its own.

        Two variables may hold one array (a target network that was just updated, say); it can be
        given away once only, so the others get a copy.
        """
        leaves = self.read()
        # One that two variables hold is referred to by both, twice by the list, and by ``map``. To
        # look for one takes memory of its own, and with it what the call needs out of the caches.
        return apart(leaves) if max(map(getrefcount, leaves), default=0) > _ALONE else leaves

    def check_held(self) -> None:
        """Raise when an array was given away by a call that knew another holder of it.

        Raises:
            ArgumentError: so it was.
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

        The leaves are written even when Ctrl-C arrives during the call, which has given the old
        ones away, or before all of them are written.
        """
        results: list[tuple[Any, Any]] = []
        try:
            uninterrupted(results, function, arguments)
        finally:
            if results:
                try:
                    self.write(results[0][1])
                except BaseException:  # a signal's; it goes on when all are written
                    self.write(results[0][1])
                    raise
        return results[0][0]


def _inside(value: Any) -> Iterator[Iterable[Any]]:
    """Yield the items, and theirs, of a value that can change in place; as they are when read.

    Not those of a module, which is looked into by itself.
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
    """Return an item of a list or the like as it takes part in a structure.

    A structure outlives its modules (``jax.jit`` keeps it), so it must not hold their arrays: of
    what travels apart from it, or is looked into by itself, only the type is kept.
    """
    if isinstance(item, tuple):
        return (type(item), *[_named(part, leaves) for part in item])
    own = isinstance(item, (dict, list, set, nnx.Pytree)) or type(item).__hash__ is None
    return type(item) if own or id(item) in leaves else item


def apart(leaves: list[Any]) -> list[Any]:
    """Return ``leaves`` with a copy in place of every array that stands in it a second time."""
    if len(set(map(id, leaves))) != len(leaves):
        seen: set[int] = set()
        for index, leaf in enumerate(leaves):
            if id(leaf) in seen:
                leaves[index] = leaf.copy()
            seen.add(id(leaf))
    return leaves


def uninterrupted(results: list[Any], function: Callable[..., Any], arguments: Any) -> None:
    """Append the result of a call to ``results``, with no moment in between for a Ctrl-C.

    Python looks for signals between its own instructions only, and there is none here between the
    end of the call and the list's growth.
    """
    results.extend(map(function, *((argument,) for argument in arguments)))


def is_module(value: Any) -> bool:
    """Tell whether ``value`` is a module, an optimizer or a metric: an object with variables."""
    return isinstance(value, nnx.Pytree)


def is_modules(kind: type) -> bool:
    """Tell whether objects of a class are modules, those of ``flax.linen`` included."""
    of_linen = all(callable(getattr(kind, name, None)) for name in ("init", "apply", "bind"))
    return issubclass(kind, nnx.Pytree) or of_linen


def expect_built(value: Any) -> None:
    """Raise when ``value`` is a class where one of its objects belongs.

    Raises:
        ArgumentTypeError: it is.
    """
    if isinstance(value, type):
        name = value.__name__
        raise ArgumentTypeError(f"{name} is a class; build it first: {name}(…).")


def mesh_of(tree: Any) -> jax.sharding.Mesh | None:
    """Return the mesh of several devices that some array of ``tree`` is laid out on, if any."""
    for leaf in jax.tree.leaves(tree):
        sharding = getattr(leaf, "sharding", None)
        mesh = getattr(sharding, "mesh", None)
        if isinstance(mesh, jax.sharding.Mesh) and mesh.size > 1:
            return mesh
    return None


class Bindings:
    """The bindings that one compiled function has made.

    Each is forgotten when the first of its modules dies: it holds the variables of all of them, and
    a model that outlives its optimizers must not keep their moments.
    """

    def __init__(self) -> None:
        self._by_identity: dict[tuple[int, ...], tuple[list[weakref.ref[Any]], Binding]] = {}
        self._structures = Structures()

    def of(self, modules: tuple[Any, ...]) -> tuple[Binding, bool]:
        """Return the binding of ``modules`` and whether it was made just now."""
        if not modules:
            return self._empty, False
        key = tuple(map(id, modules))
        known = self._by_identity.get(key)
        if known is not None and known[1].is_current():
            return known[1], False
        binding = Binding(modules, self._structures)
        forget = self._forgetting(key)
        self._by_identity[key] = [weakref.ref(module, forget) for module in modules], binding
        return binding, True

    def _forgetting(self, key: tuple[int, ...]) -> Callable[[Any], None]:
        """Return what drops an entry, and holds nothing of this object."""
        own = weakref.ref(self)

        def forget(_: Any) -> None:
            bindings = own()
            if bindings is not None:
                bindings._by_identity.pop(key, None)

        return forget

    @cached_property
    def _empty(self) -> Binding:
        return Binding((), self._structures)

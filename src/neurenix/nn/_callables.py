"""What can be a layer of a container: a module, or a function without parameters of its own.

Owns the refusal of everything else that can be called: it would run, and never be trained, moved or
saved. Layers of other libraries are told by the module of their class; nothing is imported.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from neurenix._core.errors import ArgumentTypeError
from neurenix._core.libraries import library_of
from neurenix._jit.flat_modules import is_module
from neurenix._migration import layers

# Whose classes of callables hold no parameters: jitted functions, ufuncs, operator.itemgetter, …
_OF_FUNCTIONS = {"flax", "jax", "jaxlib", "neurenix", "numpy", *sys.stdlib_module_names}
_LIBRARIES = {
    "flax.linen": "Wrap it: nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x).",
    "keras": "",
    "tensorflow": "",
    "tf_keras": "",
    "torch": "",
}


def expect_layer(where: str, layer: Any) -> None:
    """Check that ``layer`` is a module, or a function.

    Args:
        where: what it is, such as ``"Layer 0 of Sequential"``.
        layer: what the container was given.

    Raises:
        ArgumentTypeError: it cannot be called, or is an object that may hold parameters of which
            Neurenix would not know.

    Example:
        >>> expect_layer("Layer 0 of Sequential", [abs])
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: Layer 0 of Sequential is a list: give the layers \
one by one, Sequential(*layers).
    """
    if is_module(layer):
        return
    if isinstance(layer, functools.partial):
        expect_layer(
            f"The function of the partial that is {where[0].lower()}{where[1:]}", layer.func
        )
        return
    kind = type(layer).__name__
    library = library_of(layer, _LIBRARIES)
    if library is not None:
        raise ArgumentTypeError(
            f"{where} is a {kind} of {library}: its weights would not be trained, moved or saved "
            f"here.{_instead(kind, library)}"
        )
    if isinstance(layer, list | tuple):
        raise ArgumentTypeError(
            f"{where} is a {kind}: give the layers one by one, Sequential(*layers)."
        )
    if isinstance(layer, type) or not callable(layer):
        hint = f" Construct it: {layer.__name__}(...)." if isinstance(layer, type) else ""
        raise ArgumentTypeError(f"{where} cannot be called: {layer!r}.{hint}")
    if type(layer).__module__.partition(".")[0] not in _OF_FUNCTIONS:
        raise ArgumentTypeError(
            f"{where} is a {kind}, which is no module: arrays in it would not be trained, moved or "
            f"saved. Derive {kind} from nn.Module; if it has none, give its method __call__."
        )


def _instead(kind: str, library: str) -> str:
    here = layers.LAYERS.get(kind)
    if library in ("keras", "tensorflow", "tf_keras") and here is not None:
        return f" Here that is {here}."
    return f" {_LIBRARIES[library] or 'Take the layer of neurenix.nn that does the same.'}"

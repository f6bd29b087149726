"""Check that an element of a container is a module or a function without parameters.

Other callables are rejected, because their parameters would not be trained, moved or saved. Layers
of other libraries are recognised by the module of their class, without importing the library.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

from neurenix._core.errors import ArgumentTypeError
from neurenix._core.libraries import library_of
from neurenix._jit.flat_modules import is_module
from neurenix._migration import layers

# Packages whose callable classes hold no parameters: jitted functions, ufuncs, itemgetter, …
_OF_FUNCTIONS = {"flax", "jax", "jaxlib", "neurenix", "numpy", *sys.stdlib_module_names}
_LIBRARIES = {
    "flax.linen": "Wrap it: nnx.bridge.ToNNX(layer, rngs=nnx.Rngs(0)).lazy_init(x).",
    "keras": "",
    "tensorflow": "",
    "tf_keras": "",
    "torch": "",
}


def expect_layer(where: str, layer: Any) -> None:
    """Check that ``layer`` is a module or a function.

    Args:
        where: the position to name in the error, such as ``"Layer 0 of Sequential"``.
        layer: the value to check.

    Raises:
        ArgumentTypeError: ``layer`` is not callable, or is an object that may hold parameters
            Neurenix cannot find.

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
            f"{where} is a {kind}, which is not a module: arrays in it would not be trained, moved "
            f"or saved. Derive {kind} from nn.Module; if it has none, pass its method __call__."
        )


def _instead(kind: str, library: str) -> str:
    here = layers.LAYERS.get(kind)
    if library in ("keras", "tensorflow", "tf_keras") and here is not None:
        return f" Use {here} instead."
    return f" {_LIBRARIES[library] or 'Use the equivalent layer of neurenix.nn.'}"

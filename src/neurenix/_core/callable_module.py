"""Modules that can also be called: ``nx.device("cpu")`` beside ``neurenix.device.Device``.

``neurenix.device``, ``neurenix.preflight`` and ``neurenix.tensor`` use it in their last line.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def make_callable(module_name: str, function_name: str) -> None:
    """Make the module ``module_name`` callable; a call calls its function ``function_name``.

    The function is looked up at each call, so that a patched one is used.

    Args:
        module_name: name of a module that is imported, usually ``__name__``.
        function_name: name of a function in that module.

    Raises:
        AttributeError: the module has no such function.

    Example:
        >>> import sys, types
        >>> module = sys.modules["shout"] = types.ModuleType("shout")
        >>> module.loud = lambda text: text.upper() + "!"
        >>> make_callable("shout", "loud")
        >>> module("hello")
        'HELLO!'
    """
    module = sys.modules[module_name]
    function = getattr(module, function_name)

    class CallableModule(ModuleType):
        __doc__ = function.__doc__

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(self, function_name)(*args, **kwargs)

    module.__class__ = CallableModule

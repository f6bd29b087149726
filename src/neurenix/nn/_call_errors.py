"""Explain errors of JAX in the call of a layer in terms of the layer.

The causes: weights that another module's step has donated, weights and inputs on different devices,
tensors and arguments of another library, too little memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from neurenix._core.errors import ArgumentTypeError, NeurenixError
from neurenix._core.names import wrong_call
from neurenix._jit.flat_modules import Binding
from neurenix._jit.static_arguments import explain_devices, of_other_library
from neurenix._migration import layers
from neurenix._nnx import nnx
from neurenix.hardware.allocation import PROGRAM, out_of_memory


def cause(
    error: Exception, call: Callable[..., Any], args: tuple[Any, ...], named: Mapping[str, Any]
) -> NeurenixError | None:
    """Return the error to raise instead of ``error``, or None where nothing is known.

    Args:
        error: raised by ``call``.
        call: the ``__call__`` of a layer.
        args: the layer and its positional arguments.
        named: its keyword arguments.

    Returns:
        ArgumentError: an array of the layer was donated. OutOfMemoryError: there is less memory
        than its result takes. DeviceError: the layer and its inputs are on different devices.
        ArgumentTypeError: an input is a tensor of PyTorch or TensorFlow, or an argument is unknown.
    """
    if isinstance(error, NeurenixError):
        return None
    layer: nnx.Module = args[0]
    kind, text = type(layer).__name__, str(error)
    if (told := out_of_memory(error, f"A call of {kind} {PROGRAM}")) is not None:
        return told
    if isinstance(error, TypeError):
        known = layers.arguments_of(type(layer))
        told = wrong_call(f"A call of {kind}", call, args, named, known, word="argument")
        if told is not None:
            return told
    _, *bound = inspect.signature(call).bind(*args, **named).arguments.items()
    given = dict(bound)
    for label, value in given.items():
        if (library := of_other_library(value)) is not None:
            return ArgumentTypeError(
                f"{kind} takes arrays of JAX or NumPy; {label} is a {type(value).__name__} of "
                f"{library}. Write {label}.numpy()."
            )
    try:
        if "deleted" in text:
            Binding((layer,)).check_held()
        lying = {"its weights": nnx.state(layer), **given}
        explain_devices(error, kind, list(lying), list(lying.values()))
    except NeurenixError as told:
        return told
    return None


def no_container(module: Any, name: str, value: Any) -> ArgumentTypeError:
    """Build the error for a list or a dict of layers, which NNX would not look into."""
    kind, takes = ("ModuleDict", "{…}") if isinstance(value, dict) else ("ModuleList", "[…]")
    return ArgumentTypeError(
        f"{type(module).__name__}.{name} is a {type(value).__name__} that holds layers or arrays, "
        f"which would not be trained or saved. Write self.{name} = nn.{kind}({takes})."
    )


def not_called(name: str, module: Any) -> NoReturn:
    """Raise for a module that has PyTorch's or Keras's method of another name than ``__call__``."""
    kind = type(module).__name__
    raise ArgumentTypeError(
        f"{kind} has a method {name}, and a module is called by __call__: write "
        f"def __call__(self, …) in {kind} in place of def {name}(self, …)."
    )

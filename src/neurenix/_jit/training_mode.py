"""The mode of a module, training or evaluation, and the call arguments that set it.

Does not own ``train()`` and ``eval()`` (``neurenix.nn``).

The mode of a call is the first of these that is known:

1. the argument of the call, if it is not None;
2. the argument of the enclosing call (as in Keras);
3. the mode that ``train()`` or ``eval()`` set; ``fit`` sets training, ``evaluate`` and ``predict``
   set evaluation.

If none is known, an argument keeps its default, as in a direct call of a new module.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ArgumentTypeError
from neurenix._nnx import nnx

Explain = Callable[
    [Exception, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Exception | None
]

# Arguments that set the mode, and their values in training.
_IN_TRAINING = {"training": True, "train": True, "deterministic": False}
MARK = "_training"  # attribute of a Module that train() and eval() set or remove
FROZEN = "_frozen"  # attribute of frozen layers
_TOLD = jax.make_user_context(None)  # part of the keys of JAX's caches of traced functions


@contextmanager
def _telling(module: nnx.Module, training: bool | None) -> Iterator[None]:
    """Set the mode of nested calls to that of a call of ``module``."""
    known = vars(module).get(MARK) if _TOLD.value is None else _TOLD.value
    if training is None or training is known:
        yield
        return
    with _TOLD(training):
        yield


def mode_of(module: Any) -> bool | None:
    """Return whether a module is in training mode, or None if unknown."""
    return vars(module).get(MARK) if _TOLD.value is None else _TOLD.value


def evaluates(layer: Any, own: bool | None) -> bool:
    """Return whether a layer is in evaluation mode.

    Args:
        layer: any layer; a frozen one ignores the mode of the enclosing call.
        own: the mode set by ``train()`` and ``eval()``.
    """
    if _TOLD.value is None or FROZEN in vars(layer):
        return bool(own)
    return not _TOLD.value


def set_mode(module: nnx.Module, *, training: bool) -> None:
    """Set the mode of ``module`` and of every module inside it.

    For a module whose call takes a mode argument, an unset mode differs from training. For any
    other module they are the same, so that one compiled program serves both. In training, frozen
    layers keep their running statistics.
    """
    for _, node in nnx.iter_graph(module):
        if training and FROZEN in getattr(node, "__dict__", ()):
            keep_statistics(node)
        if not hasattr(type(node), MARK):  # another library's, or not a module
            continue
        if not training or getattr(type(node).__call__, "takes_mode", False):
            object.__setattr__(node, MARK, training)
        elif MARK in vars(node):
            object.__delattr__(node, MARK)


def keep_statistics(layer: Any) -> None:
    """Make a frozen layer use its running statistics without updating them."""
    if hasattr(layer, "use_running_average"):
        layer.use_running_average = True


def arguments_of_mode(parameters: Iterable[inspect.Parameter]) -> tuple[str, ...]:
    """Return the names of the parameters that set the mode.

    Args:
        parameters: of a call, without ``self``.

    Example:
        >>> def call(x, *, training=False, deterministic=None): ...
        >>> arguments_of_mode(inspect.signature(call).parameters.values())
        ('training', 'deterministic')
    """
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return tuple(
        one.name
        for index, one in enumerate(parameters)
        if one.name in _IN_TRAINING
        and one.kind in by_name
        and (index > 0 or one.kind is one.KEYWORD_ONLY)  # the first parameter is the input
        and (one.default is one.empty or one.default is None or isinstance(one.default, bool))
    )


def inputs_only(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a bound call without the parameters that set the mode.

    Example:
        >>> print(inputs_only(inspect.signature(lambda x, training, mask=None: x)))
        (x, mask=None)
    """
    parameters = list(signature.parameters.values())
    left_out = arguments_of_mode(parameters)
    return signature.replace(parameters=[one for one in parameters if one.name not in left_out])


def give_mode(arguments: inspect.BoundArguments, names: Iterable[str], training: bool) -> None:
    """Set the mode arguments ``names`` of a call that are missing or None."""
    for name in names:
        if arguments.arguments.get(name) is None:
            arguments.arguments[name] = _IN_TRAINING[name] is training


def following_mode(
    call: Callable[..., Any], *, explain: Explain | None = None
) -> Callable[..., Any]:
    """Return a module's ``__call__`` with missing mode arguments filled in.

    The result accepts ``training=``, as in Keras. If ``call`` has no such parameter, the mode
    applies to the layers that it calls.

    Args:
        call: the ``__call__``.
        explain: returns the error to raise instead of one of ``call``, or None to keep it; takes
            the error, ``call``, its positional arguments (the module first) and its named ones.

    Raises:
        ArgumentTypeError: when called, if ``training`` is not True, False or None.
    """
    try:
        parameters = [*inspect.signature(call).parameters.values()][1:]
    except (TypeError, ValueError):  # not written in Python
        parameters = []
    names = arguments_of_mode(parameters)
    by_position = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
    own_training = any(one.name == "training" for one in parameters)

    @functools.wraps(call)
    def called(self: Any, *args: Any, **named: Any) -> Any:
        training = None
        if not own_training and "training" in named:
            training = _flag(self, named.pop("training"))
        if names:
            training, args = filled(self, training, args, named)
        try:
            if training is None:
                return call(self, *args, **named)
            with _telling(self, training):
                return call(self, *args, **named)
        except Exception as error:
            explained = explain and explain(error, call, (self, *args), named)
            if explained is None:
                raise
            raise explained from error

    def filled(
        module: Any, training: bool | None, args: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[bool | None, tuple[Any, ...]]:
        """Return the mode that the call sets, and its positional arguments; fill ``named``."""
        given = {**dict(zip(by_position, args, strict=False)), **named}
        values = {name: given[name] for name in names if given.get(name) is not None}
        if not all(map(_is_flag, values.values())):  # traced, for example: left to the module
            return None, args
        said = next((bool(v) is _IN_TRAINING[name] for name, v in values.items()), training)
        mode = mode_of(module) if said is None else said
        if mode is None:
            return None, args
        first = [
            _IN_TRAINING[name] is mode if name in names and value is None else value
            for name, value in zip(by_position, args, strict=False)
        ]
        for name in names:
            if given.get(name) is None and name not in by_position[: len(args)]:
                named[name] = _IN_TRAINING[name] is mode
        return said, (*first, *args[len(first) :])

    vars(called)["takes_mode"] = bool(names)
    return called


def _is_flag(value: Any) -> bool:
    return isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1))


def _flag(module: Any, value: Any) -> bool | None:
    if value is not None and not _is_flag(value):
        raise ArgumentTypeError(
            f"training={value!r} of a call of {type(module).__name__}: it is True, False or None."
        )
    return None if value is None else bool(value)

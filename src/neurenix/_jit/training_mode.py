"""Training or evaluation: the mode of a module, and the arguments of its call that say it.

Owns the names of such arguments, how one that is left out is given, and what a call that is given
one tells the calls inside of it. It does not own ``train()`` and ``eval()`` (``neurenix.nn``).

The mode of a call is the first of these that is known:

1. the argument itself, when it is given and not None;
2. the argument of the call around it that was given one (as in Keras);
3. what ``train()`` or ``eval()`` has set; ``fit`` sets training, ``evaluate`` and ``predict`` set
   evaluation.

Where none is known an argument keeps its default, as in a direct call of a new module.
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

# Each argument that says the mode, and its value in training.
_IN_TRAINING = {"training": True, "train": True, "deterministic": False}
MARK = "_training"  # the attribute of a module of ours that train() and eval() set or remove
FROZEN = "_frozen"  # the attribute of layers that were frozen
_TOLD = jax.make_user_context(None)  # part of the keys of JAX's caches of traced functions


@contextmanager
def _telling(module: nnx.Module, training: bool | None) -> Iterator[None]:
    """Tell the calls inside of one of ``module`` the mode that it was given."""
    known = vars(module).get(MARK) if _TOLD.value is None else _TOLD.value
    if training is None or training is known:
        yield
        return
    with _TOLD(training):
        yield


def mode_of(module: Any) -> bool | None:
    """Return whether a module trains, or None where nobody has said."""
    return vars(module).get(MARK) if _TOLD.value is None else _TOLD.value


def evaluates(layer: Any, own: bool | None) -> bool:
    """Return whether a layer computes as in evaluation.

    Args:
        layer: any layer; a frozen one does so whatever a call is told.
        own: what ``train()`` and ``eval()`` have set.
    """
    if _TOLD.value is None or FROZEN in vars(layer):
        return bool(own)
    return not _TOLD.value


def set_mode(module: nnx.Module, *, training: bool) -> None:
    """Set the mode of ``module``, and of every module inside of it, that keeps one.

    A module whose call takes an argument for the mode knows three states, any other module two: a
    new one is in training, and one compiled program serves it before and after ``eval()``.
    """
    for _, node in nnx.iter_graph(module):
        if not hasattr(type(node), MARK):  # of another library, or no module
            continue
        if not training or getattr(type(node).__call__, "takes_mode", False):
            object.__setattr__(node, MARK, training)
        elif MARK in vars(node):
            object.__delattr__(node, MARK)


def arguments_of_mode(parameters: Iterable[inspect.Parameter]) -> tuple[str, ...]:
    """Return which parameters say the mode: those of such a name that are no inputs.

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
        and (index > 0 or one.kind is one.KEYWORD_ONLY)  # the first one is the input
        and (one.default is one.empty or one.default is None or isinstance(one.default, bool))
    )


def inputs_only(signature: inspect.Signature) -> inspect.Signature:
    """Return the signature of a bound call without the arguments that say the mode.

    Example:
        >>> print(inputs_only(inspect.signature(lambda x, training, mask=None: x)))
        (x, mask=None)
    """
    parameters = list(signature.parameters.values())
    left_out = arguments_of_mode(parameters)
    return signature.replace(parameters=[one for one in parameters if one.name not in left_out])


def give_mode(arguments: inspect.BoundArguments, names: Iterable[str], training: bool) -> None:
    """Give a call its mode in those arguments called ``names`` that are left out, or None."""
    for name in names:
        if arguments.arguments.get(name) is None:
            arguments.arguments[name] = _IN_TRAINING[name] is training


def following_mode(call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the ``__call__`` of a module that is given its mode where a call leaves it out.

    Every such ``__call__`` takes ``training=``, as in Keras: where it has no such parameter, the
    layers that it calls compute in that mode.

    Raises:
        ArgumentTypeError: when called: ``training`` is not True, False or None.
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
        if not names:
            if training is None:
                return call(self, *args, **named)
            with _telling(self, training):
                return call(self, *args, **named)
        given = {**dict(zip(by_position, args, strict=False)), **named}
        values = {name: given[name] for name in names if given.get(name) is not None}
        if not all(map(_is_flag, values.values())):  # traced, for example: left to the module
            return call(self, *args, **named)
        said = next((bool(v) is _IN_TRAINING[name] for name, v in values.items()), training)
        mode = mode_of(self) if said is None else said
        if mode is None:
            return call(self, *args, **named)
        first = [
            _IN_TRAINING[name] is mode if name in names and value is None else value
            for name, value in zip(by_position, args, strict=False)
        ]
        for name in names:
            if given.get(name) is None and name not in by_position[: len(args)]:
                named[name] = _IN_TRAINING[name] is mode
        with _telling(self, said):
            return call(self, *first, *args[len(first) :], **named)

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

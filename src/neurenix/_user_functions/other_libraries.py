"""Reject losses and metrics of other libraries, and functions that take predictions first."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

from neurenix._core.errors import ArgumentTypeError
from neurenix._core.libraries import library_of

_LIBRARIES = frozenset("keras tf_keras tensorflow torch torchmetrics torcheval sklearn".split())
# Their functions accept JAX arrays.
_ALSO_OF_JAX = frozenset({"keras"})
# Names of the targets in optax, PyTorch, scikit-learn and users' code.
_TARGETS = frozenset(
    "y_true true label labels target targets log_targets ground_truth onehot one_hot".split()
)
_PREFIXES = ("", "Binary", "Multiclass", "Multilabel")


def refuse_foreign(what: str, value: Any, ours: Iterable[str]) -> None:
    """Raise if ``value`` is an object, a class or a function of another library.

    Called as a function, a Keras metric returns its accumulated value, and a PyTorch metric takes
    predictions first.

    Args:
        what: ``"loss"`` or ``"metric"``.
        value: the argument.
        ours: class names of ``neurenix.losses`` or ``neurenix.metrics``.

    Raises:
        ArgumentTypeError: ``value`` is another library's; the message names the equivalent class.
    """
    while isinstance(value, functools.partial):
        value = value.func
    library = _library_of(value)
    if library is None:
        return
    named = value if isinstance(value, type) else type(value)
    name = getattr(value, "__name__", named.__name__)
    known = {*ours}
    same = [name.removeprefix(prefix) for prefix in _PREFIXES]
    found = next((candidate for candidate in same if candidate in known), None)
    package = "losses" if what == "loss" else "metrics"
    instead = f"nx.{package}.{found}()" if found else f"a class of nx.{package}"
    raise ArgumentTypeError(
        f"The {what} {name} is of {library}, and a compiled step of JAX cannot call it. Give "
        f"{instead}, or a function (y_true, y_pred) of JAX operations; targets come first."
    )


def refuse_predictions_first(what: str, function: Any) -> None:
    """Raise if a function's parameter names show that it takes predictions first, as in optax.

    With targets first it would silently compute something else.

    Args:
        what: ``"loss"`` or ``"metric"``.
        function: the argument.

    Raises:
        ArgumentTypeError: predictions come first; the message shows the function to write.

    Example:
        >>> refuse_predictions_first("loss", lambda labels, logits: labels - logits)
    """
    try:
        names = [p.name for p in inspect.signature(function).parameters.values() if _is_place(p)]
    except (TypeError, ValueError):  # not written in Python
        return
    first, second = (*names, "", "")[:2]
    if second not in _TARGETS or first in _TARGETS:
        return
    name = getattr(function, "__name__", None) or "function"
    raise ArgumentTypeError(
        f"The {what} {name} takes ({first}, {second}), and is called with (y_true, y_pred): "
        f"targets come first. Give lambda y_true, y_pred: {name}(y_pred, y_true)."
    )


def _is_place(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)


def is_of_library(module: str) -> bool:
    """Return whether a module belongs to a library whose losses and metrics are rejected.

    Example:
        >>> is_of_library("keras.src.metrics"), is_of_library("my.metrics")
        (True, False)
    """
    return module.partition(".")[0] in _LIBRARIES


def _library_of(value: Any) -> str | None:
    if (library := library_of(value, _LIBRARIES)) is not None:
        return library
    root = str(getattr(value, "__module__", None)).partition(".")[0]
    return root if root in _LIBRARIES - _ALSO_OF_JAX else None

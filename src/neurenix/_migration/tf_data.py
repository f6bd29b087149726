"""Methods of ``tf.data.Dataset`` and their equivalents here, and ``map`` with several arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

from neurenix._core.errors import ArgumentTypeError, did_you_mean

_INSTEAD = {
    "as_numpy_iterator": "Iterating yields NumPy arrays: for batch in dataset.",
    "cache": "The arrays are in memory already: leave it out.",
    "concatenate": "Join the arrays: Dataset.from_arrays(np.concatenate([a, b])).",
    "enumerate": "Write enumerate(dataset).",
    "filter": "Choose the rows of the arrays: keep = y < 5; Dataset.from_arrays(x[keep], y[keep]).",
    "padded_batch": "Pad the rows to one length before Dataset.from_arrays.",
    "from_generator": (
        "fit() takes an iterable of batches as it is; arrays go into Dataset.from_arrays(x, y)."
    ),
    "from_tensor_slices": "Write Dataset.from_arrays(x, y).",
    "from_tensors": "Write Dataset.from_arrays(x, y): the first axis of each array is the rows.",
    "interleave": "Join the arrays: Dataset.from_arrays(np.concatenate([a, b])).shuffle(seed=0).",
    "prefetch": "fit() reads ahead by itself, and the arrays are in memory: leave it out.",
    "range": "Write Dataset.from_arrays(np.arange(count)).",
    "unbatch": "Leave batch() out.",
    "window": "Take windows of the array: np.lib.stride_tricks.sliding_window_view(x, size, 0).",
    "with_options": "There are none: leave it out.",
    "zip": "Give the arrays together: Dataset.from_arrays((a, b), y).",
}


def no_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a missing attribute of a dataset, with its equivalent.

    Example:
        >>> no_attribute("cache", ["map"])
        AttributeError("A Dataset has no 'cache'. The arrays are in memory already: leave it out.")
    """
    hint = f" {_INSTEAD[name]}" if name in _INSTEAD else did_you_mean(name, known)
    return AttributeError(f"A Dataset has no {name!r}.{hint}")


_OF_DATASETS = {*_INSTEAD, "batch", "map", "repeat", "shard", "shuffle", "skip", "take"}


def no_stream_attribute(name: str, known: Iterable[str]) -> AttributeError:
    """Return the error for a missing attribute of a stream, with its equivalent.

    Example:
        >>> str(no_stream_attribute("element_specs", ["element_spec"]))
        "A StreamDataset has no 'element_specs'. Did you mean 'element_spec'?"
    """
    hint = (
        " Its source says which batches come: write a generator that changes them, or put the "
        "arrays into Dataset.from_arrays(x, y)."
    )
    return AttributeError(
        f"A StreamDataset has no {name!r}."
        f"{hint if name in _OF_DATASETS else did_you_mean(name, known)}"
    )


class ToldOfClass(type):
    """Metaclass of ``Dataset`` that explains missing class methods."""

    if not TYPE_CHECKING:  # a type checker would take any attribute for one that exists

        def __getattr__(cls, name: str) -> NoReturn:
            raise no_attribute(name, [known for known in dir(cls) if known[0] != "_"])


def of_element(function: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return ``function`` as a function of one element.

    A function that does not accept a single argument, such as ``lambda x, y: …``, gets the parts of
    a tuple as separate arguments.

    Raises:
        ArgumentTypeError: ``function`` is not callable, or, when called, does not accept the number
            of parts.

    Example:
        >>> of_element(lambda x, y: (y, x))((1, 2)), of_element(lambda both: both[::-1])((1, 2))
        ((2, 1), (2, 1))
    """
    if not callable(function):
        raise ArgumentTypeError(f"map() takes a function, found {function!r}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin without a signature
        return function
    if _fits(signature, (None,)):
        return function

    def spread(element: Any) -> Any:
        parts = element if isinstance(element, tuple) else (element,)
        if not _fits(signature, parts):
            found = f"{len(parts)} parts" if isinstance(element, tuple) else "one part"
            name = getattr(function, "__name__", type(function).__name__)
            raise ArgumentTypeError(
                f"map(): {name}{signature} does not take an element of {found}. Write a function "
                "of one argument, the whole element, or of one for each part: lambda x, y: …"
            )
        return function(*parts)

    return spread


def _fits(signature: inspect.Signature, arguments: tuple[Any, ...]) -> bool:
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True

"""Errors for unknown names that suggest a similar name, or the name here of another library's.

Owns the ``AttributeError`` of packages and modules, the error of a call with unknown arguments, and
the search for similar names. Does not own the tables of other libraries' names
(``neurenix._migration``).
"""

from __future__ import annotations

import functools
import inspect
import re
from abc import ABCMeta
from collections.abc import Callable, Iterable, Mapping
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast

from neurenix._core.errors import ArgumentTypeError, one_of
from neurenix._core.output_encoding import plain

F = TypeVar("F", bound=Callable[..., Any])


class MissingAttributeError(AttributeError):
    """A missing attribute. The message is made on demand, because most are only probed for.

    Args:
        what: the owner, such as ``"module 'neurenix.nn'"``.
        name: the missing name.
        known: returns the existing names.
        elsewhere: from names of other libraries to their equivalents here, or a function that
            returns that.

    Example:
        >>> print(MissingAttributeError("'Net' object", "fitt", lambda: ["fit", "to"]))
        'Net' object has no attribute 'fitt'. Did you mean 'fit'?
    """

    def __init__(
        self,
        what: str,
        name: str,
        known: Callable[[], Iterable[str]],
        elsewhere: Mapping[str, str] | Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        # With obj, Python would add its own suggestion.
        super().__init__(name, name=name, obj=None)
        self._told = (what, name, known, elsewhere or {})

    def __str__(self) -> str:
        """Return the message with suggestions."""
        what, name, known, elsewhere = self._told
        elsewhere = elsewhere() if callable(elsewhere) else elsewhere
        return plain(f"{what} has no attribute {name!r}.{meant(name, known(), elsewhere)}")

    def __reduce__(self) -> Any:
        """Pickle as a plain AttributeError with the message."""
        return AttributeError, (str(self),)


def meant(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return a suggestion: the equivalent here, the same name in another case, or similar names.

    Example:
        >>> meant("Dense", ["Linear"], {"Dense": "nn.Linear"})
        ' Here that is nn.Linear.'
        >>> meant("Conv2D", ["Conv1d", "Conv2d"], {})
        " Did you mean 'Conv2d'?"
    """
    if name in elsewhere:
        return f" Here that is {elsewhere[name]}."
    known = [one for one in known if not one.startswith("_")]
    same = [one for one in known if _plain(one) == _plain(name)]
    return one_of(same or slips_of(name, known))


def slips_of(name: str, known: Iterable[str], *, shown: int = 3) -> list[str]:
    """Return the names that differ from ``name`` by typing errors, the nearest first.

    A typing error is a letter that is missing, added, wrong or swapped with the next. One is
    allowed, two in names of 8 letters or more, three in those of 14, and none between two names of
    three letters (``fit``, ``jit``). Case and underscores are ignored.

    Example:
        >>> slips_of("evalaute", ["evaluate", "absolute"]), slips_of("keras", ["zeros"])
        (['evaluate'], [])
    """
    asked, near = _plain(name), []
    for candidate in dict.fromkeys(known):
        letters = _plain(candidate)
        shorter = min(len(asked), len(letters))
        allowed = sum(shorter >= length for length in (3, 8, 14))
        if len(asked) == len(letters) == 3:
            allowed = 0
        slips = _slips(asked, letters, allowed)
        if slips <= allowed:
            near.append((slips, -SequenceMatcher(None, name, candidate).ratio(), candidate))
    return [candidate for *_, candidate in sorted(near)[:shown]]


def _slips(a: str, b: str, most: int) -> int:
    """Return the Damerau–Levenshtein distance (optimal string alignment), or more than ``most``."""
    if abs(len(a) - len(b)) > most:
        return most + 1
    before, row = [], list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        earlier, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            least = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and y == a[i - 2]:
                least = min(least, earlier[j - 2] + 1)
            row.append(least)
    return row[-1]


def names_of(
    package: str, known: Iterable[str], elsewhere: Mapping[str, str]
) -> Callable[[str], NoReturn]:
    """Return the ``__getattr__`` of a package (:pep:`562`).

    Args:
        package: its name.
        known: its names.
        elsewhere: from names of other libraries to their equivalents here.

    Raises:
        AttributeError: when called.
    """

    def absent(name: str) -> NoReturn:
        raise MissingAttributeError(f"module {package!r}", name, lambda: known, elsewhere)

    return absent


class ExplainedMeta(ABCMeta):
    """Metaclass that explains constructor calls with invalid options.

    A call that succeeds pays for one Python frame. A wrapper of ``__init__`` would not work, since
    ``dataclass`` adds ``__init__`` after the class is created.
    """

    def options_elsewhere(cls) -> Mapping[str, str] | None:
        """Return the table of other libraries' options, or None to keep Python's errors."""
        return getattr(cls, "migration_options", {})

    if not TYPE_CHECKING:  # a type checker reads the signature of __init__

        @property
        def __signature__(cls) -> inspect.Signature:
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=[*signature.parameters.values()][1:])

        def __call__(cls, *args: Any, **options: Any) -> Any:
            """Create an object.

            Raises:
                ArgumentTypeError: unknown option, too many arguments or too few.
            """
            try:
                return super().__call__(*args, **options)
            except TypeError:
                elsewhere = cls.options_elsewhere()
                if elsewhere is None or cls.__init__ is object.__init__:
                    raise
                what = f"{cls.__name__}()"
                told = wrong_call(what, cls.__init__, (None, *args), options, elsewhere)
                if told is None:
                    raise
            raise told


class OptionsExplained(metaclass=ExplainedMeta):
    """Base of classes that explain constructor calls with invalid options.

    Attributes:
        migration_options: from options of other libraries to their equivalents here. A plain name
            is used only if it is an option of the class, so several classes may share a table.

    Raises:
        ArgumentTypeError: when called with an unknown option, too many arguments or too few.

    Example:
        >>> class Rate(OptionsExplained):
        ...     migration_options = {"lr": "value"}
        ...     def __init__(self, value): ...
        >>> Rate(lr=1)
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: Rate() has no option 'lr'. Here that is value. \
Options: value.
    """

    migration_options: ClassVar[Mapping[str, str]] = {}


def wrong_call(
    what: str,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    elsewhere: Mapping[str, str],
    *,
    word: str = "option",
) -> ArgumentTypeError | None:
    """Return the error of a call with invalid arguments, or None if the call is valid.

    Args:
        what: the start of the message.
        function: the called function; for a method, the plain function.
        args: positional arguments, including ``self``.
        options: keyword arguments.
        elsewhere: from arguments of other libraries to their equivalents here. A plain name is used
            only if it is a parameter of the function.
        word: the word for an argument in the message.

    Example:
        >>> def compile(model, *, loss): ...
        >>> told = {"criterion": "loss"}
        >>> print(wrong_call("compile()", compile, (1,), {"criterion": 2}, told))
        compile() has no option 'criterion'. Here that is loss. Options: model, loss.
    """
    signature = inspect.signature(function)
    known = signature.parameters.values()
    names = [one.name for one in known if one.kind not in _PACKED and one.name != "self"]
    listed = f"{word.capitalize()}s: {', '.join(names) or 'none'}."
    own = {o: here for o, here in elsewhere.items() if here in names or not here.isidentifier()}
    if not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known):
        for name in options:
            if name not in names:
                here = meant(name, names, own)
                return ArgumentTypeError(f"{what} has no {word} {name!r}.{here} {listed}")
    try:
        signature.bind(*args, **options)
    except TypeError as error:
        return ArgumentTypeError(f"{what}: {error}. {listed}")
    return None


def answers(elsewhere: Mapping[str, str]) -> Callable[[F], F]:
    """Return a decorator that explains calls with arguments of another library.

    A call that succeeds pays for one Python frame.

    Args:
        elsewhere: from arguments of other libraries to their equivalents here.

    Raises:
        ArgumentTypeError: when the function is called with invalid arguments.

    Example:
        >>> @answers({"lr": "rate"})
        ... def train(rate): ...
        >>> train(lr=1)
        Traceback (most recent call last):
            ...
        neurenix._core.errors.ArgumentTypeError: train() has no option 'lr'. Here that is rate. \
Options: rate.
    """

    def decorate(function: F) -> F:
        _, _, name = function.__qualname__.removesuffix(".__init__").rpartition(".")

        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Any:
            try:
                return function(*args, **options)
            except TypeError:
                told = wrong_call(f"{name}()", function, args, options, elsewhere)
                if told is None:
                    raise
            raise told

        return cast(F, call)

    return decorate


_PACKED = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def snake_case(name: str) -> str:
    """Return the name of a class in snake case, as in logs.

    Example:
        >>> snake_case("MeanSquaredError"), snake_case("KLDivergence")
        ('mean_squared_error', 'kl_divergence')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

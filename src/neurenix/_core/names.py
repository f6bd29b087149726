"""What a name that is not there may have been: a near one, or that of another library.

Owns the ``AttributeError`` of packages and modules, the error of a call that gives what there is
not, the search that their texts need, and the name that logs have for a class. It does not own the
tables of other libraries' names, which lie with the packages that have the thing.
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
    """An attribute that is not there. Its text is made when it is read: most are only probed for.

    Args:
        what: whose it would be, such as ``"module 'neurenix.nn'"``.
        name: what was asked for.
        known: called for the names that there are.
        elsewhere: from names of other libraries to what does the same here, or called for that.

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
        # Python would add a guess of its own, were it told the object.
        super().__init__(name, name=name, obj=None)
        self._told = (what, name, known, elsewhere or {})

    def __str__(self) -> str:
        """Return the text, with what was meant where that is known."""
        what, name, known, elsewhere = self._told
        elsewhere = elsewhere() if callable(elsewhere) else elsewhere
        return plain(f"{what} has no attribute {name!r}.{meant(name, known(), elsewhere)}")

    def __reduce__(self) -> Any:
        """Pickle as a plain AttributeError: what makes the text is not taken along."""
        return AttributeError, (str(self),)


def meant(name: str, known: Iterable[str], elsewhere: Mapping[str, str]) -> str:
    """Return what ``name`` was to be: what it is here, the same in other case, or near ones.

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
    """Return the names that a slip of the fingers makes ``name`` of, the nearest first.

    A slip is a letter that is missing, added, wrong or swapped with the next. There may be one, two
    in names of 8 letters or more, three in those of 14. Case and underscores do not count. What
    merely looks alike is not near, nor are two names of three letters (``fit``, ``jit``).

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
    """Count letters that are missing, added, wrong or swapped with the next; beyond ``most``, more.

    This is the distance of Damerau and Levenshtein, of strings of which no part changes twice.
    """
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
        known: the names that it has.
        elsewhere: from names of other libraries to what does the same here.

    Raises:
        AttributeError: when called, which is when a name is not there.
    """

    def absent(name: str) -> NoReturn:
        raise MissingAttributeError(f"module {package!r}", name, lambda: known, elsewhere)

    return absent


class ExplainedMeta(ABCMeta):
    """The metaclass of classes that name the right option in the error of a wrong one.

    A call that succeeds pays for one Python frame. Not a wrapper of ``__init__``, which
    ``dataclass`` writes after the class is made.
    """

    def options_elsewhere(cls) -> Mapping[str, str] | None:
        """Return what options of other libraries are here, or None to leave errors to Python."""
        return getattr(cls, "migration_options", {})

    if not TYPE_CHECKING:  # a type checker reads the signature of __init__

        @property
        def __signature__(cls) -> inspect.Signature:
            signature = inspect.signature(cls.__init__)
            return signature.replace(parameters=[*signature.parameters.values()][1:])

        def __call__(cls, *args: Any, **options: Any) -> Any:
            """Make an object.

            Raises:
                ArgumentTypeError: an unknown option, too many arguments or too few.
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
    """A class whose objects, made with an unknown option, name the right one.

    Attributes:
        migration_options: from options of other libraries to what does the same here. Where that
            is an option, it counts if the class has it: several classes may share a table.

    Raises:
        ArgumentTypeError: when it is called with an unknown option, too many arguments or too few.

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
    """Return the error of a call with arguments that a function does not take, else None.

    Args:
        what: is called, as the text begins.
        function: which is called, of a method the plain function.
        args: what is given by position, ``self`` of a method included.
        options: what is given by name.
        elsewhere: from arguments of other libraries to what does the same here. Where that is a
            name, it counts if the function has such a parameter.
        word: what the text calls an argument.

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
    """Return a decorator: a call with an argument of another library says what it is here.

    A call that the function takes costs nothing more than a Python frame.

    Args:
        elsewhere: from arguments of other libraries to what does the same here.

    Raises:
        ArgumentTypeError: when the function is called with arguments that it does not take.

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
    """Return the name of a class as logs have it.

    Example:
        >>> snake_case("MeanSquaredError"), snake_case("KLDivergence")
        ('mean_squared_error', 'kl_divergence')
    """
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

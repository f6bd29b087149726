"""Record how a compiled function was called, for an artefact.

Owns the positions of static arguments, names and modules, as data and checked against a call.
``neurenix.preflight.module_functions`` owns what is compiled; ``load_compiled`` runs it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ArgumentError, ArgumentTypeError, did_you_mean, differing_names
from neurenix._jit.flat_modules import Binding, is_module

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


@dataclass(frozen=True)
class Calling:
    """How a function was called when it was compiled.

    Attributes:
        arrays: number of traced arguments: trees of arrays, and modules.
        fixed: text of each static argument by its position; None if it has no unique text.
        names: the last of ``arrays`` that were passed by name.
        modules: positions among ``arrays`` of modules, optimizers and metrics. The program takes
            all of their arrays as its first argument and returns them as its second result.
        variables: path of each of these arrays, in order; the first number is that of the module.
    """

    arrays: int
    fixed: Mapping[int, str | None] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    modules: tuple[int, ...] = ()
    variables: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the call as JSON data."""
        return {
            "arguments": self.arrays + len(self.fixed),
            "fixed": {str(place): text for place, text in self.fixed.items()},
            "names": list(self.names),
            "modules": list(self.modules),
            "variables": list(self.variables),
        }

    @classmethod
    def of_json(cls, data: Any) -> Calling:
        """Return the call of ``as_json`` data.

        Raises:
            ValueError: the data does not describe a call.
        """
        fixed, count = data["fixed"], data["arguments"]
        lists = [data.get(key, []) for key in ("names", "modules", "variables")]
        forms = zip(lists, (str, int, str), strict=True)
        whole = (
            isinstance(fixed, dict)
            and type(count) is int
            and all(place.isdecimal() and int(place) < count for place in fixed)
            and {*map(type, fixed.values())} <= {str, type(None)}
            and all(type(found) is list and {*map(type, found)} <= {kind} for found, kind in forms)
            and len(lists[0]) <= count - len(fixed)
            and all(0 <= place < count - len(fixed) for place in lists[1])
        )
        if not whole:
            raise ValueError("not the description of a call")
        places = {int(place): text for place, text in fixed.items()}
        return cls(count - len(fixed), places, *map(tuple, lists))

    def traced(self, name: str, args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the traced arguments of a call, in order. Static arguments may be omitted.

        Args:
            name: of the program, for messages.
            args: positional arguments.
            named: keyword arguments.

        Raises:
            ArgumentTypeError: arguments differ in number, or in being positional or named, from
                those that the function was compiled with.
            ArgumentError: a static argument differs from the compiled one.
        """
        for given in named:
            if given not in self.names:
                by_name = f", and {', '.join(self.names)} by name" if self.names else ""
                raise ArgumentTypeError(
                    f"{name} was compiled with arguments by position{by_name}; {given!r} came by "
                    f"name.{did_you_mean(given, self.names)}"
                )
        if missing := [given for given in self.names if given not in named]:
            raise ArgumentTypeError(
                f"{name} was compiled with {', '.join(self.names)} by name; give "
                f"{', '.join(f'{given}=…' for given in missing)}."
            )
        everything = (*args, *(named[given] for given in self.names))
        if len(everything) != self.arrays + len(self.fixed):
            return everything  # static arguments were omitted, or the count is wrong
        for place, text in self.fixed.items():
            self._check_fixed(name, place, everything[place], text)
        return tuple(arg for place, arg in enumerate(everything) if place not in self.fixed)

    def _check_fixed(self, name: str, place: int, value: Any, text: str | None) -> None:
        given = fixed_text(value)
        if text is None:
            raise ArgumentError(
                f"Argument {place} of {name}, a {type(value).__name__}, is a part of the program, "
                "and its compiled value is unknown. Leave all static arguments out."
            )
        if given != text:
            given = given or f"another {type(value).__name__}"
            raise ArgumentError(
                f"Argument {place} of {name} is {given}, and the program was compiled for {text}, "
                f"which is a part of it. Give {text}, or compile it for {given}."
            )

    def shown(self, place: int) -> str:
        """Return the caller's position or name of a traced argument that is not a module.

        Args:
            place: position among the arguments that are not modules.

        Example:
            >>> Calling(4, names=("y",), modules=(0, 1)).shown(0), Calling(2, names=("y",)).shown(1)
            ('2', 'y')
        """
        own = [other for other in range(self.arrays) if other not in self.modules][place]
        by_name = own - (self.arrays - len(self.names))
        return self.names[by_name] if by_name >= 0 else str(own)

    def modules_of(self, name: str, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the modules among the traced arguments.

        Raises:
            ArgumentTypeError: the number of arguments differs, or one is not a module.
        """
        if len(arrays) != self.arrays:
            raise ArgumentTypeError(
                f"{name} takes {self.arrays} arguments, static ones not counted; got {len(arrays)}."
            )
        for place in self.modules:
            if not is_module(arrays[place]):
                raise ArgumentTypeError(
                    f"Argument {place} of {name} is a module, an optimizer or a metric, whose "
                    f"arrays the program takes and returns; got {type(arrays[place]).__name__}."
                )
        return tuple(arrays[place] for place in self.modules)

    def check_variables(self, name: str, binding: Binding) -> None:
        """Check that the modules hold the variables that the program was compiled with.

        Raises:
            ArgumentTypeError: they belong to another model.
        """
        found = variables_of(binding)
        if found == self.variables:
            return
        said = differing_names(self.variables, found) or "their variables are in another order"
        raise ArgumentTypeError(
            f"{name} was compiled with other modules: {said} (The first number of a path is that "
            "of the module.)"
        )


def variables_of(binding: Binding) -> tuple[str, ...]:
    """Return the paths of all variables of some modules."""
    return tuple(".".join(map(str, path)) for path in binding.paths)


def fixed_text(value: Any) -> str | None:
    """Return a text that identifies a static argument, the same in every process.

    Returns None for an object whose ``repr`` contains its address. A function's text is its name
    and a hash of its bytecode, which depends on the Python version; globals that the code uses are
    not included.

    Example:
        >>> fixed_text(4), fixed_text(("relu", True)), fixed_text(len), fixed_text(object())
        ('4', "('relu', True)", '<built-in function len>', None)
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, (str, bytes)):
        return repr(value)
    if isinstance(value, (tuple, frozenset)):
        parts = [fixed_text(part) for part in value]
        texts = [text for text in parts if text is not None]
        if len(texts) < len(parts):
            return None
        if isinstance(value, frozenset):  # its order differs between processes
            return f"frozenset({{{', '.join(sorted(texts))}}})"
        if type(value) is tuple:
            return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"
        return f"{type(value).__name__}({', '.join(texts)})"
    if isinstance(value, FunctionType):
        digest = _digest_of(value)
        return digest and f"<function {value.__name__} {digest}>"
    if type(value) in (type(jax.jit(len)), jax.custom_jvp, jax.custom_vjp):  # wrappers
        inner = fixed_text(value.__wrapped__)
        return inner and f"<{type(value).__name__} {inner}>"
    text = repr(value)
    return None if _ADDRESS.search(text) else text


def _digest_of(function: FunctionType) -> str | None:
    """Return a hash of a function's code, defaults and closure, or None."""
    named = tuple(sorted((function.__kwdefaults__ or {}).items()))
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        brought = fixed_text((function.__defaults__ or (), named, cells))
    except (RecursionError, ValueError):  # recursive, or an empty cell
        return None
    code = _text_of(function.__code__)
    if brought is None or code is None:
        return None
    return hashlib.sha256(f"{code} {brought}".encode()).hexdigest()[:12]


def _text_of(code: CodeType) -> str | None:
    parts = [
        _text_of(part) if isinstance(part, CodeType) else fixed_text(part)
        for part in code.co_consts
    ]
    if None in parts:
        return None
    return f"{code.co_code.hex()} {code.co_names} {parts}"

"""Every error that Neurenix raises, in one tree.

This module owns the classes and the way a message is worded; it does not own the catalogue that
explains XLA's and libtpu's texts (``neurenix.hardware.tpu_failures``).

::

    NeurenixError
    ├── DeviceError (RuntimeError)
    │   ├── DeviceNotFoundError         the device asked for is not on this machine
    │   ├── DeviceInitializationError   it is there, and cannot be used; the cause comes first
    │   └── SimulationError             a slice can no longer, or not like this, be simulated
    ├── ArgumentError (ValueError)
    │   ├── UnknownNameError            a name that nothing has; suggests near misses
    │   ├── ShapeError                  rank, channels, or sizes that do not go together
    │   └── DataError                   empty, ragged, mismatched or out-of-range data
    ├── ArgumentTypeError (TypeError)
    ├── NotCompiledError (RuntimeError)         fit, evaluate before compile
    ├── TrainingDivergedError (RuntimeError)    the loss is not finite
    ├── RecompilationError (RuntimeError)
    ├── CheckpointError (RuntimeError)          a file of weights that does not fit, or is damaged
    ├── ArtefactError (RuntimeError)            a compiled program's file: damaged, or of elsewhere
    ├── CompilationError (RuntimeError)         the TPU compiler refused, crashed or ran out of time
    │   └── OutOfMemoryError
    └── MissingExtraError (ImportError)         an optional package is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class NeurenixError(Exception):
    """Base of every error that Neurenix raises on purpose."""


class DeviceError(NeurenixError, RuntimeError):
    """Something about a device."""


class DeviceNotFoundError(DeviceError):
    """The device asked for is not on this machine."""


class DeviceInitializationError(DeviceError):
    """The device is there and cannot be used; the message names the cause."""


class SimulationError(DeviceError):
    """A slice can no longer, or not like this, be simulated in this process."""


class ArgumentError(NeurenixError, ValueError):
    """An argument has a value that cannot be used."""


class UnknownNameError(ArgumentError):
    """A name that nothing has."""


class ShapeError(ArgumentError):
    """Rank, channels or sizes that do not go together."""


class DataError(ArgumentError):
    """Data that is empty, ragged, mismatched or out of range."""


class ArgumentTypeError(NeurenixError, TypeError):
    """An argument is of a type that cannot be used."""


class NotCompiledError(NeurenixError, RuntimeError):
    """``fit`` or ``evaluate`` before ``compile``."""


class TrainingDivergedError(NeurenixError, RuntimeError):
    """The loss is not finite."""


class RecompilationError(NeurenixError, RuntimeError):
    """A compiled function changes its structure or shapes in a way that cannot be followed."""


class CheckpointError(NeurenixError, RuntimeError):
    """A file of weights that does not fit the model, or is damaged."""


class ArtefactError(NeurenixError, RuntimeError):
    """A file of a compiled program that is damaged, or was made for other versions or devices."""


class CompilationError(NeurenixError, RuntimeError):
    """The compiler refused the program, crashed, or ran out of time."""


class OutOfMemoryError(CompilationError):
    """The program needs more device memory than there is."""


class MissingExtraError(NeurenixError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f'Install it with: pip install "neurenix[{extra}]"'
        )


def did_you_mean(name: str, known: Iterable[str], *, shown: int = 3) -> str:
    """Return ``" Did you mean 'a' or 'b'?"``, or an empty string when nothing is near.

    Near is what a slip of the fingers makes: one letter, two in names of 8 letters or more, three
    in those of 14. Case and underscores do not count. What merely looks alike is not near, nor are
    two names of three letters (``fit``, ``jit``).

    Example:
        >>> did_you_mean("v5e-9", ["v5e-8", "v6e-8", "v4-8"])
        " Did you mean 'v5e-8'?"
        >>> did_you_mean("keras", ["zeros"])
        ''
    """
    asked = _letters(name)
    near = []
    for candidate in dict.fromkeys(known):
        letters = _letters(candidate)
        shorter = min(len(asked), len(letters))
        allowed = sum(shorter >= length for length in (3, 8, 14))
        if len(asked) == len(letters) == 3:
            allowed = 0
        slips = _slips(asked, letters, allowed)
        if slips <= allowed:
            near.append((slips, -difflib.SequenceMatcher(None, name, candidate).ratio(), candidate))
    if not near:
        return ""
    quoted = [repr(candidate) for *_, candidate in sorted(near)[:shown]]
    choices = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
    return f" Did you mean {choices}?"


def _letters(name: str) -> str:
    return name.replace("_", "").lower()


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


def differing_names(needed: Iterable[str], given: Iterable[str], *, shown: int = 3) -> str:
    """Return which names are missing and which are not known; nothing where they are the same.

    Example:
        >>> differing_names(["step", "loss"], ["stp", "loss"])
        "'step' is missing; 'stp' is not known. Did you mean 'step'?"
    """
    needed, given = list(needed), list(given)
    missing = [f"{name!r} is missing" for name in needed if name not in given]
    more = [f"{name!r} is not known.{did_you_mean(name, needed)}"
            for name in given if name not in needed]  # fmt: skip
    return "; ".join(missing[:shown] + more[:shown])


def unknown_name(what: str, name: str, known: Iterable[str]) -> UnknownNameError:
    """Build the error for a name that nothing has: what was asked, near misses, all that exists.

    Example:
        >>> str(unknown_name("metric", "acuracy", ["accuracy", "mse"]))
        "There is no metric named 'acuracy'. Did you mean 'accuracy'? Known: accuracy, mse."
    """
    names = sorted(known)
    return UnknownNameError(
        f"There is no {what} named {name!r}.{did_you_mean(name, names)} Known: {', '.join(names)}."
    )

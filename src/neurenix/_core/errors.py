"""Every error that Neurenix raises, in one tree.

This module owns the classes and the way a message is worded; it does not own the catalogue that
explains XLA's and libtpu's texts (``neurenix.hardware.tpu_failures``).

::

    NeurenixError
    ├── DeviceError (RuntimeError)
    │   ├── DeviceNotFoundError (ValueError)    the device asked for is not on this machine
    │   ├── DeviceInitializationError   it is there, and cannot be used; the cause comes first
    │   └── SimulationError             a slice can no longer, or not like this, be simulated
    ├── ArgumentError (ValueError)
    │   ├── UnknownNameError            a name that nothing has; suggests near misses
    │   ├── ShapeError                  rank, channels, or sizes that do not go together
    │   └── DataError                   empty, ragged, mismatched or out-of-range data
    ├── ArgumentTypeError (TypeError)
    ├── ConversionError (ValueError)            another framework's model that cannot be converted
    ├── NotCompiledError (RuntimeError)         fit, evaluate before compile
    ├── ModuleInUseError (RuntimeError)         another thread trains the module
    ├── TrainingDivergedError (RuntimeError)    the loss is not finite
    ├── RecompilationError (RuntimeError)
    ├── CheckpointError (RuntimeError)          a file of weights that does not fit, or is damaged
    ├── ArtefactError (RuntimeError)            a compiled program's file: damaged, or of elsewhere
    ├── CompilationError (RuntimeError)         the TPU compiler refused, crashed or ran out of time
    │   └── OutOfMemoryError
    ├── IncompatibleVersionError (ImportError)  jax, flax or libtpu lacks a name that is needed
    └── MissingExtraError (ImportError)         an optional package is not installed
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from neurenix._core.output_encoding import plain


class NeurenixError(Exception):
    """Base of every error that Neurenix raises on purpose."""

    def __str__(self) -> str:
        """Return the message, spelled so that the standard output can show it."""
        return plain(super().__str__())


class DeviceError(NeurenixError, RuntimeError):
    """Something about a device."""


class DeviceNotFoundError(DeviceError, ValueError):
    """The device asked for is not on this machine.

    Also a ``ValueError``, which is what ``TPUClusterResolver`` of ``tf.distribute`` raises where
    there is no TPU, and what programs that then go on without one expect.
    """


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


class ConversionError(NeurenixError, ValueError):
    """A model of another framework cannot be converted, or computes something else here."""


class NotCompiledError(NeurenixError, RuntimeError):
    """``fit`` or ``evaluate`` before ``compile``."""


class ModuleInUseError(NeurenixError, RuntimeError):
    """Another thread trains, or reads, the module that a call would train or read."""


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
    """An array, or a program, needs more memory than the device has."""


class IncompatibleVersionError(NeurenixError, ImportError):
    """The installed version of jax, flax or libtpu lacks an internal name that a feature needs."""


class MissingExtraError(NeurenixError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{purpose} needs the package {package!r}, which is not installed. "
            f'Install it with: pip install "neurenix[{extra}]"'
        )


def did_you_mean(name: str, known: Iterable[str], *, shown: int = 3) -> str:
    """Return ``" Did you mean 'a' or 'b'?"``, or an empty string when nothing is near.

    For short lists of names that say all that there is. Of attributes, which are many and may be
    those of another library, only slips are near: ``neurenix._core.names.meant``.

    Example:
        >>> did_you_mean("v5e-9", ["v5e-8", "v6e-8", "v4-8"])
        " Did you mean 'v5e-8' or 'v6e-8'?"
    """
    lowered = {candidate.lower(): candidate for candidate in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=shown, cutoff=0.6)
    return one_of([lowered[match] for match in near])


def one_of(near: Sequence[str]) -> str:
    """Return ``" Did you mean 'a' or 'b'?"`` of the names given; nothing of none.

    Example:
        >>> one_of(["fit"])
        " Did you mean 'fit'?"
    """
    if not near:
        return ""
    quoted = [repr(name) for name in near]
    choices = quoted[0] if len(quoted) == 1 else ", ".join(quoted[:-1]) + " or " + quoted[-1]
    return f" Did you mean {choices}?"


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

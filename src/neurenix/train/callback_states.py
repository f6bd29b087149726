"""The callbacks of ``fit``: their checks, and their states from one run to the next.

Owns which state belongs to which callback, and the warning for a callback that starts anew. Does
not own the content of a state (the callbacks) or its encoding (``state_encoding.py``).
"""

from __future__ import annotations

import json
import warnings
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from neurenix._core.errors import ArgumentTypeError, UnknownNameError, unknown_name
from neurenix.train.callback import Callback
from neurenix.train.callbacks import Monitor
from neurenix.train.state_encoding import packed, unpacked

_CHANGES = (list, dict, set, bytearray, deque, np.ndarray)  # while it stays the same object
_NO_CODE = (lambda: None).__code__


@dataclass
class Entry:
    """What one callback leaves to the one that goes on.

    Attributes:
        name: whose it is.
        state: what its ``state()`` returned; None where it has no such methods.
        changed: its attributes that training has changed, and no ``state()`` tells.
        missed: the epoch and the logs of an ``on_epoch_end`` that was still to come, or None.
        owner: the callback itself, where that is of this process.
    """

    name: str
    state: Any
    changed: list[str]
    missed: tuple[int, dict[str, Any]] | None
    owner: Callback | None = None


class CallbackStates:
    """The callbacks of the latest ``fit``, and the states that the next ones go on from.

    Attributes:
        callbacks: those of the latest ``fit``.
    """

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self._attributes: list[dict[str, Any]] = []  # as that fit found them
        self._waiting: list[Entry] | None = None
        self._earlier = False  # they are of a file without states
        self._ending: tuple[int, int, Mapping[str, Any]] | None = None

    def begin(self, callbacks: list[Callback], *, goes_on: bool) -> None:
        """Take the callbacks of a ``fit`` that begins.

        Args:
            callbacks: in the order in which they are called.
            goes_on: it goes on from the last one, unless from a file.
        """
        if self._waiting is None and goes_on:
            self._waiting, self._earlier = self._entries(), False
        self.callbacks, self._ending = callbacks, None
        self._attributes = [_attributes(callback) for callback in callbacks]

    def epoch_ends(self, number: int, epoch: int, logs: Mapping[str, Any]) -> None:
        """Note that a callback's ``on_epoch_end`` is called now; those after it are still to be."""
        self._ending = (number, epoch, logs)

    def epoch_ended(self) -> None:
        """Note that every ``on_epoch_end`` was called."""
        self._ending = None

    def hand_out(self) -> None:
        """Give the callbacks the states that wait for them, and make up for what they missed.

        A callback that has nothing to go on from, and should, is named in a warning.
        """
        if self._waiting is None:
            return
        waiting, self._waiting = self._waiting, None
        found, anew = [], []
        for callback in self.callbacks:
            name = _name(callback)
            entry = next((entry for entry in waiting if entry.name == name), None)
            if entry is not None:
                waiting.remove(entry)
                found.append((callback, entry))
                if entry.changed and entry.owner is not callback:
                    names = ", ".join(entry.changed)
                    anew.append(f"{name} (it has no state() and load_state() for {names})")
            elif _keeps_state(callback):
                kind = type(callback).__qualname__
                if self._earlier:
                    anew.append(f"{name} (an earlier version of Neurenix wrote the file)")
                elif any(other.name.split("(")[0] == kind for other in waiting):
                    anew.append(f"{name} (what was saved has watched another number)")
        found = [(c, entry) for c, entry in found if entry.state is not None and _keeps_state(c)]
        # What was put into the model last, by the last of them, is taken out of it first.
        for callback, entry in reversed(found):
            callback.load_state(entry.state)
        for callback, entry in found:
            if entry.missed is not None:
                callback.on_epoch_end(*entry.missed)
        if anew:
            warnings.warn(
                f"Training goes on, and these callbacks begin anew: {', '.join(anew)}.",
                UserWarning,
                stacklevel=5,
            )

    def pack(self) -> tuple[str, dict[str, Any]]:
        """Return what a file holds of the states: a text, and arrays by name.

        Raises:
            ArgumentTypeError: a state holds what no file does.
        """
        arrays: dict[str, Any] = {}
        entries = self._entries() if self._waiting is None else self._waiting
        texts = []
        for number, entry in enumerate(entries):
            name, where = str(number), f"{entry.name}.state()"
            text = {"name": entry.name, "changed": entry.changed}
            text["state"] = packed(entry.state, name, arrays, where=where)
            text["missed"] = packed(entry.missed, f"{name}.logs", arrays, where="The logs")
            texts.append(text)
        return json.dumps(texts), arrays

    def unpack(self, text: str | None, arrays: Mapping[str, Any]) -> None:
        """Take the states of a file for the next ``fit``, or the one that is running.

        Args:
            text: of ``pack``; None where the file was written before there were states.
            arrays: of ``pack``.
        """
        self._earlier = text is None
        self._waiting = [
            Entry(
                entry["name"],
                unpacked(entry["state"], arrays),
                entry["changed"],
                unpacked(entry["missed"], arrays),
            )
            for entry in json.loads(text or "[]")
        ]

    def _entries(self) -> list[Entry]:
        entries = []
        for number, callback in enumerate(self.callbacks):
            keeps = _keeps_state(callback)
            changed = _changed(self._attributes[number], callback)
            missed = None
            if keeps and self._ending is not None and number > self._ending[0]:
                missed = self._ending[1], dict(self._ending[2])
            state = callback.state() if keeps else None
            entries.append(Entry(_name(callback), state, changed, missed, callback))
        return entries


def _name(callback: Callback) -> str:
    """Return what a callback's state is found by: its class, and the number that it watches."""
    name = type(callback).__qualname__
    return f"{name}({callback.monitor})" if isinstance(callback, Monitor) else name


def _keeps_state(callback: Callback) -> bool:
    """Tell whether it has both methods; an attribute of such a name hides them."""
    kind, names = type(callback), ("state", "load_state")
    own = all(getattr(kind, name) is not getattr(Callback, name) for name in names)
    return own and all(callable(getattr(callback, name)) for name in names)


def _attributes(callback: Callback) -> dict[str, Any]:
    """Return the attributes of a callback, with a text of those that can change in place."""
    return {
        name: (value, repr(value) if isinstance(value, _CHANGES) else None)
        for name, value in vars(callback).items()
        if name != "trainer"
    }


def _changed(before: dict[str, Any], callback: Callback) -> list[str]:
    """Return the attributes that training has changed, but for those that ``state()`` tells.

    One of a class of ours tells those of its class; one of the user's is taken to tell all.
    """
    told: set[str] = set()
    if _keeps_state(callback):
        kind = type(callback)
        owner = next(base for base in kind.__mro__ if "state" in vars(base))
        if owner is kind or not owner.__module__.startswith("neurenix."):
            return []
        for base in owner.__mro__:
            told |= {*getattr(vars(base).get("__init__"), "__code__", _NO_CODE).co_names}
    return [
        name
        for name, (value, text) in _attributes(callback).items()
        if name not in told and not _same((value, text), before.get(name))
    ]


def _same(now: tuple[Any, Any], before: tuple[Any, Any] | None) -> bool:
    if before is None or now[1] != before[1]:
        return False
    plain = isinstance(now[0], (bool, int, float, str)) and type(now[0]) is type(before[0])
    return now[0] is before[0] or (plain and now[0] == before[0])


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return the callbacks that ``fit`` was given: None, one, or several.

    Raises:
        ArgumentTypeError: one of them is no callback.
    """
    if callbacks is None:
        return []
    if isinstance(callbacks, (Callback, type, str)) or not isinstance(callbacks, Iterable):
        callbacks = [callbacks]
    found = list(callbacks)
    for callback in found:
        if isinstance(callback, Callback):
            continue
        if isinstance(callback, type) and issubclass(callback, Callback):
            name = callback.__name__
            raise ArgumentTypeError(f"callbacks holds the class {name}. Construct it: {name}().")
        hint = "Derive its class from nx.callbacks.Callback"
        if callable(callback):
            hint = "A function goes into LambdaCallback(on_epoch_end=…)"
        raise ArgumentTypeError(f"callbacks holds {callback!r}, which is no Callback. {hint}.")
    return found


def check_watched(callbacks: list[Callback], log_names: Iterable[str], *, validated: bool) -> None:
    """Check that the logs will have what the callbacks watch, as far as it can be known.

    A callback of the user's may add numbers to the logs; with one of those nothing is checked
    here, and a number that is missing is an error after the first epoch.

    Raises:
        UnknownNameError: a callback watches what the logs will not have.
    """
    if any(_may_add_numbers(callback) for callback in callbacks):
        return
    names = list(log_names)
    known = names + [f"val_{name}" for name in names] if validated else names
    for callback in callbacks:
        for name in callback.watched():
            if name in known:
                continue
            error = unknown_name("number to monitor", name, known)
            hint = ""
            if name.startswith("val_") and not validated:
                hint = " Numbers of validation need validation_data."
            raise UnknownNameError(f"{type(callback).__name__}: {error}{hint}")


def _may_add_numbers(callback: Callback) -> bool:
    module = getattr(callback.on_epoch_end, "__module__", None) or ""
    return not module.startswith("neurenix.")

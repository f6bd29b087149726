"""The callbacks of ``fit``: their checks, and the transfer of their states to the next run.

Matches states to callbacks, and warns about a callback that starts without its state. Does not own
the content of a state (the callbacks) or its encoding (``state_encoding.py``).
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

_CHANGES = (list, dict, set, bytearray, deque, np.ndarray)  # mutable in place
_NO_CODE = (lambda: None).__code__


@dataclass
class Entry:
    """The state of one callback, for its successor in the next run.

    Attributes:
        name: of the callback.
        state: the result of its ``state()``; None if it has no such method.
        changed: attributes that training has changed and ``state()`` does not include.
        missed: the epoch and the logs of an ``on_epoch_end`` that was not called yet, or None.
        owner: the callback itself, if it is from this process.
    """

    name: str
    state: Any
    changed: list[str]
    missed: tuple[int, dict[str, Any]] | None
    owner: Callback | None = None


class CallbackStates:
    """The callbacks of the latest ``fit``, and the states from which the next ones continue.

    Attributes:
        callbacks: those of the latest ``fit``.
    """

    def __init__(self) -> None:
        self.callbacks: list[Callback] = []
        self._attributes: list[dict[str, Any]] = []  # of the callbacks, before that fit
        self._waiting: list[Entry] | None = None
        self._earlier = False  # loaded from a file without states
        self._ending: tuple[int, int, Mapping[str, Any]] | None = None

    def begin(self, callbacks: list[Callback], *, goes_on: bool) -> None:
        """Set the callbacks of a new ``fit``.

        Args:
            callbacks: in the order in which they are called.
            goes_on: whether ``fit`` continues from the last one, unless a file was loaded.
        """
        if self._waiting is None and goes_on:
            self._waiting, self._earlier = self._entries(), False
        self.callbacks, self._ending = callbacks, None
        self._attributes = [_attributes(callback) for callback in callbacks]

    def epoch_ends(self, number: int, epoch: int, logs: Mapping[str, Any]) -> None:
        """Record that ``on_epoch_end`` of callback ``number`` is called; later ones are pending."""
        self._ending = (number, epoch, logs)

    def epoch_ended(self) -> None:
        """Record that every ``on_epoch_end`` was called."""
        self._ending = None

    def hand_out(self) -> None:
        """Load pending states into the callbacks, and call the ``on_epoch_end`` that they missed.

        Warns about a callback that should continue and has no state.
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
        # The callback that changed the model last restores it first.
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
        """Return the states as a text and arrays by name, for a file.

        Raises:
            ArgumentTypeError: a state has a value of an unsupported type.
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
        """Set the states of a file for the next ``fit``, or the running one.

        Args:
            text: from ``pack``; None for a file of an old version, without states.
            arrays: from ``pack``.
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
    """Return the key of a callback's state: its class, and the number that it monitors."""
    name = type(callback).__qualname__
    return f"{name}({callback.monitor})" if isinstance(callback, Monitor) else name


def _keeps_state(callback: Callback) -> bool:
    """Return whether it overrides both methods; an attribute of such a name hides them."""
    kind, names = type(callback), ("state", "load_state")
    own = all(getattr(kind, name) is not getattr(Callback, name) for name in names)
    return own and all(callable(getattr(callback, name)) for name in names)


def _attributes(callback: Callback) -> dict[str, Any]:
    """Return the attributes of a callback, with the ``repr`` of mutable ones."""
    return {
        name: (value, repr(value) if isinstance(value, _CHANGES) else None)
        for name, value in vars(callback).items()
        if name != "trainer"
    }


def _changed(before: dict[str, Any], callback: Callback) -> list[str]:
    """Return the attributes that training has changed and ``state()`` does not include.

    A ``state()`` of Neurenix includes the attributes of its class, one of the user's all of them.
    """
    included: set[str] = set()
    if _keeps_state(callback):
        kind = type(callback)
        owner = next(base for base in kind.__mro__ if "state" in vars(base))
        if owner is kind or not owner.__module__.startswith("neurenix."):
            return []
        for base in owner.__mro__:
            included |= {*getattr(vars(base).get("__init__"), "__code__", _NO_CODE).co_names}
    return [
        name
        for name, (value, text) in _attributes(callback).items()
        if name not in included and not _same((value, text), before.get(name))
    ]


def _same(now: tuple[Any, Any], before: tuple[Any, Any] | None) -> bool:
    if before is None or now[1] != before[1]:
        return False
    plain = isinstance(now[0], (bool, int, float, str)) and type(now[0]) is type(before[0])
    return now[0] is before[0] or (plain and now[0] == before[0])


def as_callbacks(callbacks: Any) -> list[Callback]:
    """Return the argument ``callbacks`` of ``fit`` as a list: None, one, or several.

    Raises:
        ArgumentTypeError: one of them is not a callback.
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
    """Check that the logs will have the numbers that the callbacks monitor.

    A user's callback may add numbers to the logs. With such a callback nothing is checked here, and
    a missing number raises after the first epoch.

    Raises:
        UnknownNameError: a callback monitors a number that the logs will not have.
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

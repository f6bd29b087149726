"""What one look at the machine found of one kind of accelerator."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Availability:
    """Whether a kind of accelerator can be used, and what is missing if not.

    Attributes:
        count: devices that can be used; 0 if any part is missing.
        found: devices that are attached, usable or not.
        problem: what is missing, a sentence; empty when nothing is.
        fix: what to do about it, a sentence; empty when nothing need be done.
    """

    count: int
    found: int
    problem: str = ""
    fix: str = ""

    def __bool__(self) -> bool:
        return self.count > 0


def any_installed(*modules: str) -> bool:
    """Return whether one of the modules can be imported, without importing it.

    Example:
        >>> any_installed("no_such_module", "json")
        True
    """
    return any(importlib.util.find_spec(module) is not None for module in modules)

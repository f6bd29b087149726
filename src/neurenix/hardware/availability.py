"""The availability of one type of accelerator."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Availability:
    """Whether a type of accelerator can be used, and what is missing if not.

    Attributes:
        count: number of usable devices; 0 if anything is missing.
        found: number of attached devices, usable or not.
        problem: what is missing, as a sentence; empty if nothing is.
        fix: what to do about it, as a sentence; empty if nothing is missing.
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

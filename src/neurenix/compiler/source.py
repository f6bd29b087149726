"""Which files are the user's, so that a report can point at lines that the user can change.

Owns the decision by path; it reads no file.
"""

from __future__ import annotations

import sysconfig
from functools import cache
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1])
_ENTRANCE = "/neurenix/compiler/program.py"


@cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    return tuple({paths["stdlib"], paths["purelib"], paths["platlib"], _PACKAGE})


@cache
def is_library(path: str) -> bool:
    """Whether a file belongs to Python, an installed package or Neurenix.

    Example:
        >>> import os
        >>> is_library(os.__file__), is_library("/home/me/train.py")
        (True, False)
    """
    return (
        path.startswith(_libraries())
        or "/site-packages/" in path
        or "/dist-packages/" in path
        or path.startswith("<")
    )


def is_entrance(path: str) -> bool:
    """Whether a file is the one that calls the function being traced (``compiler.program``).

    Example:
        >>> is_entrance("/home/me/program.py")
        False
    """
    return path.endswith(_ENTRANCE)

"""Which files are the user's, so that a report can point at lines that the user can change.

Owns the decision by path; it reads no file.
"""

from __future__ import annotations

_ENTRANCE = "/neurenix/compiler/program.py"


def is_entrance(path: str) -> bool:
    """Whether a file is the one that calls the function being traced (``compiler.program``).

    Example:
        >>> is_entrance("/home/me/program.py")
        False
    """
    return path.endswith(_ENTRANCE)

"""Which files are the user's, so that a report can point at lines that the user can change.

Owns the decision by path; it reads no file.
"""

from __future__ import annotations

import re

_ENTRANCE = "/neurenix/compiler/program.py"
_ON_THE_WAY = re.compile(r"/neurenix/(_jax|compiler/(lowering|worker\w*))\.py$")


def is_entrance(path: str) -> bool:
    """Whether a file is the one that calls the function being traced (``compiler.program``).

    Example:
        >>> is_entrance("/home/me/program.py")
        False
    """
    return path.endswith(_ENTRANCE)


def is_on_the_way(path: str) -> bool:
    """Whether a file brings a traced program to the compiler.

    An operation whose innermost line is there has none of its own.

    Example:
        >>> is_on_the_way("/lib/neurenix/compiler/lowering.py"), is_on_the_way("/me/lowering.py")
        (True, False)
    """
    return _ON_THE_WAY.search(path) is not None

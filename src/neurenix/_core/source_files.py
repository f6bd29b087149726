"""Decide by path whether a source file is the user's, and find the user's line of an error or call.

Reads no file.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
_TYPED = ("<stdin>", "<string>", "<ipython-input")
"""File names of code that was typed or passed as text. Other names in angle brackets, such as
``<frozen importlib._bootstrap>``, are Python's own."""

_ENTRANCE = "/neurenix/compiler/program.py"
_ON_THE_WAY = re.compile(r"/neurenix/(_jax|compiler/(lowering|worker\w*))\.py$")


@dataclass(frozen=True)
class SourceLine:
    """A line of a program: ``file``, ``line`` (from 1) and ``function``.

    Example:
        >>> str(SourceLine("train.py", 12, "loss"))
        'train.py:12'
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


_CONVERTED = "converted:"
"""Beginning of the function names of lines of converted models, whose files may be a library's."""


def converted_function(name: str) -> str:
    """Return the name that marks a function of a model that was converted from another framework.

    Example:
        >>> users(SourceLine("/lib/site-packages/a.py", 3, converted_function("forward")))
        SourceLine(file='/lib/site-packages/a.py', line=3, function='forward')
    """
    return _CONVERTED + name


def users(line: SourceLine) -> SourceLine | None:
    """Return a line of the user's program; None for a line of a library.

    Lines of a converted model are the user's, wherever its file is: they are what was written.

    Example:
        >>> users(SourceLine("<frozen os>", 3)) is None
        True
    """
    if line.function.startswith(_CONVERTED):
        return SourceLine(line.file, line.line, line.function.removeprefix(_CONVERTED))
    return None if is_library(line.file) else line


@cache
def _libraries() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    folders = (paths["stdlib"], paths["purelib"], paths["platlib"])
    return (*{os.path.join(folder, "") for folder in folders}, _PACKAGE)


@cache
def is_library(path: str) -> bool:
    """Return whether a file belongs to Python, an installed package or Neurenix.

    Example:
        >>> import os
        >>> is_library(os.__file__), is_library("/home/me/train.py"), is_library("<stdin>")
        (True, False, False)
    """
    return (
        path.startswith(_libraries())
        or "/site-packages/" in path
        or "/dist-packages/" in path
        or (path.startswith("<") and not path.startswith(_TYPED))
    )


def is_neurenix(path: str) -> bool:
    """Return whether a file belongs to Neurenix.

    Example:
        >>> is_neurenix(__file__)
        True
    """
    return path.startswith(_PACKAGE)


def is_entrance(path: str) -> bool:
    """Return whether a file is ``compiler.program``, which traces functions for the compiler.

    Example:
        >>> is_entrance("/home/me/program.py")
        False
    """
    return path.endswith(_ENTRANCE)


def is_on_the_way(path: str) -> bool:
    """Return whether a file passes a traced program on to the compiler.

    An operation whose innermost line is in such a file has no line in the program.

    Example:
        >>> is_on_the_way("/lib/neurenix/compiler/lowering.py"), is_on_the_way("/me/lowering.py")
        (True, False)
    """
    return _ON_THE_WAY.search(path) is not None


def users_line(error: BaseException) -> str:
    """Return file, number and text of the user's innermost line in the traceback of an error.

    Example:
        >>> users_line(ValueError("never raised"))
        'a line inside a library'
    """
    users = users_frames(error)
    if not users:
        return "a line inside a library"
    return f"{users[-1].filename}:{users[-1].lineno} ({(users[-1].line or '').strip()})"


def users_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the user's frames in the traceback of an error, the innermost last.

    Generated methods of dataclasses, which look like typed code, are excluded.

    Example:
        >>> users_frames(ValueError("never raised"))
        []
    """
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_library(frame.filename)
        and not (frame.filename == "<string>" and frame.name.startswith("__"))
    ]


def users_call() -> tuple[int, str]:
    """Return the ``stacklevel`` for a warning of the caller at the user's line, and that line.

    Example:
        >>> users_call()[0] >= 1
        True
    """
    frame, level = sys._getframe(1), 1
    while frame is not None:
        if not is_library(frame.f_code.co_filename):
            return level, f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame, level = frame.f_back, level + 1
    return 1, "a line inside a library"

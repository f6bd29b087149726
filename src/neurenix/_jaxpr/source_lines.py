"""The lines of source code behind an equation."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import jax

from neurenix._core.source_files import SourceLine, is_entrance, users

_JAX = os.path.join(os.path.dirname(str(jax.__file__)), "")


def frames(equation: Any) -> list[SourceLine]:
    """Return the calls that led to an equation, the innermost first.

    Lines of JAX are left out, and so are lines outside of the traced function where
    ``neurenix.compiler`` traced it.
    """
    found: list[SourceLine] = []
    stack = equation.source_info.traceback
    for frame in stack.frames if stack is not None else ():
        if is_entrance(frame.file_name):
            break
        if not frame.file_name.startswith(_JAX):
            found.append(SourceLine(frame.file_name, frame.line_num, frame.function_name))
    return found


def source_line(equation: Any, callers: Sequence[Any] = ()) -> SourceLine | None:
    """Return the user's innermost line behind an equation.

    Args:
        equation: of a jaxpr.
        callers: the equations around it, the outermost first (``Site.callers``). Equations of
            functions that JAX itself compiled have no line of the user's; that of the innermost
            caller with one is taken.

    Returns:
        A line of a library, if no line is the user's; None, if no line is known.

    Example:
        >>> import jax
        >>> (equation,) = jax.make_jaxpr(lambda x: -x)(1.0).eqns
        >>> source_line(equation).function
        '<lambda>'
    """
    own = frames(equation)
    for lines in (own, *map(frames, reversed(callers))):
        for line in lines:
            if (found := users(line)) is not None:
                return found
    return own[0] if own else None

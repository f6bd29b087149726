"""Read from bytecode which globals and closure variables a function uses."""

from __future__ import annotations

import dis
from collections.abc import Iterator
from types import CodeType
from typing import Any

_LOCAL = ("LOAD_FAST", "LOAD_DEREF")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME")
_SUBSCRIPT = {"BINARY_SUBSCR": "[]"}  # from Python 3.14 a BINARY_OP printed as "[]"
_CONSTANT = ("LOAD_CONST", "LOAD_SMALL_INT")


def loads(code: CodeType, local: set[str]) -> Iterator[tuple[str, list[Any]]]:
    """Yield each global or known name that ``code`` loads, with its access path (``.a``, ``[0]``).

    Args:
        code: of a function; nested functions are read, too.
        local: local and closure variables whose values are known.
    """
    instructions = [*dis.get_instructions(code)]
    for position, one in enumerate(instructions):
        # Python 3.13 loads two local variables in one instruction
        names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
        for name in names:
            if one.opname in _GLOBAL or (one.opname.startswith(_LOCAL) and name in local):
                last = name is names[-1]
                yield name, [*_steps(instructions, position + 1)] if last else []
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from loads(constant, local & {*constant.co_freevars})


def _steps(instructions: list[dis.Instruction], position: int) -> Iterator[tuple[str, Any]]:
    while position + 1 < len(instructions):
        one, then = instructions[position : position + 2]
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            yield "attribute", one.argval
            position += 1
        elif one.opname in _CONSTANT and "[]" in (then.argrepr, _SUBSCRIPT.get(then.opname)):
            yield "item", one.argval
            position += 2
        else:
            return


def imported(code: CodeType) -> Iterator[str]:
    """Yield the modules that a function or a nested function imports when it runs."""
    for one in dis.get_instructions(code):
        if one.opname == "IMPORT_NAME":
            yield one.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from imported(constant)

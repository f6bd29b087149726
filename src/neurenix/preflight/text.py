"""Numbers and places as people read them: bytes, seconds, counts, lines.

Owns the choice of unit; the numbers are others'.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

from neurenix.compiler.hlo import SourceLine
from neurenix.compiler.source import is_library

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|[mµn]?s|USD|chips?|×)(?!\w))|(?<=\d ×) (?=\d)")
KIND_NAMES = {
    "compute": "the matrix unit",
    "vector": "vector work",
    "hbm": "HBM",
    "overhead": "overhead of small operations",
    "ici": "ICI",
    "dcn": "DCN",
    "host": "the host",
}


def source_text(source: SourceLine | None) -> str:
    """Return a place in a program, its path shortened to what is needed.

    Example:
        >>> source_text(SourceLine("/home/me/train.py", 7)), source_text(None)
        ('/home/me/train.py:7', '')
    """
    if source is None:
        return ""
    if is_library(source.file):
        return f"inside {'/'.join(Path(source.file).parts[-3:])}:{source.line}"
    below = source.file.startswith(os.getcwd() + os.sep)
    return f"{os.path.relpath(source.file) if below else source.file}:{source.line}"


def bytes_text(count: float) -> str:
    """Return a size in the binary unit that keeps it short.

    Example:
        >>> bytes_text(16911433728), bytes_text(512)
        ('15.75 GiB', '512 B')
    """
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if abs(count) >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def seconds_text(seconds: float) -> str:
    """Return a duration in the unit that keeps it short.

    Example:
        >>> seconds_text(0.00123), seconds_text(12.0)
        ('1.23 ms', '12 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def amount(count: int, noun: str) -> str:
    """Return a count with its noun.

    Example:
        >>> amount(1, "host"), amount(2, "host")
        ('1 host', '2 hosts')
    """
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def hanging(first: str, text: str, width: int, *, indent: int | None = None) -> list[str]:
    """Return ``first + text`` folded to ``width``, its further lines under the text's beginning.

    A word that is longer than a line, such as a path, is left whole; so are a number and its unit,
    and words that a no-break space joins, which is printed as a space. Lines stay lines.

    Args:
        first: what the first line begins with.
        text: of any number of lines.
        width: in characters; below 40 it counts as 40.
        indent: of the further lines, in place of the length of ``first``.

    Example:
        >>> hanging("  fits  ", "yes: a little of what there is of memory", 40)
        ['  fits  yes: a little of what there is', '        of memory']
    """
    spaces = " " * (len(first) if indent is None else indent)
    lines: list[str] = []
    for part in _UNIT.sub(NO_BREAK_SPACE, text).splitlines() or [""]:
        lines += textwrap.wrap(
            part,
            max(width, 40),
            initial_indent=spaces if lines else first,
            subsequent_indent=spaces,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [spaces.rstrip()]
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]

"""Numbers and places as people read them: bytes, seconds, counts, lines.

Owns the choice of unit, but for bytes and shares (``_core.units``); the numbers are others'.
"""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path

from neurenix._core.output_encoding import plain
from neurenix._core.output_encoding import printable as printable
from neurenix._core.output_encoding import shown as shown
from neurenix._core.source_files import SourceLine, is_library
from neurenix._core.units import bytes_text as bytes_text
from neurenix._core.units import percent_text as percent_text

NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"
_UNIT = re.compile(r"(?<=\d) (?=(?:[KMGT]iB|B|[mµn]?s|USD|chips?|×)(?!\w))|(?<=\d ×) (?=\d)")
INTERVAL = "80 % interval"
"""What ``low`` to ``high`` is called: four of five measured steps are to lie inside."""
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


def places_text(source: SourceLine | None, called_from: SourceLine | None) -> str:
    """Return a place, and of one inside a library the user's line that calls the program.

    Example:
        >>> places_text(SourceLine("/me/net.py", 7), None)
        '/me/net.py:7'
    """
    caller = f"called from {source_text(called_from)}" if called_from else ""
    return ", ".join(filter(None, (source_text(source), caller)))


def seconds_text(seconds: float) -> str:
    """Return a duration in the unit that keeps it short, in three digits or whole seconds.

    Example:
        >>> seconds_text(0.00123), seconds_text(12.0), seconds_text(0.9999), seconds_text(86400)
        ('1.23 ms', '12 s', '1 s', '86,400 s')
    """
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if float(f"{seconds / size:.3g}") >= 1:
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
    and words that a no-break space joins, which is printed as a space. Lines stay lines. What the
    standard output has no character for is spelled before the lines are folded.

    Args:
        first: what the first line begins with.
        text: of any number of lines.
        width: in characters; below 40 it counts as 40.
        indent: of the further lines, in place of the length of ``first``.

    Example:
        >>> hanging("  fits  ", "yes: a little of what there is of memory", 40)
        ['  fits  yes: a little of what there is', '        of memory']
    """
    first = plain(first)
    spaces = " " * (len(first) if indent is None else indent)
    joined = _UNIT.sub(NO_BREAK_SPACE, text)
    lines: list[str] = []
    for part in NO_BREAK_SPACE.join(map(plain, joined.split(NO_BREAK_SPACE))).splitlines() or [""]:
        lines += textwrap.wrap(
            part,
            max(width, 40),
            initial_indent=spaces if lines else first,
            subsequent_indent=spaces,
            break_long_words=False,
            break_on_hyphens=False,
        ) or [spaces.rstrip()]
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]

"""Numbers and source locations as text: bytes, seconds, counts, lines."""

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
"""Name of the range from ``low`` to ``high``, expected to contain 80 % of measured steps."""
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
    """Return a source location with a shortened path.

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
    """Return a source location and the user's line that calls it, if any.

    Example:
        >>> places_text(SourceLine("/me/net.py", 7), None)
        '/me/net.py:7'
    """
    caller = f"called from {source_text(called_from)}" if called_from else ""
    return ", ".join(filter(None, (source_text(source), caller)))


def seconds_text(seconds: float) -> str:
    """Return a duration in a suitable unit, with three digits or in whole seconds.

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
    """Return ``first + text`` folded to ``width``, with a hanging indent.

    Words longer than a line, such as paths, are not broken, nor are a number and its unit or words
    joined by a no-break space, which is printed as a space. Line breaks are kept. Characters that
    the standard output cannot encode are replaced before folding.

    Args:
        first: beginning of the first line.
        text: of any number of lines.
        width: in characters, at least 40.
        indent: of the other lines; the length of ``first`` by default.

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

"""Text for outputs with few characters: ASCII, Latin-1, a Windows code page.

Owns the ASCII spelling of characters that the output's encoding lacks, and the list of characters
that are never sent to a terminal.
"""

from __future__ import annotations

import codecs
import re
import sys
import unicodedata
from typing import Any

# For ``errors=`` of a stream: what its encoding lacks is spelled as ``plain`` does.
SPELLED = "neurenix.spelled"
_UNPRINTED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_SPELLINGS = str.maketrans(
    {
        **{"→": "->", "←": "<-", "↔": "<->", "…": "...", "−": "-", "–": "-", "—": "-", "·": "*"},
        **{"×": "x", "÷": "/", "≈": "~", "≤": "<=", "≥": ">=", "≠": "!=", "√": "sqrt ", "∞": "inf"},
        **{"µ": "u", "μ": "u", "•": "*", "●": "*", "▲": "!", "✓": "+", "✕": "x", "★": "*"},
        **{"‘": "'", "’": "'", "“": '"', "”": '"', "›": ">", "‹": "<", "ß": "ss", "│": "|"},
        **{"─": "-", "━": "-", "┃": "|", "║": "|", "═": "="},
    }
)


def plain(text: str, encoding: str | None = None) -> str:
    """Return the text with each character that the encoding lacks spelled in ASCII.

    Args:
        text: any text.
        encoding: of the output; by default that of the standard output. An output without one,
            such as ``io.StringIO``, takes every character.

    Example:
        >>> plain("≈ 3 µs × 2 → …", "ascii"), plain("3 µs × 2 → é", "latin-1")
        ('~ 3 us x 2 -> ...', '3 µs × 2 -> é')
    """
    encoding = encoding or getattr(sys.stdout, "encoding", None)
    if not isinstance(encoding, str) or text.isascii():
        return text
    try:
        return text.encode(encoding, SPELLED).decode(encoding)
    except LookupError:  # an encoding of the stream's own
        return text


def printable(text: str) -> str:
    """Return the text with a mark for each character that would do something in place of showing.

    They come from names of the program: a terminal takes some for commands, and both terminals and
    browsers take others for a change of direction. Lines and tabulators stay.

    Example:
        >>> printable(f"step{chr(27)}[31m") == f"step{chr(0xFFFD)}[31m"
        True
    """
    return _UNPRINTED.sub("\ufffd", text)


def shown(text: str) -> str:
    """Return the text as the standard output can show it: ``plain`` of what is ``printable``."""
    return plain(printable(text))


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(map(_spelled, error.object[error.start : error.end])), error.end


def _spelled(character: str) -> str:
    spelling = character.translate(_SPELLINGS)
    if spelling == character:  # é is e and an accent
        apart = unicodedata.normalize("NFKD", character)
        spelling = "".join(c for c in apart if c.isascii())
    return spelling or "?"


codecs.register_error(SPELLED, _spell)


def takes_all(stream: Any) -> Any:
    """Make a text stream spell what its encoding lacks; return how it treated that before."""
    before = getattr(stream, "errors", None)
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors=SPELLED)
    return before

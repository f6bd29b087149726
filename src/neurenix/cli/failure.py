"""How an error is shown on the command line: as a message.

Owns the form. The exit status is the command's.
"""

from __future__ import annotations

import sys


def show(error: Exception) -> None:
    """Print an error and what was noted on it, without a traceback."""
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    print(f"neurenix: {error}{notes}", file=sys.stderr)

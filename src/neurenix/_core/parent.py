"""The process that began this one: what a process of Neurenix's own does when that one is gone.

Owns noticing it. A closed terminal or a ``kill -9`` gives the one that began it no time to end it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_SECONDS = 0.5


def when_parent_ends(then: Callable[[], None]) -> None:
    """Call ``then``, in a thread of its own, when the process that began this one has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_SECONDS)
        then()

    threading.Thread(target=watch, daemon=True).start()

"""The process that began this one: what a process of Neurenix's own does when that one is gone.

Owns noticing it. A closed terminal or a ``kill -9`` gives the one that began it no time to end it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_SECONDS = 0.5


def when_parent_ends(then: Callable[[], None], *, parent: int) -> None:
    """Call ``then``, in a thread of its own, when the process that began this one has ended.

    Args:
        then: what to do.
        parent: process id of the one that began this one, as that one has told it: it may have
            ended before this is called. A launcher may stand between the two.
    """
    first = os.getppid()

    def watch() -> None:
        while os.getppid() == first and (first == parent or _exists(parent)):
            time.sleep(_SECONDS)
        then()

    threading.Thread(target=watch, daemon=True).start()


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        return True
    return True

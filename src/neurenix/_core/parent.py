"""Notice the end of the parent process.

A worker process must end when its parent was killed (a closed terminal, ``kill -9``), which could
not stop it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

_SECONDS = 0.5


def when_parent_ends(then: Callable[[], None], *, parent: int) -> None:
    """Call ``then`` in a new thread when the parent process has ended.

    Args:
        then: called without arguments.
        parent: process id that the parent has passed on; it may have ended already, and a launcher
            may be between the two.
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

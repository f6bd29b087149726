"""Read this CPU's architecture and instruction sets, to check that a saved program runs on it.

Uses the standard library only.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any


def cpu(root: Path = Path("/")) -> dict[str, Any]:
    """Return ``architecture`` and ``features``, the instruction sets by the kernel's names.

    ``features`` is empty if the kernel lists none (not Linux).

    Example:
        >>> sorted(cpu())
        ['architecture', 'features']
    """
    features: list[str] = []
    try:
        lines = (root / "proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            features = sorted(value.split())
            break
    return {"architecture": platform.machine(), "features": features}

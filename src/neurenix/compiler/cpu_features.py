"""What the CPU of this machine can execute, to tell whether a program made elsewhere runs on it.

Owns the reading of the architecture and of the instruction sets. Standard library only.
"""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any


def cpu(root: Path = Path("/")) -> dict[str, Any]:
    """Return ``architecture`` and ``features``, instruction sets by the kernel's names for them.

    Where the kernel names none (not Linux), ``features`` is empty.

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

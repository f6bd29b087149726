"""What every test runs on: a simulated v5e-8, and one order of random numbers.

Tests that must see a process before anything started do so in a subprocess of their own, with
``run_python``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Ahead-of-time compilation takes libtpu's process lock too; tests run in several processes.
os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
# No machine here is a Cloud TPU VM: do not wait for its metadata server.
os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
os.environ.pop("NEURENIX_SIMULATE", None)

SLICE = "v5e-8"


@pytest.fixture(scope="session", autouse=True)
def simulated_slice() -> object:
    """Start the session's one backend: eight TPU devices simulated on the CPU."""
    from neurenix.simulation import simulate

    return simulate(SLICE)


@pytest.fixture(autouse=True)
def fixed_seed(simulated_slice: object) -> None:
    """Give each test the same random numbers, whatever ran before it."""
    from neurenix import random

    random.seed(0)


RunPython = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run_python(tmp_path: Path) -> RunPython:
    """Return ``run(*arguments, code=None, env=None, timeout=300)``: Python in a clean process.

    The process starts in an empty folder, without the simulation of this one.
    """

    def run(
        *arguments: str,
        code: str | None = None,
        env: dict[str, str] | None = None,
        timeout: float = 300,
    ) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *(["-c", code] if code is not None else []), *arguments]
        environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
        return subprocess.run(
            command,
            env=environment | (env or {}),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run

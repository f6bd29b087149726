"""``fit`` goes through few files, and moves little between them, to its first compiled call."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.cpu8

SCRIPT = Path(__file__).parent.parent / "benchmarks" / "fit_path.py"
MOST_FILES, MOST_MOVES = 40, 190


def test_fit_passes_through_few_files(run_python) -> None:
    done = run_python(str(SCRIPT), env={"JAX_PLATFORMS": "cpu"})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0 < found["files"] <= MOST_FILES and 0 < found["moves"] <= MOST_MOVES, found

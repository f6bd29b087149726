"""Scripts that train, and commands that take them, several in one process; for tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

SCRIPT = """
import os, sys
import numpy as np
import neurenix as nx
from neurenix import nn
print("arguments:", sys.argv[1:])
os.system("echo from a child")
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
model.compile("adam", nx.losses.SparseCategoricalCrossentropy(from_logits=True))
model.fit(np.ones((640, 64), "float32"), np.zeros(640, "int32"), batch_size=64)
print("trained")
"""

_SEVERAL = """
import os, sys
from pathlib import Path
from neurenix.cli.app import main
for number, (script, arguments) in enumerate(CASES):
    Path("train.py").write_text(script)
    sys.argv = ["neurenix", *arguments]
    for stream in (1, 2):
        file = os.open(f"{number}.{stream}", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.dup2(file, stream)
        os.close(file)
    try:
        main()
        status = 0
    except SystemExit as left:
        status = left.code
    sys.stdout.flush()
    sys.stderr.flush()
    Path(f"{number}.status").write_text(str(status))
"""

Cases = list[tuple[str, tuple[str, ...]]]


class Done(NamedTuple):
    """How a command ended."""

    status: str
    stdout: str
    stderr: str


def commands(
    run_python: Callable[..., CompletedProcess[str]], folder: Path, name: str, cases: Cases
) -> list[Done]:
    """Run a command on each script, ``train.py``, and command line; return how each ended.

    One process, in ``folder``, runs them all: most of the time of one is that of its imports.
    """
    lines = [(script, (name, *arguments)) for script, arguments in cases]
    run_python(code=_SEVERAL.replace("CASES", repr(lines)), env={"COLUMNS": "100"})
    found = []
    for number, (_, arguments) in enumerate(lines):
        said = [(folder / f"{number}.{stream}").read_text() for stream in (1, 2)]
        status = folder / f"{number}.status"
        assert status.exists(), (arguments, *said)
        found.append(Done(status.read_text(), *said))
    return found


def mistakes(
    run_python: Callable[..., CompletedProcess[str]], folder: Path, name: str, cases: Cases
) -> list[str]:
    """Run a command as ``commands`` does; return what it said.

    Each must end with status 2 and without a traceback.
    """
    found = commands(run_python, folder, name, cases)
    for (_, arguments), done in zip(cases, found, strict=True):
        assert done.status == "2", (arguments, done)
        assert "Traceback" not in done.stderr, (arguments, done)
        assert "Preflight of" not in done.stdout
    return [" ".join(done.stderr.split()) for done in found]

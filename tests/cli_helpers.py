"""A script that trains, and mistakes, for the tests of commands that take a script."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

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
import sys
from pathlib import Path
from neurenix.cli.app import main
for script, arguments in CASES:
    Path("train.py").write_text(script)
    sys.argv = ["neurenix", *arguments]
    sys.stderr.write("<case>")
    try:
        main()
        status = 0
    except SystemExit as left:
        status = left.code
    sys.stderr.write(f"<status {status}>")
"""


def mistakes(
    run_python: Callable[..., CompletedProcess[str]],
    cache: Path,
    name: str,
    cases: list[tuple[str, tuple[str, ...]]],
) -> list[str]:
    """Run a command on each script, ``train.py``, and command line; return what it said.

    One process runs them all. Each must end with status 2 and without a traceback.
    """
    lines = [(script, (name, *arguments)) for script, arguments in cases]
    done = run_python(
        code=_SEVERAL.replace("CASES", repr(lines)), env={"NEURENIX_CACHE_DIR": str(cache)}
    )
    assert done.returncode == 0, done.stderr
    found = re.findall(r"<case>(.*?)<status (\w+)>", done.stderr, re.DOTALL)
    assert len(found) == len(cases), done.stderr
    for (_, arguments), (said, status) in zip(cases, found, strict=True):
        assert status == "2", (arguments, said)
        assert "Traceback" not in said, (arguments, said)
    assert "Preflight of" not in done.stdout
    return [" ".join(said.split()) for said, _ in found]

"""Two processes of JAX that run one program, and talk to each other through Gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

BEGIN = """
import json, pathlib, sys
import jax
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{sys.argv[1]}", 2, int(sys.argv[2]))
import numpy as np
import neurenix as nx
"""


def run_in_two_processes(program: str, folder: Path) -> list[dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    script = folder / "program.py"
    script.write_text(program)
    environment = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), port, str(process), str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment | {"JAX_PLATFORMS": "cpu"},
        )
        for process in range(2)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, said) in zip(started, ended, strict=True):
        assert process.returncode == 0, said
    return [json.loads(out.splitlines()[-1]) for out, _ in ended]

"""Eager ``nx.matmul`` and ``nx.add`` against ``jax.numpy``, and what ``import neurenix`` costs.

python benchmarks/eager_and_import.py [--rounds 9]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from common import ratio, report, rounds

import neurenix as nx

CALLS = 3000


def import_seconds(statement: str) -> float:
    """Return the seconds of a fresh process that only imports."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print two lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    a = jnp.ones((32, 32))

    def calls(name: str, module: object) -> None:
        function = getattr(module, name)
        out = a
        for _ in range(CALLS):
            out = function(a, a)
        jax.block_until_ready(out)

    for name in ("matmul", "add"):
        seconds = rounds(
            {"nx": lambda n=name: calls(n, nx), "jnp": lambda n=name: calls(n, jnp)},
            count=options.rounds,
        )
        report(f"eager/{name}", nx_over_jnp=ratio(seconds, "nx", "jnp"))
    seconds = rounds(
        {
            "neurenix": lambda: import_seconds("import neurenix"),
            "jax": lambda: import_seconds("import jax"),
        },
        count=options.rounds,
    )
    code = "import sys, neurenix; print('jax' in sys.modules)"
    loads_jax = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    report(
        "import",
        seconds={name: round(statistics.median(value), 3) for name, value in seconds.items()},
        loads_jax=loads_jax.stdout.strip() == "True",
    )


if __name__ == "__main__":
    main()

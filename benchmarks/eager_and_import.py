"""Eager ``nx.matmul`` and ``nx.add`` against ``jax.numpy``, ``import neurenix``, a first model.

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
from common import count, ratio, report, rounds

import neurenix as nx

CALLS = 3000
FIRST_MODEL = {
    "neurenix": "from neurenix import nn; nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3), "
    "nn.Linear(256, 128), nn.Linear(128, 10)",
    "flax": "from flax import nnx; r = nnx.Rngs(0); nnx.Conv(1, 32, (3, 3), rngs=r), "
    "nnx.Conv(32, 64, (3, 3), rngs=r), nnx.Linear(256, 128, rngs=r), nnx.Linear(128, 10, rngs=r)",
}
"""The layers of the digits CNN, made in a process of their own, from its imports on."""


def process_seconds(code: str) -> float:
    """Return the seconds of a fresh process that runs ``code``."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began


def main() -> None:
    """Print four lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=count, default=9)
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
            "neurenix": lambda: process_seconds("import neurenix"),
            "jax": lambda: process_seconds("import jax"),
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
    seconds = rounds(
        {name: lambda c=code: process_seconds(c) for name, code in FIRST_MODEL.items()},
        count=options.rounds,
    )
    report(
        "first_model",
        nx_over_flax=ratio(seconds, "neurenix", "flax"),
        seconds={name: round(statistics.median(value), 2) for name, value in seconds.items()},
    )


if __name__ == "__main__":
    main()

"""Peak resident memory of ``fit`` against a hand-written loop, each in a process of its own.

python benchmarks/peak_memory.py [--models mlp cnn transformer wide] [--rounds 3]
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")


def child(which: str, name: str) -> None:
    """Train, and print the peak in bytes beyond what it was before."""
    import fit_overhead
    from models import data_for

    steps = 20
    x, y = data_for(name, steps * fit_overhead.BATCH[name])
    make = fit_overhead.ours if which == "fit" else fit_overhead.hand_written
    run = make(name, x, y)
    run(2 * steps)
    sys.stdout.write(f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}\n")


def main() -> None:
    """Print one line for each model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", nargs="*", default=["mlp", "cnn", "transformer", "wide"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    from common import report

    for name in options.models:
        peaks: dict[str, list[int]] = {"fit": [], "hand": []}
        for _ in range(options.rounds):
            for which, found in peaks.items():
                command = [sys.executable, __file__, "--child", which, name]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                found.append(int(output.split()[-1]))
        median = {which: statistics.median(found) for which, found in peaks.items()}
        report(
            f"peak_memory/{name}",
            fit_over_hand=round(median["fit"] / median["hand"], 3),
            peak_mib={which: round(value / 2**20) for which, value in median.items()},
        )


if __name__ == "__main__":
    main()

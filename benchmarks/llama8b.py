"""Llama 3.1 8B on v6e-8, 3 × 8192 tokens a chip: what is kept for the backward pass, and where.

    python benchmarks/llama8b.py [--timeout 3600]

Estimates the step with the recomputation of the published run, which keeps queries, keys and values
in the host's memory, and with keys and values in HBM, where that run leaves room. Both with the XLA
options of that run. A compile takes a quarter of an hour; later ones read the cache.
"""

from __future__ import annotations

import argparse
import os
from dataclasses import replace

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from common import report as print_json
from published_rows import ROWS, report_of

from neurenix import chips
from neurenix.models import Remat
from neurenix.preflight import CompileOptions

KEPT = ("key_proj", "value_proj")


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--timeout", type=float, default=3600.0)
    compiler = CompileOptions(timeout_seconds=parser.parse_args().timeout)
    (run,) = (run for run in chips.published_runs() if run.id == "T12")
    published = ROWS["T12"]
    away = tuple(name for name in published.remat.offload if name not in KEPT)
    rows = {"published": published, "ours": replace(published, remat=Remat(KEPT, away))}
    figures = {}
    for name, row in rows.items():
        report = report_of(row, run.batch_size, run.sequence_length, compiler)
        time = report.step_time
        figures[name] = {
            "estimated_seconds": time and round(time.seconds, 3),
            "interval": time and [round(time.low, 3), round(time.high, 3)],
            "peak_gib": round(report.hbm.peak_bytes / 2**30, 2),
            "host_gib": round(report.hbm.host_bytes / 2**30, 2),
        }
    print_json("llama8b", published_seconds=run.step_seconds, **figures)


if __name__ == "__main__":
    main()

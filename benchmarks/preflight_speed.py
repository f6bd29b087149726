"""How long preflight takes: first, and again from the cache; and how much of it is our own.

    python benchmarks/preflight_speed.py [--programs digits gpt2 llama8b]

The first run uses a cache of its own that is empty. ``own_share`` is what is not the compiler's
(tracing, exporting, reading the program) over what is.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from common import report as print_json
from models import build
from published_rows import ROWS

import neurenix as nx
from neurenix import models

LOSS = nx.losses.SparseCategoricalCrossentropy(from_logits=True)


def digits() -> tuple[Any, Any, str, dict[str, int]]:
    """Return the CNN of the demo's size, its batch, slice and mesh."""
    trainer = nx.Trainer(build("cnn"), loss=LOSS)
    return trainer, nx.spec((256, 8, 8, 1)), "v5e-8", {"data": 8}


def gpt2() -> tuple[Any, Any, str, dict[str, int]]:
    """Return GPT-2 small with scanned layers."""
    model = models.Decoder.abstract(models.get("gpt2"))
    return nx.Trainer(model, loss=LOSS), nx.spec((64, 1024), "int32"), "v5e-8", {"data": 8}


def llama8b() -> tuple[Any, Any, str, dict[str, int]]:
    """Return Llama 3.1 8B as a published run has it, with XLA's own options."""
    config = models.get("llama3.1-8b")
    model = models.Decoder.abstract(
        config.replace(remat=ROWS["T12"].remat, logits_dtype="bfloat16")
    )
    return nx.Trainer(model, loss=LOSS), nx.spec((24, 8192), "int32"), "v6e-8", {"fsdp": 8}


PROGRAMS: dict[str, Callable[[], tuple[Any, Any, str, dict[str, int]]]] = {
    "digits": digits,
    "gpt2": gpt2,
    "llama8b": llama8b,
}


def main() -> None:
    """Print one line for each program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    names = parser.parse_args().programs
    for name in names:
        target, batch, where, mesh = PROGRAMS[name]()
        with tempfile.TemporaryDirectory() as directory:
            options = nx.preflight.PreflightOptions(
                compiler=nx.preflight.CompileOptions(cache_directory=Path(directory)),
                suggest=False,
            )
            seconds = []
            for _ in range(2):
                began = time.perf_counter()
                report = nx.preflight(target, batch, on=where, mesh=mesh, options=options)
                str(report)
                seconds.append(time.perf_counter() - began)
        compiling = report.analysis.compile_seconds
        print_json(
            f"preflight_speed/{name}",
            first_seconds=round(seconds[0], 1),
            cached_seconds=round(seconds[1], 2),
            compiler_seconds=round(compiling, 1),
            own_share=round((seconds[0] - compiling) / compiling, 3),
            fits=report.fits,
            estimated_step_seconds=report.step_time and round(report.step_time.seconds, 4),
        )


if __name__ == "__main__":
    main()

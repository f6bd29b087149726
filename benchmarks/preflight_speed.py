"""How long preflight takes: first, and again from the cache; and how much of it is our own.

    python benchmarks/preflight_speed.py [--programs digits gpt2 llama8b]

The first run uses a cache of its own that is empty. ``compiler_seconds`` is libtpu's,
``jax_seconds`` what JAX takes to trace and to lower the program, as ``jax.jit`` does for whoever
compiles it, and ``own_share`` what is left over what is libtpu's: describing the step, starting and
ending the compiler's process, reading its program, judging it and printing. ``own_and_jax_share``
counts JAX as our own.
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

import jax
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


class JaxClock:
    """The time in which JAX traces and lowers, as it reports it: spans may lie in one another."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.endswith(("/jaxpr_trace_duration", "/jaxpr_to_mlir_module_duration")):
            now = time.perf_counter()
            self.spans.append((now - duration_secs, now))

    def between(self, began: float, ended: float) -> float:
        """Return the seconds in which any span lies."""
        total, end = 0.0, began
        for start, stop in sorted(self.spans):
            start, stop = max(start, end), min(stop, ended)
            total += max(0.0, stop - start)
            end = max(end, stop)
        return total


def main() -> None:
    """Print one line for each program."""
    clock = JaxClock()
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
            seconds, jax_seconds = [], []
            for _ in range(2):
                began = time.perf_counter()
                report = nx.preflight(target, batch, on=where, mesh=mesh, options=options)
                str(report)
                ended = time.perf_counter()
                seconds.append(ended - began)
                jax_seconds.append(clock.between(began, ended))
        compiling = report.analysis.compile_seconds
        print_json(
            f"preflight_speed/{name}",
            first_seconds=round(seconds[0], 2),
            cached_seconds=round(seconds[1], 2),
            compiler_seconds=round(compiling, 2),
            jax_seconds=round(jax_seconds[0], 3),
            own_share=round((seconds[0] - compiling - jax_seconds[0]) / compiling, 3),
            own_and_jax_share=round((seconds[0] - compiling) / compiling, 3),
            fits=report.fits,
            estimated_step_seconds=report.step_time and round(report.step_time.seconds, 4),
        )


if __name__ == "__main__":
    main()

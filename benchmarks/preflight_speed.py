"""How long preflight takes: first, and again from the cache; and how much of it is our own.

    python benchmarks/preflight_speed.py [--programs digits gpt2 llama8b]

The first run uses a cache of its own that is empty. ``compiler_seconds`` is libtpu's, until it has
handed out its program as text and its count of memory. ``jax_seconds`` is what JAX takes to trace
the step and to lower it, as ``jax.jit`` does for whoever compiles one. ``own_share`` is the rest
over what is libtpu's: describing the step, for which its outputs are traced once more, starting and
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
    """The longest trace and the longest lowering that JAX has reported: the step's."""

    def __init__(self) -> None:
        self.longest: dict[str, float] = {}
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration_secs: float, **_: str | int) -> None:
        name = event.rpartition("/")[2]
        if name in ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration"):
            self.longest[name] = max(duration_secs, self.longest.get(name, 0.0))

    def taken(self) -> float:
        """Return the seconds of both, and begin anew."""
        seconds = sum(self.longest.values())
        self.longest.clear()
        return seconds


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
                clock.taken()
                began = time.perf_counter()
                report = nx.preflight(target, batch, on=where, mesh=mesh, options=options)
                str(report)
                seconds.append(time.perf_counter() - began)
                jax_seconds.append(clock.taken())
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

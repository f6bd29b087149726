"""The largest batch that fits, foretold from what batches take, against what the compiler accepts.

python benchmarks/memory_limit.py [--programs mlp decoder remat offload] [--on v5e-1]

As ``nx.preflight.largest_batch`` foretells it: ``Report.hbm.peak_bytes`` of two small batches,
compiled so that they take as little as the compiler can bring them to, is continued as a straight
line to the limit (``line_steps``); where the ``peak_bytes`` of the batch that it leads to are above
the limit, the forecast is brought down by them (``foretold_steps``, from so many
``foretold_from`` compiles). The compiler is then asked which batches it accepts, from there on in
doubling strides and by halves, until the largest that it accepts and the smallest that it refuses
are one step apart. Nothing runs on a TPU.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from common import report

import neurenix as nx
from neurenix import chips, models, nn
from neurenix.preflight import CompileOptions, PreflightOptions, Report
from neurenix.preflight.search.largest_batch import corrected, pressed

LENGTH = 1024
DECODER = {
    "num_layers": 8, "embed_dim": 512, "num_heads": 4, "num_kv_heads": 4, "head_dim": 128,
    "mlp_dim": 2048, "vocab_size": 4096, "max_length": LENGTH, "dtype": "bfloat16",
}  # fmt: skip
OFFLOADED = ("decoder_layer_input", "query_proj", "key_proj", "value_proj")


def mlp(batch: int, on: str, options: PreflightOptions) -> Report:
    """Ask for three dense layers and Adam: no loop, and all results wait for the way back."""
    model = nn.Sequential(
        nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 4096), nn.GELU(), nn.Linear(4096, 1024)
    )
    model.compile(optimizer=nx.optim.Adam(1e-3), loss=nx.losses.MeanSquaredError())
    return nx.preflight(
        model,
        nx.spec((batch, 1024)),
        nx.spec((batch, 1024)),
        on=on,
        options=options,
    )


def decoder(batch: int, on: str, options: PreflightOptions, remat: Any = "none") -> Report:
    """Ask for eight scanned layers and sequences of 1,024 tokens."""
    model = models.abstract("tiny", **DECODER, remat=remat)
    loss = nx.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=nx.optim.AdamW(1e-3), loss=loss)
    return nx.preflight(
        model,
        nx.spec((batch, LENGTH), "int32"),
        on=on,
        options=options,
    )


def elementwise(batch: int, on: str, options: PreflightOptions) -> Report:
    """Differentiate eight scanned layers of two operations, as a plain function."""

    def step(w: Any, x: Any) -> Any:
        def loss(w: Any) -> Any:
            h, _ = jax.lax.scan(lambda h, row: (jnp.tanh(h * row), None), x, w)
            return (h.astype(jnp.float32) ** 2).mean()

        return w - 0.1 * jax.grad(loss)(w)

    rows, weights = nx.spec((batch, 1024), "bfloat16"), nx.spec((8, 1024), "bfloat16")
    return nx.preflight(step, weights, rows, on=on, options=options)


# The step of the batch, and the two small batches in steps.
PROGRAMS: dict[str, tuple[Callable[[int, str, PreflightOptions], Report], int, tuple[int, int]]] = {
    "elementwise": (elementwise, 1024, (64, 128)),
    "mlp": (mlp, 2048, (16, 32)),
    "decoder": (decoder, 1, (8, 16)),
    "remat": (lambda *asked: decoder(*asked, "full"), 1, (16, 32)),
    "offload": (
        lambda *asked: decoder(*asked, models.Remat(save=(), offload=OFFLOADED)),
        1,
        (16, 32),
    ),
}


def main() -> None:
    """Print one line for each program."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--on", default="v5e-1")
    options = parser.parse_args()
    for name in options.programs:
        report(f"memory_limit/{name}", on=options.on, **_compare(name, options.on))


def _compare(name: str, on: str) -> dict[str, Any]:
    ask, step, (small, large) = PROGRAMS[name]
    plain = PreflightOptions(suggest=False)
    limit = chips.resolve(on).generation.hbm_bytes_per_device
    least = replace(plain, compiler=pressed(CompileOptions(), limit))
    one, two = (ask(steps * step, on, least).hbm for steps in (small, large))
    slope = (two.peak_bytes - one.peak_bytes) / (large - small)
    line = large + math.floor((limit - two.peak_bytes) / slope)
    known: dict[int, Report] = {}

    def asked(steps: int) -> Report:
        known[steps] = known.get(steps) or ask(steps * step, on, plain)
        if known[steps].refused not in (None, "hbm"):
            raise SystemExit(f"{name}: {known[steps]}")
        return known[steps]

    foretold = corrected(line, lambda steps: asked(steps).hbm.peak_bytes, limit)
    compiles = 2 + len(known)
    low, high = _bracket(lambda steps: asked(steps).fits, foretold, large)
    last, first = known[low].hbm, known[high].hbm
    return {
        "batch_step": step,
        "line_steps": line,
        "foretold_steps": foretold,
        "foretold_from": compiles,
        "found_steps": low,
        "steps_apart": foretold - low,
        "small_batches_gib": [_gib(one.peak_bytes), _gib(two.peak_bytes)],
        "last_fit_gib": _gib(last.peak_bytes),
        "last_fit_on_the_line_gib": _gib(one.peak_bytes + slope * (low - small)),
        "refused_gib": _gib(first.peak_bytes),
        "limit_gib": _gib(limit),
        "host_gib": _gib(last.host_bytes),
        "compiles": 2 + len(known),
    }


def _bracket(fits: Callable[[int], bool], guess: int, least: int) -> tuple[int, int]:
    """Return the last batch that fits and the next, found from a guess on; ``least`` fits."""
    stride = 1
    if fits(guess):
        while fits(guess + stride):
            guess, stride = guess + stride, stride * 2
        low, high = guess, guess + stride
    else:
        while guess - stride > least and not fits(guess - stride):
            guess, stride = guess - stride, stride * 2
        low, high = max(guess - stride, least), guess
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low, high


def _gib(size: float) -> float:
    return round(size / 2**30, 3)


if __name__ == "__main__":
    main()

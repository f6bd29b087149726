"""What the benchmarks share: rounds side by side, and one JSON line with device and versions.

Every figure is a ratio of medians over rounds in which the contenders take turns, so that a machine
that grows slower meanwhile is slower for all of them.
"""

from __future__ import annotations

import gc
import importlib.metadata
import json
import math
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PACKAGES = ("jax", "flax", "optax", "keras", "torch", "numpy")


def count(text: str) -> int:
    """Return a number of rounds or calls from the command line, 1 or more."""
    number = int(text)
    if number < 1:
        raise ValueError(number)  # argparse says which argument it is
    return number


def rounds(contenders: dict[str, Callable[[], Any]], *, count: int) -> dict[str, list[float]]:
    """Return seconds of every round, the contenders taking turns; one round more warms up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(count + 1):
        for name, contender in contenders.items():
            began = time.perf_counter()
            contender()
            if number:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratio(seconds: dict[str, list[float]], a: str, b: str) -> float:
    """Return the median over rounds of the seconds of ``a`` divided by those of ``b``."""
    pairs = zip(seconds[a], seconds[b], strict=True)
    return round(statistics.median(x / y for x, y in pairs), 3)


def median_microseconds(seconds: list[float], per: int) -> float:
    """Return the median in microseconds per one of ``per`` things done in a round."""
    return round(statistics.median(seconds) / per * 1e6, 1)


@contextmanager
def whole_collections_aside() -> Iterator[None]:
    """Keep what is on the heap by now out of garbage collections.

    Steps of a thousand arrays have Python look through all of it every few hundred steps: 0.2 s,
    which fall on the loop whose turn it is.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def host_rounds(
    loops: dict[str, Callable[[int, Callable[[], None]], Any]],
    steps: int,
    rounds: int,
    *,
    warm: int,
) -> dict[str, list[float]]:
    """Return processor seconds of the calling thread per step of each loop, of every round.

    Args:
        loops: by name; each makes a number of steps and calls a function once in every one of them.
        steps: timed in a round, between two such calls: no set-up is in them.
        rounds: of every loop, which take turns.
        warm: steps before, until as many calls are in flight as there will be.
    """
    per_step: dict[str, list[float]] = {name: [] for name in loops}
    with whole_collections_aside():
        for _ in range(rounds):
            for name, run in loops.items():
                stamps: list[float] = []
                run(warm + steps + 1, _stamping(stamps))
                per_step[name].append((stamps[warm + steps] - stamps[warm]) / steps)
    return per_step


def _stamping(stamps: list[float]) -> Callable[[], None]:
    return lambda: stamps.append(time.thread_time())


def host_microseconds(
    loops: dict[str, Callable[[int], Any]], steps: int, rounds: int
) -> dict[str, float]:
    """Return processor microseconds of the calling thread per step of each loop.

    The least of a long run less the least of a short one, the loops in turns: what a call costs
    once falls out. (The least of the differences would pick rounds whose short run was disturbed.)
    """
    least = {name: {steps: math.inf, 5 * steps: math.inf} for name in loops}
    for _ in range(rounds):
        for name, run in loops.items():
            for count in least[name]:
                began = time.thread_time()
                run(count)
                least[name][count] = min(least[name][count], time.thread_time() - began)
    return {
        name: (times[5 * steps] - times[steps]) / (4 * steps) * 1e6 for name, times in least.items()
    }


def report(name: str, **figures: Any) -> None:
    """Print one JSON line."""
    import jax

    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        if package in sys.modules:
            versions[package] = importlib.metadata.version(package)
    device = jax.devices()[0]
    line = {
        "benchmark": name,
        **figures,
        "device": f"{device.device_kind} x {jax.device_count()}",
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
        "versions": versions,
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()

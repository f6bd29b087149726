"""Rules about how the program is written and called: host, loops, arguments, operation sizes.

Most of them read ``Program.traits``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator

from neurenix._core.source_files import SourceLine
from neurenix._core.units import bytes_text
from neurenix.compiler.calibration import DISPATCH_SECONDS
from neurenix.compiler.findings.evidence import Evidence, Finding, longest, many
from neurenix.compiler.jaxpr_facts import Callback
from neurenix.compiler.training import is_trainers_step, is_training_step

_LARGE_SHARE = 0.30
_STEPS = (50, 200)
"""Advised steps in one call; the first that makes the dispatch shorter than the steps is chosen."""
_LAYERS = 6
"""Smallest number of identical layers for which a scan is advised."""
_PRODUCTS = 24
"""Smallest number of products in them: each takes the compiler about 0.1 s (12 layers of GPT-2,
v5e-8), so fewer compile in a few seconds."""


def small_steps(evidence: Evidence) -> Iterator[Finding]:
    """Find steps too short for the host to keep up with, or input that arrives too slowly.

    The host's time for one step is the longer of one dispatch, divided by the steps of a call, and
    the batch over PCIe.
    """
    time = evidence.time
    if time.bound != "host":
        return
    steps = evidence.program.traits.steps_per_call
    sends = time.host_seconds > 1.001 * DISPATCH_SECONDS / steps
    message, fix = _slow_batch(evidence) if sends else _slow_dispatch(evidence, steps)
    waits = time.host_seconds - time.device_seconds
    yield Finding(
        "host-bound",
        "warning",
        message,
        fix,
        None,
        waits,
        effect_share=waits / time.host_seconds if time.host_seconds else 0.0,
    )


def _slow_dispatch(evidence: Evidence, steps: int) -> tuple[str, str]:
    """Return message and fix if starting a step takes longer than the step."""
    program, time = evidence.program, evidence.time
    trains = is_training_step(program)
    together = f" with {steps} steps in one call" if steps > 1 else ""
    one, waits = ("step", "the device waits") if trains else ("call", "in a loop the device waits")
    message = (
        f"A {one} keeps the device busy for {_duration(time.device_seconds)}, and the host needs "
        f"{_duration(time.host_seconds)} to start the next{together}: {waits}."
    )
    if not trains:
        return message, (
            "If it is called in a loop, put several calls into one with jax.lax.scan, or give each "
            "more to do."
        )
    enough = (n for n in _STEPS if n * time.device_seconds >= DISPATCH_SECONDS)
    wanted = next(enough, _STEPS[-1])
    if wanted <= steps:
        return message, "Take a larger batch or a larger model: there is little to do in a step."
    call = f"nx.multi_step(step, steps={wanted})"
    if is_trainers_step(program):
        call = f"compile(steps_per_execution={wanted})"
    several = "more" if steps > 1 else "several"
    return message, f"Put {several} steps into one call with {call}, or take a larger batch."


def _slow_batch(evidence: Evidence) -> tuple[str, str]:
    """Return message and fix if sending the batch takes longer than the step."""
    where, time = evidence.where, evidence.time
    pcie = where.generation.pcie_bytes_per_second_per_chip / where.devices_per_chip
    batch = [leaf for leaf in evidence.program.leaves if leaf.role == "batch"]
    largest = max(batch, key=lambda leaf: leaf.device_bytes, default=None)
    most = f", most of it {largest.path} of {largest.dtype}" if largest else ""
    message = (
        f"The host needs {_duration(time.host_seconds)} to send the batch of a step "
        f"({bytes_text(time.host_seconds * pcie)} to each device at {pcie / 1e9:.3g} GB/s"
        f"{most}), and a step keeps the device busy for {_duration(time.device_seconds)}: the "
        "device waits."
    )
    keep = "keep the data on the devices from step to step"
    if largest and largest.device_bytes <= math.prod(largest.device_shape):
        return message, f"{keep.capitalize()}; the types are as small as they can be."
    smaller = "int8 or uint8, turned into numbers of the model's type on the device"
    if largest and largest.dtype.startswith(("float32", "float64")):
        smaller = "bfloat16, or int8 or uint8 that are normalised on the device"
    return message, (
        f"Send smaller types ({smaller}), or {keep}. A larger batch or more steps in one call take "
        "just as long to send."
    )


def _duration(seconds: float) -> str:
    """Return ``"about 12 µs"``, rounded because it is an estimate."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"about {seconds / size:.3g} {unit}"
    return "less than 1 µs"


def small_operations(evidence: Evidence) -> Iterator[Finding]:
    """Find many operations dominated by their fixed cost: 30 % of the step or more."""
    small = [o for o in evidence.operations if o.kind == "overhead"]
    seconds = sum(o.seconds for o in small)
    share = evidence.share(seconds)
    if share < _LARGE_SHARE:
        return
    count = sum(o.count for o in small)
    several = evidence.program.num_devices > 1
    fewer = ", wider layers or fewer devices" if several else " or wider layers"
    yield evidence.finding(
        "small-operations",
        f"{share:.0%} of the device's time is the fixed cost of {many(count, 'operation')} of "
        f"about {seconds / count * 1e6:.1f} µs.",
        f"A larger batch per device{fewer} give each of them more to do.",
        seconds,
        longest(small),
    )


def host_callbacks(evidence: Evidence) -> Iterator[Finding]:
    """Find host callbacks in the step: ``jax.debug.print``, ``pure_callback``, ``io_callback``.

    The program is compiled without them, so other numbers exclude them. The effect is a lower
    bound: one dispatch and the bytes over PCIe for each call. The time of the Python function is
    unknown, and the device waits for returned results.
    """
    where = evidence.where
    pcie = where.generation.pcie_bytes_per_second_per_chip / where.devices_per_chip
    places: dict[tuple[str, SourceLine | None], list[Callback]] = {}
    for callback in evidence.program.traits.callbacks:
        places.setdefault((callback.primitive, callback.source), []).append(callback)
    for (primitive, source), called in places.items():
        seconds = sum(c.count * (DISPATCH_SECONDS + c.num_bytes / pcie) for c in called)
        count = sum(callback.count for callback in called)
        waits = primitive in ("pure_callback", "io_callback")
        name = "jax.debug.print" if primitive == "debug_print" else primitive
        device = evidence.time.device_seconds
        yield Finding(
            "host-callback",
            "warning" if waits or seconds > device / 10 else "note",
            f"{name} calls Python on the host {count}× a step"
            + (", and the device waits for the answer" if waits else "")
            + ". It was left out of the compiled program: the estimate is without it.",
            "Return the value from the step and use it outside, every few hundred steps; or write "
            "the function with jax.numpy.",
            source,
            seconds,
            effect_share=min(1.0, seconds / (seconds + device)),
        )


def unrolled_layers(evidence: Evidence) -> Iterator[Finding]:
    """Find identical layers that a Python loop or a list of modules unrolled.

    They are matrix products at the same place of the program with the same sizes, under scopes that
    differ only in numbers (``layers.0``, ``layers.1``): six layers or more with 24 products or
    more, which are half of the program's products. The step takes no longer, but compile time grows
    with the layers and the code takes HBM.
    """
    products = [p for p in evidence.program.traits.products if not p.in_kernel]
    repeats = Counter(p.written for p in products)
    votes = Counter[int]()
    for times in repeats.values():
        votes[times] += times
    layers = max((n for n in votes if n >= _LAYERS), key=lambda n: votes[n], default=0)
    if not layers or votes[layers] < max(_PRODUCTS, len(products) / 2):
        return
    first = next(p for p in products if repeats[p.written] == layers)
    rest = 1 - 1 / layers
    compiled = ""
    if evidence.compile_seconds > 0:
        compiled = f" Compiling took {evidence.compile_seconds:.0f} s, most of it for them."
    yield Finding(
        "unrolled-layers",
        "note",
        f"{layers} identical layers are written out ({votes[layers]} of {len(products)} matrix "
        f"products).{compiled} The program's code takes "
        f"{bytes_text(evidence.memory.code_bytes)} of HBM.",
        "Stack their parameters along a first axis and use jax.lax.scan (nnx.scan; "
        "neurenix.models does): one layer is compiled, whatever their number.",
        first.source,
        0.0,
        int(evidence.memory.code_bytes * rest * votes[layers] / len(products)),
        scope=first.scope,
    )


def recompiling_arguments(evidence: Evidence) -> Iterator[Finding]:
    """Find arguments that make a later call compile again.

    State whose type or shape changes between calls is a warning: the second call compiles the whole
    step again. Python numbers are a note: they have a weak type, and an array in their place
    compiles again.
    """
    changed = [r for r in evidence.program.traits.recompiles if r.after]
    numbers = [r for r in evidence.program.traits.recompiles if not r.after]
    again = f" ({evidence.compile_seconds:.0f} s)" if evidence.compile_seconds >= 1 else ""
    if changed:
        first = changed[0]
        others = f", and {len(changed) - 1} more change too" if len(changed) > 1 else ""
        yield Finding(
            "recompile",
            "warning",
            f"{first.path} goes in as {first.before} and comes back as {first.after}{others}: the "
            f"next call is another program, and compiles again{again}.",
            "Give the initial state the types that the step returns, such as jnp.zeros((), "
            "jnp.int32) for a Python 0, or cast what is returned: new.astype(old.dtype).",
        )
    if numbers:
        named = ", ".join(f"argument {r.path} ({r.before})" for r in numbers[:3])
        more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
        yield Finding(
            "recompile",
            "note",
            f"A Python number is an argument: {named}{more}. It is sent at every call, and a call "
            f"with an array in its place compiles again{again}.",
            "Pass an array of a definite type, such as jnp.float32(value), made once.",
        )

"""What could be better in a compiled program, each with its place, its size and its cure.

Owns the rules, one function each, in ``RULES``: a rule sees the ``Evidence`` and yields findings.
A new rule is a new function in that tuple. It owns no arithmetic of time or memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from neurenix.chips import Slice
from neurenix.compiler.hlo import SourceLine
from neurenix.compiler.memory import Memory
from neurenix.compiler.operations import MatrixProduct
from neurenix.compiler.program import Program
from neurenix.compiler.time import Operation, StepTime

_NOTABLE_SHARE = 0.02
_MINOR_SHARE = 0.10
_LARGE_SHARE = 0.30
_LANES = 128


@dataclass(frozen=True)
class Finding:
    """One thing to know.

    ``severity`` is ``"error"``, ``"warning"`` or ``"note"``; ``effect_seconds`` the time of a step
    that it is about (estimated), ``effect_bytes`` the memory, where there is one. ``scope`` is the
    ``jax.named_scope`` of the operation, such as the layer's name, if it has one.
    """

    rule: str
    severity: str
    message: str
    fix: str
    source: SourceLine | None = None
    effect_seconds: float = 0.0
    effect_bytes: int = 0
    scope: str = ""


@dataclass(frozen=True)
class Evidence:
    """What the rules may look at. ``factor`` turns an operation's seconds into estimated ones."""

    program: Program
    where: Slice
    memory: Memory
    operations: tuple[Operation, ...]
    time: StepTime
    raw_seconds: float

    @property
    def factor(self) -> float:
        """Estimated seconds for one second of the schedule."""
        return self.time.device_seconds / self.raw_seconds if self.raw_seconds else 1.0

    def share(self, seconds: float) -> float:
        """Return the part of the device's time that ``seconds`` of the schedule are."""
        return seconds / self.raw_seconds if self.raw_seconds else 0.0


def find(evidence: Evidence) -> tuple[Finding, ...]:
    """Apply every rule; the gravest come first, then those with the largest effect."""
    order = {"error": 0, "warning": 1, "note": 2}
    found = [finding for rule in RULES for finding in rule(evidence)]
    return tuple(sorted(found, key=lambda f: (order[f.severity], -f.effect_seconds)))


def _severity(share: float) -> str:
    return "warning" if share >= _MINOR_SHARE else "note"


def padded_products(evidence: Evidence) -> Iterator[Finding]:
    """Matrix products whose sizes do not fill the matrix unit."""
    unit = evidence.where.generation.mxu[1]
    for operation in evidence.operations:
        if evidence.share(operation.seconds) < _NOTABLE_SHARE or not operation.products:
            continue
        product = max(operation.products, key=lambda p: p.flops)
        used = _used(product.depth, unit) * _used(product.columns, unit)
        if used > 0.8:
            continue
        small = [
            f"{name} {size}"
            for name, size in (("depth", product.depth), ("columns", product.columns))
            if _used(size, unit) < 0.9
        ]
        wasted = operation.seconds * (1 - used)
        yield Finding(
            "padded-matmul",
            _severity(evidence.share(wasted)),
            f"A product of {_sizes(product)} fills {used:.0%} of the {unit}×{unit} matrix unit "
            f"({', '.join(small)}).",
            f"Make these sizes multiples of {unit}"
            + (f", or of {_LANES} at least." if unit > _LANES else "."),
            operation.source,
            wasted * evidence.factor,
            scope=operation.scope,
        )


def _used(size: int, unit: int) -> float:
    return size / (-(-size // unit) * unit)


def _sizes(product: MatrixProduct) -> str:
    batch = f"{product.batch} × " if product.batch > 1 else ""
    return f"{batch}({product.rows} × {product.depth}) · ({product.depth} × {product.columns})"


def float32_products(evidence: Evidence) -> Iterator[Finding]:
    """Products of float32 operands: several passes when asked for exactly, more bytes always."""
    exact = [o for o in evidence.operations if any(p.highest for p in o.products)]
    wide = [
        o
        for o in evidence.operations
        if o not in exact and o.products and all("f32" in p.dtypes for p in o.products)
    ]
    for operation in exact:
        if evidence.share(operation.seconds) >= _NOTABLE_SHARE:
            saved = operation.seconds * 5 / 6
            yield Finding(
                "exact-float32-matmul",
                _severity(evidence.share(saved)),
                'A product at precision "highest" takes six passes of the matrix unit.',
                'Use the default precision, or "high" (three passes), where training allows it.',
                operation.source,
                saved * evidence.factor,
                scope=operation.scope,
            )
    seconds = sum(o.seconds for o in wide)
    if wide and evidence.share(seconds) >= _NOTABLE_SHARE:
        largest = max(wide, key=lambda o: o.seconds)
        saved = sum(_half_the_bytes(o, evidence) for o in wide)
        yield Finding(
            "float32-matmul",
            _severity(evidence.share(saved)),
            f"{len(wide)} products read float32 operands. The matrix unit rounds them to bfloat16 "
            "anyway, after twice the bytes were moved.",
            'Compute in bfloat16 and keep the parameters in float32: precision="bfloat16".',
            largest.source,
            saved * evidence.factor,
            scope=largest.scope,
        )


def _half_the_bytes(operation: Operation, evidence: Evidence) -> float:
    """Return the seconds that half of the bytes would save, down to what the FLOPs need."""
    generation = evidence.where.generation
    above = operation.seconds - operation.flops / generation.peak_flops_per_second["bfloat16"]
    rate = generation.hbm_bandwidth_bytes_per_second_per_device
    return max(0.0, min(above, operation.bytes / 2 / rate))


def moves(evidence: Evidence) -> Iterator[Finding]:
    """Transposes and copies that cost time of their own."""
    for operation in evidence.operations:
        is_move = operation.opcode in ("copy", "transpose") or (
            operation.opcode == "fusion"
            and operation.name.startswith(("copy", "transpose"))
            and not operation.products
        )
        share = evidence.share(operation.seconds)
        if is_move and share >= _NOTABLE_SHARE:
            yield Finding(
                "copy",
                _severity(share),
                f"A {operation.opcode} of {operation.shape} moves data without computing "
                f"({operation.count}× a step).",
                "Keep one axis order from layer to layer, so that no transpose is left between "
                "them; for state that is carried along, donate it.",
                operation.source,
                operation.seconds * evidence.factor,
                scope=operation.scope,
            )


def exposed_collectives(evidence: Evidence) -> Iterator[Finding]:
    """Communication that computing does not hide."""
    for kind, name in (("ici", "the slice's own links"), ("dcn", "the network between slices")):
        exposed = [o for o in evidence.operations if o.kind == kind and o.seconds > 0]
        seconds = sum(o.seconds for o in exposed)
        if not exposed or evidence.share(seconds) < _NOTABLE_SHARE:
            continue
        largest = max(exposed, key=lambda o: o.seconds)
        yield Finding(
            "exposed-collective",
            _severity(evidence.share(seconds)),
            f"{evidence.share(seconds):.0%} of the step waits for {name}; most for "
            f"{largest.opcode} of {largest.shape}.",
            "A larger batch per device, gradient accumulation or bfloat16 gradients give the same "
            "exchange more computing to hide behind.",
            largest.source,
            seconds * evidence.factor,
            scope=largest.scope,
        )


def small_steps(evidence: Evidence) -> Iterator[Finding]:
    """Find steps too short for the host to keep up with, or input that arrives too slowly."""
    time = evidence.time
    if time.bound != "host":
        return
    yield Finding(
        "host-bound",
        "warning",
        f"A step keeps the device busy for about {time.device_seconds * 1e6:.0f} µs, and the host "
        f"needs about {time.host_seconds * 1e6:.0f} µs to send the next: the device waits.",
        "Put several steps into one call with compile(steps_per_execution=50), or take a larger "
        "batch.",
        None,
        time.host_seconds - time.device_seconds,
    )


def missing_donation(evidence: Evidence) -> Iterator[Finding]:
    """Results as large as arguments that could have taken over their memory."""
    memory = evidence.memory
    spare = min(memory.arguments_bytes, memory.outputs_bytes - memory.aliased_bytes)
    if memory.aliased_bytes == 0 and spare > 0.05 * memory.limit_bytes:
        yield Finding(
            "donation",
            "warning",
            f"The results take {spare / 2**20:.0f} MiB beside the arguments, and no argument's "
            "memory is given to them.",
            "If the results replace the arguments, donate these: donate_argnums=(0,).",
            None,
            0.0,
            spare,
        )


def small_operations(evidence: Evidence) -> Iterator[Finding]:
    """Many operations that have less to do than they cost to start."""
    small = [o for o in evidence.operations if o.kind == "overhead"]
    seconds = sum(o.seconds for o in small)
    share = evidence.share(seconds)
    if share < _LARGE_SHARE:
        return
    yield Finding(
        "small-operations",
        "warning",
        f"{share:.0%} of the device's time is the fixed cost of {sum(o.count for o in small)} "
        f"operations of about {seconds / sum(o.count for o in small) * 1e6:.1f} µs.",
        "A larger batch per device, wider layers or fewer devices give each of them more to do.",
        None,
        seconds * evidence.factor,
    )


def undivided_work(evidence: Evidence) -> Iterator[Finding]:
    """Several devices that all do the same."""
    devices = evidence.program.num_devices
    divided = any(any(leaf.partition) for leaf in evidence.program.leaves)
    if devices > 1 and not divided and evidence.program.leaves:
        yield Finding(
            "undivided",
            "warning",
            f"No argument is divided over the {devices} devices: each of them does all the work.",
            'Divide the batch: nx.spec(shape, dtype, partition=("data",)), or train inside of '
            "strategy.scope().",
        )


def padded_arguments(evidence: Evidence) -> Iterator[Finding]:
    """Arguments that tiles make much larger."""
    padding = evidence.memory.padding_bytes
    if padding > 0.02 * evidence.memory.limit_bytes:
        worst = max(evidence.memory.buffers, key=lambda b: b.padded_bytes - b.logical_bytes)
        yield Finding(
            "padded-arguments",
            "warning",
            f"Padding to tiles of 8 × 128 takes {padding / 2**20:.0f} MiB; most for {worst.path} "
            f"{worst.shape}: {worst.logical_bytes / 2**20:.1f} → "
            f"{worst.padded_bytes / 2**20:.1f} MiB.",
            "Make the last axis a multiple of 128, or put a long axis last.",
            None,
            0.0,
            padding,
        )


RULES: tuple[Callable[[Evidence], Iterator[Finding]], ...] = (
    padded_products,
    float32_products,
    moves,
    exposed_collectives,
    small_steps,
    small_operations,
    undivided_work,
    missing_donation,
    padded_arguments,
)

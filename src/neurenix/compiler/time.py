"""How long a step takes, estimated from the scheduled program.

Owns the walk over the schedule: cycles of compute, transfers and collectives that run beside it
and are waited for where the program waits, loops times their trip counts. What remains visible of
a transfer is *exposed*. It does not own what a collective costs (``collectives``) or how cycles
become seconds of hardware (``calibration``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from neurenix.chips import VMEM_BANDWIDTH_OVER_HBM, Generation, Slice
from neurenix.compiler.attention_kernels import attention_cost
from neurenix.compiler.calibration import (
    DISPATCH_SECONDS,
    MULTI_SLICE,
    WEIGHTS,
    Calibration,
    calibration,
    product_seconds,
    product_well_used,
)
from neurenix.compiler.collectives import DIRECTIONS, dcn_seconds, directions, ici_seconds
from neurenix.compiler.hlo import Computation, Instruction, Module, SourceLine, called_as
from neurenix.compiler.operations import (
    COLLECTIVES,
    FREE,
    MatrixProduct,
    base_opcode,
    collective_inside,
    host_bytes,
    is_kernel,
    kernel_cost,
    leaves_device,
    top_level_products,
    touches_host,
)
from neurenix.compiler.traffic import moved_bytes

_TRANSFORM = re.compile(r"jit\([^)]*\)|(?:jvp|transpose|vmap|remat)\(")
_STRUCTURE = frozenset(
    "call_exported while body cond closed_call checkpoint rematted_computation scan branch_0_fun "
    "branch_1_fun shard_map custom_jvp_call custom_vjp_call pallas_call".split()
)
_SMALL_SECONDS = 5e-6
_LITTLE_SECONDS = 1e-6
_PASSES = 10  # over the bytes of what has no cycles, at most: a judgement, for the interval
_RATES = {  # by the beginning of a type's name: XLA's, then JAX's
    "f8": "float8", "s8": "int8", "u8": "int8", "s4": "int4", "u4": "int4",
    "float8": "float8", "int8": "int8", "uint8": "int8", "int4": "int4", "uint4": "int4",
}  # fmt: skip
HOST_LANES = ("from host", "to host")  # PCIe carries both ways at once
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclass
class Operation:
    """An instruction with all its repetitions in one step.

    ``seconds`` is what it adds to the step before the factor of its generation; for a collective or
    a transfer, what is not hidden behind compute. ``floor_seconds`` is what its FLOPs and bytes
    would need at the device's peak, ``cycles_seconds`` what the compiler's own cycles say; zero
    where there are none, and ``uncounted`` if nothing else says how long it takes. ``kind`` is what
    it is bound by:

    - ``"compute"``: the matrix unit;
    - ``"hbm"``: bytes from and to memory;
    - ``"vector"``: element-wise work that, by the compiler's cycles, takes over twice as long as
      its bytes;
    - ``"overhead"``: the fixed cost of an operation that has little to do;
    - ``"ici"`` and ``"dcn"``: exchanges inside of a slice and between slices;
    - ``"host"``: values that are offloaded to the host's memory and fetched from it.
    """

    name: str
    opcode: str
    kind: str
    seconds: float
    floor_seconds: float
    busy_seconds: float
    count: int
    flops: float
    bytes: int
    shape: str
    op_name: str
    source: SourceLine | None
    products: tuple[MatrixProduct, ...] = ()
    cycles_seconds: float = 0.0
    uncounted: bool = False

    @property
    def well_used_product(self) -> bool:
        """Whether its time is as sure as published runs make it: they consist of such products.

        Attention kernels count among them.
        """
        if not self.products:
            return self.kind == "compute"
        return product_well_used(self.cycles_seconds, self.floor_seconds)

    @property
    def transfer(self) -> bool:
        """Whether it runs beside others, and ``busy_seconds`` are those of its bytes."""
        return self.opcode.endswith("-start") or self.opcode in ("send", "recv")

    @property
    def scope(self) -> str:
        """The ``jax.named_scope`` around the operation, or an empty string."""
        path = _TRANSFORM.sub("", self.op_name).replace(")", "").split("/")[:-1]
        return "/".join(part for part in path if part and part not in _STRUCTURE)


@dataclass(frozen=True)
class StepTime:
    """An estimate, never a measurement. Seconds of one step; ``low`` to ``high`` is the interval.

    ``bound`` is what most of the time goes to, a kind of ``Operation`` or ``"host"``; ``shares`` is
    every kind's part of the device's time.
    """

    seconds: float
    low: float
    high: float
    device_seconds: float
    host_seconds: float
    bound: str
    shares: dict[str, float]
    basis: str
    unmodelled: tuple[str, ...] = ()


@dataclass
class _Pending:
    finish: float
    duration: float
    kind: str
    instruction: Instruction


@dataclass
class Schedule:
    """The walk over one program for one slice; ``operations`` is filled by ``run``.

    ``calibrated`` is whether operations are weighed as published runs have it (``calibration``), or
    left as the compiler's cycles and the model of transfers have them.
    """

    module: Module
    where: Slice
    calibrated: bool = True
    operations: dict[str, Operation] = field(default_factory=dict)
    unknown_loops: list[Instruction] = field(default_factory=list)
    unmodelled: dict[str, int] = field(default_factory=dict)

    def run(self) -> float:
        """Return the seconds of one step by the compiler's cycles, and fill ``operations``."""
        return self._computation(self.module.entry, 1)

    def _computation(self, computation: Computation, count: int) -> float:
        now = 0.0
        free: dict[str, float] = {lane: 0.0 for lane in (*HOST_LANES, "hbm", "dcn", *DIRECTIONS)}
        pending: dict[str, _Pending] = {}
        for instruction in computation.instructions:
            now = self._step(computation, instruction, count, now, free, pending)
        return now

    def _step(
        self,
        computation: Computation,
        instruction: Instruction,
        count: int,
        now: float,
        free: dict[str, float],
        pending: dict[str, _Pending],
    ) -> float:
        opcode = instruction.opcode
        if opcode in FREE:
            return now
        if opcode == "while":
            return now + self._loop(computation, instruction, count)
        if opcode in ("call", "conditional"):
            return now + max(
                (self._computation(c, count) for c in self._called(instruction)), default=0.0
            )
        half = self._half(instruction)
        if half == "start":
            kind, duration = self._transfer(instruction)
            if kind != "hbm":  # whose rate is that of the memory itself
                duration *= self._weight(kind)
            lanes = self._lanes(instruction, kind)
            finish = max([now, *(free[lane] for lane in lanes)]) + duration
            free.update((lane, finish) for lane in lanes)
            key = self._channel(instruction) or instruction.name
            pending[key] = _Pending(finish, duration, kind, instruction)
            return now
        if half == "done":
            return self._wait(instruction, count, now, pending)
        seconds, operation = self._compute(computation, instruction)
        rate = self.where.generation.hbm_bandwidth_bytes_per_second_per_device
        free["hbm"] = max(free["hbm"], now) + operation.bytes / rate
        self._record(instruction, operation, seconds, count)
        return now + seconds

    def _half(self, instruction: Instruction) -> str:
        if instruction.opcode.endswith("-start") or instruction.opcode in ("send", "recv"):
            return "start"
        if instruction.opcode.endswith("-done"):
            return "done"
        if instruction.opcode == "fusion" and instruction.estimated_cycles is None:
            for half in ("start", "done"):
                if instruction.name.startswith(f"async-collective-{half}"):
                    return half
        return ""

    def _loop(self, computation: Computation, loop: Instruction, count: int) -> float:
        trips = self.module.trip_count(computation, loop)
        if trips is None:
            self.unknown_loops.append(loop)
            trips = 1
        body = self.module.computations[called_as(loop, "body")]
        return trips * self._computation(body, count * trips)

    def _called(self, instruction: Instruction) -> list[Computation]:
        return [
            self.module.computations[name]
            for name in instruction.called
            if name in self.module.computations
        ]

    def _channel(self, instruction: Instruction) -> str:
        if instruction.opcode != "fusion":
            return ""
        inner = collective_inside(self.module, instruction)
        found = _CHANNEL.search(inner.attributes) if inner else None
        return f"channel {found[1]}" if found else ""

    def _transfer(self, instruction: Instruction) -> tuple[str, float]:
        if instruction.opcode == "recv":  # arrives while its send is under way
            return "dcn", 0.0
        if instruction.opcode == "send":
            moved = instruction.shapes[0].padded_bytes
            return "dcn", dcn_seconds(moved, self.where)
        inner = collective_inside(self.module, instruction)
        if inner is not None:
            return "ici", ici_seconds(inner, self.where)
        generation = self.where.generation
        if touches_host(instruction):
            pcie = generation.pcie_bytes_per_second_per_chip / self.where.devices_per_chip
            return "host", host_bytes(instruction) / pcie
        moved = max((s.padded_bytes for s in instruction.shapes if not s.in_hbm), default=0)
        moved = moved or max(s.padded_bytes for s in instruction.shapes)
        return "hbm", moved / generation.hbm_bandwidth_bytes_per_second_per_device

    def _lanes(self, instruction: Instruction, kind: str) -> tuple[str, ...]:
        """Return what transfers queue for."""
        if kind == "ici":
            return directions(instruction)
        if kind == "host":
            return (HOST_LANES[leaves_device(instruction)],)
        return (kind,)

    def _wait(
        self, instruction: Instruction, count: int, now: float, pending: dict[str, _Pending]
    ) -> float:
        key = self._channel(instruction) or next(iter(instruction.operands), "")
        waited = pending.pop(key, None)
        if waited is None:
            return now
        exposed = max(0.0, waited.finish - now)
        operation = self._describe(waited.instruction, waited.kind)
        operation.busy_seconds = waited.duration
        operation.floor_seconds = exposed
        self._record(waited.instruction, operation, exposed, count)
        return now + exposed

    def _compute(
        self, computation: Computation, instruction: Instruction
    ) -> tuple[float, Operation]:
        generation = self.where.generation
        cycles = instruction.estimated_cycles
        if cycles is None and base_opcode(instruction) in COLLECTIVES:
            seconds = ici_seconds(instruction, self.where) * self._weight("ici")
            operation = self._describe(instruction, "ici")
            operation.floor_seconds = operation.busy_seconds = seconds
            return seconds, operation
        peaks = generation.peak_flops_per_second
        moved, inside = moved_bytes(self.module, computation, instruction)
        products = tuple(top_level_products(self.module, computation, instruction))
        flops = sum(product.flops for product in products)
        stated, uncounted = None, False
        if is_kernel(instruction):
            stated = kernel_cost(instruction) or attention_cost(computation, instruction, moved)
        if stated:
            flops, moved = stated[0], int(stated[1])
        compute = flops / peaks["bfloat16"]
        if not stated:
            compute = sum(
                product.flops / peak_of(product.dtypes, generation) for product in products
            )
        rate = generation.hbm_bandwidth_bytes_per_second_per_device
        transfer = moved / rate
        within = inside / (rate * VMEM_BANDWIDTH_OVER_HBM)
        if cycles is not None:
            seconds = max(cycles / generation.clock_hertz, compute if products else 0.0)
        elif is_kernel(instruction):
            seconds = max(compute * self._weight("kernel"), transfer)
        else:
            seconds = self._without_cycles(instruction, transfer)
            uncounted = self._uncounted(instruction) and seconds > _LITTLE_SECONDS
        floor = min(seconds, max(compute, transfer, within))
        if floor < seconds / 3 and seconds < _SMALL_SECONDS:
            kind = "overhead"
        elif compute > transfer:
            kind = "compute"
        elif transfer < seconds / 2 and not products and not is_kernel(instruction):
            kind = "vector"
        else:
            kind = "hbm"
        operation = self._describe(instruction, kind)
        operation.uncounted = uncounted
        if cycles is not None:
            operation.cycles_seconds = seconds
        if products and self.calibrated:
            seconds = product_seconds(seconds, floor, calibration(generation.name).least)
        elif not products and cycles is not None:
            seconds = max(seconds * self._weight(kind), floor)
        operation.floor_seconds = min(floor, seconds)
        operation.busy_seconds = seconds
        operation.flops, operation.bytes, operation.products = flops, moved, products
        return seconds, operation

    def _weight(self, kind: str) -> float:
        return WEIGHTS.get(kind, 1.0) if self.calibrated else 1.0

    def _without_cycles(self, instruction: Instruction, transfer: float) -> float:
        """Return the time of an instruction that the compiler gives no cycles."""
        if instruction.opcode == "custom-call":
            target = instruction.attribute("custom_call_target") or ""
            if target in ("AllocateBuffer", "ConcatBitcast") or target.startswith("Assume"):
                return 0.0
        if self._uncounted(instruction) and transfer > _LITTLE_SECONDS:
            name = instruction.attribute("custom_call_target") or instruction.opcode
            self.unmodelled[name] = self.unmodelled.get(name, 0) + 1
        return transfer

    def _uncounted(self, instruction: Instruction) -> bool:
        return instruction.opcode not in ("fusion", "copy", "convert", "broadcast")

    def _describe(self, instruction: Instruction, kind: str) -> Operation:
        return Operation(
            name=instruction.name,
            opcode=instruction.opcode,
            kind=kind,
            seconds=0.0,
            floor_seconds=0.0,
            busy_seconds=0.0,
            count=0,
            flops=0.0,
            bytes=0,
            shape=", ".join(map(str, instruction.shapes[:3])),
            op_name=instruction.op_name,
            source=self.module.source(instruction),
        )

    def _record(
        self, instruction: Instruction, operation: Operation, seconds: float, count: int
    ) -> None:
        kept = self.operations.setdefault(
            instruction.name, self._describe(instruction, operation.kind)
        )
        kept.seconds += seconds * count
        kept.floor_seconds += operation.floor_seconds * count
        kept.busy_seconds += operation.busy_seconds * count
        kept.cycles_seconds += operation.cycles_seconds * count
        kept.flops += operation.flops * count
        kept.bytes += operation.bytes * count
        kept.count += count
        kept.products = operation.products
        kept.uncounted = operation.uncounted


def peak_of(dtypes: Sequence[str], generation: Generation) -> float:
    """Return the FLOP/s at which operands are multiplied: those of the slower type of the two.

    Args:
        dtypes: as XLA or as JAX calls them, ``"s8"`` or ``"int8"``.
        generation: of the device.

    Example:
        >>> from neurenix.chips import generation
        >>> v5e = generation("v5e")
        >>> peak_of(("int8", "int8"), v5e) / 1e12, peak_of(("f32", "s8"), v5e) / 1e12
        (393.0, 197.0)
    """
    peaks = generation.peak_flops_per_second
    kinds = (
        next((kind for name, kind in _RATES.items() if dtype.startswith(name)), "bfloat16")
        for dtype in dtypes
    )
    rates = [peaks.get(kind, 0.0) for kind in kinds]
    return max(min(rates, default=0.0), peaks["bfloat16"])


def peak_flops_per_second(schedule: Schedule) -> float:
    """Return a device's peak for the types that a program multiplies, weighed by their work.

    Args:
        schedule: after ``run``.
    """
    generation = schedule.where.generation
    flops = seconds = 0.0
    for operation in schedule.operations.values():
        for product in operation.products:
            flops += product.flops * operation.count
            seconds += product.flops * operation.count / peak_of(product.dtypes, generation)
    return flops / seconds if seconds else generation.peak_flops_per_second["bfloat16"]


def step_time(
    schedule: Schedule, raw_seconds: float, batch_bytes_per_device: int, steps_per_call: int = 1
) -> StepTime:
    """Turn the schedule's seconds into an estimate with an interval and a bound.

    Args:
        schedule: after ``run``.
        raw_seconds: what ``run`` returned.
        batch_bytes_per_device: of input that the host sends for one step.
        steps_per_call: steps that the host starts with one dispatch.
    """
    where = schedule.where
    factors: Calibration = calibration(where.generation.name)
    factor = factors.factor * (MULTI_SLICE if where.num_slices > 1 else 1.0)
    operations = schedule.operations.values()
    rate = where.generation.hbm_bandwidth_bytes_per_second_per_device
    faster = slower = sure = work = traffic = 0.0
    for op in operations:
        if op.kind not in ("ici", "dcn", "host"):
            work += op.floor_seconds
            traffic += op.busy_seconds if op.transfer else min(op.bytes / rate, op.busy_seconds)
        if op.well_used_product:
            sure += op.seconds
            continue
        slower += max(0.0, op.cycles_seconds - op.seconds)
        if op.uncounted:  # one pass over its bytes; nobody knows how many it makes
            slower += (_PASSES - 1) * op.seconds
        if op.kind in ("hbm", "vector") and not op.products:
            faster += max(0.0, op.seconds - op.floor_seconds)
    floor = max(work, traffic)
    device = max(raw_seconds * factor, floor)
    width = math.exp(factors.half_width(sure / raw_seconds if raw_seconds else 0.0))
    pcie = where.generation.pcie_bytes_per_second_per_chip / where.devices_per_chip
    host = max(DISPATCH_SECONDS / steps_per_call, batch_bytes_per_device / pcie)
    totals: dict[str, float] = {}
    for op in operations:
        totals[op.kind] = totals.get(op.kind, 0.0) + op.seconds
    whole = sum(totals.values()) or 1.0
    shares = {kind: part / whole for kind, part in sorted(totals.items(), key=lambda p: -p[1])}
    return StepTime(
        seconds=max(device, host),
        low=max((raw_seconds - faster) * factor / width, floor),
        high=max((raw_seconds + slower) * factor * width, host * 2),
        device_seconds=device,
        host_seconds=host,
        bound="host" if host > device else next(iter(shares), "compute"),
        shares=shares,
        basis=factors.basis,
        unmodelled=tuple(sorted(schedule.unmodelled)),
    )

"""Walk over a program's schedule: what waits for what, and how long each part takes.

Compute adds its cycles; transfers and collectives run beside it until the program waits for them;
loops count by their trip counts, with their conditions once more; of several branches the longest
counts. The part of a transfer that compute does not hide is *exposed*. ``instruction_cost`` owns
lower bounds, ``collectives`` the cost of collectives, and ``step_time`` the conversion to seconds
of hardware.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from neurenix.chips import Slice
from neurenix.compiler.calibration import MULTI_SLICE, WEIGHTS, calibration, product_seconds
from neurenix.compiler.collectives import (
    DIRECTIONS,
    dcn_bytes,
    dcn_seconds,
    directions,
    ici_seconds,
    links_of,
)
from neurenix.compiler.hlo import Computation, Instruction, Module, called_as
from neurenix.compiler.instruction_cost import Work, work_of
from neurenix.compiler.operations import (
    COLLECTIVES,
    FREE,
    Operation,
    base_opcode,
    collective_inside,
    host_bytes,
    inner_instructions,
    leaves_device,
    reduces_and_scatters,
    touches_host,
)

_OVERHEAD_SECONDS = 5e-6
"""An operation well above its floor is overhead if it is shorter than this: a judgement."""
_OVERHEAD_OVER_FLOOR = 3
"""Smallest ratio of time to floor of overhead: a judgement. At twice the floor half is work."""
_VECTOR_OVER_TRANSFER = 2
"""Smallest ratio of time to the time of its bytes for element-wise work: a judgement. Below it the
operation is bound by memory, because no program reaches the published bandwidth."""
_UNMODELLED_SECONDS = 1e-6
"""Report an operation without cycles if it is longer than this: a judgement. Many are shorter (a
reshape, a counter) and do not matter."""
_SEARCHING = ("gather", "reduce-window", "scatter", "select-and-scatter", "sort")
"""Operations that pass over their data many times or row by row, as the compiler's own routines do
(TopK, Cholesky). One pass over the bytes does not estimate their time."""
_FEW_NUMBERS = 8 * 128
"""Operations with at most this many elements, one register, are not reported."""
_WITHOUT_TIME = ("AllocateBuffer", "ConcatBitcast")
_PLAIN = ("fusion", "copy", "convert", "broadcast")  # bound by their bytes
HOST_LANES = ("from host", "to host")  # PCIe carries both ways at once
_ON_SCALARS = frozenset("add and compare convert copy multiply not or subtract xor".split())
"""Operations on loop counters: their time on the scalar unit is negligible."""
_CHANNEL = re.compile(r"channel_id=(\d+)")


@dataclass
class _Pending:
    finish: float
    duration: float
    kind: str
    instruction: Instruction


@dataclass
class Schedule:
    """The walk over one program for one slice; ``run`` fills ``operations``.

    ``calibrated`` selects the weights of the published runs (``calibration``) instead of the
    compiler's cycles and the model of transfers. ``steps`` is the number of steps in counted loops.
    ``run`` also fills ``unknown_loops``, which count once; ``unmodelled``, the names of
    instructions without cycles; ``branches``, by conditional the seconds that a step saves if it
    always takes the shortest branch; and ``links``, by link the seconds of the bytes of each
    instruction.
    """

    module: Module
    where: Slice
    calibrated: bool = True
    steps: int = 1
    operations: dict[str, Operation] = field(default_factory=dict)
    unknown_loops: list[Instruction] = field(default_factory=list)
    unmodelled: dict[str, int] = field(default_factory=dict)
    branches: dict[str, tuple[Instruction, float]] = field(default_factory=dict)
    links: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)

    def run(self) -> float:
        """Return the seconds of one step by the compiler's cycles, and fill ``operations``."""
        seconds = self._computation(self.module.entry, 1)
        if self.calibrated:
            seconds += self._queue(seconds)
        return self._of_one_step(seconds)

    def _of_one_step(self, seconds: float) -> float:
        """Return the seconds of one step, and scale the results of several steps to one."""
        for operation in self.operations.values():
            operation.divide(self.steps)
        for name, (conditional, spread) in self.branches.items():
            self.branches[name] = conditional, spread / self.steps
        for carried in self.links.values():
            for name in carried:
                carried[name] /= self.steps
        return seconds / self.steps

    @property
    def factor(self) -> float:
        """Estimated seconds per second of the schedule, by the published runs."""
        several = MULTI_SLICE if self.where.num_slices > 1 else 1.0
        return calibration(self.where.generation.name).factor * several

    def _queue(self, seconds: float) -> float:
        """Return the seconds by which the busiest links exceed the whole schedule.

        They are added to the collectives, alone or in a fusion, that share these links.
        """
        busiest = max(self.links.values(), key=lambda carried: sum(carried.values()), default={})
        missing = sum(busiest.values()) / self.factor - seconds
        known = [(self.operations[n], part) for n, part in busiest.items() if n in self.operations]
        if missing <= 0 or not known:
            return 0.0
        for operation, part in known:
            more = missing * part / sum(part for _, part in known)
            if more > operation.seconds:
                operation.kind = "ici"
            operation.seconds += more
            operation.floor_seconds += more
        return missing

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
        if opcode == "conditional":
            return now + self._dearest(instruction, count)
        if opcode == "call":
            return now + sum(self._computation(c, count) for c in self._called(instruction))
        half = self._half(instruction)
        if half == "start":
            kind, duration = self._transfer(instruction)
            if kind == "ici":
                self._occupy(instruction, count)
            if kind != "hbm":  # "hbm" has its own bandwidth
                duration *= self._weight(kind)
            lanes = self._lanes(instruction, kind)
            finish = max([now, *(free[lane] for lane in lanes)]) + duration
            free.update((lane, finish) for lane in lanes)
            key = self._channel(instruction) or instruction.name
            pending[key] = _Pending(finish, duration, kind, instruction)
            return now
        if half == "done":
            return self._wait(instruction, count, now, pending)
        if instruction.estimated_cycles is None:
            self._occupy(instruction, count)
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
        seconds = trips * self._computation(body, count * trips)
        condition = self.module.computations.get(called_as(loop, "condition"))
        if condition is None or not any(map(_takes_time, condition.instructions)):
            return seconds
        return seconds + (trips + 1) * self._computation(condition, count * (trips + 1))

    def _dearest(self, conditional: Instruction, count: int) -> float:
        """Walk over all branches, and keep the operations of the longest one."""
        tried: list[tuple[float, Schedule]] = []
        for computation in self._called(conditional):
            alone = Schedule(self.module, self.where, self.calibrated)
            tried.append((alone._computation(computation, count), alone))
        if not tried:
            return 0.0
        seconds, kept = max(tried, key=lambda branch: branch[0])
        for name, operation in kept.operations.items():
            if name in self.operations:
                self.operations[name].add(operation)
            else:
                self.operations[name] = operation
        self.unknown_loops += kept.unknown_loops
        for name, number in kept.unmodelled.items():
            self.unmodelled[name] = self.unmodelled.get(name, 0) + number
        for links, carried in kept.links.items():
            for name, busy in carried.items():
                self._carry(links, name, busy)
        self.branches |= kept.branches
        least = min(branch[0] for branch in tried)
        self.branches[conditional.name] = conditional, (seconds - least) * count
        return seconds

    def _occupy(self, instruction: Instruction, count: int) -> None:
        """Add the bytes of a collective, alone or in a fusion, to its links."""
        collective = collective_inside(self.module, instruction)
        if collective is None:
            return
        seconds = ici_seconds(collective, self.where, hops=False) * count
        if reduces_and_scatters(self.module, instruction):
            seconds /= 2
        for direction in directions(collective):
            self._carry((links_of(collective), direction), instruction.name, seconds)

    def _carry(self, links: tuple[str, str], name: str, seconds: float) -> None:
        carried = self.links.setdefault(links, {})
        carried[name] = carried.get(name, 0.0) + seconds

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
        if instruction.opcode in ("send", "recv"):
            return "dcn", dcn_seconds(dcn_bytes(instruction, self.where), self.where)
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
        """Return the queues of a transfer."""
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
        if instruction.estimated_cycles is None and base_opcode(instruction) in COLLECTIVES:
            return self._collective(instruction)
        generation = self.where.generation
        cycles = instruction.estimated_cycles
        work = work_of(self.module, computation, instruction, generation)
        compute, uncounted = work.compute_seconds, False
        if cycles is not None:
            seconds = max(cycles / generation.clock_hertz, compute if work.products else 0.0)
        elif work.kernel:
            compute *= self._kernel_weight(work)
            seconds = max(compute, work.transfer_seconds)
            if not work.stated and seconds > _UNMODELLED_SECONDS:
                self._miss(
                    f"what the Pallas kernel {_kernel_name(instruction)} does beside products"
                )
                uncounted = not work.flops
        else:
            seconds, uncounted = self._without_cycles(computation, instruction, work)
        floor = min(seconds, work.floor_seconds)
        kind = _bound(work, compute, floor, seconds)
        operation = self._describe(instruction, kind)
        operation.uncounted = uncounted
        operation.unstated = work.kernel and not work.stated
        operation.attention = work.attention
        if cycles is not None:
            operation.cycles_seconds = seconds
        if work.products and self.calibrated:
            seconds = product_seconds(seconds, floor, calibration(generation.name).least)
        elif not work.products and cycles is not None:
            seconds = max(seconds * self._weight(kind), floor)
        operation.floor_seconds = min(floor, seconds)
        operation.busy_seconds = seconds
        operation.flops, operation.bytes = work.flops, work.bytes
        operation.products = work.products
        return seconds, operation

    def _collective(self, instruction: Instruction) -> tuple[float, Operation]:
        seconds = ici_seconds(instruction, self.where) * self._weight("ici")
        operation = self._describe(instruction, "ici")
        operation.floor_seconds = operation.busy_seconds = seconds
        return seconds, operation

    def _miss(self, name: str) -> None:
        self.unmodelled[name] = self.unmodelled.get(name, 0) + 1

    def _weight(self, kind: str) -> float:
        return WEIGHTS.get(kind, 1.0) if self.calibrated else 1.0

    def _kernel_weight(self, work: Work) -> float:
        if not self.calibrated or work.attention:
            return self._weight("kernel")
        return calibration(self.where.generation.name).other_kernel

    def _without_cycles(
        self, computation: Computation, instruction: Instruction, work: Work
    ) -> tuple[float, bool]:
        """Return the time of an instruction without cycles, and whether it is only a lower bound.

        The report names those.
        """
        if _takes_nothing(instruction):
            return 0.0, False
        transfer = work.transfer_seconds
        inner = self._searching(instruction)
        told = inner.attribute("custom_call_target") or inner.opcode if inner else ""
        if inner:
            around = filter(None, map(computation.by_name.get, instruction.operands))
            arrays = (inner,) if inner.opcode == "gather" else (instruction, *around)
            numbers = max(math.prod(shape.sizes) for array in arrays for shape in array.shapes)
            transfer = max(transfer, work.vmem_seconds)
            uncounted = transfer > _UNMODELLED_SECONDS or numbers > _FEW_NUMBERS
        else:
            plain = instruction.opcode in _PLAIN and not instruction.cycles_overflow
            uncounted = transfer > _UNMODELLED_SECONDS and not plain
        if uncounted:
            self._miss(told or instruction.opcode)
        return transfer, uncounted

    def _searching(self, instruction: Instruction) -> Instruction | None:
        """Return the part of an instruction that needs more than one pass over its data, if any."""
        for inner in inner_instructions(self.module, instruction):
            routine = inner.opcode == "custom-call" and not _takes_nothing(inner)
            if routine or inner.opcode in _SEARCHING:
                return inner
        return None

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
        operation.seconds, operation.count = seconds, 1
        kept.add(operation, count)


def _bound(work: Work, compute: float, floor: float, seconds: float) -> str:
    """Return the kind of an operation by the largest part of its time."""
    if floor < seconds / _OVERHEAD_OVER_FLOOR and seconds < _OVERHEAD_SECONDS:
        return "overhead"
    if compute > work.transfer_seconds:
        return "compute"
    element_wise = not work.products and not work.kernel
    if element_wise and work.transfer_seconds < seconds / _VECTOR_OVER_TRANSFER:
        return "vector"
    return "hbm"


def _takes_time(instruction: Instruction) -> bool:
    """Return whether an instruction in a loop's condition is more than scalar arithmetic."""
    if instruction.opcode in _ON_SCALARS:
        return any(math.prod(shape.sizes) > 1 for shape in instruction.shapes)
    return instruction.opcode not in FREE


def _takes_nothing(instruction: Instruction) -> bool:
    """Return whether this is a call that only names memory or states a fact."""
    target = instruction.attribute("custom_call_target") or ""
    return target in _WITHOUT_TIME or target.startswith("Assume")


def _kernel_name(instruction: Instruction) -> str:
    return instruction.name.rstrip("0123456789").rstrip(".")

"""From a compiled program to what is said of it: memory, time, operations and findings.

Owns the order in which the parts are asked; each part owns its own judgement.
"""

from __future__ import annotations

from dataclasses import dataclass

from neurenix._core.source_files import is_neurenix
from neurenix.chips import Slice
from neurenix.compiler import memory as memory_module
from neurenix.compiler.compile import Compiled, Refusal
from neurenix.compiler.findings import Evidence, Finding, find, of_refusal
from neurenix.compiler.hlo import parse
from neurenix.compiler.memory import Memory
from neurenix.compiler.program import Program
from neurenix.compiler.time import Operation, Schedule, StepTime, step_time, utilization
from neurenix.compiler.training import sent_bytes

_MUCH = 0.05
"""Of a step, what a choice of branches must make of it to be told."""


@dataclass(frozen=True)
class Analysis:
    """The verdict on one program and one slice.

    ``time`` and ``mfu`` are ``None`` when the compiler refused the program.
    """

    program: Program
    where: Slice
    fits: bool
    memory: Memory
    time: StepTime | None
    mfu: float | None
    operations: tuple[Operation, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    compile_seconds: float
    from_cache: bool


def analyse(program: Program, where: Slice, answer: Compiled | Refusal) -> Analysis:
    """Judge the compiler's answer."""
    limit = where.generation.hbm_bytes_per_device
    if isinstance(answer, Refusal):
        return _refused(program, where, answer, limit)
    module = parse(answer.hlo)
    memory = memory_module.of_compiled(program, module, answer.memory, limit_bytes=limit)
    schedule = Schedule(module, where)
    raw = schedule.run()
    sent = sent_bytes(program, memory)
    time = step_time(schedule, raw, sent, program.traits.steps_per_call)
    operations = tuple(sorted(schedule.operations.values(), key=lambda o: -o.seconds))
    spent = sum(answer.seconds.values())
    evidence = Evidence(program, where, memory, operations, time, raw, module, spent)
    return Analysis(
        program=program,
        where=where,
        fits=True,
        memory=memory,
        time=time,
        mfu=utilization(schedule, program.model_flops, time.seconds, program.num_devices),
        operations=operations,
        findings=find(evidence),
        notes=answer.notes + _notes(schedule, time, raw),
        compile_seconds=spent,
        from_cache=answer.from_cache,
    )


def _notes(schedule: Schedule, time: StepTime, raw_seconds: float) -> tuple[str, ...]:
    notes = []
    for loop in schedule.unknown_loops:
        place = schedule.module.source(loop)
        notes.append(
            f"The loop at {place or loop.name} runs as often as the data says; it is counted once."
        )
    for conditional, spread in schedule.branches.values():
        place = schedule.module.source(conditional)
        if place is not None and is_neurenix(place.file):
            continue  # the step's own, which changes the weights unless training has diverged
        if spread > _MUCH * raw_seconds:
            notes.append(
                f"Which branch is taken at {place or conditional.name} the data says; the one that "
                "takes longest is counted every time. With the shortest every time the step takes "
                f"{spread / raw_seconds:.0%} less."
            )
    if time.unmodelled:
        notes.append(
            f"The compiler gives no cycles for {', '.join(time.unmodelled)}: counted is one pass "
            "over the bytes, the least that it takes. It may take many times as long, beyond the "
            "interval."
        )
    return tuple(dict.fromkeys(notes))


def _refused(program: Program, where: Slice, answer: Refusal, limit: int) -> Analysis:
    memory = memory_module.of_refused(program, answer.needed_bytes, limit_bytes=limit)
    finding = of_refusal(program, where, answer)
    return Analysis(
        program=program,
        where=where,
        fits=False,
        memory=memory,
        time=None,
        mfu=None,
        operations=(),
        findings=(finding,),
        notes=answer.notes,
        compile_seconds=0.0,
        from_cache=answer.from_cache,
    )

"""Analyse a compiled program: memory, time, operations and findings.

Owns the order of the analyses; each is in its own module.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neurenix._core.source_files import is_neurenix
from neurenix._core.units import bytes_text, percent_text
from neurenix.chips import Slice
from neurenix.compiler import peak_memory as memory_module
from neurenix.compiler.argument_arrays import as_compiled
from neurenix.compiler.cache import versions
from neurenix.compiler.calibration import other_compiler
from neurenix.compiler.compile import Compiled, Refusal
from neurenix.compiler.coverage import unlike_the_runs
from neurenix.compiler.findings import Evidence, Finding, find, of_refusal, with_caller
from neurenix.compiler.hlo import parse
from neurenix.compiler.operations import Operation
from neurenix.compiler.peak_memory import Memory
from neurenix.compiler.program import Program
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.step_time import StepTime, step_time
from neurenix.compiler.training import sent_bytes
from neurenix.compiler.utilization import utilization

_MUCH = 0.05
"""Smallest share of a step, or of the memory, for which branches, or batches, are mentioned."""


@dataclass(frozen=True)
class Analysis:
    """The analysis of one program on one slice.

    ``time`` and ``mfu`` are ``None`` if the compiler refused the program.
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

    @property
    def refused(self) -> str | None:
        """The kind of the refusal; ``None`` if the program fits."""
        rules = (finding.rule for finding in self.findings if not self.fits)
        return next((r.removeprefix("refused-") for r in rules if r.startswith("refused-")), None)


def analyse(program: Program, where: Slice, answer: Compiled | Refusal) -> Analysis:
    """Analyse the compiler's answer."""
    if said := other_compiler(versions()["libtpu"]):
        answer = replace(answer, notes=(*answer.notes, said))
    limit = where.generation.hbm_bytes_per_device
    if isinstance(answer, Refusal):
        return _refused(program, where, answer, limit)
    module = parse(answer.hlo)
    program = replace(program, leaves=as_compiled(program.leaves, module))
    memory = memory_module.of_compiled(program, module, answer.memory, limit_bytes=limit)
    sent = sent_bytes(program, memory)
    schedule = Schedule(module, where, steps=program.traits.steps_counted)
    raw = schedule.run()
    steps = program.traits.steps_per_call
    time = step_time(schedule, raw, sent, steps, unlike_the_runs(program))
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
        if place is not None and is_neurenix(place.file):
            continue  # Neurenix's loop over the steps of a call
        notes.append(
            f"The trip count of the loop at {place or loop.name} depends on data; it counts once."
        )
    for conditional, spread in schedule.branches.values():
        place = schedule.module.source(conditional)
        if place is not None and is_neurenix(place.file):
            continue  # Neurenix's: it skips the update if training diverged
        if spread > _MUCH * raw_seconds:
            notes.append(
                f"The branch taken at {place or conditional.name} depends on data; the longest one "
                "counts every time. With the shortest one the step takes "
                f"{spread / raw_seconds:.0%} less."
            )
    if time.unmodelled:
        least = sum(o.seconds for o in schedule.operations.values() if o.uncounted)
        share = percent_text(least / raw_seconds if raw_seconds else 0.0)
        notes.append(
            f"The compiler gives no cycles for {', '.join(time.unmodelled)}. It counts as one pass "
            f"over its bytes, a lower bound ({share} of the device's time), and may take many "
            "times as long, beyond the interval."
        )
    return tuple(dict.fromkeys(notes))


def _with_batches(why: Finding, program: Program, memory: Memory) -> Finding:
    """Add to a refusal of a multi-step call that its batches take much of the memory."""
    steps = program.traits.steps_per_call
    batches = sum(buffer.padded_bytes for buffer in memory.buffers if buffer.role == "batch")
    if why.rule != "refused-hbm" or batches * (steps - 1) < _MUCH * memory.peak_bytes * steps:
        return why
    return replace(
        why,
        message=f"{why.message} steps_per_execution={steps} sends the batches of {steps} steps at "
        f"once: {bytes_text(batches)}, beside what the compiler makes of all of them.",
        fix="Make fewer steps in one call (a smaller steps_per_execution), or take a smaller batch."
        f" {why.fix}".rstrip(),
    )


def _refused(program: Program, where: Slice, answer: Refusal, limit: int) -> Analysis:
    module = parse(answer.hlo) if answer.hlo else None
    if module is not None:
        program = replace(program, leaves=as_compiled(program.leaves, module))
    memory = memory_module.of_refused(program, module, answer.needed_bytes, limit_bytes=limit)
    why = of_refusal(program, where, answer, memory.temporaries)
    why = _with_batches(why, program, memory)
    return _not_fitting(program, where, memory, why, answer)


def _not_fitting(
    program: Program, where: Slice, memory: Memory, why: Finding, answer: Compiled | Refusal
) -> Analysis:
    return Analysis(
        program=program,
        where=where,
        fits=False,
        memory=memory,
        time=None,
        mfu=None,
        operations=(),
        findings=(with_caller(why, program),),
        notes=answer.notes,
        compile_seconds=0.0,
        from_cache=answer.from_cache,
    )

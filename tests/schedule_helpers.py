"""Small schedules of v5e-8, written by hand, and their walk."""

from __future__ import annotations

from neurenix import chips
from neurenix.compiler.hlo import Instruction, parse
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.shapes import parse_shapes

V5E = chips.resolve("v5e-8")


CLOCK = V5E.generation.clock_hertz


MIB = "f32[512,512]{1,0:T(8,128)}"


def module(*body: str) -> str:
    lines = "\n".join(f"  {line}" for line in body)
    return f"HloModule m, is_scheduled=true\n\nENTRY %main (p: x) -> y {{\n{lines}\n}}\n"


def schedule(*body: str, where: chips.Slice = V5E) -> tuple[Schedule, float]:
    walked = Schedule(parse(module(f"%p = {MIB} parameter(0)", *body)), where, calibrated=False)
    return walked, walked.run()


def busy(name: str, cycles: float) -> str:
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles:.0f}"}}}}'
    return f"%{name} = {MIB} negate(%p), {config}"


GROUPS = "replica_groups=[1,8]<=[8]"


START = f"%r = ({MIB}, {MIB}) all-gather-start(%p), channel_id=1, {GROUPS}"


DONE = f"%d = {MIB} all-gather-done(%r)"


def exchange_seconds() -> float:
    """2^20 bytes, seven eighths of them through two links, and the length of the slice in hops."""
    return 2**20 * 7 / 8 / (2 * V5E.generation.ici_link_bytes_per_second) + 4e-6


def fetch(name: str) -> tuple[str, str]:
    """Return both halves of a copy of 1 MiB from HBM into VMEM."""
    start = f"%{name} = ({MIB[:-1]}S(1)}}, {MIB}, u32[]) copy-start(%p)"
    return start, f"%{name}d = {MIB[:-1]}S(1)}} copy-done(%{name})"


FETCH_SECONDS = 2**20 / V5E.generation.hbm_bandwidth_bytes_per_second_per_device


def collective(opcode: str, attributes: str, shape: str = "f32[16384,1024]") -> Instruction:
    """Return one that makes 64 MiB."""
    shapes = parse_shapes(f"{shape}{{1,0:T(8,128)}}")
    return Instruction("c", opcode, shapes, ("p",), "", attributes, False)


def branch(name: str, cycles: float) -> str:
    return (
        f"%{name} (a: x) -> y {{\n  %p.{name} = {MIB} parameter(0)\n  ROOT "
        + busy(f"work.{name}", cycles).replace("%p)", f"%p.{name})")
        + "\n}\n\n"
    )


PRODUCT = """HloModule m, is_scheduled=true

ENTRY %main (p: x, q: y) -> z {
  %p = bf16[4096,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %q = bf16[4096,4096]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %c = bf16[4096,4096]{1,0:T(8,128)(2,1)} convolution(%p, %q), dim_labels=bf_io->bf, CYCLES
}
""".replace("CYCLES", busy("", 1.1e6).partition("negate(%p), ")[2])

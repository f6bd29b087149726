"""Bytes from and to memory: of slices, updates and scatters what they touch."""

from __future__ import annotations

import pytest

from neurenix.compiler.hlo import parse
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.traffic import moved_bytes
from schedule_helpers import (
    MIB,
    V5E,
    module,
)

pytestmark = pytest.mark.pure


SLICED = f"""HloModule m, is_scheduled=true

%part (a: x, i: s32[]) -> y {{
  %a = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[32,512,512]{{2,1,0:T(8,128)}} bitcast(%a)
  %s = f32[1,512,512]{{2,1,0:T(8,128)}} dynamic-slice(%b, %i), dynamic_slice_sizes={{1,512,512}}
  ROOT %n = {MIB} bitcast(%s)
}}

%put (a: x, v: y, i: s32[]) -> x {{
  %a = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  %v = f32[1,512,512]{{2,1,0:T(8,128)}} parameter(1)
  %i = s32[] parameter(2)
  ROOT %u = f32[32,512,512]{{2,1,0:T(8,128)}} dynamic-update-slice(%a, %v, %i)
}}

%whole (a: x, i: s32[]) -> y {{
  %a = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  %i = s32[] parameter(1)
  %s = f32[1,512,512]{{2,1,0:T(8,128)}} dynamic-slice(%a, %i), dynamic_slice_sizes={{1,512,512}}
  ROOT %r = f32[32,512,512]{{2,1,0:T(8,128)}} add(%a, %s)
}}

%turn (a: x) -> x {{
  %a = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  ROOT %b = f32[32,512,512]{{2,1,0:T(8,128)}} bitcast(%a)
}}

%nested (a: x) -> x {{
  %a = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  %f = f32[32,512,512]{{2,1,0:T(8,128)}} fusion(%a), kind=kLoop, calls=%turn
  ROOT %n = f32[32,512,512]{{2,1,0:T(8,128)}} negate(%f)
}}

ENTRY %main (p: x, v: y, i: s32[]) -> z {{
  %p = f32[32,512,512]{{2,1,0:T(8,128)}} parameter(0)
  %v = f32[1,512,512]{{2,1,0:T(8,128)}} parameter(1)
  %i = s32[]{{:T(128)S(6)}} parameter(2)
  %taken = {MIB} fusion(%p, %i), kind=kLoop, calls=%part
  %put.1 = f32[32,512,512]{{2,1,0:T(8,128)}} fusion(%p, %v, %i), kind=kLoop, calls=%put
  %read = f32[32,512,512]{{2,1,0:T(8,128)}} fusion(%p, %i), kind=kLoop, calls=%whole
  %in = f32[32,512,512]{{2,1,0:T(8,128)}} fusion(%p), kind=kOutput, calls=%nested
  ROOT %t = (f32[1]) tuple(%taken, %put.1, %read, %in)
}}
"""


def test_of_an_array_that_is_sliced_or_updated_in_place_the_slice_is_moved() -> None:
    read = parse(SLICED)
    moved = {
        name: moved_bytes(read, read.entry, read.entry.by_name[name])[0]
        for name in ("taken", "put.1", "read", "in")
    }
    mib = 2**20
    assert moved == {"taken": 2 * mib, "put.1": 2 * mib, "read": 64 * mib, "in": 64 * mib}


SCATTERED = """HloModule m, is_scheduled=true

%set (old: f32[], new: f32[]) -> f32[] {
  %old = f32[] parameter(0)
  ROOT %new = f32[] parameter(1)
}

%rows (a: x, i: s32[64], u: y) -> x {
  %a = f32[65536,128]{1,0:T(8,128)} parameter(0)
  %i = s32[64]{0:T(128)} parameter(1)
  %u = f32[64,128]{1,0:T(8,128)} parameter(2)
  %b = f32[65536,128]{1,0:T(8,128)} bitcast(%a)
  ROOT %s = f32[65536,128]{1,0:T(8,128)} scatter(%b, %i, %u), to_apply=%set
}

%read_again (a: x, i: s32[64], u: y) -> x {
  %a = f32[65536,128]{1,0:T(8,128)} parameter(0)
  %i = s32[64]{0:T(128)} parameter(1)
  %u = f32[64,128]{1,0:T(8,128)} parameter(2)
  %s = f32[65536,128]{1,0:T(8,128)} scatter(%a, %i, %u), to_apply=%set
  ROOT %n = f32[65536,128]{1,0:T(8,128)} negate(%s)
}

%made (i: s32[64], u: y) -> x {
  %i = s32[64]{0:T(128)} parameter(0)
  %u = f32[64,128]{1,0:T(8,128)} parameter(1)
  %z = f32[] constant(0)
  %a = f32[65536,128]{1,0:T(8,128)} broadcast(%z), dimensions={}
  ROOT %s = f32[65536,128]{1,0:T(8,128)} scatter(%a, %i, %u), to_apply=%set
}

ENTRY %main (p: x, i: s32[64], u: y) -> z {
  %p = f32[65536,128]{1,0:T(8,128)} parameter(0)
  %i = s32[64]{0:T(128)S(6)} parameter(1)
  %u = f32[64,128]{1,0:T(8,128)} parameter(2)
  %fused = f32[65536,128]{1,0:T(8,128)} fusion(%p, %i, %u), kind=kCustom, calls=%rows
  %plain = f32[65536,128]{1,0:T(8,128)} scatter(%p, %i, %u), to_apply=%set
  %again = f32[65536,128]{1,0:T(8,128)} fusion(%p, %i, %u), kind=kCustom, calls=%read_again
  %zeros = f32[65536,128]{1,0:T(8,128)} fusion(%i, %u), kind=kCustom, calls=%made
  ROOT %t = (f32[1]) tuple(%fused, %plain, %again, %zeros)
}
"""


def test_of_an_array_that_is_scattered_into_the_updated_rows_are_moved() -> None:
    read = parse(SCATTERED)
    moved = {
        name: moved_bytes(read, read.entry, read.entry.by_name[name])[0]
        for name in ("fused", "plain", "again", "zeros")
    }
    rows, table = 64 * 512, 65536 * 512
    assert moved["fused"] == moved["plain"] == 3 * rows  # updates, and rows read and written
    assert moved["again"] == 2 * table + rows
    assert moved["zeros"] == table + rows


def test_a_scatter_has_no_cycles_and_is_told() -> None:
    big = SCATTERED.replace("64,128", "8192,128").replace("s32[64]", "s32[8192]")
    walked = Schedule(parse(big), V5E)
    walked.run()
    assert walked.operations["fused"].uncounted
    assert "scatter" in walked.unmodelled


BIG = "f32[32,512,512]{2,1,0:T(8,128)}"
NEAR = MIB[:-1] + "S(1)}"
WRITES = f"""%f (a: x) -> y {{
  %a = {BIG} parameter(0)
  %u = {MIB} parameter(1)
  %z = s32[] constant(0)
  %d = {BIG} dynamic-update-slice(%a, %u, %z, %z, %z)
  ROOT %t = ({BIG}, {MIB}) tuple(%d, %u)
}}

"""


def moved(*body: str, before: str = "") -> tuple[int, int]:
    """Return the bytes that ``%o`` moves in HBM and in VMEM."""
    read = parse(module(*body).replace("ENTRY", before + "ENTRY"))
    return moved_bytes(read, read.entry, read.entry.by_name["o"])


@pytest.mark.parametrize("opcode", ["slice", "gather"])
def test_what_is_taken_out_of_an_array_is_moved_and_not_the_array(opcode: str) -> None:
    assert moved(f"%p = {BIG} parameter(0)", f"%o = {MIB} {opcode}(%p)") == (2 * 2**20, 0)


def test_memories_are_counted_apart() -> None:
    assert moved(f"%p = {NEAR} parameter(0)", f"%o = {MIB} negate(%p)") == (2**20, 2**20)


def test_a_scatter_into_several_arrays_moves_the_updates_of_each() -> None:
    rows = (
        f"%p = {BIG} parameter(0)",
        f"%q = {BIG} parameter(1)",
        "%i = s32[8]{0:S(6)} parameter(2)",
        f"%u = {MIB} parameter(3)",
        "%w = bf16[256,512]{1,0:T(8,128)} parameter(4)",
        f"%o = ({BIG}, {BIG}) scatter(%p, %q, %i, %u, %w), to_apply=%add",
    )
    assert moved(*rows) == (3 * 2**20 + 3 * 2**18, 0)


def test_an_update_in_a_fusion_of_several_results_is_of_its_slice() -> None:
    found, _ = moved(
        f"%p = {BIG} parameter(0)",
        f"%q = {MIB} parameter(1)",
        f"%o = ({BIG}, {MIB}) fusion(%p, %q), kind=kLoop, calls=%f",
        before=WRITES,
    )
    assert 3 * 2**20 <= found < 32 * 2**20

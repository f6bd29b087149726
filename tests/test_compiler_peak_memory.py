"""Memory at the peak: live ranges of small schedules, and the compiler's own limit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.ad_checkpoint import checkpoint_name

from neurenix import chips
from neurenix.compiler import liveness
from neurenix.compiler.analysis import Analysis, analyse
from neurenix.compiler.captured_arrays import Captured
from neurenix.compiler.compile import CompileOptions, compile_all
from neurenix.compiler.hlo import parse
from neurenix.compiler.peak_memory import Memory, largest, of_compiled, of_refused
from neurenix.compiler.program import Program, TraceOptions, spec, trace
from neurenix.compiler.target import Target
from neurenix.preflight import Report
from neurenix.preflight.report.report_data import memory_parts

compiled = pytest.mark.tpu_compile

KIB4 = "f32[1024]{0:T(1024)}"
IN_PLACE = 'backend_config={"aliasing_operands":{"lists":[{"indices":["0","1"]}]}}'


def module(entry: str, *others: str, header: str = "") -> Any:
    text = "\n".join(line.strip() for line in entry.strip().splitlines())
    body = "\n".join(f"  {line}" for line in text.splitlines())
    return parse(
        "\n\n".join(
            [
                f"HloModule m, is_scheduled=true{header}",
                *others,
                f"ENTRY %main () -> f32[] {{\n{body}\n}}",
            ]
        )
        + "\n"
    )


def peak(entry: str, *others: str, header: str = "") -> int:
    """Return the most buffers of 4 KiB that are live together."""
    found = liveness.values(module(entry, *others, header=header))
    return liveness.peak(found).bytes // 4096


@pytest.mark.pure
class TestLiveRanges:
    def test_a_value_ends_with_its_last_reader(self) -> None:
        chain = f"""%p = {KIB4} parameter(0)
            %a = {KIB4} negate(%p)
            %b = {KIB4} cosine(%a)
            %c = {KIB4} sine(%b)
            ROOT %d = {KIB4} negate(%c)"""
        kept = chain.replace("negate(%c)", "add(%c, %a)")
        assert peak(chain) == 3  # the argument, what is read, what is written
        assert peak(kept) == 4

    def test_a_result_may_overwrite_what_nobody_reads_again(self) -> None:
        apart = f"""%p = {KIB4} parameter(0)
            %a = {KIB4} negate(%p)
            %b = {KIB4} cosine(%a)
            ROOT %c = {KIB4} sine(%b)"""
        together = apart.replace("(%a)", f"(%a), {IN_PLACE}").replace("(%b)", f"(%b), {IN_PLACE}")
        assert peak(apart) == 3
        assert peak(together) == 2
        # Where it is read again, the list of what may be shared is not what is shared.
        again = f"""%p = {KIB4} parameter(0)
            %a = {KIB4} negate(%p)
            %b = {KIB4} cosine(%a), {IN_PLACE}
            ROOT %c = {KIB4} add(%b, %a)"""
        assert peak(again) == 4

    def test_arguments_stay_and_donated_ones_are_the_results(self) -> None:
        lines = f"""%p = {KIB4} parameter(0)
            %q = {KIB4} parameter(1)
            ROOT %n = {KIB4} add(%p, %q)"""
        donated = ", input_output_alias={ {}: (0, {}, may-alias) }, entry_computation_layout={}"
        assert peak(lines) == 3
        assert peak(lines, header=donated) == 2

    def test_other_memories_are_not_hbm(self) -> None:
        vmem = KIB4.replace(")}", ")S(1)}")
        lines = f"""%p = {KIB4} parameter(0)
            %s = ({vmem}, {KIB4}, u32[]{{:S(2)}}) copy-start(%p)
            %d = {vmem} copy-done(%s)
            ROOT %n = {KIB4} negate(%d)"""
        found = liveness.values(module(lines))
        assert liveness.peak(found).bytes == 2 * 4096
        assert liveness.peak(found, (0, 1)).bytes == 3 * 4096

    def test_a_loop_works_in_the_memory_of_its_state(self) -> None:
        state = f"(s32[]{{:T(128)}}, {KIB4})"
        body = f"""%body (s: (s32[], f32[1024])) -> (s32[], f32[1024]) {{
  %s = {state} parameter(0)
  %i = s32[]{{:T(128)}} get-tuple-element(%s), index=0
  %x = {KIB4} get-tuple-element(%s), index=1
  %y = {KIB4} negate(%x)
  %z = {KIB4} cosine(%y)
  ROOT %r = {state} tuple(%i, %z)
}}"""
        condition = f"""%condition (s: (s32[], f32[1024])) -> pred[] {{
  %t = {state} parameter(0)
  %j = s32[]{{:T(128)}} get-tuple-element(%t), index=0
  ROOT %c = pred[]{{:T(512)}} compare(%j, %j), direction=LT
}}"""
        entry = f"""%p = {KIB4} parameter(0)
            %n = s32[]{{:T(128)}} constant(0)
            %a = {KIB4} copy(%p)
            %u = {state} tuple(%n, %a)
            %w = {state} while(%u), condition=%condition, body=%body
            ROOT %o = {KIB4} get-tuple-element(%w), index=1"""
        found = liveness.values(module(entry, body, condition))
        arrays = [v for v in found if v.bytes == 4096]
        assert len(arrays) == 3  # the argument, the state, and %y inside of the body
        assert liveness.peak(arrays).bytes == 3 * 4096


CHAIN = f"""%p = {KIB4} parameter(0)
    %a = {KIB4} negate(%p)
    %b = {KIB4} cosine(%a)
    ROOT %c = {KIB4} sine(%b)"""
VMEM = KIB4.replace(")}", ")S(1)}")


@pytest.mark.pure
@pytest.mark.parametrize(
    "opcode",
    ["opt-barrier", "add-dependency", "domain", "custom-call-update", "async-update", "bitcast"],
)
def test_what_hands_a_buffer_on_makes_none(opcode: str) -> None:
    assert len(liveness.values(module(CHAIN))) == 4
    assert len(liveness.values(module(CHAIN.replace("cosine(%a)", f"{opcode}(%a)")))) == 3


@pytest.mark.pure
@pytest.mark.parametrize("result", ["f32[2048]{0:T(1024)}", VMEM])
def test_a_result_that_is_larger_or_elsewhere_overwrites_nothing(result: str) -> None:
    in_place = CHAIN.replace("cosine(%a)", f"cosine(%a), {IN_PLACE}")
    assert len(liveness.values(module(in_place))) == 3
    other = in_place.replace(f"%b = {KIB4}", f"%b = {result}")
    assert len(liveness.values(module(other))) == 4


@pytest.mark.pure
def test_branches_write_their_result_into_the_same_memory() -> None:
    branches = "\n\n".join(
        f"%f{n} (x: y) -> z {{\n  %x{n} = {KIB4} parameter(0)\n"
        f"  ROOT %r{n} = {KIB4} negate(%x{n})\n}}"
        for n in "01"
    )
    entry = f"""%p = {KIB4} parameter(0)
        %i = s32[]{{:T(128)}} parameter(1)
        %a = {KIB4} sine(%p)
        ROOT %c = {KIB4} conditional(%i, %a, %a), branch_computations={{%f0, %f1}}"""
    arrays = [v for v in liveness.values(module(entry, branches)) if v.bytes == 4096]
    assert len(arrays) == 3 and liveness.peak(arrays).bytes == 3 * 4096


SPILL = f"({KIB4}, {VMEM}, u32[]{{:S(2)}})"
FETCH = f"({VMEM}, {KIB4}, u32[]{{:S(2)}})"
FORWARD = 'metadata={op_name="jvp(net)/sin" source_file="net.py" source_line=7}'
BACKWARD = 'metadata={op_name="transpose(jvp(net))/mul"}'
SPILLED = f"""%p = {KIB4} parameter(0)
    %a = {VMEM} sine(%p), {FORWARD}
    %s = {SPILL} copy-start(%a)
    %d = {KIB4} copy-done(%s)
    %w = {KIB4} cosine(%p), metadata={{op_name="jvp(net)/cos"}}
    %f = {FETCH} copy-start(%d)
    %g = {VMEM} copy-done(%f)
    ROOT %b = {KIB4} multiply(%g, %w), {BACKWARD}"""
STATS = {
    "argument_size_in_bytes": 4096, "output_size_in_bytes": 4096, "alias_size_in_bytes": 0,
    "temp_size_in_bytes": 8192, "generated_code_size_in_bytes": 10_000,
}  # fmt: skip


def described(entry: str, captured: int = 0) -> Memory:
    arrays = (Captured("float32[8]", captured, None),) if captured else ()
    program = Program("step", "", {"data": 1}, (), (), 0.0, 0, captured=arrays)
    return of_compiled(program, module(entry), STATS, limit_bytes=2**30)


EMPTY = Program("step", "", {"data": 1}, (), (), 0.0, 0)


@pytest.mark.pure
@pytest.mark.parametrize(
    ("stats", "peak_bytes"),
    [
        ({}, 12_288),  # what is live together
        ({"temp_size_in_bytes": 0}, 8192),  # never more than the compiler's parts
        ({"peak_memory_in_bytes": 10_000}, 10_000),  # nor than its own peak,
        ({"peak_memory_in_bytes": 2**28}, 12_288),  # of which some may be on the chip
        ({"peak_memory_in_bytes": 2**28 + 20_000}, 16_384),
        # With memory of the host in it, that number says nothing.
        ({"peak_memory_in_bytes": 9000, "host_temp_size_in_bytes": 1}, 12_288),
    ],
)
def test_the_peak_is_between_the_compilers_counts(stats: dict[str, int], peak_bytes: int) -> None:
    found = of_compiled(EMPTY, module(CHAIN), STATS | stats, limit_bytes=2**30)
    assert found.peak_bytes == peak_bytes


@pytest.mark.pure
def test_a_result_in_the_place_of_an_argument_is_on_the_host_once() -> None:
    host = {f"host_{part}_size_in_bytes": 4096 for part in ("argument", "output", "alias")}
    assert of_compiled(EMPTY, module(CHAIN), STATS | host, limit_bytes=2**30).host_bytes == 4096


@pytest.mark.pure
def test_a_program_that_was_refused_needs_at_least_its_arguments() -> None:
    program = trace(lambda x: x + 1, (spec((1024,)),), axes={"data": 1})
    for needed, peak_bytes in ((1, 4096), (None, 4096), (10_000, 10_000)):
        found = of_refused(program, None, needed, limit_bytes=2**30)
        assert (found.peak_bytes, found.arguments_bytes) == (peak_bytes, 4096)
        assert found.temporaries_bytes == peak_bytes - 4096
        assert (found.activations_bytes, found.gradients_bytes) == (None, None)


@pytest.mark.pure
def test_of_a_refused_program_its_schedule_tells_what_lies_there() -> None:
    compiled = described(SPILLED)
    found = of_refused(EMPTY, module(SPILLED), 10**6, limit_bytes=10**5)
    assert (found.peak_bytes, found.limit_bytes) == (10**6, 10**5)
    assert found.activations_bytes == 8192  # what is spilled, and the cosine
    assert [(b.path, b.role) for b in found.temporaries] == [
        (b.path, b.role) for b in compiled.temporaries
    ]
    parts = found.arguments_bytes + found.outputs_bytes + found.temporaries_bytes
    assert parts == found.peak_bytes
    small = of_refused(EMPTY, module(SPILLED), None, limit_bytes=10**5)
    assert small.peak_bytes >= small.activations_bytes + small.arguments_bytes


@pytest.mark.pure
class TestMoves:
    def test_what_is_spilled_is_whose_it_was(self) -> None:
        memory = described(SPILLED)
        spilled = next(b for b in memory.temporaries if b.path == "jvp(net)/sin")
        assert (spilled.role, str(spilled.source)) == ("activations", "net.py:7")
        assert {b.role for b in memory.temporaries} == {"activations"}  # and the cosine

    def test_a_spill_that_no_backward_pass_reads_is_temporary(self) -> None:
        memory = described(SPILLED.replace("transpose(jvp(net))", "jvp(net)"))
        assert {b.role for b in memory.temporaries} == {"temporaries"}
        assert memory.activations_bytes == 0

    def test_a_copy_of_an_argument_has_the_name_of_its_reader(self) -> None:
        copied = f"""%p = {KIB4} parameter(0), metadata={{op_name="args[0]"}}
            %c = {KIB4} copy(%p)
            ROOT %b = {KIB4} multiply(%p, %c), {BACKWARD}"""
        (copy,) = (b for b in described(copied).temporaries if b.role == "temporaries")
        assert copy.path == "transpose(jvp(net))/mul"


@pytest.mark.pure
@pytest.mark.parametrize(
    ("constant", "captured", "left"),
    [
        ("bf16[1024]{0:T(1024)(128)(2,1)} constant({...})", 4096, 2048),  # narrower than captured
        ("f32[]{:T(128)} constant(0)", 4096, 0),  # folded into one number
        ("f32[1024]{0:T(1024)} constant({...})", 0, 0),  # the program's own
        ("f32[4096]{0:T(1024)} constant({...})", 16384, 10_000),  # never more than all of the code
    ],
)
def test_constants_are_what_is_left_of_captured_arrays(constant, captured, left) -> None:
    entry = f"""%p = {KIB4} parameter(0)
        %k = {constant}
        ROOT %b = {KIB4} multiply(%p, %k)"""
    memory = described(entry, captured)
    assert memory.roles.get("constants", 0) == left
    assert memory.code_bytes == 10_000 - left
    if captured:
        assert memory.peak_bytes == described(entry).peak_bytes + left


def scanned(w: Any, x: Any) -> Any:
    """Eight elementwise layers whose results wait for the backward pass; quick to compile."""

    def loss(w: Any, x: Any) -> Any:
        h, _ = jax.lax.scan(lambda h, row: (jnp.tanh(h * row), None), x, w)
        return (h.astype(jnp.float32) ** 2).mean()

    return w - 0.1 * jax.grad(loss)(w, x)


def offloaded(w: Any, x: Any) -> Any:
    policy = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[],
        names_which_can_be_offloaded=["kept"],
        offload_src="device",
        offload_dst="pinned_host",
    )

    def layer(h: Any, row: Any) -> Any:
        return jnp.tanh(checkpoint_name(h, "kept") * row), None

    def loss(w: Any, x: Any) -> Any:
        h, _ = jax.lax.scan(jax.checkpoint(layer, policy=policy), x, w)
        return (h.astype(jnp.float32) ** 2).mean()

    return w - 0.1 * jax.grad(loss)(w, x)


ROWS = 1024
LAYERS, WIDTH = 8, 1024


def answers(function: Any, batches: list[int], cache: Path) -> list[Analysis]:
    where = chips.resolve("v5e-1")
    programs = [
        trace(
            function,
            (spec((LAYERS, WIDTH), "bfloat16"), spec((rows, WIDTH), "bfloat16")),
            axes={"data": 1},
            options=TraceOptions(leaf_roles=("parameters", "batch"), name="step"),
        )
        for rows in batches
    ]
    options = CompileOptions(cache_directory=cache)
    found = compile_all([(program, Target.of(where)) for program in programs], options)
    return [analyse(p, where, answer) for p, answer in zip(programs, found, strict=True)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Analysis]:
    return answers(scanned, [64 * ROWS, 128 * ROWS], tmp_path_factory.mktemp("cache"))


class TestCompiled:
    pytestmark = compiled

    def test_the_largest_batch_is_foretold(self, small: list[Analysis], tmp_path: Path) -> None:
        """Two small compiles say at which batch the compiler's own limit is passed."""
        one, two = (a.memory.peak_bytes for a in small)
        slope = (two - one) / 64
        steps = 64 + int((small[0].memory.limit_bytes - one) / slope)
        last, first = answers(scanned, [steps * ROWS, (steps + 1) * ROWS], tmp_path)
        assert last.fits and not first.fits
        assert last.memory.peak_bytes == pytest.approx(one + (steps - 64) * slope, rel=0.001)
        # The refusal's own number, in GiB of two decimals.
        assert first.memory.peak_bytes == pytest.approx(one + (steps - 63) * slope, rel=0.001)

    def test_what_waits_for_the_backward_pass_is_named(self, small: list[Analysis]) -> None:
        memory = small[0].memory
        stacked = LAYERS * 64 * ROWS * WIDTH * 2
        waiting = [b for b in memory.temporaries if b.role == "activations"]
        assert [b.logical_bytes for b in waiting][:2] == [stacked, stacked]
        assert waiting[0].shape == f"bfloat16[{LAYERS},{64 * ROWS},{WIDTH}]"
        assert waiting[0].source is not None and waiting[0].source.file == __file__
        assert memory.activations_bytes >= 2 * stacked
        assert largest(memory)[0].padded_bytes == stacked
        assert largest(memory)[0].role != "batch"

    def test_the_report_names_the_largest_with_their_lines(self, small: list[Analysis]) -> None:
        report = Report(small[1])
        place = f"test_compiler_peak_memory.py:{small[1].memory.temporaries[0].source.line}"
        words = " ".join(str(report).split())
        found = re.search(r"largest ([\d.]+) GiB activations: \S+ (\S+) ", words)
        assert found, words
        assert found.groups() == ("2.00", "bfloat16[8,131072,1024]")
        assert words.count(" activations: ") >= 2 and place in words
        listed = report.to_dict()["hbm_per_device"]["largest_buffers"]
        assert [b["padded_bytes"] for b in listed] == [
            b.padded_bytes for b in largest(small[1].memory)
        ]
        assert listed[0]["source"].endswith(place) and listed[0]["role"] == "activations"
        assert any(b["role"] == "batch" for b in listed)

    def test_the_parts_add_up_to_the_peak(self, small: list[Analysis]) -> None:
        for analysis in small:
            memory = analysis.memory
            assert sum(memory_parts(vars(memory)).values()) == memory.peak_bytes
            live = sum(b.padded_bytes for b in memory.temporaries)
            assert live == pytest.approx(memory.temporaries_bytes, rel=0.02)

    def test_values_on_the_host_are_counted_there(
        self, small: list[Analysis], tmp_path: Path
    ) -> None:
        (analysis,) = answers(offloaded, [64 * ROWS], tmp_path)
        memory = analysis.memory
        stacked = LAYERS * 64 * ROWS * WIDTH * 2
        assert memory.host_bytes >= stacked
        assert memory.peak_bytes < small[0].memory.peak_bytes - stacked

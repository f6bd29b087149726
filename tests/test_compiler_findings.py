"""The arithmetic and the thresholds of the rules; compiled programs are in a file of their own."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from findings_helpers import (
    GIB,
    LINE,
    evidence,
    operation,
    product,
    reduces,
    rules,
    undonated,
    waiting,
    with_traits,
    written,
)
from neurenix import chips, models
from neurenix import rules as pages
from neurenix._core.source_files import SourceLine
from neurenix.compiler import findings
from neurenix.compiler.argument_arrays import Leaf
from neurenix.compiler.calibration import DISPATCH_SECONDS
from neurenix.compiler.captured_arrays import Captured
from neurenix.compiler.compile import Refusal
from neurenix.compiler.findings import REFUSALS, find, of_refusal
from neurenix.compiler.hlo import parse
from neurenix.compiler.jaxpr_facts import Kernel, Recompile, Traits, WrittenProduct
from neurenix.compiler.operations import top_level_products
from neurenix.compiler.peak_memory import Buffer
from neurenix.compiler.target import Target
from neurenix.compiler.training import TRAINERS_STEP

pytestmark = pytest.mark.pure


PAGES = Path(pages.__file__).parent


def test_a_clean_program_has_no_findings() -> None:
    assert rules(evidence(operation(products=(product(),)))) == []


@pytest.mark.parametrize(
    ("slice_name", "depth", "columns", "expected"),
    [
        ("v5e-8", 512, 64, ["padded-matmul"]),
        ("v5e-8", 128, 512, []),
        ("v6e-8", 128, 512, ["padded-matmul"]),
        ("v6e-8", 256, 512, []),
    ],
)
def test_products_that_do_not_fill_the_matrix_unit(slice_name, depth, columns, expected) -> None:
    found = evidence(operation(products=(product(depth, columns),)), slice_name=slice_name)
    assert rules(found) == expected
    for finding in find(found):
        assert finding.source == LINE
        assert finding.effect_seconds == pytest.approx(0.01 * 1.1 / 2)
        assert "fills 50%" in finding.message


def test_a_padded_product_that_takes_no_time_is_not_named() -> None:
    small = operation(seconds=1e-6, name="small", products=(product(columns=64),))
    assert rules(evidence(operation(products=(product(),)), small)) == []


def test_float32_products() -> None:
    assert rules(evidence(operation(products=(product(dtype="f32"),)))) == ["float32-matmul"]
    assert rules(evidence(operation(products=(product(dtype="bf16"),)))) == []


def float32_finding(dtypes: tuple[str, str], written: tuple[str, str], name: str, file: str):
    work = operation(
        products=(replace(product(), dtypes=dtypes),), source=SourceLine(file, 7), flops=0.0
    )
    found = evidence(work)
    one = WrittenProduct(1, 1024, 512, 512, written, 1, False, 0, "", LINE)
    program = replace(found.program, name=name, traits=Traits(products=(one,)))
    (finding,) = find(replace(found, program=program))
    return finding


MIXED, ALIKE = ("float32", "bfloat16"), ("float32", "float32")


@pytest.mark.parametrize(
    ("dtypes", "written", "name", "file", "which", "fix"),
    [
        (("f32", "f32"), ALIKE, TRAINERS_STEP, "a.py", "operands.", 'precision="bfloat16".'),
        (("f32", "f32"), ALIKE, "step", "a.py", "operands.", "Cast both operands, x.astype("),
        # The compiler has cast the other one already: both were float32 when they were written.
        (("f32", "bf16"), ALIKE, "step", "a.py", "one float32 operand.", "Cast both operands"),
        (("bf16", "f32"), MIXED, "step", "a.py", "one float32 operand.", "cast this one too"),
        (("f32", "bf16"), MIXED, TRAINERS_STEP, "a.py", "one float32 operand.", "cast this one"),
        (
            ("f32", "bf16"), MIXED, TRAINERS_STEP, models.__file__, "one float32 operand.",
            'logits_dtype="bfloat16"',
        ),
    ],
)  # fmt: skip
def test_how_float32_operands_get_narrower(dtypes, written, name, file, which, fix) -> None:
    finding = float32_finding(dtypes, written, name, file)
    assert which in finding.message and fix in finding.fix
    assert ("Cast both" in fix) == ("precision= of a product does not" in finding.fix)


NARROW_AND_WIDE = """HloModule m

ENTRY %main (p: f32[64,128], q: bf16[128,4096]) -> f32[64,4096] {
  %p = f32[64,128]{1,0:T(8,128)} parameter(0)
  %q = bf16[128,4096]{1,0:T(8,128)(2,1)} parameter(1)
  ROOT %c = f32[64,4096]{1,0:T(8,128)} convolution(%p, %q), dim_labels=bf_io->bf
}
"""


def test_one_float32_operand_is_charged_with_its_own_bytes() -> None:
    module = parse(NARROW_AND_WIDE)
    (mixed,) = top_level_products(module, module.entry, module.entry.root)
    moves = 64 * 128 * 4 + 128 * 4096 * 2 + 64 * 4096 * 4
    rate = chips.generation("v5e").hbm_bandwidth_bytes_per_second_per_device
    work = operation("hbm", moves / rate, "c", products=(mixed,), bytes=moves, flops=0.0)
    # Half of its 32 KiB is a hundredth of what is moved.
    assert rules(replace(evidence(work), module=module)) == []


STRIDED = """HloModule m

ENTRY %main (g: f32[128,16,16,128], w: f32[3,3,COLUMNS,128]) -> f32[128,32,32,COLUMNS] {
  %g = f32[128,16,16,128]{3,2,1,0:T(8,128)} parameter(0)
  %w = f32[3,3,COLUMNS,128]{3,2,1,0:T(8,128)} parameter(1)
  ROOT %c = f32[128,32,32,COLUMNS]{3,2,1,0:T(8,128)} convolution(%g, %w), WINDOW
}
"""


WINDOW = "window={size=3x3 pad=1_2x1_2 lhs_dilate=2x2 rhs_reversal=1x1}, dim_labels=b01f_01oi->b01f"


@pytest.mark.parametrize("columns", [64, 128])
def test_a_depth_that_is_a_mean_over_positions_is_not_named(columns: int) -> None:
    module = parse(STRIDED.replace("COLUMNS", str(columns)).replace("WINDOW", WINDOW))
    (strided,) = top_level_products(module, module.entry, module.entry.root)
    assert strided.depth == 276
    strided = replace(strided, dtypes=("bf16", "bf16"))
    found = find(replace(evidence(operation(name="c", products=(strided,))), module=module))
    assert [f.rule for f in found] == ["padded-matmul"] * (columns == 64)
    for finding in found:
        assert "A convolution of 64 columns fills 50% of the 128×128" in finding.message
        assert "(columns 64)." in finding.message and "276" not in finding.message
        assert finding.fix == "Make this size a multiple of 128."


def test_products_at_highest_precision() -> None:
    found = find(evidence(operation(products=(product(dtype="f32", highest=True),))))
    assert [f.rule for f in found] == ["float32-matmul"]
    assert found[0].severity == "warning"


def test_copies() -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, operation("hbm", opcode="copy", name="copy.3"))) == ["copy"]
    assert rules(evidence(work, operation("hbm", opcode="copy", name="copy.3", seconds=1e-6))) == []
    assert rules(evidence(work, operation("hbm", name="add.3"))) == []


COPIES = """HloModule m

ENTRY %main (p: f32[8], q: f32[8]) -> f32[8] {
  %p = f32[8]{0:T(128)} parameter(0)
  %q = f32[8]{0:T(128)} parameter(1)
  %copy.1 = f32[8]{0:T(128)} copy(%q)
  %add.1 = f32[8]{0:T(128)} add(%p, %copy.1), metadata={source_file="train.py" source_line=3}
  %bitcast.1 = f32[8]{0:T(128)} bitcast(%add.1)
  %copy.2 = f32[8]{0:T(128)} copy(%bitcast.1)
  %copy.3 = f32[8]{0:T(128)} copy(%copy.2), metadata={source_file="train.py" source_line=9}
  ROOT %add.2 = f32[8]{0:T(128)} add(%copy.3, %copy.3), metadata={source_file="a.py" source_line=5}
}
"""


@pytest.mark.parametrize(
    ("name", "source", "line", "said"),
    [
        ("copy.1", None, 3, "; the compiler put it before this line."),
        ("copy.2", None, 3, "; the compiler put it after this line."),
        ("copy.3", SourceLine("train.py", 9), 9, "(1× a step)."),
    ],
)
def test_a_copy_without_a_line_has_that_of_what_is_next_to_it(name, source, line, said) -> None:
    moved = operation("hbm", opcode="copy", name=name, source=source)
    found = replace(evidence(operation(products=(product(),)), moved), module=parse(COPIES))
    (finding,) = find(found)
    assert (finding.rule, finding.source) == ("copy", SourceLine("train.py", line))
    assert finding.message.endswith(said)


def test_a_copy_with_no_line_near_it_has_none() -> None:
    bare = re.sub(r", metadata=\{[^}]*\}", "", COPIES)
    moved = operation("hbm", opcode="copy", name="copy.2", source=None)
    found = replace(evidence(operation(products=(product(),)), moved), module=parse(bare))
    assert [(f.rule, f.source) for f in find(found)] == [("copy", None)]


def test_sizes_are_in_the_unit_that_the_report_uses() -> None:
    held = evidence(operation(products=(product(),)), aliased_bytes=0)
    (finding,) = find(undonated(held, GIB))
    assert "The results take 1.00 GiB beside" in finding.message


@pytest.mark.parametrize(
    ("sizes", "severity", "said"),
    [
        ((16 * 2**20 - 1,), None, ""),
        ((16 * 2**20,), "note", "holds an array of 16.00 MiB, float32[8], that"),
        ((2**30, 2**20), "warning", "holds 2 arrays of 1.00 GiB, the largest float32[8], that"),
    ],
)
def test_captured_arrays(sizes: tuple[int, ...], severity: str | None, said: str) -> None:
    base = evidence(operation(products=(product(),)), roles={"constants": sum(sizes)})
    arrays = tuple(Captured("float32[8]", size, LINE) for size in sizes)
    found = find(replace(base, program=replace(base.program, captured=arrays), compile_seconds=7.0))
    assert [f.severity for f in found] == ([severity] if severity else [])
    for finding in found:
        assert said in finding.message and "Compiling took 7 s" in finding.message
        assert (finding.source, finding.effect_bytes) == (LINE, sum(sizes))


@pytest.mark.parametrize(
    ("left", "severity", "said"),
    [
        (0, "note", "was written with an array of 1.00 GiB, float32[8], that it was not given: the "
         "compiler folded it away, and nothing is left."),
        (2**20, "note", "folded it away, and 1.00 MiB are left."),
        (2**29, "warning", "compiled in, and whole on every device."),
    ],
)  # fmt: skip
def test_what_is_left_of_captured_arrays_decides(left: int, severity: str, said: str) -> None:
    base = evidence(operation(products=(product(),)), roles={"constants": left} if left else {})
    program = replace(base.program, captured=(Captured("float32[8]", 2**30, LINE),))
    (finding,) = find(replace(base, program=program))
    assert (finding.severity, finding.effect_bytes) == (severity, left)
    assert said in finding.message


@pytest.mark.parametrize("kind", ["ici", "dcn"])
def test_exposed_exchanges(kind: str) -> None:
    work = operation(products=(product(),))
    assert rules(evidence(work, operation(kind, name="all-reduce.1"))) == ["exposed-collective"]
    assert rules(evidence(work, operation(kind, name="all-reduce.1", seconds=0.0))) == []


def test_steps_that_the_host_cannot_start_fast_enough() -> None:
    found = waiting(TRAINERS_STEP, 10e-6, DISPATCH_SECONDS)
    assert "busy for about 10 µs, and the host needs about 50 µs to start the next" in found.message
    assert "compile(steps_per_execution=50)" in found.fix
    assert found.effect_seconds == pytest.approx(40e-6)
    short = waiting(TRAINERS_STEP, 1e-10, DISPATCH_SECONDS)
    assert "busy for less than 1 µs" in short.message


@pytest.mark.parametrize(
    ("steps", "device", "expected"),
    [
        (10, 2e-6, "more steps into one call with compile(steps_per_execution=50)"),
        (50, 0.5e-6, "compile(steps_per_execution=200)"),
        (200, 0.1e-6, "Take a larger batch"),
    ],
)
def test_advice_that_was_followed_is_not_repeated(steps, device, expected) -> None:
    found = waiting(TRAINERS_STEP, device, DISPATCH_SECONDS / steps, steps=steps)
    assert f"with {steps} steps in one call" in found.message
    assert expected in found.fix
    assert f"steps_per_execution={steps})" not in found.fix


def test_a_function_is_not_told_to_compile() -> None:
    found = waiting("call", 10e-6, DISPATCH_SECONDS)
    assert found.message.startswith("A call keeps")
    assert "steps_per_execution" not in found.fix and "jax.lax.scan" in found.fix


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("float32", "bfloat16, or int8"), ("int32", "int8 or uint8"), ("uint8", "Keep the data")],
)
def test_a_batch_that_arrives_slowly_is_told_from_a_slow_start(dtype, expected) -> None:
    found = waiting(TRAINERS_STEP, 1e-5, 2**24 / 15e9, dtype=dtype)
    sent = f"(16.00 MiB to each device at 15 GB/s, most of it 1.x of {dtype}"
    assert f"to send the batch of a step {sent}" in found.message
    assert expected in found.fix and "larger batch, or" not in found.fix
    assert "steps_per_execution" not in found.fix


def test_a_batch_of_a_gibibyte_is_told_in_its_unit() -> None:
    assert "(1.00 GiB to each device" in waiting(TRAINERS_STEP, 1e-5, 2**30 / 15e9).message


def test_operations_with_little_to_do() -> None:
    work = operation(products=(product(),))
    (finding,) = find(evidence(work, operation("overhead", name="b")))
    assert finding.rule == "small-operations" and "of 1 operation of" in finding.message
    assert rules(evidence(work, operation("overhead", name="b", seconds=1e-3))) == []


def test_work_that_is_not_divided() -> None:
    found = evidence(operation(products=(product(),)))
    leaf = replace(found.program.leaves[0], partition=())
    assert rules(replace(found, program=replace(found.program, leaves=(leaf,)))) == ["undivided"]
    alone = replace(found.program, leaves=(leaf,), axes={"data": 1})
    assert rules(replace(found, program=alone)) == []


@pytest.mark.parametrize(
    ("axes", "partition", "divided", "expected"),
    [
        ({"data": 1, "tensor": 8}, ("data",), (), 'axis "tensor": the 8 devices'),
        ({"data": 2, "tensor": 4}, ("data",), (), 'axis "tensor": the 4 devices'),
        ({"data": 2, "tensor": 4}, ("data",), ("tensor",), ""),
        ({"data": 2, "tensor": 4}, (("data", "tensor"),), (), ""),
        ({"data": 2, "a": 2, "b": 2}, (None, "data"), (), 'axes "a" and "b": the 4 devices'),
        ({"data": 8}, (), ("data",), ""),
    ],
)
def test_axes_of_a_mesh_that_divide_nothing(axes, partition, divided, expected) -> None:
    found = evidence(operation(products=(product(),)))
    leaf = replace(found.program.leaves[0], partition=partition)
    traits = Traits(divided_axes=divided)
    for name in ("step", TRAINERS_STEP):
        program = replace(found.program, name=name, axes=axes, leaves=(leaf,), traits=traits)
        findings = find(replace(found, program=program))
        assert [f.rule for f in findings] == ["undivided"] * bool(expected)
        for finding in findings:
            nothing = name == "step" and axes["data"] == 1  # it has no batch to speak of
            said = "No argument is divided over the 8 devices" if nothing else expected
            assert said in finding.message
            assert ("ShardingRules" in finding.fix) == (name == TRAINERS_STEP)


def test_products_of_the_compilers_own_are_not_the_users() -> None:
    found = evidence(operation(products=(product(dtype="f32", highest=True),)))
    assert rules(replace(found, program=replace(found.program, model_flops=0.0))) == []


def test_effects_that_are_nothing_are_not_told() -> None:
    work = operation(products=(product(),))
    reads = operation("ici", seconds=1e-11, name="all-reduce.1")
    tiny = evidence(replace(work, seconds=1e-12), reads)
    (finding,) = (f for f in find(tiny) if f.rule == "exposed-collective")
    assert finding.effect_seconds == 0.0


def test_numbers_among_the_arguments_are_named_with_their_values() -> None:
    found = evidence(operation(products=(product(),)))
    (finding,) = find(with_traits(found, recompiles=(Recompile("1", "3"), Recompile("2.a", "0.5"))))
    assert "argument 1 (3), argument 2.a (0.5)." in finding.message


def test_donation_missing() -> None:
    work = operation(products=(product(),))
    found = evidence(work, aliased_bytes=0, arguments_bytes=4 * GIB, outputs_bytes=3 * GIB)
    (one,) = find(undonated(found, GIB))
    assert one.rule == "donation" and one.effect_bytes == GIB
    assert one.fix == "If the results replace it, donate this: jax.jit(…, donate_argnums=(0,))."
    (two,) = find(undonated(found, GIB, 2 * GIB))
    assert "Arguments 0, 1 have the shapes and types of 3.00 GiB of them" in two.message
    assert "the largest array is 1.w, float32[536870912]." in two.message
    assert two.fix.endswith("donate these: jax.jit(…, donate_argnums=(0, 1)).")
    assert rules(undonated(evidence(work, aliased_bytes=0, outputs_bytes=1000), GIB)) == []


def test_donation_is_no_advice_where_no_result_is_like_an_argument() -> None:
    assert rules(evidence(operation(products=(product(),)), aliased_bytes=0)) == []


def test_padding_of_arguments() -> None:
    work = operation(products=(product(),))
    buffers = (Buffer("x", "batch", "float32[1000,1]", 4000, GIB),)
    found = find(evidence(work, padding_bytes=GIB, buffers=buffers))
    assert [f.rule for f in found] == ["padded-arguments"]
    assert found[0].effect_bytes == GIB


def test_findings_come_gravest_first() -> None:
    grave = operation("ici", seconds=0.02, name="all-reduce.1")
    light = operation("hbm", opcode="copy", name="copy.3", seconds=0.002)
    found = find(evidence(operation(products=(product(),)), light, grave))
    assert [f.severity for f in found] == ["warning", "note"]


def test_padding_hidden_behind_memory_costs_nothing() -> None:
    bound = operation("hbm", products=(product(columns=64),), floor_seconds=0.01)
    assert rules(evidence(bound)) == []


def test_operations_of_one_line_are_one_finding() -> None:
    twice = [operation(name=f"fusion.{i}", products=(product(columns=64),)) for i in range(2)]
    (finding,) = find(evidence(*twice))
    assert finding.effect_share == pytest.approx(0.5)
    assert "2 operations of this line" in finding.message


@pytest.mark.parametrize(
    ("slice_name", "head", "expected"),
    [
        ("v5e-1", 64, ["warning"]),
        ("v5e-1", 128, []),
        ("v6e-1", 64, ["warning"]),
        ("v6e-1", 128, ["note"]),
    ],
)
def test_heads_narrower_than_the_matrix_unit(slice_name, head, expected) -> None:
    sizes = {"batch": 4096}
    attention = (written(head, 2048, 2048, **sizes), written(2048, 2048, head, **sizes))
    clean = evidence(operation(products=(product(),)), slice_name=slice_name)
    found = find(with_traits(clean, products=attention))
    assert [f.severity for f in found] == expected
    assert all(f.rule == "head-dimension" and f.source == LINE for f in found)
    # One product alone is no attention.
    assert find(with_traits(clean, products=attention[:1])) == ()


@pytest.mark.parametrize(
    ("layers", "each", "expected"), [(8, 6, True), (5, 6, False), (6, 3, False)]
)
def test_layers_written_out(layers: int, each: int, expected: bool) -> None:
    products = tuple(written(64, 64, 64, batch=1, written=i) for i in range(each)) * layers
    found = find(with_traits(evidence(operation(products=(product(),))), products=products))
    assert ["unrolled-layers"] * expected == [f.rule for f in found]
    for finding in found:
        assert f"{layers} identical layers" in finding.message


def test_few_repeated_products_among_many_others_are_silent() -> None:
    repeated = tuple(written(64, 64, 64, batch=1, written=i) for i in range(4)) * 6
    others = tuple(written(64, 64, 64, batch=1, written=100 + i) for i in range(30))
    found = evidence(operation(products=(product(),)))
    assert rules(with_traits(found, products=repeated + others)) == []


@pytest.mark.parametrize(("rows", "expected"), [(8, ["small-batch"]), (512, [])])
def test_weights_read_for_few_rows(rows: int, expected: list[str]) -> None:
    leaf = Leaf("x", "batch", (rows * 8, 4096), "bfloat16", ("data",), (rows, 4096))
    reads = operation("hbm", products=(replace(product(4096, 4096), rows=rows),))
    found = evidence(reads)
    divided = replace(found, program=replace(found.program, leaves=(leaf,)))
    assert rules(divided) == expected
    assert all("1 operation reads its weights" in f.message for f in find(divided))
    # The same sizes, but not the batch's.
    other = replace(divided.program, leaves=(replace(leaf, device_shape=(99, 4096)),))
    assert rules(replace(divided, program=other)) == []


def test_narrow_types_by_generation() -> None:
    eight = operation(products=(product(dtype="s8"),))
    assert rules(evidence(eight, slice_name="v6e-8")) == []
    (finding,) = find(evidence(eight, slice_name="tpu7x-2x2x1"))
    assert finding.rule == "unsupported-type"
    assert "float8_e4m3fn" in finding.fix
    new = operation(products=(product(dtype="f8e4m3fn"),))
    assert rules(evidence(new, slice_name="tpu7x-2x2x1")) == []
    assert rules(evidence(new, slice_name="v6e-8")) == ["unsupported-type"]


def test_double_precision_arguments() -> None:
    found = evidence(operation(products=(product(),)))
    leaf = replace(found.program.leaves[0], dtype="float64")
    wide = replace(found, program=replace(found.program, leaves=(leaf,)))
    assert rules(wide) == ["unsupported-type"]


def test_channel_statistics_are_told_from_gradients_and_losses() -> None:
    work = operation(products=(product(),))
    forward = [reduces(f"f{i}", "f32[64]", "jit(f)/jvp()/reduce_sum") for i in range(2)]
    backward = [
        reduces(f"b{i}", "f32[64], f32[64]", "jit(f)/transpose(jvp())/reduce_sum") for i in range(3)
    ]
    assert rules(evidence(work, *forward, *backward)) == ["sync-batchnorm"]
    assert rules(evidence(work, *backward)) == ["exposed-collective"]
    losses = [reduces(f"l{i}", "f32[]", "jit(f)/jvp()/reduce_sum") for i in range(4)]
    assert rules(evidence(work, *losses)) == ["exposed-collective"]


@pytest.mark.parametrize(
    ("opcode", "op_name", "expected"),
    [
        ("all-reduce", "transpose(jvp())/dot_general", "gradients"),
        ("all-gather-start", "jvp()/dot_general", "needed whole"),
        ("all-to-all", "jvp()/transpose", "changes the axis"),
        ("collective-permute-start", "ppermute", "neighbours"),
    ],
)
def test_the_cause_of_an_exchange(opcode: str, op_name: str, expected: str) -> None:
    work = operation(products=(product(),))
    (finding,) = find(evidence(work, operation("ici", opcode=opcode, name="x", op_name=op_name)))
    assert expected in finding.message
    assert ("Nothing is computed beside it" in finding.message) == (not opcode.endswith("-start"))


def test_permutations_of_a_product_are_a_collective_matmul() -> None:
    work = operation(products=(product(),))
    turn = operation("ici", opcode="collective-permute-start", name="x", op_name="a/dot_general")
    assert rules(evidence(work, turn)) == ["collective-matmul"]
    assert rules(evidence(work, replace(turn, seconds=0.0))) == []


_VMEM = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space \
vmem. Used 160.80M of 128.00M vmem. Exceeded vmem capacity by 32.80M.

  1. Size: 64.00M
     Operator: op_name="jit(call)/call_exported/jit(program)/pallas_call"
     Tag: input window allocation for operator input 0. The window shape is f32[2048,4096], while \
the full shape is f32[4096,4096].
     XLA label: program.1 = custom-call(args_0_.1), custom_call_target="tpu_custom_call"
"""


def test_a_kernel_that_takes_more_than_all_of_vmem_is_named() -> None:
    where, line = chips.resolve("v5e-1"), SourceLine("/home/me/train.py", 3)
    answer = Refusal(Target.of(where), "vmem", _VMEM)
    for kernels, source in (
        ((Kernel("kernel", line),), line),
        ((Kernel("kernel", line), Kernel("other", LINE)), None),
    ):
        program = replace(evidence().program, traits=Traits(kernels=kernels))
        found = of_refusal(program, where, answer)
        assert "The kernel pallas_call needs 160.8 MiB of VMEM on v5e-1, and" in found.message
        assert "may have 128.0 MiB (input window of f32[2048,4096])" in found.message
        assert found.effect_bytes == int(160.8 * 2**20) - 128 * 2**20
        assert found.source == source


def test_what_helps_a_function_without_an_optimizer() -> None:
    where = chips.resolve("v5e-8")
    answer = Refusal(Target.of(where), "hbm", "no room", 32 * GIB)
    function = evidence().program
    trains = replace(function, leaves=(Leaf("m", "optimizer", (8,), "float32", (), (8,)),))
    assert "optimizer's state" in of_refusal(trains, where, answer).fix
    assert "optimizer" not in of_refusal(function, where, answer).fix
    assert "donate" not in of_refusal(function, where, answer).fix  # it does already
    plain = replace(function, donated=())
    assert "donate_argnums" in of_refusal(plain, where, answer).fix


@pytest.mark.parametrize(("size", "named"), [(8 * GIB, True), (GIB, False)])
def test_what_is_large_beside_the_rest_is_named_as_the_cause(size: int, named: bool) -> None:
    answer = Refusal(Target.of(chips.resolve("v5e-8")), "hbm", "no room", 32 * GIB)
    made = [Buffer("jvp(net)/dot_general", "activations", "float32[8]", size, size, LINE)]
    found = of_refusal(evidence().program, chips.resolve("v5e-8"), answer, made)
    assert ("The largest that it makes is jvp(net)/dot_general" in found.message) is named
    assert found.source == (LINE if named else None)


def test_what_waits_is_a_part_of_the_step_where_the_host_is_the_bound() -> None:
    sent = operation("ici", opcode="all-reduce", name="x")
    found = evidence(operation(products=(product(),)), sent)
    half = replace(found.time, bound="host", host_seconds=4 * found.time.device_seconds)
    held = replace(found, time=replace(half, seconds=half.host_seconds))
    for case, share in ((found, 0.5), (held, 0.125)):
        (finding,) = [f for f in find(case) if f.rule == "exposed-collective"]
        assert finding.message.startswith(f"{share:.0%} of the step waits")
        assert finding.effect_seconds / case.time.seconds == pytest.approx(share)


def test_gradients_that_are_summed_between_slices() -> None:
    work = operation(products=(product(),))
    sent = operation("dcn", opcode="send", name="x", shape="f32[2,8,128], u32[], token[]")
    whole = evidence(work, sent, slice_name="2x v5e-8")
    state = Leaf("m", "optimizer", (8,), "float32", (), (8,))
    for leaf, expected in (
        (Leaf("w", "parameters", (8,), "float32", (), (8,)), "gradients are summed between slices"),
        (Leaf("w", "parameters", (32,), "float32", ("data",), (2,)), "slices exchange arrays"),
    ):
        program = replace(whole.program, leaves=(*whole.program.leaves, state, leaf))
        (finding,) = find(replace(whole, program=program))
        assert expected in finding.message
        assert "send of f32[2,8,128]: " in finding.message
    (finding,) = find(whole)  # which does not train
    assert "slices exchange arrays" in finding.message


def test_products_of_a_program_without_any_are_not_judged() -> None:
    found = evidence(operation(products=(product(columns=8),)))
    assert rules(found) == ["padded-matmul"]
    assert rules(replace(found, program=replace(found.program, model_flops=0.0))) == []
    for name, expected in (("jit(f)/jit(fft)", []), ("jit(fft_loss)/dot_general", rules(found))):
        work = operation(products=(product(columns=8),), op_name=name)
        assert rules(evidence(work)) == expected


def test_refusals_the_catalogue_does_not_know_keep_the_words() -> None:
    program = evidence().program
    where = chips.resolve("v5e-8")
    for kind in REFUSALS:
        answer = Refusal(Target.of(where), kind, "the compiler's own words")
        finding = of_refusal(program, where, answer)
        assert (finding.rule, finding.severity) == (f"refused-{kind}", "error")
        assert "the compiler's own words" in finding.message


def test_every_rule_says_what_it_is_for_and_has_a_page() -> None:
    known = {*findings.RULES, *(f"refused-{kind}" for kind in REFUSALS)}
    assert all(rule.__doc__ for rule in findings.RULES.values())
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert pages == known


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda path: path.stem)
def test_a_page_explains_its_rule(page: Path) -> None:
    text = page.read_text()
    if page.stem == "index":
        linked = set(re.findall(r"\]\(([\w-]+)\.md\)", text))
        assert linked == {path.stem for path in PAGES.glob("*.md")} - {"index"}
        return
    assert text.startswith(f"# {page.stem}\n")
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    wanted = ["What it means", "How it is found", "Example", "Limits"]
    assert [h for h in headings if h in wanted] == wanted

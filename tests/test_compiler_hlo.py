"""Reading the optimised HLO: a recorded training step, and the traps of the text."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

import neurenix as nx
from neurenix import chips
from neurenix._core import source_files
from neurenix._core.errors import CompilationError
from neurenix.compiler.hlo import Instruction, Module, parse
from neurenix.compiler.operations import matrix_products
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.shapes import parse_shapes

pytestmark = [pytest.mark.pure, pytest.mark.newest]

DATA = Path(__file__).parent / "data"
TRAIN_LINES = {"scan_body": 6, "first_product": 7, "last_product": 8, "update": 12}


@pytest.fixture(scope="module")
def recorded() -> Module:
    """A data-parallel step of a six-layer scanned MLP on v5e-8, libtpu 0.0.42.1."""
    return parse((DATA / "scan_v5e8.hlo.txt").read_text())


def loops(module: Module) -> list[Instruction]:
    return [i for i in module.entry.instructions if i.opcode == "while"]


def test_loops_of_a_scan_have_its_length(recorded: Module) -> None:
    trips = [recorded.trip_count(recorded.entry, loop) for loop in loops(recorded)]
    assert trips == [6, 6]


def test_every_product_is_found_with_its_sizes(recorded: Module) -> None:
    schedule = Schedule(recorded, chips.resolve("v5e-8"), calibrated=False)
    schedule.run()
    flops = sum(operation.flops for operation in schedule.operations.values())
    batch = 1024 // 8
    forward = 2 * batch * (1000 * 512 + 6 * 512 * 512 + 512 * 10)
    backward = 2 * forward - 2 * batch * 1000 * 512  # no gradient of the input is asked for
    assert flops == forward + backward


def test_time_of_a_loop_is_counted_as_often_as_it_runs(recorded: Module) -> None:
    schedule = Schedule(recorded, chips.resolve("v5e-8"), calibrated=False)
    schedule.run()
    reduced = [o for o in schedule.operations.values() if o.opcode == "all-reduce"]
    assert sorted(o.count for o in reduced) == [1, 6]


def test_sources_are_lines_of_the_user(recorded: Module) -> None:
    lines = {
        source.line
        for instruction in recorded.entry.instructions
        if (source := recorded.source(instruction)) and source.file == "train.py"
    }
    assert {TRAIN_LINES["first_product"], TRAIN_LINES["last_product"]} <= lines
    for computation in recorded.computations.values():
        for instruction in computation.instructions:
            source = recorded.source(instruction)
            assert source is None or source.file != "ask.py", "the call of preflight is no source"


def test_parameters_keep_their_order_and_padding(recorded: Module) -> None:
    parameters = [i for i in recorded.entry.instructions if i.opcode == "parameter"]
    shapes = {int(i.argument): str(i.shapes[0]) for i in parameters}
    assert shapes == {
        0: "f32[1000,512]",
        1: "f32[512,10]",
        2: "f32[6,512,512]",
        3: "f32[128,1000]",
        4: "f32[128,10]",
    }


NESTED = (DATA / "nested_loops.hlo.txt").read_text()  # written by hand, trap by trap


def test_a_multi_line_attribute_does_not_end_a_computation() -> None:
    body = parse(NESTED).computations["inner_body"]
    assert [i.name for i in body.instructions][3:] == ["kernel", "after", "one", "next", "t"]
    assert body.root.name == "t"


def test_nested_loops_multiply_and_start_where_they_start() -> None:
    module = parse(NESTED)
    where = chips.resolve("v5e-1")
    schedule = Schedule(module, where, calibrated=False)
    schedule.run()
    assert [loop.name for loop in schedule.unknown_loops] == ["open"]
    # 7 × (5 − 2) from the nested loops and once from the loop that only the data ends.
    assert schedule.operations["after"].count == 7 * 3 + 1
    expected = 22 * 1500 / where.generation.clock_hertz
    assert schedule.operations["after"].seconds == pytest.approx(expected)


def test_a_kernel_costs_what_its_author_says() -> None:
    schedule = Schedule(parse(NESTED), chips.resolve("v5e-1"), calibrated=False)
    schedule.run()
    assert schedule.operations["kernel"].flops == 22 * 2_000_000
    assert schedule.operations["kernel"].bytes == 22 * 8192


def test_escaped_names_and_sources_are_read() -> None:
    module = parse(NESTED)
    kernel = module.computations["inner_body"].by_name["kernel"]
    assert kernel.op_name == 'jit(f)/pallas_call[name="k"]'
    assert str(module.source(kernel)) == "/home/me/train.py:5"


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [
        ("bf16[1000,7]{0,1:T(8,128)(2,1)}", 16_384),
        ("f32[7,1000]{1,0:T(8,128)}", 32_768),
        ("bf16[3,3,64,64]{3,2,1,0:T(8,128)(2,1)}", 147_456),
        ("s32[]{:T(128)}", 4),
        ("f32[5]{0:T(128)}", 512),
        ("f8e4m3fn[8,128]{1,0}", 1024),
        ("s4[3]{0}", 2),  # half bytes, rounded up
        ("s4[256,128]{1,0:T(8,128)}", 16_384),
        ("f32[8]{0:T(8,128)}", 4096),  # a tile of more axes than the array
        ("weird[8]", 32),  # a type that nobody knows is taken to have 32 bits
    ],
)
def test_padded_bytes(text: str, bytes_: int) -> None:
    assert parse_shapes(text)[0].padded_bytes == bytes_


def test_memory_spaces() -> None:
    hbm, vmem = parse_shapes("(f32[8,128]{1,0:T(8,128)}, f32[8,128]{1,0:T(8,128)S(1)})")
    assert (hbm.in_hbm, vmem.in_hbm) == (True, False)


def convolution(shapes: str, window: str, labels: str) -> Module:
    left, right, out = shapes.split(" ")
    attributes = f"window={{{window}}}, dim_labels={labels}"
    return parse(
        "HloModule c\n\n%f (a: x) -> y {\n"
        f"  %a = {left} parameter(0)\n  %b = {right} parameter(1)\n"
        f"  ROOT %c = {out} convolution(%a, %b), {attributes}\n}}\n\n"
        "ENTRY %main (a: x) -> y {\n"
        f"  %a = {left} parameter(0)\n  %b = {right} parameter(1)\n"
        f"  ROOT %fusion = {out} fusion(%a, %b), kind=kOutput, calls=%f\n}}\n"
    )


@pytest.mark.parametrize(
    ("shapes", "window", "labels", "flops"),
    [
        # A plain product, a 3×3 convolution, a batched product in XLA's dilated form (8 × 12
        # heads), and the gradient of a convolution with stride 2.
        ("bf16[64,32] bf16[32,16] bf16[64,16]", "", "bf_io->bf", 2 * 64 * 32 * 16),
        (
            "f32[2,8,8,4] f32[3,3,4,6] f32[2,6,6,6]",
            "size=3x3",
            "b01f_01io->b01f",
            2 * 2 * 6 * 6 * 6 * 9 * 4,
        ),
        (
            "bf16[8,12,1024,64] bf16[8,12,1024,64] bf16[8,12,1024,1024]",
            "size=8x12 stride=7x11 lhs_dilate=8x12",
            "01bf_01oi->01bf",
            2 * 8 * 12 * 1024 * 1024 * 64,
        ),
        (
            "f32[2,4,4,6] f32[3,3,6,4] f32[2,9,9,4]",
            "size=3x3 pad=2_2x2_2 lhs_dilate=2x2",
            "b01f_01io->b01f",
            2 * 2 * (12 * 12) * 6 * 4,  # by axis 12 pairs of 9 outputs and 3 weights meet
        ),
        # A batch of 3 that slides over a single number between zeros, in its two spellings.
        (
            "bf16[32,1,16] bf16[3,64,16] bf16[32,3,64]",
            "size=3 pad=2_2 rhs_reversal=1",
            "b0f_0oi->b0f",
            2 * 32 * 16 * 3 * 64,
        ),
        (
            "bf16[3,32,16] bf16[3,16,64] bf16[32,64,1]",
            "size=3",
            "0bf_0io->bf0",
            2 * 32 * 16 * 3 * 64,
        ),
        # Zeros around the operand are no work.
        (
            "f32[1,4,4] f32[3,4,4] f32[1,4,4]",
            "size=3 pad=1_1",
            "b0f_0io->b0f",
            2 * (3 * 4 - 2) * 4 * 4,
        ),
    ],
)
def test_products_in_every_form(shapes: str, window: str, labels: str, flops: int) -> None:
    module = convolution(shapes, window, labels)
    (product,) = matrix_products(module, module.entry.root)
    assert product.flops == flops


@pytest.mark.parametrize("text", ["", "not HLO", "HloModule m\n\n"])
def test_what_is_no_module_is_refused(text: str) -> None:
    with pytest.raises(CompilationError):
        parse(text)


UNROLLED = """HloModule unrolled, is_scheduled=true

%body (state: (u32[], f32[8])) -> (u32[], f32[8]) {
  %state = (u32[], f32[8]{0}) parameter(0)
  %counter = u32[] get-tuple-element(%state), index=0
  %value = f32[8]{0} get-tuple-element(%state), index=1
  %one = u32[] constant(1)
  %two = u32[] constant(2)
  %next = u32[] add(%counter, %one)
  %after = u32[] add(%two, %next)
  ROOT %out = (u32[], f32[8]{0}) tuple(%after, %value)
}

%condition (state.1: (u32[], f32[8])) -> pred[] {
  %state.1 = (u32[], f32[8]{0}) parameter(0)
  %bound = u32[] constant(8)
  %counter.1 = u32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%counter.1, %bound), direction=LT
}

ENTRY %main (x: f32[8]) -> (u32[], f32[8]) {
  %x = f32[8]{0} parameter(0)
  %zero = u32[] constant(0)
  %begin = (u32[], f32[8]{0}) tuple(%zero, %x)
  ROOT %loop = (u32[], f32[8]{0}) while(%begin), condition=%condition, body=%body
}
"""


@pytest.mark.parametrize(("growth", "trips"), [("2", 3), ("1", 4), ("7", 1)])
def test_an_unrolled_loop_runs_less_often(growth: str, trips: int) -> None:
    module = parse(UNROLLED.replace("constant(2)", f"constant({growth})"))
    (loop,) = loops(module)
    assert module.trip_count(module.entry, loop) == trips


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        ({"add(%two, %next)": "multiply(%two, %next)", "constant(0)": "constant(1)"}, 2),  # 1 4 10
        ({"add(%two, %next)": "shift-left(%next, %two)", "constant(8)": "constant(100)"}, 4),
        (
            {
                "add(%two, %next)": "subtract(%next, %two)",
                "LT": "GT",
                "constant(0)": "constant(20)",
            },
            12,
        ),
        ({"LT": "NE", "constant(8)": "constant(9)"}, 3),
        ({"LT": "NE"}, None),  # 0, 3, 6, 9: never 8
        ({"LT": "GE"}, 0),
        ({"LT": "EQ", "constant(0)": "constant(8)"}, 1),
        ({"add(%two, %next)": "subtract(%next, %two)", "LT": "LE"}, None),
        ({"add(%two, %next)": "divide(%next, %two)"}, None),
        ({"%zero = u32[] constant(0)": "%zero = u32[] parameter(1)"}, None),
        ({"%zero = u32[] constant(0)": "%zero = u32[] add(%x, %x)"}, None),
        ({"%begin = (u32[], f32[8]{0}) tuple(%zero, %x)": "%begin = (u32[]) copy(%x)"}, None),
        ({"compare(%counter.1, %bound)": "compare(%bound, %counter.1)", "LT": "GE"}, 3),
    ],
)
def test_counters_that_change_in_another_way(changes: dict[str, str], trips: int | None) -> None:
    text = UNROLLED
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    module = parse(text)
    (loop,) = loops(module)
    assert module.trip_count(module.entry, loop) == trips


def test_turns_that_the_compiler_states_are_believed() -> None:
    stated = 'body=%body, backend_config={"known_trip_count":{"n":"17"}}'
    module = parse(UNROLLED.replace("body=%body", stated))
    (loop,) = loops(module)
    assert module.trip_count(module.entry, loop) == 17


def test_a_computation_of_a_sparse_core_ends_where_it_ends() -> None:
    text = UNROLLED.replace("}\n\n%condition", '}, execution_thread="sparsecore"\n\n%condition')
    assert set(parse(text).computations) == {"body", "condition", "main"}


def test_names_of_files_and_scopes_are_those_that_the_user_wrote() -> None:
    text = r"""HloModule m

FileNames
1 "exp \303\251/it\'s \"new\".py"

FileLocations
1 {file_name_id=1 function_name_id=0 line=4 end_line=4 column=0 end_column=1}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  %n = f32[8]{0} negate(%p), metadata={op_name="jit(f)/sch\303\266n/neg" stack_frame_id=1}
  ROOT %m = f32[8]{0} negate(%n), metadata={op_name="a\\b" source_file="\303\274.py" source_line=7}
}
"""
    module = parse(text)
    framed, inline = module.entry.by_name["n"], module.entry.by_name["m"]
    assert str(module.source(framed)) == 'exp é/it\'s "new".py:4'
    assert str(module.source(inline)) == "ü.py:7"
    assert (framed.op_name, inline.op_name) == ("jit(f)/schön/neg", "a\\b")


def test_files_beside_the_library_and_typed_code_are_the_users() -> None:
    own = str(Path(source_files.__file__).parents[1])
    assert source_files.is_neurenix(f"{own}/nn/x.py")
    assert source_files.is_library(f"{own}/nn/x.py")
    for path in (f"{own}_experiments/x.py", "<stdin>", "<string>", "<ipython-input-1-ab>"):
        assert not source_files.is_neurenix(path)
        assert not source_files.is_library(path)
    assert source_files.is_library("<frozen runpy>")


def test_methods_that_a_dataclass_was_given_are_nobodys_lines() -> None:
    with pytest.raises(nx.ArgumentTypeError) as caught:
        nx.preflight.CompileOptions(timeout_seconds="60")  # pyright: ignore
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert ("<string>", "__init__") in [(frame.filename, frame.name) for frame in frames]
    shown = source_files.users_line(caught.value)
    assert "test_compiler_hlo.py" in shown and "CompileOptions(timeout_seconds" in shown

"""The walk over a schedule: what runs beside what, and how a step's time is made of it."""

from __future__ import annotations

import math

import pytest

from neurenix import chips
from neurenix.compiler.calibration import WEIGHTS, calibration
from neurenix.compiler.hlo import parse
from neurenix.compiler.operations import Operation
from neurenix.compiler.schedule import Schedule
from neurenix.compiler.step_time import step_time
from neurenix.compiler.utilization import utilization
from schedule_helpers import (
    CLOCK,
    DONE,
    FETCH_SECONDS,
    GROUPS,
    MIB,
    PRODUCT,
    START,
    V5E,
    branch,
    busy,
    exchange_seconds,
    fetch,
    module,
    schedule,
)

pytestmark = pytest.mark.pure


def test_an_exchange_is_hidden_behind_compute_that_is_long_enough() -> None:
    walked, total = schedule(START, busy("work", 1e6), DONE)
    assert total == pytest.approx(1e6 / CLOCK)
    assert walked.operations["r"].seconds == 0
    assert walked.operations["r"].busy_seconds == pytest.approx(exchange_seconds())


def test_what_compute_does_not_hide_is_exposed() -> None:
    walked, total = schedule(START, busy("work", 3000), DONE, busy("later", 1000))
    exposed = exchange_seconds() - 3000 / CLOCK
    assert walked.operations["r"].seconds == pytest.approx(exposed)
    assert total == pytest.approx(exchange_seconds() + 1000 / CLOCK)


def test_exchanges_wait_for_one_another_on_the_same_links() -> None:
    other = START.replace("%r =", "%s =").replace("channel_id=1", "channel_id=2")
    _, total = schedule(START, other, DONE, DONE.replace("%d", "%e").replace("%r", "%s"))
    assert total == pytest.approx(2 * exchange_seconds())


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_permutations_in_both_directions_run_at_once(distance: int) -> None:
    def permute(name: str, channel: int, pairs: str) -> str:
        attributes = f"channel_id={channel}, source_target_pairs={{{pairs}}}"
        return f"%{name} = ({MIB}, {MIB}) collective-permute-start(%p), {attributes}"

    forwards, backwards = (
        ",".join(f"{{{i},{(i + sign * distance) % 8}}}" for i in range(8)) for sign in (1, -1)
    )
    ends = tuple(f"%{n}d = {MIB} collective-permute-done(%{n})" for n in "ab")
    _, both = schedule(permute("a", 1, forwards), permute("b", 2, backwards), *ends)
    _, same = schedule(permute("a", 1, forwards), permute("b", 2, forwards), *ends)
    assert same == pytest.approx(2 * both)


def test_a_copy_into_vmem_runs_beside_an_exchange() -> None:
    copy = f"%c = ({MIB[:-1]}S(1)}}, {MIB}, u32[]) copy-start(%p)"
    _, total = schedule(START, copy, f"%f = {MIB} copy-done(%c)", DONE)
    assert total == pytest.approx(exchange_seconds())


def test_copies_from_hbm_share_its_bandwidth() -> None:
    starts, ends = zip(*map(fetch, "abcd"), strict=True)
    assert schedule(*starts, *ends)[1] == pytest.approx(4 * FETCH_SECONDS)


def test_a_copy_from_hbm_waits_for_what_compute_reads_there() -> None:
    start, end = fetch("a")
    work = busy("work", 1.5 * FETCH_SECONDS * CLOCK)  # it reads 1 MiB and writes one
    after = schedule(work, start, end)[1]
    assert after == pytest.approx(3 * FETCH_SECONDS)


def test_no_step_is_faster_than_its_bytes_in_hbm() -> None:
    starts, ends = zip(*map(fetch, "abcd"), strict=True)
    walked, raw = schedule(*starts, busy("work", 1e6), *ends, where=chips.resolve("v5p-2"))
    for operation in walked.operations.values():  # as if all of it had been believed hidden
        operation.seconds = 0.0
    rate = chips.generation("v5p").hbm_bandwidth_bytes_per_second_per_device
    assert step_time(walked, 0.0, 0).low == pytest.approx(6 * 2**20 / rate)
    assert raw > 0


def test_no_step_is_faster_than_the_bytes_on_its_links() -> None:
    big = "f32[16384,1024]{1,0:T(8,128)}"
    other = GROUPS.replace("[1,8]", "[2,4]")
    body = (
        f"%r = {big} all-reduce(%p), channel_id=1, {GROUPS}",
        f"%s = {big} all-reduce(%p), channel_id=2, {GROUPS}",
        f"%t = {big} all-gather(%p), channel_id=3, {other}",  # other links, perhaps at once
    )
    walked = Schedule(parse(module(f"%p = {MIB} parameter(0)", *body)), V5E)
    time = step_time(walked, walked.run(), 0)
    least = 2 * 2 * 2**26 * 7 / 8 / (2 * V5E.generation.ici_link_bytes_per_second)
    assert time.device_seconds >= least
    assert least <= time.low <= time.seconds < time.high
    alone = Schedule(parse(module(f"%p = {MIB} parameter(0)", body[0])), V5E)
    assert step_time(alone, alone.run(), 0).seconds == pytest.approx(least / 2)
    assert step_time(alone, alone.run(), 0).bound == "ici"


def test_a_sum_of_which_each_keeps_a_part_is_half_of_one_on_the_links() -> None:
    big = "f32[16384,1024]{1,0:T(8,128)}"
    text = module(
        f"%p = {big} parameter(0)",
        "ROOT %f = f32[2048,1024]{1,0:T(8,128)} fusion(%p), calls=%all-reduce-scatter",
    ).replace(
        "ENTRY",
        f"%all-reduce-scatter (p: x) -> y {{\n  %q = {big} parameter(0)\n"
        f"  %r = {big} all-reduce(%q), {GROUPS}\n  %i = s32[] constant(0)\n"
        "  ROOT %k = f32[2048,1024]{1,0:T(8,128)} dynamic-slice(%r, %i, %i)\n}\n\nENTRY",
    )
    walked = Schedule(parse(text), V5E)
    time = step_time(walked, walked.run(), 0)
    rate = 2 * V5E.generation.ici_link_bytes_per_second
    assert time.device_seconds == pytest.approx(2**26 * 7 / 8 / rate)
    assert (time.bound, set(time.shares)) == ("ici", {"ici"})


def test_of_branches_the_dearest_is_counted_and_nothing_of_the_others() -> None:
    text = module(
        f"%p = {MIB} parameter(0)",
        "%i = s32[] parameter(1)",
        f"ROOT %c = {MIB} conditional(%i, %p, %p, %p), branch_computations={{%a, %b, %c}}",
    ).replace("ENTRY", branch("a", 1e6) + branch("b", 3e6) + branch("c", 2e6) + "ENTRY")
    walked = Schedule(parse(text), V5E, calibrated=False)
    assert walked.run() == pytest.approx(3e6 / CLOCK)
    assert set(walked.operations) == {"work.b"}
    ((conditional, spread),) = walked.branches.values()
    assert conditional.name == "c"
    assert spread == pytest.approx(2e6 / CLOCK)
    floor = 2 * 2**20 / V5E.generation.hbm_bandwidth_bytes_per_second_per_device
    assert walked.operations["work.b"].floor_seconds == pytest.approx(floor)


def conditioned(compared: str) -> str:
    """Return a program whose loop runs six turns of 1000 cycles, and what its condition does."""
    state = f"(s32[], {MIB})"
    return f"""HloModule m, is_scheduled=true

%turn (t: x) -> y {{
  %t = {state} parameter(0)
  %n = s32[] get-tuple-element(%t), index=0
  %p = {MIB} get-tuple-element(%t), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%n, %one)
  {busy("body", 1000)}
  ROOT %u = {state} tuple(%next, %body)
}}

%ends (e: x) -> pred[] {{
  %e = {state} parameter(0)
  %n = s32[] get-tuple-element(%e), index=0
  %p = {MIB} get-tuple-element(%e), index=1
  %six = s32[] constant(6)
  {compared}
  ROOT %k = pred[] compare(%n, %six), direction=LT
}}

ENTRY %main (p: x) -> y {{
  %p = {MIB} parameter(0)
  %zero = s32[] constant(0)
  %s = {state} tuple(%zero, %p)
  ROOT %loop = {state} while(%s), condition=%ends, body=%turn
}}
"""


@pytest.mark.parametrize(
    ("compared", "cycles", "names"),
    [
        ("%both = pred[] and(%n, %n)", 6 * 1000, set()),
        (busy("sum", 1e6), 6 * 1000 + 7 * 1e6, {"sum", "k"}),
    ],
)
def test_a_loops_condition_is_computed_once_more_than_its_body(compared, cycles, names) -> None:
    walked = Schedule(parse(conditioned(compared)), V5E, calibrated=False)
    assert walked.run() == pytest.approx(cycles / CLOCK, rel=1e-4)
    assert set(walked.operations) == {"body", "next", *names}
    assert all(walked.operations[name].count == 7 for name in names)


def test_the_interval_contains_the_estimate_also_where_a_floor_decides() -> None:
    walked = Schedule(parse(PRODUCT), V5E)
    walked.run()
    for raw in (0.0, 1e-9, 1e-3):
        for sent in (0, 2**20, 2**30):
            time = step_time(walked, raw, sent)
            assert time.low <= time.seconds < time.high


def test_work_that_no_device_does_is_no_utilization() -> None:
    walked = Schedule(parse(PRODUCT), V5E)
    seconds = step_time(walked, walked.run(), 0).seconds
    peak = 8 * V5E.generation.peak_flops_per_second["bfloat16"]
    done = 8 * 2 * 4096**3  # on eight devices
    for of_model in (done, 2 * done):  # two equal products of the model are one of the program
        found = utilization(walked, of_model, seconds, 8)
        assert found == pytest.approx(done / (seconds * peak))
    # What is computed twice in the program, once in the model, counts once.
    assert utilization(walked, done / 2, seconds, 8) == pytest.approx(done / 2 / (seconds * peak))
    assert utilization(walked, 0.0, seconds, 8) is None


def test_a_plain_exchange_is_wholly_exposed() -> None:
    walked, total = schedule(f"%r = {MIB} all-reduce(%p), {GROUPS}")
    assert total == walked.operations["r"].seconds == pytest.approx(2 * exchange_seconds())


def test_the_interval_contains_the_estimate_and_names_its_basis() -> None:
    walked, raw = schedule(busy("work", 1e7))
    time = step_time(walked, raw, 0)
    assert time.low < time.seconds < time.high
    assert time.seconds == pytest.approx(1e7 / CLOCK * calibration("v5e").factor)
    assert "published runs" in time.basis
    wide = calibration("v5e").half_width(0.0)  # no products: three times the doubt
    assert time.high == pytest.approx(time.seconds * math.exp(wide))
    assert time.bound == "vector"  # 7 ms of cycles for 2 MiB


def test_what_an_operation_is_bound_by() -> None:
    moved = 2 * 2**20 / V5E.generation.hbm_bandwidth_bytes_per_second_per_device * CLOCK
    cases = {"hbm": moved * 1.2, "vector": moved * 30, "overhead": 7000}
    tiny = "%t = f32[] negate(%p)" + busy("", cases["overhead"]).partition("negate(%p)")[2]
    walked, _ = schedule(busy("hbm", cases["hbm"]), busy("vector", cases["vector"]))
    assert {name: o.kind for name, o in walked.operations.items()} == {
        "hbm": "hbm",
        "vector": "vector",
    }
    walked, _ = schedule("%q = f32[8,128]{1,0:T(8,128)} parameter(1)", tiny.replace("%p", "%q"))
    assert walked.operations["t"].kind == "overhead"


def test_a_step_shorter_than_its_dispatch_is_bound_by_the_host() -> None:
    walked, raw = schedule(busy("work", 1000))
    time = step_time(walked, raw, 0)
    assert time.bound == "host"
    assert time.seconds == time.host_seconds


def test_a_dispatch_is_shared_by_the_steps_that_it_starts() -> None:
    walked, raw = schedule(busy("work", 10000))
    alone, shared = (step_time(walked, raw, 0, steps) for steps in (1, 50))
    assert shared.host_seconds == pytest.approx(alone.host_seconds / 50)
    assert alone.bound == "host" and shared.bound != "host"
    # What one step's batch takes over PCIe stays what it is.
    sent = [step_time(walked, raw, 2**30, steps).host_seconds for steps in (1, 50)]
    assert sent[0] == sent[1]


def test_a_batch_that_arrives_slowly_is_bound_by_the_host() -> None:
    walked, raw = schedule(busy("work", 1e7))
    time = step_time(walked, raw, 2**30)
    assert time.host_seconds == pytest.approx(2**30 / V5E.generation.pcie_bytes_per_second_per_chip)
    assert time.bound == "host"


@pytest.mark.parametrize(
    ("op_name", "scope"),
    [
        ("jit(call)/call_exported/jit(step)/transpose(jvp(Conv2d_0))/conv", "Conv2d_0"),
        ("jit(f)/jvp(Block_1)/Linear_0/while/body/closed_call/dot_general", "Block_1/Linear_0"),
        ("jit(f)/jvp()/dot_general", ""),
        ("jit(f)/transpose(jvp(layer (1)))/remat(block)/dot_general", "layer (1)/block"),
        ("jit(f)/jvp(outer/inner)/layer (2)/dot_general", "outer/inner/layer (2)"),
        ("", ""),
    ],
)
def test_the_scope_of_an_operation(op_name: str, scope: str) -> None:
    assert Operation("a", "b", "hbm", 0, 0, 0, 1, 0, 0, "", op_name, None).scope == scope


def test_what_the_links_take_beyond_the_schedule_is_time_of_the_exchanges() -> None:
    big = "f32[16384,1024]{1,0:T(8,128)}"
    body = (
        busy("work", 1e6),
        f"%r = {big} all-reduce(%p), channel_id=1, {GROUPS}",
        f"%s = {big} all-reduce(%p), channel_id=2, {GROUPS}",
    )
    walked = Schedule(parse(module(f"%p = {big} parameter(0)", *body)), V5E)
    raw = walked.run()
    alone = Schedule(parse(module(f"%p = {big} parameter(0)", body[0])), V5E)
    assert walked.operations["work"].seconds == pytest.approx(alone.run())
    assert sum(op.seconds for op in walked.operations.values()) == pytest.approx(raw)
    time = step_time(walked, raw, 0)
    links = 2 * 2 * 2**26 * 7 / 8 / (2 * V5E.generation.ici_link_bytes_per_second)
    assert time.device_seconds == pytest.approx(links)
    assert time.bound == "ici"
    assert time.shares["ici"] == pytest.approx(1 - alone.run() / raw)


def test_cycles_that_overflowed_in_the_compiler_are_none() -> None:
    walked = Schedule(parse(module(f"%p = {MIB} parameter(0)", busy("work", 1000))), V5E)
    fusion = busy("reduced", 1).replace("negate(%p)", "fusion(%p), kind=kOutput")
    wrong = fusion.replace('"1"', f'"{2**63 - 1}"')
    overflowed = Schedule(parse(module(f"%p = {MIB} parameter(0)", wrong)), V5E)
    least = overflowed.run()
    rate = V5E.generation.hbm_bandwidth_bytes_per_second_per_device
    assert least == pytest.approx(2 * 2**20 / rate)
    assert walked.run() < least < 1e-4
    assert overflowed.unmodelled == {"fusion": 1}
    time = step_time(overflowed, least, 0, 10**6)  # the host's part is nothing
    assert time.high > 5 * time.device_seconds


def walked_with(before: str, *body: str, where: chips.Slice = V5E) -> tuple[Schedule, float]:
    """Walk a program that calls the computations ``before`` it."""
    text = module(f"%p = {MIB} parameter(0)", *body).replace("ENTRY", before + "ENTRY")
    made = Schedule(parse(text), where, calibrated=False)
    return made, made.run()


OPEN_LOOP = f"""%turn (t: x) -> y {{
  %t = (s32[], {MIB}) parameter(0)
  ROOT %u = (s32[], {MIB}) tuple(%t, %t)
}}

%ends (e: x) -> pred[] {{
  %e = (s32[], {MIB}) parameter(0)
  ROOT %k = pred[] compare(%e, %e), direction=LT
}}

%dear (a: x) -> y {{
  %q = {MIB} parameter(0)
  %i = s32[] parameter(1)
  %r = {MIB} all-reduce(%q), channel_id=1, {GROUPS}
  %so = {MIB} sort(%q), dimensions={{0}}
  %st = (s32[], {MIB}) tuple(%i, %q)
  %lo = (s32[], {MIB}) while(%st), condition=%ends, body=%turn
  ROOT %c2 = {MIB} conditional(%i, %q, %q), branch_computations={{%a, %b}}
}}

"""


def test_what_is_not_known_of_the_dearest_branch_is_told() -> None:
    made, _ = walked_with(
        branch("a", 1e6) + branch("b", 3e6) + OPEN_LOOP,
        "%i = s32[] parameter(1)",
        f"ROOT %c = {MIB} conditional(%i, %p, %p), branch_computations={{%dear, %a}}",
    )
    assert [loop.name for loop in made.unknown_loops] == ["lo"]
    assert made.unmodelled == {"sort": 1}
    assert set(made.branches) == {"c", "c2"}
    assert len(made.links) == 2


def test_a_branch_in_a_loop_is_taken_at_every_turn() -> None:
    text = conditioned("").replace(
        busy("body", 1000),
        f"%body = {MIB} conditional(%n, %p, %p), branch_computations={{%a, %b}}",
    )
    text = text.replace("%turn (", branch("a", 1e6) + branch("b", 3e6) + "%turn (", 1)
    made = Schedule(parse(text), V5E, calibrated=False)
    assert made.run() == pytest.approx(6 * 3e6 / CLOCK, rel=1e-4)
    assert made.branches["body"][1] == pytest.approx(6 * 2e6 / CLOCK)


def test_what_a_call_runs_takes_its_time() -> None:
    _, total = walked_with(branch("a", 1e6), f"ROOT %c = {MIB} call(%p), to_apply=%a")
    assert total == pytest.approx(1e6 / CLOCK)


def test_the_halves_of_a_fused_exchange_are_waited_for_as_one() -> None:
    inner = "".join(
        f"%{name} (a: x) -> y {{\n  %p.{name} = {MIB} parameter(0)\n"
        f"  ROOT %g.{name} = {MIB} all-gather(%p.{name}), channel_id=7, {GROUPS}\n}}\n\n"
        for name in ("s", "d")
    )
    made, total = walked_with(
        inner,
        f"%async-collective-start.1 = ({MIB}, {MIB}) fusion(%p), kind=kCustom, calls=%s",
        f"%g = {MIB} get-tuple-element(%async-collective-start.1), index=1",
        busy("work", 1e6),
        f"%async-collective-done.1 = {MIB} fusion(%g), kind=kCustom, calls=%d",
    )
    assert total == pytest.approx(1e6 / CLOCK)
    assert made.operations["async-collective-start.1"].seconds == 0


HOSTED = MIB[:-1] + "S(5)}"


@pytest.mark.parametrize(("name", "rate"), [("v5e-8", 15e9), ("tpu7x-8", 16e9)])
def test_the_host_is_sent_to_and_heard_from_at_once(name: str, rate: float) -> None:
    _, total = schedule(
        f"%h = {HOSTED} parameter(1)",
        f"%a = ({HOSTED}, {MIB}, u32[]) copy-start(%p)",
        f"%b = ({MIB}, {HOSTED}, u32[]) copy-start(%h)",
        f"%ad = {HOSTED} copy-done(%a)",
        f"%bd = {MIB} copy-done(%b)",
        where=chips.resolve(name),
    )
    assert total == pytest.approx(2**20 / rate)


def test_a_slice_that_is_fetched_takes_the_time_of_the_slice() -> None:
    big, near = "f32[32,512,512]{2,1,0:T(8,128)}", MIB[:-1] + "S(1)}"
    _, total = schedule(
        f"%b = {big} parameter(1)",
        f"%s = (({big}), {near}, s32[]) slice-start(%b)",
        f"%d = {near} slice-done(%s)",
    )
    assert total == pytest.approx(FETCH_SECONDS)


KERNEL = f'%k = {MIB} custom-call(%p), custom_call_target="tpu_custom_call"'
STATED = (
    'backend_config={"custom_call_config":{"cost_estimate":{"flops":"197000000000",'
    '"transcendentals":"0","bytes_accessed":"8"}}}'
)


def test_a_kernel_whose_cost_nobody_states_is_told() -> None:
    made, _ = schedule(KERNEL)
    assert made.operations["k"].uncounted and made.operations["k"].unstated
    (told,) = made.unmodelled
    assert told.startswith("what the Pallas kernel k does")
    made, total = schedule(f"{KERNEL}, {STATED}")
    assert total == pytest.approx(1e-3)
    assert made.unmodelled == {} and not made.operations["k"].unstated
    weighed = Schedule(parse(module(f"%p = {MIB} parameter(0)", f"{KERNEL}, {STATED}")), V5E)
    least = calibration("v5e").least  # as far from products as from attention
    assert weighed.run() == pytest.approx(math.sqrt(least * WEIGHTS["kernel"]) * 1e-3)
    assert not weighed.operations["k"].attention


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("sort(%q), dimensions={0}", "sort"),
        ("reduce-window(%q), window={size=3x3}", "reduce-window"),
        ("select-and-scatter(%q), window={size=3x3}", "select-and-scatter"),
        ('custom-call(%q), custom_call_target="TopK"', "TopK"),
        ('custom-call(%q), custom_call_target="AssumeGatherIndicesInBound"', None),
        ("fusion(%q), kind=kCustom, calls=%within", "TopK"),
        ("reshape(%q)", None),
    ],
)
@pytest.mark.parametrize("rows", [8, 16])
def test_in_vmem_a_pass_over_the_bytes_is_short_and_what_makes_many_is_told(
    body: str, told: str | None, rows: int
) -> None:
    near = f"f32[{rows},128]{{1,0:T(8,128)S(1)}}"
    within = f"""%within (w: x) -> y {{
  %w = {near} parameter(0)
  ROOT %t = f32[] custom-call(%w), custom_call_target="TopK"
}}

"""
    made, total = walked_with(within, f"%q = {near} parameter(1)", f"%k = f32[] {body}")
    assert total < 1e-9
    named = told is not None and rows > 8  # than one register has
    assert made.unmodelled == ({told: 1} if named else {})
    assert [o.uncounted for o in made.operations.values()] == [named]


@pytest.mark.parametrize(("rows", "told"), [(8, {}), (16, {"gather": 1})])
def test_a_gather_of_more_than_a_few_numbers_is_told(rows: int, told: dict[str, int]) -> None:
    made, _ = schedule(f"%i = s32[{rows}] parameter(1)", f"%k = f32[{rows},128] gather(%p, %i)")
    assert made.unmodelled == told


def test_what_takes_no_time_and_what_is_a_plain_copy_is_not_told() -> None:
    assert schedule(f'%k = {MIB} custom-call(), custom_call_target="AllocateBuffer"')[1] == 0
    short = "f32[1024]{0:T(1024)}"
    for body in (
        [f"%k = {MIB} copy(%p)"],
        [f"%q = {short} parameter(1)", f"%k = {short} sort(%q)"],
    ):
        assert schedule(*body)[0].unmodelled == {}

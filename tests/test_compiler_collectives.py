"""What the links cost, inside a slice and between slices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from neurenix import chips
from neurenix.compiler.collectives import dcn_seconds, group_size, ici_seconds
from neurenix.compiler.hlo import Instruction
from neurenix.compiler.shapes import parse_shapes
from schedule_helpers import (
    MIB,
    collective,
    schedule,
)

pytestmark = pytest.mark.pure


@pytest.mark.parametrize("name", ["v5e-256", "v5p-128"])
def test_an_exchange_of_all_with_all_is_bound_by_the_slices_bisection(name: str) -> None:
    where = chips.resolve(name)
    shapes = parse_shapes("bf16[256,32768]{1,0:T(8,128)(2,1)}")
    exchange = Instruction("a", "all-to-all", shapes, (), "", "", False)
    seconds = ici_seconds(exchange, where, hops=False)
    # Half of each device's array crosses the middle, over the links of the longest axis there.
    longest = max(where.topology)
    links = 2 * where.devices_per_slice / longest / where.devices_per_chip
    crossing = where.devices_per_slice / 2 * shapes[0].padded_bytes / 2
    bound = crossing / (links * where.generation.ici_link_bytes_per_second)
    assert seconds == pytest.approx(bound)
    assert 0 < ici_seconds(exchange, where) - seconds < 20e-6


@pytest.mark.parametrize(
    ("name", "groups", "links"),
    [
        ("v5e-8", "replica_groups=[2,4]<=[8]", 1),  # a line of 4: its end has one link into it
        ("v5e-64", "replica_groups=mesh['a'=8,'b'=8] {'b'}", 1),
        ("v5e-64", "replica_groups=[16,4]<=[64]", 1),  # half of an axis
        ("v5e-64", "replica_groups={}", 2),  # a corner of the grid
        ("v5e-256", "replica_groups=[16,16]<=[256]", 2),  # a ring
        ("v5e-256", "replica_groups=[8,32]<=[256]", 3),  # rings in pairs
        ("v5e-256", "replica_groups={}", 4),
        ("v5p-128", "replica_groups=[16,4]<=[64]", 2),
    ],
)
def test_a_group_has_the_links_of_the_device_at_its_end(name: str, groups: str, links: int) -> None:
    where = chips.resolve(name)
    devices = group_size(collective("all-gather", groups), where.devices_per_slice)
    seconds = ici_seconds(collective("all-gather", groups), where, hops=False)
    received = 2**26 * (devices - 1) / devices
    rate = where.generation.ici_link_bytes_per_second
    assert seconds == pytest.approx(received / (links * rate))


@pytest.mark.parametrize(
    ("name", "distance", "arrays"),
    [
        ("v5e-64", 1, 1),
        ("v5e-64", 32, 4),
        ("v5e-64", 16, 2),
        ("v5e-256", 128, 4),
        ("v5e-256", 8, 4),
    ],
)
def test_a_permutation_is_as_slow_as_its_busiest_link(
    name: str, distance: int, arrays: int
) -> None:
    where = chips.resolve(name)
    count = where.devices_per_slice
    pairs = ",".join(f"{{{i},{(i + distance) % count}}}" for i in range(count))
    permuted = collective("collective-permute", f"source_target_pairs={{{pairs}}}")
    rate = where.generation.ici_link_bytes_per_second
    assert ici_seconds(permuted, where, hops=False) == pytest.approx(arrays * 2**26 / rate)


def test_a_transfer_between_slices_is_dcn() -> None:
    where = chips.resolve("2x v5e-8")
    body = (
        f"%s = ({MIB}, u32[], token[]) send(%p), channel_id=1, is_host_transfer=true",
        f"%v = ({MIB}, u32[], token[]) recv(%p), channel_id=2, is_host_transfer=true",
        "%x = token[] send-done(%s)",
        f"%y = ({MIB}, token[]) recv-done(%v)",
    )
    walked, total = schedule(*body, where=where)
    assert {o.kind for o in walked.operations.values()} == {"dcn"}
    assert total == pytest.approx(dcn_seconds(2**20, where)) == pytest.approx(2**20 * 8 / 25e9)


@pytest.mark.parametrize("slices", [2, 3, 4, 8])
@pytest.mark.parametrize(
    ("kind", "received", "expected"),
    [
        # In MiB, of the one that a device sends.
        ("ALL_GATHER", lambda k: k, lambda k: k - 1),
        ("ALL_REDUCE", lambda k: 1, lambda k: 2 * (k - 1) / k),
        ("REDUCE_SCATTER", lambda k: 1 / k, lambda k: 1),
        ("ALL_TO_ALL", lambda k: 1, lambda k: 1),
        ("ONE_TO_ONE", lambda k: 1, lambda k: 1),
    ],
)
def test_what_arrives_from_more_slices_takes_longer(
    slices: int, kind: str, received: Callable, expected: Callable
) -> None:
    where = chips.resolve(f"{slices}x v5e-8")
    tag = f'frontend_attributes={{_xla_megascale_transfer_type="{kind}"}}'
    arrives = f"f32[{int(received(slices) * 256)},1024]{{1,0:T(1,128)}}"
    _, total = schedule(
        f"%s = ({MIB}, u32[], token[]) send(%p), channel_id=2, is_host_transfer=true, {tag}",
        f"%v = ({arrives}, u32[], token[]) recv(%p), channel_id=1, is_host_transfer=true, {tag}",
        "%x = token[] send-done(%s)",
        f"%y = ({arrives}, token[]) recv-done(%v)",
        where=where,
    )
    one = dcn_seconds(2**20, where)
    if slices == 2:
        assert total == one  # to the bit: the calibration stands on it
    assert total == pytest.approx(expected(slices) * one, rel=1e-6)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", 4),
        ("replica_groups=[4,2]<=[8]", 2),
        ("replica_groups=mesh['axis_0'=8,'axis_1'=1] {'axis_0'}", 8),
        ("replica_groups=mesh['a'=2,'b'=4,'c'=1], device_ids=([4,2]T(1,0)) {'b'}", 4),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("replica_groups={}", 16),
    ],
)
def test_groups_in_every_spelling(groups: str, size: int) -> None:
    instruction = Instruction("r", "all-reduce", (), (), "", groups, False)
    assert group_size(instruction, 16) == size


def test_a_ring_that_closes_is_twice_as_fast_as_a_line() -> None:
    shapes = parse_shapes("f32[8192,8192]{1,0:T(8,128)}")
    gather = Instruction("r", "all-gather", shapes, (), "", "", False)
    open_, closed = (ici_seconds(gather, chips.resolve(n)) for n in ("v5e-64", "v5e-256"))
    assert open_ / closed == pytest.approx(2, rel=0.05)


def test_one_device_exchanges_nothing() -> None:
    assert schedule(f"%r = {MIB} all-reduce(%p)", where=chips.resolve("v5e-1"))[1] == 0


LINK = 45e9
FAR = ",".join(f"{{{i},{(i + 32) % 64}}}" for i in range(64))


@pytest.mark.parametrize(
    ("opcode", "groups", "name", "seconds"),
    [
        ("reduce-scatter", "replica_groups=[1,8]<=[8]", "v5e-8", 2**26 * 7 / (2 * LINK)),
        # Two devices of two chips: the chips' one link, and the rate of tpu7x.
        ("all-gather", "replica_groups=[4,2]<=[8]", "tpu7x-8", 2**26 / 2 / (2 * 100e9)),
        (
            "collective-permute",
            "source_target_pairs={{0,2},{1,3}}",
            "tpu7x-8",
            2 * 2**26 / 100e9,  # both devices of a chip send over the same link
        ),
        # What the second slice does is what the first does.
        ("collective-permute", "source_target_pairs={{0,1},{8,9}}", "2x v5e-8", 2**26 / LINK),
    ],
)
def test_bytes_over_links(opcode: str, groups: str, name: str, seconds: float) -> None:
    found = ici_seconds(collective(opcode, groups), chips.resolve(name), hops=False)
    assert found == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("opcode", "groups", "hops"),
    [
        ("collective-permute", f"source_target_pairs={{{FAR}}}", 4),
        ("all-gather", "replica_groups=[16,4]<=[64]", 2),
    ],
)
def test_the_way_counts_a_microsecond_for_each_hop(opcode: str, groups: str, hops: int) -> None:
    one, where = collective(opcode, groups), chips.resolve("v5e-64")
    alone = ici_seconds(one, where, hops=False)
    assert ici_seconds(one, where) - alone == pytest.approx(hops * 1e-6)


def test_an_exchange_that_starts_counts_its_result_once() -> None:
    start = f"%a = ({MIB}, {MIB}) collective-permute-start(%p), source_target_pairs={{{{0,1}}}}"
    _, total = schedule(start, f"%ad = {MIB} collective-permute-done(%a)")
    assert total == pytest.approx(2**20 / LINK + 1e-6)


def test_a_hosts_devices_share_its_network() -> None:
    assert dcn_seconds(2**20, chips.resolve("2x tpu7x-8")) == pytest.approx(2**20 * 8 / 25e9)

"""Costs, prices and published runs: arithmetic with nothing compiled."""

from __future__ import annotations

import math

import pytest

from neurenix import chips
from neurenix._core.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from neurenix.preflight.cost import Pricing, Work, cost_of, prices_of, steps_for, usd_text
from neurenix.preflight.report.formatting import bytes_text, percent_text, seconds_text

pytestmark = pytest.mark.pure

WORK = Work(0.5, 0.4, 0.75, examples=64, tokens=64 * 1024)


# Prices.


@pytest.mark.parametrize(
    ("generation", "region", "commitment", "usd"),
    [
        ("v5e", "us", "on-demand", 1.20),
        ("v5e", "us-west1", "on-demand", 1.20),  # the area's
        ("v5e", "europe-west4", "on-demand", 1.56),
        ("v5e", "us-central1", "3-year", 0.54),
        ("v5p", "us-south1", "on-demand", 4.779),
        ("v5p", "us-south1", "3-year", None),  # its own price, so not the area's discount
        ("v5p", "us-east5", "spot", 1.68),
        ("v6e", "asia-northeast1", "on-demand", 3.24),
        ("v6e", "asia-southeast1", "on-demand", None),
        ("v5e", "europe-west4", "3-year", None),
        ("tpu7x", "us", "on-demand", None),
        ("tpu7x", "us", "spot", None),
    ],
)
def test_price_of_a_chip(generation: str, region: str, commitment: str, usd: float | None) -> None:
    found = chips.price(generation, region, commitment=commitment)
    assert (found and found.usd_per_chip_hour) == usd


def test_every_price_says_where_and_when_it_was_read() -> None:
    seen = set()
    for generation in chips.GENERATIONS.values():
        for price in generation.prices:
            assert price.source and price.as_of, price
            assert 0.1 < price.usd_per_chip_hour < 10  # a list uses 700 for "unknown"
            key = (price.generation, price.region, price.commitment)
            assert key not in seen
            seen.add(key)
    assert len(seen) > 25


def test_names_of_regions_and_commitments_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'europe-west4'"):
        chips.price("v5e", "eurpe-west4")
    with pytest.raises(UnknownNameError, match="Did you mean '3-year'"):
        chips.price("v5e", commitment="3-years")
    with pytest.raises(UnknownNameError, match="region"):
        Pricing(region="mars-west1")
    for usd in (-1.0, math.inf, math.nan):
        with pytest.raises(ArgumentError, match="0 or more USD"):
            Pricing(usd_per_chip_hour=usd)


# Sums.


def test_cost_is_chips_times_hours_times_price() -> None:
    cost = cost_of(WORK, 7200, chips.resolve("v5p-256"), Pricing())  # 128 chips, one hour
    assert cost.seconds == 3600
    assert cost.chip_hours == 128
    assert cost.usd == pytest.approx(128 * 4.20)
    assert (cost.low, cost.high) == (pytest.approx(0.8 * cost.usd), pytest.approx(1.5 * cost.usd))
    assert cost.usd_per_step == pytest.approx(128 * 4.20 / 7200)
    assert cost.usd_per_million_tokens == pytest.approx(cost.usd / (7200 * 64 * 1024 / 1e6))
    assert cost.usd_per_million_examples == pytest.approx(cost.usd / (7200 * 64 / 1e6))
    assert cost.price is not None and cost.price.source
    assert "7,200 steps" in str(cost) and "estimated" in str(cost)


def test_two_devices_on_a_chip_are_paid_once() -> None:
    where = chips.resolve("v3-8")  # four chips, eight devices
    assert cost_of(WORK, 7200, where, Pricing()).chip_hours == where.num_chips == 4


def test_a_price_of_ones_own_takes_the_place_of_the_list() -> None:
    where = chips.resolve("tpu7x-2x2x1")
    unknown = cost_of(WORK, 10, where, Pricing())
    assert (unknown.usd, unknown.usd_per_step, unknown.price) == (None, None, None)
    assert unknown.missing == "no public price for tpu7x"
    assert "no public price" in str(unknown)
    own = cost_of(WORK, 7200, where, Pricing(usd_per_chip_hour=12.0))
    assert own.usd == pytest.approx(4 * 12.0)
    assert own.price is None and own.missing == ""
    free = cost_of(WORK, 7200, where, Pricing(usd_per_chip_hour=0.0))
    assert (free.usd, free.usd_per_million_tokens) == (0.0, 0.0)


def test_each_generation_may_have_a_price_of_ones_own() -> None:
    pricing = Pricing(usd_per_chip_hour={"TPU7x": 3, "v5litepod": 1.1})
    found = {
        name: cost_of(WORK, 7200, chips.resolve(name), pricing) for name in ("tpu7x-8", "v5e-1")
    }
    assert [cost.usd_per_chip_hour for cost in found.values()] == [3, 1.1]
    assert [cost.price for cost in found.values()] == [None, None]
    listed = cost_of(WORK, 7200, chips.resolve("v6e-1"), pricing)
    assert listed.price is not None and listed.usd_per_chip_hour == 2.70
    assert pricing == Pricing(usd_per_chip_hour={"tpu7x": 3, "v5e": 1.1})
    with pytest.raises(UnknownNameError, match="TPU generation named 'v5x'. Did you mean 'v5"):
        Pricing(usd_per_chip_hour={"v5x": 1.0})
    with pytest.raises(ArgumentError, match="0 or more USD"):
        Pricing(usd_per_chip_hour={"v5e": -1.0})
    with pytest.raises(ArgumentError, match="two prices for v5e"):
        Pricing(usd_per_chip_hour={"v5e": 1.0, "v5litepod": 2.0})
    with pytest.raises(ArgumentTypeError, match=r"usd_per_chip_hour\['v5e'\] must be a number"):
        Pricing(usd_per_chip_hour={"v5e": "1"})  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("text", ["", "x", "v5e", "v5e=", "v5e=1,2", "v5e=1,v5e=2", "v5e=1;v6e=2"])
def test_a_text_that_is_no_price(text: str) -> None:
    with pytest.raises(ArgumentError, match="is not a price. Write USD"):
        prices_of(text)


def test_what_is_not_listed_is_said_with_what_is() -> None:
    missing = Pricing("europe-west4", "3-year").missing(chips.generation("v5e"))
    assert missing.startswith("no public price for v5e in europe-west4, 3-year")
    assert "europe-west4 on-demand 1.56" in missing and "us 3-year 0.54" in missing


@pytest.mark.parametrize(
    ("given", "steps"),
    [
        ({}, 1), ({"steps": 0}, 0), ({"steps": 9}, 9),
        ({"examples": 640}, 10), ({"examples": 641}, 11), ({"tokens": 10**9}, 15259),
    ],
)  # fmt: skip
def test_an_amount_of_work_as_steps(given: dict[str, int], steps: int) -> None:
    none = {"steps": None, "examples": None, "tokens": None}
    assert steps_for(WORK, **(none | given)) == steps


@pytest.mark.parametrize("name", ["steps", "examples", "tokens"])
def test_an_amount_is_a_whole_number(name: str) -> None:
    none = {"steps": None, "examples": None, "tokens": None}
    work = Work(1, 1, 1, 8, 64)
    with pytest.raises(ArgumentError, match=f"{name} must be a whole number; got 1.5"):
        steps_for(work, **(none | {name: 1.5}))
    assert isinstance(steps_for(work, **(none | {name: 128.0})), int)


@pytest.mark.parametrize("name", ["region", "commitment"])
@pytest.mark.parametrize("value", [3, None])
def test_names_of_prices_are_text(name: str, value: object) -> None:
    with pytest.raises(ArgumentTypeError, match=f"{name} must be a string; got {value}"):
        Pricing(**{name: value})  # pyright: ignore[reportArgumentType]


def test_amounts_that_say_nothing() -> None:
    with pytest.raises(ArgumentError, match="one of steps and tokens"):
        steps_for(WORK, steps=1, examples=None, tokens=5)
    with pytest.raises(ArgumentError, match="examples must be 0 or more"):
        steps_for(WORK, steps=None, examples=-5, tokens=None)
    for steps in (float("nan"), float("inf"), -1):
        with pytest.raises(ArgumentError, match="steps must be 0 or more"):
            steps_for(WORK, steps=steps, examples=None, tokens=None)  # pyright: ignore
    for given in ({"steps": "3"}, {"examples": [5]}, {"tokens": True}):
        (name,) = given
        with pytest.raises(ArgumentTypeError, match=f"{name} must be a number"):
            steps_for(WORK, **({"steps": None, "examples": None, "tokens": None} | given))
    with pytest.raises(ArgumentError, match="not known to take tokens"):
        steps_for(Work(1, 1, 1, 8, None), steps=None, examples=None, tokens=5)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (2**20 - 1, "1.00 MiB"),
        (2**30 - 1, "1.00 GiB"),
        (1023.99 * 2**20, "1023.99 MiB"),
        (-(2**30) + 1, "-1.00 GiB"),
        (2**52, "4096.00 TiB"),
        (0, "0 B"),
    ],
)
def test_no_size_is_1024_of_its_unit(count: float, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.99996, "1 s"), (999.8e-6, "1 ms"), (999.4, "999 s"), (999.6, "1,000 s"), (0.0, "0 ns")],
)
def test_no_duration_is_1000_of_its_unit_or_an_exponent(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_share_that_is_there_is_not_shown_as_nothing() -> None:
    assert [percent_text(share) for share in (0.0, 1e-9, 0.0011)] == ["0.0%", "under 0.1%", "0.1%"]


def test_money_has_digits_that_mean_something() -> None:
    texts = [usd_text(usd) for usd in (0, 2.2e-7, 0.00022413, 0.5, 12.345, 25804.8)]
    assert texts == [
        "0 USD", "2.20e-07 USD", "0.000224 USD", "0.5 USD", "12.35 USD", "25,805 USD",
    ]  # fmt: skip


# Published runs.


@pytest.mark.parametrize("run", chips.published_runs(), ids=lambda run: run.id)
def test_numbers_of_a_published_run_go_together(run: chips.PublishedRun) -> None:
    tokens = run.batch_size * run.sequence_length
    rate = tokens / run.step_seconds / run.num_chips
    assert run.tokens_per_second_per_chip == pytest.approx(rate, rel=1e-4)
    generation = chips.generation(run.generation)
    peak = generation.peak_flops_per_second["bfloat16"] * generation.devices_per_chip
    assert run.mfu == pytest.approx(rate * run.flops_per_token / peak, rel=1e-3)
    assert run.source
    assert run.num_chips % run.num_slices == 0


def test_the_nearest_published_run_is_of_the_generation_and_then_of_the_size() -> None:
    def nearest(generation: str, flops: float, devices: int, sequence: int) -> str:
        return chips.nearest_run(
            generation, flops_per_token=flops, num_devices=devices, sequence_length=sequence
        ).id

    assert nearest("v6e", 51e9, 8, 8192) == "T12"
    assert nearest("v6e", 51e9, 128, 8192) == "T16"
    assert nearest("v6e", 450e9, 32, 8192) == "T8"
    assert nearest("v5e", 100e9, 256, 2048) == "E1"
    assert nearest("v5e", 1e9, 8, 1024) == "E1"  # far, but of v5e
    assert nearest("tpu7x", 450e9, 512, 8192) == "I16"
    assert nearest("v3", 51e9, 8, 8192) == "T12"  # none of v3 was published
    with pytest.raises(ArgumentError, match="must be positive"):
        nearest("v5e", 0, 8, 128)

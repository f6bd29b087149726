"""The numbers agree with each other, with what was measured, and each has a source."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest
from jax.experimental.pallas import tpu as pltpu

from neurenix import chips
from neurenix._core.errors import ArgumentTypeError, UnknownNameError

pytestmark = pytest.mark.pure

# estimated_cycles of a 4096^3 bfloat16 matmul on one device (v4: one of the two cores), and the
# share of the documented peak that they mean.
CYCLES = {
    "v2": (4_291_711, 0.98),
    "v3": (2_201_438, 0.95),
    "v4": (1_176_804, 0.89),
    "v5e": (1_083_068, 0.97),
    "v5p": (544_925, 0.96),
    "v6e": (301_616, 0.87),
    "tpu7x": (316_312, 0.83),
}


@pytest.mark.parametrize("name", CYCLES)
def test_clock_and_peak_explain_the_measured_cycles(name: str) -> None:
    generation = chips.generation(name)
    cycles, share = CYCLES[name]
    peak = generation.peak_flops_per_second["bfloat16"] / (2 if name == "v4" else 1)
    measured = 2 * 4096**3 / (cycles / generation.clock_hertz) / peak
    assert measured == pytest.approx(share, abs=0.011)


@pytest.mark.parametrize("generation", chips.GENERATIONS.values(), ids=str)
def test_every_number_has_a_source(generation: chips.Generation) -> None:
    names_only = {
        "name",
        "device_kind",
        "aliases",
        "topology_prefix",
        "chip_config_name",
        "counts",
        "chips_per_host_choices",
        "gke_accelerator",
        "gke_machine_types",
        "sources",
    }
    for field in dataclasses.fields(generation):
        if field.name in names_only or getattr(generation, field.name) is None:
            continue
        assert generation.source(field.name)


@pytest.mark.parametrize("generation", chips.GENERATIONS.values(), ids=str)
def test_numbers_go_together(generation: chips.Generation) -> None:
    per_chip = generation.hbm_bytes_per_device * generation.devices_per_chip
    lost = generation.hbm_nominal_bytes_per_chip - per_chip
    assert 0 < lost < 0.09 * generation.hbm_nominal_bytes_per_chip
    assert generation.cores_per_chip % generation.devices_per_chip == 0
    assert len(generation.pod_topology) == generation.ici_dims
    if generation.ici_bytes_per_second_per_chip is not None:
        links = 2 * generation.ici_dims
        both_ways = 2 * links * generation.ici_link_bytes_per_second
        assert both_ways <= generation.ici_bytes_per_second_per_chip <= 1.12 * both_ways


@pytest.mark.parametrize("name", chips.GENERATIONS)
def test_rates_are_near_those_of_jaxs_own_table(name: str) -> None:
    """Independent of the sources here; of v3 and v5p they differ, as ``source`` tells."""
    tolerance = 0.13 if name in ("v3", "v5p") else 0.03
    generation = chips.generation(name)
    version = pltpu.ChipVersion[f"TPU_{name.removeprefix('tpu').upper()}"]
    jaxs = pltpu.get_tpu_info_for_chip(version, 1)  # of one TensorCore
    cores, peaks = generation.cores_per_device, generation.peak_flops_per_second
    pairs = {
        "hbm": (generation.hbm_bandwidth_bytes_per_second_per_device, jaxs.mem_bw_bytes_per_second),
        "bfloat16": (peaks["bfloat16"], jaxs.bf16_ops_per_second),
        "int8": (peaks.get("int8"), jaxs.int8_ops_per_second),
        "int4": (peaks.get("int4"), jaxs.int4_ops_per_second),
    }
    both = {what: pair for what, pair in pairs.items() if all(pair)}
    assert {"hbm", "bfloat16"} <= set(both)
    for ours, theirs in both.values():
        assert ours == pytest.approx(theirs * cores, rel=tolerance)
    assert generation.mxu[1] == jaxs.mxu_column_size
    assert generation.vmem_bytes == jaxs.vmem_capacity_bytes
    assert generation.smem_bytes == jaxs.smem_capacity_bytes


def test_what_the_compiler_enforces() -> None:
    limits = {g.name: round(g.hbm_bytes_per_device / 2**30, 2) for g in chips.GENERATIONS.values()}
    assert limits == {
        "v2": 7.48,
        "v3": 15.48,
        "v4": 30.75,
        "v5e": 15.75,
        "v5p": 95.74,
        "v6e": 31.25,
        "tpu7x": 94.75,
    }


def test_v4_compiles_whole_chips_and_tpu7x_halves() -> None:
    assert chips.generation("v4").chip_config_name == "megacore"
    assert chips.generation("v4").cores_per_device == 2
    assert chips.generation("tpu7x").peak_flops_per_second["bfloat16"] == 2307e12 / 2
    assert "int8" not in chips.generation("tpu7x").peak_flops_per_second


def test_find_a_generation() -> None:
    assert chips.generation("V5LITEPOD") is chips.generation("v5e")
    assert chips.generation_of_kind("tpu v6 LITE") is chips.generation("v6e")
    assert chips.generation_of_kind("cpu") is None
    with pytest.raises(UnknownNameError, match="Did you mean 'v5e'"):
        chips.generation("v5ee")
    with pytest.raises(UnknownNameError, match="clock_hertz"):
        chips.generation("v4").source("clock_herz")


def nearest(generation: str) -> chips.PublishedRun:
    return chips.nearest_run(generation, flops_per_token=51e9, num_devices=8, sequence_length=8192)


@pytest.mark.parametrize("ask", [chips.generation, chips.price, nearest])
def test_a_generation_has_its_names_everywhere(ask) -> None:
    for alias, name in (("v5litepod", "v5e"), (" V5E ", "v5e"), ("trillium", "v6e")):
        assert ask(alias) == ask(name)
        assert ask(name) is not None
    with pytest.raises(UnknownNameError, match="Did you mean 'v5e'"):
        ask("v5ee")
    with pytest.raises(ArgumentTypeError, match="such as 'v5e'; got 5"):
        ask(5)


@pytest.mark.parametrize(
    ("generation", "region", "commitment", "usd"),
    [
        ("v2", "us", "on-demand", 1.31),
        ("v4", "us-central2", "1-year", 2.0286),
        ("v5e", "us-west1", "on-demand", 1.20),
        ("v5e", "asia-east1", "on-demand", 1.56),
        ("v5p", "us", "3-year", 1.89),
        ("v5p", "us-central1", "spot", 0.836),
        ("v6e", "asia-northeast1", "on-demand", 3.24),
    ],
)
def test_prices(generation: str, region: str, commitment: str, usd: float) -> None:
    found = chips.price(generation, region, commitment=commitment)
    assert found is not None
    assert found.usd_per_chip_hour == usd
    assert found.source
    assert found.as_of


def test_no_price_is_no_price() -> None:
    assert chips.price("tpu7x") is None
    assert chips.price("v6e", "africa-south1") is None
    assert chips.generation("tpu7x").prices == ()
    with pytest.raises(UnknownNameError, match="Did you mean 'on-demand'"):
        chips.price("v5e", commitment="ondemand")
    with pytest.raises(UnknownNameError, match="no region named 'mars'"):
        chips.price("v5e", "mars")


def test_price_arithmetic_of_a_pod() -> None:
    found = chips.resolve("v5p-12288")
    price = chips.price(found.generation.name)
    assert price is not None
    assert found.num_chips * price.usd_per_chip_hour == pytest.approx(25_804.8)


def test_tiles() -> None:
    v5e, tpu7x = chips.generation("v5e"), chips.generation("tpu7x")
    assert chips.padded_bytes(v5e, (7, 1000), dtype_bits=32) == 32_768
    assert chips.padded_bytes(v5e, (8, 128), dtype_bits=32) == 4096
    assert chips.padded_bytes(v5e, (3,), dtype_bits=16) == 512
    assert chips.padded_bytes(v5e, (), dtype_bits=32) == 4
    assert chips.padded_bytes(tpu7x, (8, 128), dtype_bits=16) == 4096
    assert [chips.sublanes(v5e, bits) for bits in (32, 16, 8, 4)] == [8, 8, 32, 64]
    assert chips.mxu_multiple(v5e) == 128


def test_facts_need_no_jax() -> None:
    program = "import sys, neurenix.chips; print('jax' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "False"]

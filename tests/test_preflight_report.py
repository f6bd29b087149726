"""What a report says of a program with tokens: text, JSON, what changed. Few small compiles."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from importlib import metadata
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import chips, nn
from neurenix._core.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from neurenix.compiler import cache
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import Refusal
from neurenix.compiler.target import Target
from neurenix.preflight import CompileOptions, PreflightOptions, Report
from neurenix.preflight.cost import Pricing
from neurenix.preflight.fail_if import parse
from neurenix.preflight.page import html
from neurenix.preflight.report.compare import matching
from neurenix.preflight.report.formatting import NO_BREAK_SPACE
from neurenix.preflight.report.report_data import Suggestion
from neurenix.preflight.report.report_json import (
    Record,
    load_report,
    load_reports,
    problems,
    schema,
)

pytestmark = pytest.mark.tpu_compile

EXAMPLES, SEQUENCE, VOCABULARY, WIDTH = 16, 128, 512, 128


def language_model() -> nn.Module:
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.TransformerBlock(WIDTH, 2), nn.Linear(WIDTH, VOCABULARY)
    )
    return model.compile("adam", nx.losses.SparseCategoricalCrossentropy(from_logits=True))


def ids(examples: int = EXAMPLES):
    return nx.spec((examples, SEQUENCE), "int32")


@pytest.fixture(scope="module")
def reports() -> list[Report]:
    slices = ["v5e-8", "tpu7x-2x2x1"]
    return nx.preflight(language_model(), ids(), ids(), on=slices)


@pytest.fixture(scope="module")
def larger() -> Report:
    model = language_model()
    return nx.preflight(model, ids(2 * EXAMPLES), ids(2 * EXAMPLES), on="v5e-8")


@pytest.fixture(scope="module")
def refused() -> Report:
    def products(x):
        return (x @ x) @ x

    return nx.preflight(products, nx.spec((65536, 65536)), on="v5e-1")


@pytest.fixture(scope="module")
def early(refused: Report) -> Report:
    """Refused before it was scheduled: the compiler has said no more than what it needs."""
    where = refused.slice
    said = Refusal(Target.of(where), "hbm", "RESOURCE_EXHAUSTED", 40 * 2**30)
    return Report(analyse(refused.analysis.program, where, said))


# The compiler.


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("9.9.9", "is libtpu 9.9.9; chip data"),
        (None, "is a libtpu of an unknown version; chip data"),
    ],
)
def test_another_compiler_than_the_numbers_are_for_is_told(
    version: str | None, said: str, monkeypatch, tmp_path: Path
) -> None:
    known = metadata.version

    def installed(package: str) -> str:
        if package == "libtpu" and version is None:
            raise metadata.PackageNotFoundError(package)
        return str(version) if package == "libtpu" else known(package)

    monkeypatch.setattr(metadata, "version", installed)
    monkeypatch.setattr(cache, "_version", cache._version.__wrapped__)
    options = PreflightOptions(compiler=CompileOptions(cache_directory=tmp_path))
    report = nx.preflight(jnp.tanh, nx.spec((8, 128)), on="v5e-1", options=options)
    (note,) = report.to_dict()["notes"]
    assert said in note and "for libtpu 0.0.42.1 and 0.0.50.1." in note
    assert f"note: The compiler here {said}" in report.text()
    refusal = Refusal(Target.of(report.slice), "crash", "It ended.")
    assert note in analyse(report.analysis.program, report.slice, refusal).notes


def test_nothing_is_said_of_the_compilers_that_the_numbers_are_for(reports: list[Report]) -> None:
    assert not [n for r in reports for n in r.analysis.notes if "The compiler here" in n]


# Rates and costs.


def test_rates_of_a_program_with_tokens(reports: list[Report]) -> None:
    for report in reports:
        assert report.step_time is not None
        seconds = report.step_time.seconds
        assert (report.batch_size, report.sequence_length) == (EXAMPLES, SEQUENCE)
        assert report.tokens == EXAMPLES * SEQUENCE
        assert report.examples_per_second == pytest.approx(EXAMPLES / seconds)
        assert report.tokens_per_second == pytest.approx(EXAMPLES * SEQUENCE / seconds)
        per_chip = EXAMPLES * SEQUENCE / seconds / report.slice.num_chips
        assert report.tokens_per_second_per_chip == pytest.approx(per_chip)
        assert report.flops_per_token == report.analysis.program.model_flops / report.tokens
    # Eight devices either way; tpu7x has two on a chip.
    assert [report.slice.num_chips for report in reports] == [8, 4]


def test_images_and_labels_are_no_tokens() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8))
    model.compile("sgd", nx.losses.MeanSquaredError())
    report = nx.preflight(model, nx.spec((64, 64)), nx.spec((64, 8), "int32"), on="v5e-8")
    assert report.batch_size == 64
    assert (report.sequence_length, report.tokens, report.published_run) == (None, None, None)
    assert report.tokens_per_second is None
    assert "tokens" not in report.text(120) and "  published " not in report.text(120)


def test_the_nearest_published_run_is_shown_as_others(reports: list[Report]) -> None:
    report = reports[0]
    assert report.flops_per_token is not None
    run = report.published_run
    assert run is not None and run.generation == "v5e"
    text = " ".join(report.text(200).split())
    assert f"no run of others is near; {run.model} on {run.machine} is nearest" in text
    assert reports[1].published_run.generation == "tpu7x"


def test_costs(reports: list[Report]) -> None:
    report, without = reports
    assert report.step_time is not None
    hours = report.step_time.seconds * 8 / 3600
    assert report.cost().usd == pytest.approx(hours * 1.20)
    assert report.cost(examples=10 * EXAMPLES + 1).steps == 11
    million = report.cost(5).usd_per_million_tokens
    assert million == pytest.approx(hours * 1.20 / report.tokens * 1e6)
    assert report.cost(region="europe-west4").usd == pytest.approx(hours * 1.56)
    assert report.cost(commitment="3-year").usd == pytest.approx(hours * 0.54)
    assert without.cost().usd is None
    assert without.cost(7200, usd_per_chip_hour=10).usd_per_chip_hour == 10
    with pytest.raises(UnknownNameError, match="commitment"):
        report.cost(commitment="forever")
    with pytest.raises(ArgumentError, match="one of steps and examples"):
        report.cost(3, examples=3)


# Text.


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_are_no_longer_than_the_terminal(reports, refused, width: int) -> None:
    for report in (*reports, refused):
        for line in report.text(width).splitlines():
            # A word that is longer than a line stays whole: paths, the compiler's own.
            assert len(line) <= width or " " not in line.strip(), line


def test_text_has_the_parts_in_order(reports: list[Report]) -> None:
    text = reports[0].text(80)
    labels = re.findall(
        r"^  (fits|step time|rates|time goes to|memory|cost|published) ", text, re.M
    )
    assert labels == ["fits", "step time", "rates", "time goes to", "memory", "cost", "published"]
    assert re.search(r"[\d,]+ tokens/s/chip", " ".join(text.split()))
    assert text.count("estimate") >= 2
    assert "\N{NO-BREAK SPACE}" not in text
    assert str(reports[0]).split() == text.split()


def changed(report: Report, **changes: object) -> Report:
    return Report(dataclasses.replace(report.analysis, **changes))


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (0.01, "no run of others is near; .*, with 100 × the FLOPs a token"),
        (0.2, r"nearest run of others, .*\); it has 5 × the FLOPs a token of this program"),
        (1, "nearest run of others, for orientation"),
        (5, r"nearest run of others, .*\); this program has 5 × its FLOPs a token"),
        (100, "no run of others is near; .*, with 1/100 of the FLOPs a token"),
    ],
)
def test_how_far_a_published_run_is_from_this_program(reports, times: float, says: str) -> None:
    report = reports[0]
    sizes = [run.flops_per_token for run in chips.published_runs() if run.generation == "v5e"]
    size = min(sizes) if times < 1 else max(sizes)
    program = dataclasses.replace(report.analysis.program, model_flops=times * size * report.tokens)
    text = " ".join(changed(report, program=program).text(120).split())
    assert re.search(says, text), text
    assert ("FLOPs a token" in text) == (times != 1)


def test_a_finding_says_its_effect_and_the_rest_are_counted(reports: list[Report]) -> None:
    one = reports[0].findings[0]
    effects = [(2e-3, 2**30), (0.0, 3 * 2**20), (0.0, 0)]
    findings = [
        dataclasses.replace(one, message=f"Number {n}.", effect_seconds=s, effect_bytes=b)
        for n, (s, b) in enumerate([*effects, *effects])
    ]
    text = " ".join(changed(reports[0], findings=tuple(findings)).text(120).split())
    assert "Number 0. [≈ 2 ms of a step]" in text
    assert "Number 1. [3.00 MiB]" in text
    assert not re.search(r"Number 2. \[", text)
    assert "Number 4." in text and "Number 5." not in text
    assert "… and 1 more in report.findings" in text
    text = changed(reports[0], findings=tuple(findings[:5])).text(120)
    assert "Number 4." in text and "more in report.findings" not in text


def test_no_price_is_said_and_none_is_guessed(reports: list[Report]) -> None:
    plain = " ".join(reports[1].text(80).split())
    assert "no public price for tpu7x; give your own: --price" in plain
    assert "USD for" not in plain
    own = " ".join(reports[1].text(80, Pricing(usd_per_chip_hour=9.5)).split())
    assert "4 chips at 9.50 USD an hour (your price)" in own


def test_colours_change_no_word(reports: list[Report], refused: Report) -> None:
    for report in (reports[0], refused):
        styled = report.__rich__()
        assert styled.plain == str(report)
        assert styled.spans


def test_a_refused_program_says_by_how_much(refused: Report) -> None:
    assert refused.refused == "hbm" and not refused.fits
    assert refused.step_time is None and refused.mfu is None
    assert refused.hbm.peak_bytes > refused.hbm.limit_bytes
    (finding,) = refused.findings
    assert finding.rule == "refused-hbm" and "RESOURCE_EXHAUSTED" in finding.message
    with pytest.raises(ArgumentError, match="does not run"):
        refused.cost(1)
    text = refused.text(100)
    assert re.search(r"fits         NO, [\d.]+ GiB of 15.75 GiB .*; [\d.]+ GiB too much", text)
    assert "step time" not in text and "USD" not in text
    words = " ".join(text.split())
    assert "The largest that it makes is dot_general, float32[65536,65536] of 16.00 GiB" in words
    assert finding.source.line == refused.hbm.temporaries[0].source.line
    # A product waits in float32, as the results do, and is rounded for the next one.
    buffers = refused.record().data["hbm_per_device"]["largest_buffers"]
    assert [(b["role"], b["shape"], b["padded_bytes"] >> 30) for b in buffers] == [
        ("argument", "float32[65536,65536]", 16),
        ("new results", "float32[65536,65536]", 16),
        ("temporaries", "bfloat16[65536,65536]", 8),
    ]
    assert all(b["source"].startswith(f"{__file__}:") for b in buffers[1:])
    assert "8.00 GiB temporaries: dot_general bfloat16[65536,65536]" in words
    assert refused.hbm.peak_bytes == sum(b["padded_bytes"] for b in buffers)


def test_of_what_was_refused_early_the_arguments_are_known(early: Report) -> None:
    assert early.hbm.activations_bytes is None and early.hbm.gradients_bytes is None
    memory = early.record().data["hbm_per_device"]
    assert memory["activations_bytes"] is None and memory["gradients_bytes"] is None
    assert [buffer["path"] for buffer in memory["largest_buffers"]] == ["0"]
    words = " ".join(early.text(100).split())
    assert "activations and others" in words and "of what else it needs only the size" in words
    page = html.page(early)
    assert "activations and others" in page and "Of what else it needs only the size" in page


def test_a_target_out_of_time_keeps_the_others(tmp_path: Path) -> None:
    def ask(on: list[str], seconds: float) -> list[Report]:
        compiler = CompileOptions(timeout_seconds=seconds, cache_directory=tmp_path)
        options = PreflightOptions(compiler=compiler)
        return nx.preflight(jnp.tanh, nx.spec((128, 128)), on=on, options=options)

    (first,) = ask(["v5e-1"], 600)
    late, known = ask(["v6e-1", "v5e-1"], 0.001)
    assert known.fits and known.analysis.from_cache and known.hbm == first.hbm
    assert (late.fits, late.refused, late.step_time) == (False, "timeout", None)
    (finding,) = late.findings
    assert finding.rule == "refused-timeout"
    assert "took longer than 0.001 s and was stopped" in finding.message
    assert "fits         not known: the compiler's time was up" in late.text(100)
    # It was not kept: asked with enough time, there is an answer.
    (again,) = ask(["v6e-1"], 600)
    assert again.fits


# JSON.


def test_json_has_the_shape_of_its_schema(reports, refused, tmp_path: Path) -> None:
    for number, report in enumerate((*reports, refused)):
        path = tmp_path / f"{number}.json"
        report.to_json(path)
        data = json.loads(path.read_text())
        assert list(problems(schema(), data)) == []
        assert (data["schema"], data["schema_version"]) == ("neurenix.preflight", 1)
        assert set(data) == set(schema()["properties"])  # what is written is described


def test_json_has_the_changes_that_were_compiled(reports, refused) -> None:
    known = reports[0].analysis
    slow = dataclasses.replace(refused.findings[0], rule="refused-timeout")
    late = dataclasses.replace(refused.analysis, findings=(slow,))
    tried = (
        Suggestion("take v5e-8", known), Suggestion("b", refused.analysis), Suggestion("c", late)
    )  # fmt: skip
    report = Report(refused.analysis, tried)
    lines = [line.strip() for line in report.text(200).replace(NO_BREAK_SPACE, " ").splitlines()]
    assert any(line.startswith("- b: does not fit, ") and "HBM" in line for line in lines)
    assert "- c: not known, the compiler took too long" in lines
    data = report.to_dict()
    assert list(problems(schema(), data)) == []
    first, second, third = data["suggestions"]
    assert set(first) == set(schema()["properties"]["suggestions"]["items"]["properties"])
    assert first == {
        "change": "take v5e-8", "slice": "v5e-8", "mesh": {"data": 8}, "fits": True,
        "refused": None, "hbm_peak_bytes": known.memory.peak_bytes,
        "hbm_limit_bytes": known.memory.limit_bytes, "estimated_step_seconds": known.time.seconds,
    }  # fmt: skip
    assert (second["fits"], second["refused"]) == (False, "hbm")
    assert second["hbm_peak_bytes"] == refused.hbm.peak_bytes
    assert second["estimated_step_seconds"] is None
    assert (third["refused"], third["hbm_peak_bytes"]) == ("timeout", None)
    del data["suggestions"]  # as files are that were written before there were any
    assert Record(data).data["suggestions"] == []


def test_json_says_what_the_report_does(reports: list[Report]) -> None:
    for report in reports:
        data = report.to_dict()
        where, cost = report.slice, report.cost(1)
        assert data["slice"] | {"hosts": where.num_hosts, "chips": where.num_chips} == data["slice"]
        assert data["estimated_rates"] == {
            name: getattr(report, name)
            for name in ("examples_per_second", "tokens_per_second", "tokens_per_second_per_chip")
        }
        costs = data["estimated_cost"]
        for name in ("usd_per_step", "usd_per_million_tokens", "usd_per_chip_hour"):
            assert costs[name] == getattr(cost, name)
        assert costs["usd_per_epoch"] is None
        assert costs["price_source"] == (cost.price and cost.price.source)
        seconds = sum(operation["estimated_seconds"] for operation in data["operations"])
        assert seconds == pytest.approx(report.step_time.device_seconds)


def test_an_epoch_costs_its_steps(reports: list[Report]) -> None:
    report = dataclasses.replace(reports[0], steps_per_epoch=450)
    data = report.to_dict()
    assert data["estimated_cost"]["usd_per_epoch"] == report.cost(450).usd
    assert "USD for an epoch of 450 steps, " in " ".join(report.text().split())
    page = html.page(report)
    assert "An epoch, estimated" in page and "450 steps" in page
    assert "An epoch" not in html.page(reports[0])
    del data["estimated_cost"]["usd_per_epoch"]  # as files are that were written before
    assert Record(data).data["estimated_cost"]["usd_per_epoch"] is None
    other = dataclasses.replace(reports[1], steps_per_epoch=450)  # chips without a public price
    assert other.to_dict()["estimated_cost"]["usd_per_epoch"] is None
    assert "An epoch" not in html.page(other)


def parts_of(described: dict, at: tuple[str, ...] = ()):
    for name, inner in described.get("properties", {}).items():
        yield (*at, name)
        yield from parts_of(inner, (*at, name))


@pytest.mark.parametrize("path", list(parts_of(schema())), ids=".".join)
def test_the_schema_notices_what_is_missing_or_of_another_type(reports, path) -> None:
    data = copy.deepcopy(reports[0].to_dict())
    holder = data
    for name in path[:-1]:
        holder = holder[name]
    described = schema()
    for name in path:
        required = path[-1] in described["required"] if name == path[-1] else True
        described = described["properties"][name]
    assert required
    kept = holder.pop(path[-1])
    assert any(f'has no "{path[-1]}"' in problem for problem in problems(schema(), data))
    holder[path[-1]] = {"of": [1j]} if not isinstance(kept, dict) else 1j
    assert any(".".join(path) in problem for problem in problems(schema(), data))


def test_only_the_words_of_json_schema_that_are_checked_are_used() -> None:
    known = {
        "$schema", "title", "description", "type", "required", "properties", "const", "enum",
        "items", "additionalProperties",
    }  # fmt: skip

    def walk(described: dict) -> None:
        assert set(described) <= known
        for inner in described.get("properties", {}).values():
            walk(inner)
        for name in ("items", "additionalProperties"):
            if name in described:
                walk(described[name])

    walk(schema())


def test_a_report_comes_back_from_its_file(reports: list[Report], tmp_path: Path) -> None:
    reports[0].to_json(tmp_path / "one.json")
    record = Report.from_json(tmp_path / "one.json")
    assert record.data == json.loads(json.dumps(reports[0].to_dict()))
    assert (record.program, record.slice_name, record.fits) == ("training step", "v5e-8", True)
    assert record.step_seconds == reports[0].step_time.seconds
    assert record.values() == reports[0].record().values()
    assert not reports[0].compare(record).changed
    both = [report.to_dict() for report in reports]
    (tmp_path / "two.json").write_text(json.dumps(both))
    assert [r.slice_name for r in load_reports(tmp_path / "two.json")] == [
        report.slice.name for report in reports
    ]
    with pytest.raises(ArgumentError, match="holds 2 reports .*load_reports"):
        load_report(tmp_path / "two.json")


def test_files_that_are_no_report(reports: list[Report], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    with pytest.raises(ArgumentError, match=r"r\.json cannot be read"):
        load_report(path)
    data = reports[0].to_dict()
    for content, message in (
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON that can be read"),
        ("[]", "holds no report"),
        ("[1]", "is not a preflight report"),
        ('{"a": 1}', "is not a preflight report"),
        (json.dumps(data | {"schema_version": 2}), "version 2, and this Neurenix reads version 1"),
        (
            json.dumps(data | {"schema": "neurenix.report", "schema_version": 2}),
            "has the schema 'neurenix.report', version 2, and this Neurenix reads reports of "
            "'neurenix.preflight', version 1",
        ),
        (json.dumps(data | {"mfu": math.nan}), r"damaged: the report.mfu is nan, not a finite"),
        (json.dumps(data | {"fits": "yes"}), "damaged: the report.fits is str, not boolean"),
    ):
        path.write_text(content)
        with pytest.raises(ArgumentError, match=message):
            load_report(path)


def test_values_of_a_condition_are_those_of_the_report(reports, refused) -> None:
    report = reports[0]
    values = report.record().values()
    time = report.step_time
    assert values["step_time"] == time.seconds
    assert (values["step_time_low"], values["step_time_high"]) == (time.low, time.high)
    assert values["hbm_headroom"] == report.hbm.headroom_bytes
    assert values["cost_per_step"] == report.cost().usd
    assert values["findings"] == len(report.findings)
    assert values["errors"] == 0
    own = report.record(Pricing(usd_per_chip_hour=1000)).values()["cost_per_step"]
    assert own == pytest.approx(values["cost_per_step"] * 1000 / 1.20)
    of_refused = refused.record().values()
    assert of_refused["fits"] is False and of_refused["errors"] == 1
    assert of_refused["step_time"] is None and of_refused["hbm_headroom"] < 0


def test_values_of_a_condition_count_findings_by_severity(reports: list[Report]) -> None:
    data = copy.deepcopy(reports[0].record().data)
    one = data["findings"][0]
    severities = ("error", "warning", "warning", "note")
    data["findings"] = [one | {"severity": severity} for severity in severities]
    values = Record(data).values()
    assert (values["findings"], values["errors"], values["warnings"]) == (4, 1, 2)


def test_memory_by_role_adds_up_to_the_peak(reports, refused, early) -> None:
    for report in (*reports, refused, early):
        parts = report.record().memory()
        assert sum(parts.values()) == report.hbm.peak_bytes
    for report in (refused, early):
        assert report.record().memory()["new results"] == 65536**2 * 4


def test_a_refused_program_is_compared_part_by_part(reports, refused) -> None:
    (known,) = (r for r in reports if r.slice.name == "v5e-8")
    for before, after in ((known, refused), (refused, known)):
        changes = after.compare(before)
        assert {"temporaries", "new results"} <= {change.name for change in changes.memory}
        total = sum(change.difference for change in changes.memory)
        assert total == changes.peak.difference


def test_what_is_not_known_of_a_refused_program_has_not_changed(reports, early) -> None:
    (known,) = (r for r in reports if r.slice.name == "v5e-8")
    for before, after in ((known, early), (early, known)):
        changes = after.compare(before)
        names = {change.name for change in changes.memory}
        assert "activations and others" in names
        assert not names & {"activations", "gradients", "temporaries", "new results", "alignment"}
        missing = changes.peak.difference - sum(change.difference for change in changes.memory)
        assert abs(missing) <= known.hbm.padding_bytes
        assert "  activations " not in str(changes).replace("activations and", "")
    unpadded = copy.deepcopy(early.record().data)
    state = {"parameters": known.hbm.roles["parameters"] - known.hbm.padding_bytes}
    unpadded["hbm_per_device"]["roles"] = state
    changes = known.compare(Record(unpadded))
    assert "parameters" not in {change.name for change in changes.memory}


@pytest.mark.parametrize("why", ["timeout", "crash", "error", "vmem"])
def test_memory_that_nobody_knows_is_not_that_of_the_arguments(refused: Report, why: str) -> None:
    finding = dataclasses.replace(refused.findings[0], rule=f"refused-{why}")
    report = changed(refused, findings=(finding,))
    record = report.record()
    assert record.data["hbm_per_device"] is None and record.memory() is None
    values = record.values()
    assert (values["hbm_peak_bytes"], values["hbm_headroom"]) == (None, None)
    assert parse("hbm_headroom < 0").holds(values) and parse("hbm_peak_bytes > 1 TiB").holds(values)
    gate = "fits and hbm_headroom < 0"  # what is refused does not fit; what had no answer may
    assert parse(gate).holds(values) == (why in ("timeout", "crash"))
    for before, after in ((report, refused), (refused, report)):
        changes = after.compare(before)
        assert changes.memory == ()
        line = next(line for line in str(changes).splitlines() if line.startswith("  HBM"))
        assert "not known" in line and "%" not in line
    older = Record(record.data | {"hbm_per_device": refused.record().data["hbm_per_device"]})
    assert older.values() == values and older.memory() is None


def test_captured_arrays_are_memory() -> None:
    table = jnp.asarray(np.random.default_rng(0).random((1024, 1024), np.float32))
    report = nx.preflight(
        lambda x: x + table,
        nx.spec((1024, 1024)),
        on="v5e-1",
    )
    assert report.record().memory()["constants"] == pytest.approx(2**22, rel=0.1)
    assert report.hbm.peak_bytes == pytest.approx(3 * 2**22, rel=0.1)


def test_what_was_folded_away_is_no_memory() -> None:
    zeros = jnp.zeros((2048, 4096))
    report = nx.preflight(
        lambda x: x + zeros,
        nx.spec((2048, 4096)),
        on="v5e-1",
    )
    assert report.record().memory().get("constants", 0) == 0
    (found,) = (f for f in report.findings if f.rule == "captured-constants")
    assert found.severity == "note" and "nothing is left" in found.message


def test_a_program_of_empty_arrays_says_that_there_is_nothing(tmp_path: Path) -> None:
    report = nx.preflight(
        lambda x: x * 2,
        nx.spec((0, 128)),
        on="v5e-1",
    )
    lines = str(report).splitlines()
    assert "  time goes to nothing: the device has no work" in lines
    assert "  memory       nothing in HBM" in lines
    report.to_html(tmp_path / "page.html")
    assert "The device has no work." in (tmp_path / "page.html").read_text()


# What changed.


def test_what_changed_with_a_larger_batch(reports: list[Report], larger: Report) -> None:
    changes = larger.compare(reports[0])
    assert changes.changed
    assert changes.step_time.before == reports[0].step_time.seconds
    assert changes.step_time.after == larger.step_time.seconds
    memory = {change.name: change for change in changes.memory}
    assert not memory["parameters"].changed
    assert memory["batch"].difference == 2 * (EXAMPLES // 8) * SEQUENCE * 4
    assert sum(c.difference for c in changes.memory) == changes.peak.difference
    sizes = [abs(change.difference) for change in changes.operations]
    assert sizes and sizes == sorted(sizes, reverse=True)
    (note,) = [n for n in changes.notes if n.startswith("the batch")]
    assert f"examples={EXAMPLES}," in note and f"examples={2 * EXAMPLES}," in note
    text = changes.text(80)
    assert all(len(line) <= 80 or " " not in line.strip() for line in text.splitlines())
    assert re.search(r"step time +\S+ \S+ → \S+ \S+ estimated \(\+", text)


def test_the_same_twice_is_no_change(reports: list[Report]) -> None:
    same = reports[0].compare(reports[0])
    assert not same.changed
    assert (same.came, same.went, same.operations, same.notes) == ((), (), (), ())
    assert "Nothing changed" in str(same) and "as before" in str(same)


def test_what_a_note_says_has_changed(reports: list[Report]) -> None:
    data = copy.deepcopy(reports[0].record().data)
    data["batch"] = dict.fromkeys(data["batch"])
    data["mesh"] = {"data": 2}
    changes = reports[0].compare(Record(data))
    assert f"the batch was unknown and is examples={EXAMPLES}" in str(changes)
    assert "the mesh was data=2 and is data=8" in changes.notes
    assert changes.changed and "Nothing changed" not in str(changes)


def test_findings_that_came_and_went(reports: list[Report]) -> None:
    before = reports[0].record()
    data = copy.deepcopy(before.data)
    gone = data["findings"].pop(0)
    new = gone | {"rule": "another-rule", "severity": "error", "message": "Something\nmore."}
    data["findings"].append(new)
    data["versions"]["libtpu"] = "9.9"
    data["fits"] = False
    changes = reports[0].compare(Record(data))
    assert changes.came == (gone,)
    assert changes.went == (new,)
    assert any("libtpu was 9.9" in note for note in changes.notes)
    text = changes.text(100)
    assert "gone error: Something (another-rule)" in text
    assert "NO → yes" in text
    # The same rule at another line, as after an edit above it, neither came nor went.
    moved = copy.deepcopy(before.data)
    for finding in moved["findings"]:
        finding["source"] = "elsewhere.py:1"
    assert not reports[0].compare(Record(moved)).changed


def test_compared_with_a_file_of_several_slices(reports, tmp_path: Path, refused) -> None:
    path = tmp_path / "before.json"
    path.write_text(json.dumps([report.to_dict() for report in reports]))
    assert reports[1].compare(path).before.slice_name == reports[1].slice.name
    with pytest.raises(ArgumentError, match="holds no report for v5e-1; it has v5e-8, tpu7x"):
        refused.compare(path)
    # One report alone is compared with, whatever its slice, and the difference is said.
    reports[0].to_json(path)
    with pytest.raises(ArgumentTypeError, match="the path of a JSON file; got dict"):
        refused.compare(reports[0].to_dict())  # pyright: ignore
    changes = refused.compare(path)
    assert changes.step_time.after is None and changes.before.fits and not changes.after.fits
    assert "the slice was v5e-8 and is v5e-1" in changes.notes
    assert "yes → NO" in str(changes)
    assert changes.operations == ()


def test_what_does_not_compare_is_said(reports: list[Report]) -> None:
    data = copy.deepcopy(reports[0].record().data)
    data["estimated_step_time"]["basis"] = "another"
    data["estimated_cost"]["usd_per_chip_hour"] = 9.0
    data["model_flops"] *= 2
    notes = "\n".join(reports[0].compare(Record(data)).notes)
    assert "calibrated differently" in notes and "model FLOPs" in notes
    assert "the price was 9 USD a chip-hour and is 1.2 USD" in notes


def test_an_operation_that_came_is_new(reports: list[Report]) -> None:
    data = copy.deepcopy(reports[0].record().data)
    data["operations"].pop(0)
    text = str(reports[0].compare(Record(data)))
    first = text.split("moved most")[1].splitlines()[1]
    assert first.lstrip().startswith("+") and "(new)" in first and "(gone)" not in text


def test_findings_are_paired_one_to_one(reports: list[Report]) -> None:
    data = copy.deepcopy(reports[0].record().data)
    data["findings"].append(data["findings"][0])
    assert len(reports[0].compare(Record(data)).went) == 1


def test_of_several_reports_that_of_the_same_program_is_compared_with(reports) -> None:
    now = reports[0].record()
    other = Record(now.data | {"program": "another"})
    elsewhere = reports[1].record()
    assert matching([other, now], now) is now
    assert matching([elsewhere, other], now) is other
    assert matching([elsewhere], now) is elsewhere
    assert matching([elsewhere, elsewhere], now) is None


def test_package_data_is_with_the_package() -> None:
    assert schema()["properties"]["schema_version"] == {"const": 1}
    assert len(chips.published_runs()) == 26

"""What a report says of a program with tokens: text, JSON, what changed. Few small compiles."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import chips, nn
from neurenix._core.errors import ArgumentError, ArgumentTypeError, UnknownNameError
from neurenix.preflight import CompileOptions, PreflightOptions, Report
from neurenix.preflight.condition import parse
from neurenix.preflight.cost import Pricing
from neurenix.preflight.record import Record, load_report, load_reports, problems, schema

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


def test_a_target_out_of_time_keeps_the_others(tmp_path: Path) -> None:
    def ask(on: list[str], seconds: float) -> list[Report]:
        compiler = CompileOptions(timeout_seconds=seconds, cache_directory=tmp_path)
        options = PreflightOptions(compiler=compiler)
        return nx.preflight(jnp.tanh, nx.spec((128, 128)), on=on, options=options)

    (first,) = ask(["v5e-1"], 600)
    late, known = ask(["v6e-1", "v5e-1"], 0.2)
    assert known.fits and known.analysis.from_cache and known.hbm == first.hbm
    assert (late.fits, late.refused, late.step_time) == (False, "timeout", None)
    (finding,) = late.findings
    assert finding.rule == "refused-timeout"
    assert "took longer than 0.2 s and was stopped" in finding.message
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
    assert values["step_time"] == report.step_time.seconds
    assert values["hbm_headroom"] == report.hbm.headroom_bytes
    assert values["cost_per_step"] == report.cost().usd
    assert values["findings"] == len(report.findings)
    assert values["errors"] == 0
    own = report.record(Pricing(usd_per_chip_hour=1000)).values()["cost_per_step"]
    assert own == pytest.approx(values["cost_per_step"] * 1000 / 1.20)
    of_refused = refused.record().values()
    assert of_refused["fits"] is False and of_refused["errors"] == 1
    assert of_refused["step_time"] is None and of_refused["hbm_headroom"] < 0


def test_memory_by_role_adds_up_to_the_peak(reports, refused) -> None:
    for report in (*reports, refused):
        parts = report.record().memory()
        assert sum(parts.values()) == report.hbm.peak_bytes


@pytest.mark.parametrize("why", ["timeout", "crash", "error", "vmem"])
def test_memory_that_nobody_knows_is_not_that_of_the_arguments(refused: Report, why: str) -> None:
    finding = dataclasses.replace(refused.findings[0], rule=f"refused-{why}")
    report = Report(dataclasses.replace(refused.analysis, findings=(finding,)))
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
    json.dumps(changes.to_dict())


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


def test_package_data_is_with_the_package() -> None:
    assert schema()["properties"]["schema_version"] == {"const": 1}
    assert len(chips.published_runs()) == 26

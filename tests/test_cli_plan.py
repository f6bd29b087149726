"""``neurenix plan`` as its users see it, and the text and the document of a search."""

from __future__ import annotations

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import neurenix as nx
from cli_helpers import SCRIPT
from neurenix import chips, nn
from neurenix.cli.plan import _changes, _command
from neurenix.cli.scripts import xla_options
from neurenix.compiler import workers
from neurenix.preflight import Candidate, Plan, SearchSpace
from neurenix.preflight.cost import Pricing
from neurenix.preflight.report.report_json import problems
from neurenix.preflight.search import plan_json
from neurenix.preflight.search.plan_data import Deadline
from neurenix.preflight.search.workload import Choice, mesh_of

compiling = pytest.mark.tpu_compile


class TestTheCommand:
    pytestmark = compiling
    SPACE = ("--on", "v5e-8", "--mesh", "data=8;fsdp=8", "--batch", "64,63")

    def test_every_candidate_why_it_lost_and_a_document(self, commands, tmp_path: Path) -> None:
        never = ("--examples", "1e15", "--deadline-hours", "1")
        cases = [
            (*self.SPACE, "--lr", "1", "--html", "p.html", "--json", "p.json"),
            (*self.SPACE, "--json", "-", "--objective", "cost", "--price", "v5e=3,v4=9"),
            ("--on", "v5e-8", *never, "--json", "-"),
        ]
        done, priced, late = commands("plan", [(SCRIPT, ("train.py", *case)) for case in cases])
        assert done.status == "0", done
        assert "arguments: ['--lr', '1']" in done.stdout and "trained" not in done.stdout
        text = " ".join(done.stdout.split())
        assert "Plan: 4 candidates on 1 slice, 2 compiled, the best time first (estimated)" in text
        assert text.count("A batch of 63 cannot be divided over the 8 replicas of v5e-8") == 2
        assert re.search(r" time \d+\.\d\d × the best ", text)
        assert re.search(r"Best: v5e-8, mesh (data|fsdp)=8, batch 64", text)
        assert "Nothing ran on a TPU." in text
        found = json.loads((tmp_path / "p.json").read_text())
        assert list(problems(plan_json.schema(), found)) == []
        assert [c["won"] for c in found["candidates"]] == [True, False, False, False]
        assert found["best"]["batch"]["examples"] == 64
        page = (tmp_path / "p.html").read_text()
        assert "Plan for training step" in page and "cannot be divided" in page

        # The command that it names says the same of the winner.
        (command,) = re.findall(r"^  neurenix (preflight .*)$", done.stdout, re.MULTILINE)
        assert command == f"preflight --on v5e-8 --mesh {found['candidates'][0]['mesh']}".replace(
            "{'", ""
        ).replace("': ", "=").replace("}", " train.py --lr 1")

        # JSON on the output is all there is, and the price counts.
        assert priced.status == "0", priced
        found = json.loads(priced.stdout)
        first = found["candidates"][0]
        seconds = first["estimated_step_time"]["seconds"]
        assert first["estimated_usd_per_step"] == pytest.approx(seconds * 8 * 3 / 3600)
        assert first["estimated_value"] == pytest.approx(first["estimated_usd_per_step"] / 64)
        assert "Plan: 4 candidates" in priced.stderr

        # None in time is status 1.
        assert late.status == "1", late
        assert "and the deadline is 1 h" in " ".join(late.stderr.split())
        assert "No candidate can be taken" in late.stderr
        found = json.loads(late.stdout)
        assert found["best"] is None and found["deadline"] == {"examples": 1e15, "hours": 1}

    def test_an_option_that_does_not_exist_is_a_mistake(self, mistakes) -> None:
        wrong = {
            "xla_fo=1": "has no option 'xla_fo'",
            "xla_tpu_scoped_vmem_limit_kib=abc": (
                "rejects the value 'abc' of xla_tpu_scoped_vmem_limit"
            ),
        }
        cases = [(SCRIPT, ("train.py", "--on", "v5e-8", "--xla", option)) for option in wrong]
        for message, said in zip(wrong.values(), mistakes("plan", cases), strict=True):
            assert message in said


# Mistakes: one message, status 2, no traceback.

ON = ("--on", "v5e-8")
COMMANDS: list[tuple[tuple[str, ...], str]] = [
    (("train.py", "--on", "v5e-9"), "There is no slice 'v5e-9'. Did you mean 'v5e-8'"),
    (("train.py",), "Missing option '--on'"),
    (("train.py", *ON, "--objective", "tim"), "Did you mean 'time'"),
    (("train.py", *ON, "--mesh", "fsdp=4"), "The mesh fsdp=4 has 4 devices, and v5e-8 has 8"),
    (("train.py", *ON, "--mesh", "fsdp"), "'fsdp' is not a mesh"),
    (("train.py", *ON, "--mesh", "fdsp=8"), "There is no mesh axis named 'fdsp'"),
    (("train.py", *ON, "--remat", "dotz"), "There is no remat policy named 'dotz'"),
    (("train.py", *ON, "--batch", "63,65"), "A batch of 63 cannot be divided"),
    (("train.py", *ON, "--batch", "0"), "--batch: '0' is not a positive integer"),
    (("train.py", *ON, "--xla", "foo"), "'foo' is not of the form name=value."),
    (("train.py", *ON, "--examples", "5"), "--examples requires --deadline-hours"),
    (("train.py", *ON, "--deadline-hours", "5"), "--deadline-hours requires --examples"),
    (("train.py", *ON, "--examples", "5", "--deadline-hours", "-1"), "hours must be positive"),
    (("train.py", *ON, "--budget", "0"), "--budget must be positive"),
    (("train.py", *ON, "--region", "mars"), "There is no region named 'mars'"),
    (("train.py", *ON, "--html", "train.py/p.html"), "p.html cannot be written: Not a directory."),
    (("trian.py", *ON), "There is no script 'trian.py'"),
]


@pytest.mark.cpu8
def test_mistakes(mistakes) -> None:
    cases = [(SCRIPT, arguments) for arguments, _ in COMMANDS]
    cases.append(("x = 1", ("train.py", *ON)))
    *said, last = mistakes("plan", cases)
    for (arguments, expected), text in zip(COMMANDS, said, strict=True):
        assert expected in text, arguments
    assert "train.py ended without a step" in last


# The parts.


@pytest.mark.pure
def test_the_command_of_the_winner_says_what_the_script_does_not() -> None:
    where = chips.resolve("v5e-8")

    def winner(**chosen: Any) -> Candidate:
        choice = Choice(where, {"data": 8}, **chosen)
        return Candidate(where, "data=8", 32, "as written", None, 1.0, "", choice=choice)

    assert _changes(winner(), None, "as written") == ""  # a function that is given 32 examples
    assert _changes(winner(batch=32), 32, "as written") == ""
    assert _changes(winner(batch=32), 64, "none") == (
        ", with batch 32, remat as written in the script"
    )
    option = {"xla_a": 1, "xla_b": True}
    tuned = replace(winner(compiler_options=option), compiler_options="xla_a=1, xla_b=True")
    assert _changes(tuned, None, "as written") == ""
    named = _command(["train.py"], tuned, Pricing(), None, None)
    assert named.endswith("--mesh data=8 --xla xla_a=1,xla_b=True train.py")
    assert xla_options([shlex.split(named)[-2]]) == option
    script, pricing = "a b.py", Pricing("europe-west4", "spot", 0.0)
    assert _command([script, "--lr", "1"], winner(), Pricing(), None, None) == (
        "neurenix preflight --on v5e-8 --mesh data=8 'a b.py' --lr 1"
    )
    assert _command([script], winner(), pricing, 32, "step") == (
        "neurenix preflight --on v5e-8 --mesh data=8 --step step --examples-per-step 32 "
        "--price 0.0 --region europe-west4 --commitment spot 'a b.py'"
    )
    each = Pricing(usd_per_chip_hour={"v5e": 1.5, "v6e": 2})
    assert "--price v5e=1.5,v6e=2 " in _command([script], winner(), each, None, None)


@pytest.mark.pure
def test_meshes_as_text() -> None:
    assert mesh_of("data=2, fsdp=4") == {"data": 2, "fsdp": 4}
    for wrong in ("", "auto", "fsdp", "fsdp=", "=8", "fsdp=0", "fsdp=-8", "fsdp=8,fsdp=1", "a b=1"):
        with pytest.raises(nx.ArgumentError, match="is not a mesh"):
            mesh_of(wrong)


@pytest.mark.pure
@pytest.mark.parametrize("values", [(0, 1), (1, 0), (-1, 1), (float("nan"), 1)])
def test_deadlines(values: tuple[float, float]) -> None:
    with pytest.raises(nx.ArgumentError, match="must be positive"):
        Deadline(*values)


@pytest.fixture(scope="module")
def found() -> Plan:
    net: Any = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
    net.compile(optimizer="adam", loss="mse")
    return nx.preflight.search(
        net, on="v5e-4", input_shape=(64, 64),
        space=SearchSpace(meshes=[{"data": 4}, {"fsdp": 4}], batches=[64, 66]),
    )  # fmt: skip


class TestASearch:
    pytestmark = compiling

    @pytest.mark.parametrize("width", [60, 80, 100, 120])
    def test_text_keeps_to_the_width_where_the_table_allows_it(
        self, found: Plan, width: int
    ) -> None:
        lines = found.text(width).splitlines()
        for line in lines:  # rows of the table are as wide as they must be
            if "→" in line or line.startswith(("Best", "  step", "  cost", "Plan")):
                assert len(line) <= width, line
        text = " ".join(found.text(width).split())
        for number in range(1, 5):
            assert f" {number}. v5e-4" in text
        assert text.count("A batch of 66 cannot be divided over the 4 replicas") == 2

    def test_verdicts_stand_beside_where_there_is_room(self, found: Plan) -> None:
        assert "→" not in found.text(200)
        assert found.text(60).count("→") == 4

    def test_what_differs_in_batch_is_priced_by_the_example(self, found: Plan) -> None:
        assert "USD/1M examples" in found.text(200) and "USD/1M examples" in found.table()
        same = Plan("time", found.candidates[:2])
        assert {c.batch for c in same.candidates} == {64}
        assert "USD/1k steps" in same.text(200) and "USD/1M" not in same.text(200)

    def test_long_options_stand_below_the_table(self, found: Plan) -> None:
        option = f"xla_{'x' * 60}=1"
        first = found.candidates[0]
        long = Candidate(**{**vars(first), "compiler_options": option})
        text = Plan("time", (long, *found.candidates[1:])).text(100)
        assert "see below" in text and f"XLA options {option}" in text

    def test_the_document_is_of_its_schema_and_a_false_one_is_not(
        self, found: Plan, tmp_path: Path
    ) -> None:
        found.to_json(tmp_path / "p.json")
        data = json.loads((tmp_path / "p.json").read_text())
        assert data["schema"] == "neurenix.plan" and data["schema_version"] == 1
        assert list(problems(plan_json.schema(), data)) == []
        assert data["best"]["slice"]["name"] == "v5e-4"
        del data["candidates"][0]["won"]
        assert list(problems(plan_json.schema(), data)) == ['the report.candidates[0] has no "won"']


@pytest.mark.cpu8
def test_a_plan_without_a_winner_has_a_text_and_a_document() -> None:
    lost = Candidate(chips.resolve("v5e-8"), "data=8", 64, "none", None, None, "too late")
    plan = Plan("cost", (lost,), Pricing("europe-west4"))
    assert plan.winner is None
    assert "No candidate can be taken" in plan.text(80) and "too late" in plan.text(80)
    data = json.loads(json.dumps(plan.to_dict()))
    assert list(problems(plan_json.schema(), data)) == []
    assert data["best"] is None and data["pricing"]["region"] == "europe-west4"


@pytest.mark.cpu8
def test_what_can_never_be_described_is_an_error_and_what_can_in_part_is_not() -> None:
    net: Any = nn.Sequential(nn.Linear(64, 8))
    net.compile(optimizer="adam", loss="mse")
    with pytest.raises(nx.ShapeError, match="batch of 63 cannot be divided"):
        nx.preflight.search(net, on="v5e-4", input_shape=(63, 64))
    with pytest.raises(nx.ShapeError, match="The mesh fsdp=2 has 2 devices, and v5e-4 has 4"):
        nx.preflight.search(
            net, on="v5e-4", input_shape=(64, 64), space=SearchSpace(meshes=[{"fsdp": 2}])
        )
    plan = nx.preflight.search(net, on=["v5e-4", "v5e-1"], input_shape=(66, 64), budget_seconds=0.0)
    assert sorted(c.reason.split()[0] for c in plan.candidates) == ["A", "not"]
    with pytest.raises(nx.NeurenixError, match="mesh axis named 'fdsp'.*'fsdp'"):
        nx.preflight(net, on="v5e-4", input_shape=(64, 64), mesh={"fdsp": 4})
    with pytest.raises(nx.ArgumentError, match="1 example or more"):
        SearchSpace(batches=[0])


@pytest.mark.cpu8
def test_a_mesh_that_fits_no_slice_loses_beside_one_that_does() -> None:
    net: Any = nn.Sequential(nn.Linear(64, 8))
    net.compile(optimizer="adam", loss="mse")
    space = SearchSpace(meshes=[{"data": 3}, {"data": 8}])
    plan = nx.preflight.search(
        net, on="v5e-8", input_shape=(64, 64), space=space, budget_seconds=0.0
    )
    reasons = {c.mesh: c.reason for c in plan.candidates}
    assert reasons["data=3"] == "The mesh data=3 has 3 devices, and v5e-8 has 8"
    assert "time for the search was up" in reasons["data=8"]
    with pytest.raises(nx.ArgumentTypeError, match="whole numbers from 1"):
        SearchSpace(meshes=[{"data": "8"}]).check([chips.resolve("v5e-8")])  # pyright: ignore


@pytest.mark.cpu8
def test_a_slice_by_two_names_is_one() -> None:
    net: Any = nn.Sequential(nn.Linear(64, 8))
    net.compile(optimizer="adam", loss="mse")
    on = ["v5e-8", "v5litepod-8", "v5e:2x4", "v6e-8"]
    plan = nx.preflight.search(net, on=on, input_shape=(64, 64), budget_seconds=0.0)
    assert sorted(c.slice.name for c in plan.candidates) == ["v5e-8", "v6e-8"]


@pytest.mark.cpu8
def test_everything_of_a_plain_function_is_the_compilers_options() -> None:
    plan = nx.preflight.search(
        jnp.tanh, nx.spec((8, 8)), on="v6e-4", space=SearchSpace.auto(), budget_seconds=0.0
    )
    assert len(plan.candidates) == 3 and {c.mesh for c in plan.candidates} == {"data=4"}
    assert len({c.compiler_options for c in plan.candidates}) == 3
    with pytest.raises(nx.ArgumentError, match="plain function"):
        nx.preflight.search(
            jnp.tanh, nx.spec((8, 8)), on="v6e-4", space=SearchSpace(remats=["dots"])
        )


EIGHT: Any = 8
OPTIONS: Any = {"donate_argnums": 0}
WRONG: list[tuple[Any, str]] = [
    (lambda: nx.preflight(jnp.tanh, on=None), "on= is a slice such as"),  # pyright: ignore
    (lambda: nx.preflight(jnp.tanh, on=8), "a list of slices; got int"),  # pyright: ignore
    (lambda: nx.preflight(jnp.tanh, on=["v5e-8", 8]), "named by a string"),  # pyright: ignore
    (lambda: nx.preflight.search(jnp.tanh, on=None), "on= is a slice such as"),
    (lambda: nx.preflight(jnp.tanh, on="v5e-8", input_shape=EIGHT), "such as .256, 784.; got 8"),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", input_shape=EIGHT), "input_shape="),
    (lambda: nx.compile_for(jnp.tanh, on="cpu", path="x", input_shape=EIGHT), "input_shape="),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", budget_seconds="1"), "budget_seconds"),
    (lambda: SearchSpace(batches="64"), r"such as \[64, 128\]; got '64'"),  # pyright: ignore
    (lambda: SearchSpace(batches=64), "got 64"),  # pyright: ignore
    (lambda: SearchSpace(batches=["64"]), "a batch is a whole number; got '64'"),  # pyright: ignore
    (lambda: SearchSpace(meshes=8), 'meshes is a list or "auto"; got int'),  # pyright: ignore
    (lambda: Deadline("5", 1), "Deadline: examples must be a number"),  # pyright: ignore
    (lambda: nx.preflight(jnp.tanh, on="v5e-8", options=OPTIONS), "PreflightOptions.*got dict"),
    (lambda: nx.compile_for(jnp.tanh, on="cpu", path="x", options=OPTIONS), "PreflightOptions"),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", options=OPTIONS), "PreflightOptions"),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", space=OPTIONS), r"SearchSpace\("),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", pricing=OPTIONS), r"preflight.Pricing\("),
    (lambda: nx.preflight.search(jnp.tanh, on="v5e-8", deadline=OPTIONS), r"Deadline\("),
    (lambda: nx.preflight.PreflightOptions(compiler=OPTIONS), "CompileOptions"),
    (lambda: nx.preflight.CompileOptions(timeout_seconds="60"), "got '60'"),  # pyright: ignore
    (lambda: nx.preflight.CompileOptions(compiler_options=8), "a dict"),  # pyright: ignore
    (lambda: Pricing(usd_per_chip_hour="3"), "usd_per_chip_hour must be a number"),  # pyright: ignore
]


@pytest.mark.pure
@pytest.mark.parametrize(
    "options",
    [{"workers": 0}, {"workers": -1}, {"timeout_seconds": 0}, {"timeout_seconds": float("nan")}],
)
def test_limits_of_the_compiler_are_positive(options: Any) -> None:
    with pytest.raises(nx.ArgumentError, match=next(iter(options))):
        nx.preflight.CompileOptions(**options)


@pytest.mark.multiprocess
@pytest.mark.usefixtures("own_compilers")
def test_a_candidate_that_the_end_of_the_budget_stops_was_not_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    without_end = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(workers, "_command", lambda: without_end)
    net: Any = nn.Sequential(nn.Linear(64, 8))
    net.compile(optimizer="adam", loss="mse")
    options = nx.preflight.PreflightOptions(compiler=nx.preflight.CompileOptions(cache=False))
    plan = nx.preflight.search(
        net, on="v5e-1", input_shape=(64, 64), budget_seconds=2.0, options=options
    )
    (candidate,) = plan.candidates
    assert candidate.report is None and "the time for the search was up" in candidate.reason
    assert "0 compiled" in plan.text(200)


@pytest.mark.pure
@pytest.mark.parametrize(("call", "says"), WRONG, ids=[says for _, says in WRONG])
def test_arguments_of_another_type_are_said_to_be(call: Any, says: str) -> None:
    with pytest.raises(nx.ArgumentTypeError, match=says):
        call()

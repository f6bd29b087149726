"""Which changes are tried for a training step that does not fit; the compiler is not asked."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding

import neurenix as nx
from neurenix import chips, nn
from neurenix._core.errors import ArgumentError, NotCompiledError
from neurenix.compiler.analysis import analyse
from neurenix.compiler.compile import Refusal
from neurenix.compiler.target import Target
from neurenix.preflight import PreflightOptions, suggested_changes
from neurenix.preflight.script.script_step import ScriptRun, ScriptStep
from neurenix.preflight.search.workload import Choice, Workload
from neurenix.preflight.suggested_changes import suggestions
from neurenix.train.options import TrainOptions

pytestmark = pytest.mark.cpu8


def refusal(where: chips.Slice) -> Refusal:
    return Refusal(Target.of(where), "hbm", "Ran out of memory on HBM", 20 * 2**30)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what tries the changes of a step that no slice can hold."""

    def refuse(pairs: Any, options: Any) -> list[Refusal]:
        del options
        names = [target.name for _, target in pairs]
        return [refusal(chips.resolve(name)) for name in names]

    monkeypatch.setattr(suggested_changes, "compile_all", refuse)

    def ask(
        on: str, mesh: dict[str, int], batch: int = 32, optimizer: str = "adam", **options: Any
    ) -> dict[str, Any]:
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
        trainer = nx.Trainer(net, optimizer=optimizer, loss="mse", options=TrainOptions(**options))
        workload = Workload.of(trainer, (), (batch, 64), "float32", PreflightOptions())
        where = chips.resolve(on)
        refused = analyse(workload.program(Choice(where, mesh)), where, refusal(where))
        return {s.change: s.analysis for s in suggestions(workload, refused)}

    return ask


@pytest.mark.parametrize(
    ("mesh", "batch", "larger", "roomier"),
    [
        ({"fsdp": 4}, 32, {"fsdp": 8}, {"fsdp": 4}),
        ({"data": 2, "fsdp": 2}, 32, {"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2}),
        ({"data": 2, "tensor": 2}, 32, {"data": 2, "tensor": 4}, {"data": 2, "tensor": 2}),
        ({"fsdp": 2, "tensor": 2}, 6, {"fsdp": 2, "tensor": 4}, {"fsdp": 2, "tensor": 2}),
        ({"data": 4}, 32, {"data": 8}, {"data": 4}),
        ({"fsdp": 4}, 4, None, {"fsdp": 4}),  # no eight shares of four examples
    ],
)
def test_another_slice_keeps_the_mesh(tried, mesh, batch, larger, roomier) -> None:
    found = tried("v5e-4", mesh, batch)
    taken = {change: a for change, a in found.items() if change.startswith("take ")}
    axes = {a.where.name: a.program.axes for a in taken.values()}
    assert axes == ({"v5e-8": larger} if larger else {}) | {"v6e-4": roomier}
    for change, analysis in taken.items():
        said = "mesh=" + str(analysis.program.axes).replace("'", '"')
        assert change.endswith(said) == (set(mesh) != {"data"})


SMALLER, LARGER, ROOMIER = "a global batch", "take v5e-8", "take v6e-4"
DIVIDE = 'divide parameters and optimizer state: mesh={"fsdp": 4}'
RECOMPUTE = 'recompute activations: compile(…, remat="dots")'
MOMENTS = 'hold moments in bfloat16: nx.optim.held_in("bfloat16", optimizer)'
PARTS = "compute each batch in {0} parts: compile(…, accumulate_steps={0})"
IN_2, IN_6 = PARTS.format(2), PARTS.format(6)
ALL = {SMALLER, LARGER, ROOMIER, DIVIDE, RECOMPUTE, MOMENTS, IN_2}


@pytest.mark.parametrize(
    ("batch", "options", "changes"),
    [
        (48, {}, ALL),
        (48, {"optimizer": "sgd"}, ALL - {MOMENTS}),
        (48, {"remat": "dots"}, ALL - {RECOMPUTE}),
        (44, {}, ALL - {LARGER, IN_2}),  # no eight shares of 44 examples
        (48, {"accumulate_steps": 3}, ALL - {IN_2} | {IN_6}),
        (36, {"accumulate_steps": 3}, ALL - {IN_2, LARGER}),
    ],
)
def test_every_change_that_may_help_is_tried(tried, batch: int, options, changes) -> None:
    found = tried("v5e-4", {"data": 4}, batch, **options)
    assert {SMALLER if change.startswith(SMALLER) else change for change in found} == changes


def spec(*partition: str | None) -> Any:
    return nx.spec((192, 64), partition=partition)


@pytest.mark.parametrize(
    ("on", "mesh", "args", "changes"),
    [
        ("v5e-1", None, [spec()], ["take v6e-1", "take v5p-2"]),
        ("v5e-8", None, [spec()], ["take v6e-8", "take v5p-16"]),  # whole on every device
        ("v5p-8", None, [spec()], []),  # none has more memory
        (
            "v5e-1",
            None,
            [spec("data"), spec()],
            ["take v5e-4", "take v5e-8", "take v6e-1", "take v5p-2"],
        ),
        ("v5e-64", None, [spec("data")], ["take v6e-64", "take v5p-128"]),  # 192 rows
        (
            "v5e-4",
            {"dp": 2, "tp": 2},
            [spec(None, "tp"), spec()],
            [
                'take v5e-8, mesh={"dp": 2, "tp": 4}',
                'take v5e-16, mesh={"dp": 2, "tp": 8}',
                'take v6e-4, mesh={"dp": 2, "tp": 2}',
                'take v5p-8, mesh={"dp": 2, "tp": 2}',
            ],
        ),
        (
            "v5e-4",
            {"data": 2, "fsdp": 2},
            [spec("data", "fsdp")],
            [
                'take v5e-8, mesh={"data": 2, "fsdp": 4}',
                'take v5e-16, mesh={"data": 2, "fsdp": 8}',
                'take v6e-4, mesh={"data": 2, "fsdp": 2}',
                'take v5p-8, mesh={"data": 2, "fsdp": 2}',
            ],
        ),
        ("v4-8", {"data": 4}, [spec()], ["take v6e-4", "take v5p-8"]),
        ("2x v5e-4", None, [spec("data")], []),
    ],
)
def test_of_a_function_other_slices_are_tried(tried, on, mesh, args, changes) -> None:
    del tried

    def double(*args: Any) -> Any:
        return [x * 2 for x in args]

    workload = Workload.of(double, tuple(args), None, None, PreflightOptions())
    where = chips.resolve(on)
    refused = analyse(workload.program(Choice(where, mesh)), where, refusal(where))
    found = suggestions(workload, refused)
    assert {s.change for s in found} == set(changes)
    for suggestion in found:
        program = suggestion.analysis.program
        assert program.num_devices == suggestion.analysis.where.num_devices


def test_a_script_is_not_run_once_more_for_a_change(tried, monkeypatch) -> None:
    del tried
    mesh = jax.make_mesh((4,), ("rows",), devices=jax.devices()[:4])
    rows = jax.device_put(jnp.ones((64, 8)), NamedSharding(mesh, jax.P("rows")))
    where = chips.resolve("v5e-4")
    run = ScriptRun("train.py", (), 60, "step")
    step = ScriptStep(jax.jit(jnp.sin), AbstractMesh((), ()), run, [where])
    monkeypatch.setattr(ScriptStep, "_run_again", None)
    workload = Workload.of(step, (rows,), None, None, PreflightOptions())
    program = Workload.of(step.function, (rows,), None, None, PreflightOptions()).program(
        Choice(where)
    )
    found = suggestions(workload, analyse(program, where, refusal(where)))
    assert {s.analysis.where.name for s in found} == {"v5e-8", "v5e-16", "v6e-4", "v5p-8"}


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_smaller_batch_divides_into_its_parts(tried, steps: int) -> None:
    found = tried("v5e-4", {"data": 4}, 4 * steps * 7, accumulate_steps=steps)
    (analysis,) = (a for change, a in found.items() if change.startswith("a global batch"))
    batch = next(leaf.shape[0] for leaf in analysis.program.leaves if leaf.role == "batch")
    assert batch % (4 * steps) == 0


@pytest.mark.parametrize(("error", "skipped"), [(ArgumentError, True), (NotCompiledError, False)])
def test_only_changes_that_do_not_apply_are_left_out(tried, monkeypatch, error, skipped) -> None:
    program = Workload.program

    def fails(self: Workload, choice: Choice) -> Any:
        if choice.accumulate_steps:
            raise error("no")
        return program(self, choice)

    monkeypatch.setattr(Workload, "program", fails)
    if skipped:
        found = tried("v5e-4", {"data": 4})
        assert found and not any("accumulate_steps" in change for change in found)
        return
    with pytest.raises(error):
        tried("v5e-4", {"data": 4})


@pytest.mark.parametrize(
    ("name", "on", "meshes"),
    [
        (None, "v5e-1", [{"data": 1}]),
        (None, "v5e-8", [{"data": 8}, {"fsdp": 8}]),
        (None, "2x v5e-4", [{"data": 8}, {"data": 2, "fsdp": 4}]),
        (
            "tiny",
            "v5e-8",
            [{"data": 8}, {"fsdp": 8}, {"fsdp": 4, "tensor": 2}, {"fsdp": 2, "tensor": 4}],
        ),
        (
            "tiny",
            "2x v5e-4",
            [{"data": 8}, {"data": 2, "fsdp": 4}, {"data": 2, "fsdp": 2, "tensor": 2}],
        ),
    ],
)
def test_meshes_worth_trying(name: str | None, on: str, meshes: list[dict[str, int]]) -> None:
    model = nx.models.abstract(name) if name else nn.Sequential(nn.Linear(64, 64))
    model.compile(optimizer="adam", loss="mse")
    workload = Workload.of(model, (), (32, 64), "float32", PreflightOptions())
    assert workload.meshes(chips.resolve(on)) == meshes

"""Preflight compiles the program that ``fit`` runs: their jaxprs are one."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import neurenix as nx
from neurenix._jit import hooks
from neurenix.compiler.abstract_placement import abstract_mesh
from neurenix.preflight.describe_program import PreflightOptions, describe
from neurenix.preflight.script.run_script import first_step
from neurenix.train.compiled_steps import FlatFunction

pytestmark = pytest.mark.cpu8
nn = nx.nn

BATCH = 8


class TwoOutputs(nn.Module):
    def __init__(self):
        self.body, self.drop, self.norm = nn.Linear(4, 8), nn.Dropout(0.1), nn.BatchNorm(8)
        self.one, self.other = nn.Linear(8, 1), nn.Linear(8, 2)

    def __call__(self, x, training=False):
        hidden = self.norm(self.drop(self.body(x), training=training))
        return {"one": self.one(hidden), "other": self.other(hidden)}


def one_output(**options):
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    return model.compile("adam", "mse", metrics=["mae"], **options)


def two_outputs(**options):
    return TwoOutputs().compile("sgd", {"one": "mse", "other": "mae"}, **options)


def data(examples, *, two):
    x, y = np.ones((examples, 4), np.float32), np.ones((examples, 1), np.float32)
    return x, ({"one": y, "other": np.ones((examples, 2), np.float32)} if two else y)


def run_by_fit(monkeypatch, fit):
    """Return the jaxpr of the step that ``fit`` has run, and what was said of it beforehand."""
    called, said = [], []

    def spy(self, leaves, *rest):
        if self._watch.name == "train_step":
            called.append((self, jax.tree.map(shape_of, (leaves, *rest))))
        return original(self, leaves, *rest)

    original = FlatFunction.__call__
    with monkeypatch.context() as patch:
        patch.setattr(FlatFunction, "__call__", spy)
        with hooks.listening(lambda *what: said.append(what)):
            fit()
    programs = {str(specs): (function, specs) for function, specs in called}
    assert len(programs) == 1
    function, specs = next(iter(programs.values()))
    return jax.make_jaxpr(function._flat)(*specs), said[0]


def shape_of(leaf):
    """Return what is traced, without its sharding, which stands in no equation by itself."""
    return jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype)


def equations(jaxpr):
    """Yield what tells programs apart, in order; random keys cross into preflight's as numbers."""
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name not in ("random_wrap", "random_unwrap"):
            shapes = [[str(v.aval) for v in vs] for vs in (equation.invars, equation.outvars)]
            constraint = equation.primitive.name == "sharding_constraint"
            spec = equation.params["sharding"].spec if constraint else None
            yield equation.primitive.name, shapes, spec
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else [value]:
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    yield from equations(inner)


def described(trainer, batch, whole_calls, mesh):
    step = trainer.step_program(mesh, *batch, whole_calls=whole_calls)
    return jax.make_jaxpr(step.function)(*jax.tree.map(shape_of, (step.state, *step.arguments)))


CASES = [
    # examples, fit's options, whether batches have weights, whether each call is whole
    (32, {}, False, True),
    (27, {}, True, True),  # 4 steps, the last of 3 examples
    (40, {}, False, False),  # 5 steps
    (35, {}, True, False),
    (32, {"sample_weight": np.ones(32)}, True, True),
    (32, {"validation_data": True}, False, True),
]


@pytest.mark.parametrize("kind", [one_output, two_outputs])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize(("examples", "options", "weighted", "whole"), CASES)
def test_the_step_described_is_the_one_that_fit_runs(
    monkeypatch, kind, accumulate, steps, examples, options, weighted, whole
):
    model = kind(steps_per_execution=steps, accumulate_steps=accumulate)
    x, y = data(examples, two=kind is two_outputs)
    if options.get("validation_data"):
        options = {"validation_data": (x, y), "validation_batch_size": 32}

    fit = functools.partial(model.fit, x, y, batch_size=BATCH, verbose=0, **options)
    ran, said = run_by_fit(monkeypatch, fit)
    trainer, batch, of_epoch, whole_calls = said
    assert (trainer, of_epoch) == (model.trainer, -(-examples // BATCH))
    assert (len(batch) == 3, whole_calls) == (weighted, whole or steps == 1)

    mesh = abstract_mesh({"data": 1})
    asked = described(model.trainer, batch, whole_calls, mesh)
    assert list(equations(ran)) == list(equations(asked))
    assert ran.in_avals[-1].shape == asked.in_avals[-1].shape
    if kind is one_output:  # no random keys: nothing crosses in another form
        assert str(ran) == str(asked)
    names = [name for name, _, _ in equations(ran)]
    assert ("while" in names) == (steps == 4 and not whole)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("examples", [64, 54])
def test_the_step_described_is_the_one_that_fit_runs_on_several_devices(
    monkeypatch, examples, steps
):
    strategy = nx.distribute.TPUStrategy()
    count = strategy.num_replicas_in_sync
    assert count == 8
    with strategy.scope():
        model = two_outputs(steps_per_execution=steps)
    x, y = data(examples, two=True)
    fit = functools.partial(model.fit, x, y, batch_size=2 * count, verbose=0)
    ran, (trainer, batch, _, whole) = run_by_fit(monkeypatch, fit)
    asked = described(trainer, batch, whole, abstract_mesh(trainer.mesh_axes(count)))
    assert list(equations(ran)) == list(equations(asked))


SCRIPT = """
import numpy as np
import neurenix as nx
model = nx.nn.Sequential(nx.nn.Linear(4, 8), nx.nn.ReLU(), nx.nn.Linear(8, 1))
model.compile("adam", "mse", metrics=["mae"], steps_per_execution={steps})
x, y = np.ones(({examples}, 4), np.float32), np.ones(({examples}, 1), np.float32)
model.fit(x, y, batch_size=8, verbose=0)
"""


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("examples", [32, 27, 40, 35])
def test_a_scripts_step_is_described_as_its_fit_would_run_it(
    monkeypatch, tmp_path, examples, steps
):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(steps=steps, examples=examples))
    found = first_step(path)
    model = one_output(steps_per_execution=steps)
    x, y = data(examples, two=False)
    ran, _ = run_by_fit(monkeypatch, lambda: model.fit(x, y, batch_size=BATCH, verbose=0))
    options = found.options(None)
    asked = described(found.target, found.args, options.whole_calls, abstract_mesh({"data": 1}))
    assert str(ran) == str(asked)

    program = describe(found.target, found.args, nx.chips.resolve("v5e-1"), options=options)
    assert len(program.leaves) + len(program.unused) == len(ran.in_avals)
    of_batch = [leaf for leaf in program.leaves if leaf.role == "batch"]
    assert len(of_batch) == len(found.args)
    assert {leaf.shape[0] for leaf in of_batch} == {steps if steps > 1 else BATCH}


def test_the_batch_of_several_steps_is_that_of_one():
    programs = {}
    for steps in (1, 4):
        for whole in (True, False):
            model = one_output(steps_per_execution=steps)
            batch = nx.spec((BATCH, 4)), nx.spec((BATCH, 1)), nx.spec((BATCH,))
            options = PreflightOptions(whole_calls=whole)
            where = nx.chips.resolve("v5e-8")
            programs[steps, whole] = describe(model, batch, where, options=options)
    flops = {key: program.model_flops for key, program in programs.items()}
    assert set(flops.values()) == {flops[1, True]}
    assert flops[1, True] > 0


@pytest.mark.parametrize(("whole", "made"), [(True, 4), (False, 3)])
def test_a_compiled_file_makes_the_steps_of_a_call(tmp_path, whole, made):
    def model():
        return nn.Sequential(nn.Linear(4, 1)).compile(nx.optim.SGD(0.1), "mse", **options)

    options = {"steps_per_execution": 4}
    path, batch = tmp_path / "fit.nxc", (nx.spec((BATCH, 4)), nx.spec((BATCH, 1)))
    ours, by_fit = model(), model()
    by_fit.load(save(ours, tmp_path))
    nx.compile_for(ours, *batch, on="cpu", path=path, options=PreflightOptions(whole_calls=whole))
    x, y = data(4 * BATCH, two=False)
    stacked = {"x": x.reshape(4, BATCH, 4), "y": y.reshape(4, BATCH, 1)}
    count = () if whole else (np.int32(made),)
    state, _ = nx.load_compiled(path)(ours.trainer.step_state(), stacked, *count)
    ours.trainer.take_step_state(state)
    by_fit.fit(x[: made * BATCH], y[: made * BATCH], batch_size=BATCH, shuffle=False, verbose=0)
    assert ours.trainer.steps_made == by_fit.trainer.steps_made == made
    np.testing.assert_allclose(ours[0].kernel[...], by_fit[0].kernel[...], rtol=1e-6)


def save(model, folder):
    model.save(folder / "weights.safetensors")
    return folder / "weights.safetensors"

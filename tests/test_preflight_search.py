"""Search over slices, meshes, batches and recomputation; suggestions when it does not fit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

import neurenix as nx
from neurenix import chips, nn
from neurenix.compiler.compile import compile_all
from neurenix.preflight import CompileOptions, Deadline, PreflightOptions, Pricing, SearchSpace
from neurenix.preflight.page.plan_page import plan_page
from neurenix.preflight.search import search
from neurenix.preflight.search.search import share_left
from neurenix.preflight.search.search_order import Promise, Turn, place_of, turns
from neurenix.preflight.search.workload import Choice, Workload

pytestmark = [pytest.mark.cpu8, pytest.mark.tpu_compile, pytest.mark.newest]


def model(width: int = 512) -> Any:
    net = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, 128))
    net.compile(optimizer="adam", loss="mse")
    return net


def by(plan: Any, **wanted: Any) -> list[Any]:
    return [c for c in plan.candidates if all(getattr(c, k) == v for k, v in wanted.items())]


def test_every_combination_is_a_candidate_and_losers_have_reasons() -> None:
    space = SearchSpace(
        meshes=[{"data": 4}, {"fsdp": 4}], batches=[64, 66, 128], remats=["none", "dots"]
    )
    plan = nx.preflight.search(model(), on=["v5e-4"], input_shape=(64, 256), space=space)
    assert len(plan.candidates) == 2 * 3 * 2
    assert {c.batch for c in plan.candidates} == {64, 66, 128}
    assert plan.candidates[0].reason == "" and plan.best.fits
    assert all(c.reason for c in plan.candidates[1:])
    for candidate in by(plan, batch=66):
        assert "66 cannot be divided over the 4 replicas" in candidate.reason
        assert candidate.report is None
    values = [c.value for c in plan.candidates if c.value is not None]
    assert values == sorted(values)
    per_example = plan.best.step_time.seconds / plan.best.batch_size
    assert plan.candidates[0].value == pytest.approx(per_example)
    lines = plan.table().splitlines()
    assert len(lines) == 13 and "fsdp=4" in plan.table() and "dots" in plan.table()


def test_state_larger_than_hbm_is_never_compiled_and_fsdp_wins() -> None:
    wide = nnx.eval_shape(lambda: nn.Sequential(nn.Linear(16384, 131072, bias=False)))
    trainer = nx.Trainer(wide, loss="mse")
    plan = nx.preflight.search(
        trainer, on="v5e-8", input_shape=(8, 16384),
        space=SearchSpace(meshes=[{"data": 8}, {"fsdp": 8}]),
    )  # fmt: skip
    (whole,) = by(plan, mesh="data=8")
    assert whole.report is None and "state and batch alone take" in whole.reason
    assert plan.candidates[0].mesh == "fsdp=8" and plan.best.fits


def test_a_larger_batch_than_one_that_did_not_fit_is_dropped() -> None:
    net = nn.Sequential(nn.Linear(256, 65536), nn.GELU(), nn.Linear(65536, 256))
    net.compile(optimizer="sgd", loss="mse")
    sizes = [65536, 131072, 262144]
    plan = nx.preflight.search(
        net, on="v5e-1", input_shape=(65536, 256), space=SearchSpace(batches=sizes)
    )
    refused = [c for c in plan.candidates if c.report is not None and c.report.refused == "hbm"]
    dropped = [c for c in plan.candidates if "already did not fit" in c.reason]
    assert refused and dropped
    assert min(c.batch for c in dropped) > min(c.batch for c in refused)


def test_a_deadline_leaves_out_what_is_too_slow() -> None:
    generous = nx.preflight.search(
        model(), on="v5e-1", input_shape=(64, 256), objective="cost", deadline=Deadline(64e6, 1e6)
    )
    strict = nx.preflight.search(
        model(), on="v5e-1", input_shape=(64, 256), objective="cost", deadline=Deadline(64e6, 1e-6)
    )
    assert generous.best.fits
    assert "the deadline is 1e-06 h" in strict.candidates[0].reason
    with pytest.raises(nx.ArgumentError, match="No candidate can run"):
        _ = strict.best


def plain_step(params: Any, state: Any, x: Any) -> Any:
    gradients = jax.grad(lambda params: jnp.square(x @ params["w"]).mean())(params)
    updates, state = ADAM.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


ADAM = optax.adam(1e-3)
PARAMS = {"w": nx.spec((256, 256))}


def test_a_plain_step_is_judged_by_its_examples() -> None:
    args = PARAMS, jax.eval_shape(ADAM.init, PARAMS), nx.spec((2048, 256))
    plan = nx.preflight.search(plain_step, *args, on="v5e-1", deadline=Deadline(2048e6, 30))
    best, seconds = plan.candidates[0], plan.best.step_time.seconds
    assert (best.batch, best.value) == (2048, pytest.approx(seconds / 2048))
    late = nx.preflight.search(
        plain_step, *args, on="v5e-1", objective="cost", deadline=Deadline(2048e6, 1e-3)
    )
    assert f"takes {seconds * 1e6 / 3600:.3g} h (est.)" in late.candidates[0].reason
    told = nx.preflight.search(
        plain_step, *args, on="v5e-1", options=PreflightOptions(examples=4096)
    )
    assert told.candidates[0].batch == told.best.batch_size == 4096


def test_a_deadline_needs_to_know_what_a_call_works_on() -> None:
    def ask(**options: Any) -> Any:
        return nx.preflight.search(
            jnp.tanh, nx.spec((64, 256)), on="v5e-1", deadline=Deadline(64e6, 1e6),
            options=PreflightOptions(**options),
        )  # fmt: skip

    with pytest.raises(nx.ArgumentError, match=r"is not known to take .*examples=…"):
        ask()
    assert ask(examples=64).winner.batch == 64
    with pytest.raises(nx.ArgumentError, match="1 example or more"):
        ask(examples=0)
    with pytest.raises(nx.ArgumentTypeError, match="whole number"):
        ask(examples="64")
    with pytest.raises(nx.ArgumentError, match="are its batch"):
        nx.preflight.search(
            model(), on="v5e-1", input_shape=(64, 256), options=PreflightOptions(examples=64)
        )


def test_a_choice_that_is_named_twice_is_one_candidate() -> None:
    space = SearchSpace(batches=[64, 64], meshes=[{"data": 1}, {"data": 1}], remats=["none"] * 2)
    plan = nx.preflight.search(model(), on="v5e-1", input_shape=(64, 256), space=space)
    assert len(plan.candidates) == 1


def test_products_of_narrow_types_are_pruned_by_their_own_peak() -> None:
    # A v5e could not win if its peak were that of bfloat16, half as high.
    shapes = nx.spec((65536, 8192), "int8"), nx.spec((8192, 8192), "int8")
    plan = nx.preflight.search(
        lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.int32),
        *shapes,
        on=["v4:1x1x1", "v5e-1"],
    )
    assert plan.candidates[0].slice.name == "v5e-1", plan.table()


def of_one_after_another() -> PreflightOptions:
    return PreflightOptions(compiler=CompileOptions(workers=1))


def test_a_product_of_which_a_part_is_used_is_not_pruned_by_the_whole() -> None:
    # At the peak of its units a v5e would cost more for the whole product than a v6e for the part.
    x = nx.spec((2048, 2048), "bfloat16")
    plan = nx.preflight.search(
        lambda x, w: (x @ w)[:8], x, x, on=["v5e-1", "v6e-1"], objective="cost",
        options=of_one_after_another(),
    )  # fmt: skip
    assert plan.candidates[0].slice.name == "v5e-1", plan.table()
    assert all(c.report is not None for c in plan.candidates)
    assert share_left(plan.best.analysis) == pytest.approx(8 / 2048)


def test_what_cannot_win_is_dearer_or_slower_and_what_ties_is_compiled() -> None:
    x = nx.spec((4096, 4096), "bfloat16")

    def ask(objective: str, price: float) -> list[str]:
        plan = nx.preflight.search(
            jnp.matmul, x, x, on=["v5e-1", "v6e-1"], objective=objective,
            pricing=Pricing(usd_per_chip_hour=price), options=of_one_after_another(),
        )  # fmt: skip
        return [candidate.reason for candidate in plan.candidates]

    than = "than the best even at the peak of the matrix units"
    assert ask("time", 1.0) == ["", f"slower {than}"]
    assert ask("cost", 1.0) == ["", f"dearer {than}"]
    assert ask("cost", 0.0) == ["", "cost 1.00 × the best, and slower"]


@pytest.mark.parametrize("on", [["v5e-1", "v6e-1"], ["v6e-1", "v5e-1"]])
def test_of_the_equally_fast_the_cheaper_wins_and_of_the_equally_dear_the_faster(
    on: list[str],
) -> None:
    def ask(size: int, **asked: Any) -> list[tuple[str, str]]:
        x = nx.spec((size, size), "bfloat16")
        plan = nx.preflight.search(jnp.matmul, x, x, on=on, **asked)
        return [(candidate.slice.name, candidate.reason) for candidate in plan.candidates]

    # Both wait for the host, which takes as long.
    assert ask(8) == [("v5e-1", ""), ("v6e-1", "time 1.00 × the best, and dearer")]
    free = Pricing(usd_per_chip_hour=0.0)
    assert ask(8, pricing=free)[1][1] == "time 1.00 × the best"
    dear = ask(4096, objective="cost", pricing=free)
    assert dear == [("v6e-1", ""), ("v5e-1", "cost 1.00 × the best, and slower")]


def of_variants(slices: list[str]) -> list[Choice]:
    """Return two meshes and batches with two policies and XLA options each, as a space has them."""
    space = SearchSpace(
        meshes=[{"data": 4}, {"fsdp": 4}], batches=[64, 128], remats=["dots", "none"],
        compiler_options=[{"xla_option": 1}, {}],
    )  # fmt: skip
    workload = Workload.of(model(), (nx.spec((64, 256)),), None, None, None)
    return space.choices(workload, [chips.resolve(name) for name in slices])


def test_every_slice_mesh_and_batch_is_tried_before_any_is_varied() -> None:
    choices = of_variants(["v5e-4", "v6e-4"])
    given = turns(choices, [2.0 if c.slice.name == "v5e-4" else 1.0 for c in choices], "none")
    first = [c for c, turn in zip(choices, given, strict=True) if turn.variant == 0]
    assert len(first) == 8 == len({place_of(c) for c in first})
    assert {(c.remat, c.options_text) for c in first} == {("none", "")}
    for number in range(4):  # each turn is one of each slice
        same = [c for c, turn in zip(choices, given, strict=True) if turn == Turn(0, number)]
        assert {c.slice.name for c in same} == {"v5e-4", "v6e-4"}
    (second,) = {(c.remat, c.options_text) for c, t in zip(choices, given, strict=True)
                 if t.variant == 1}  # fmt: skip
    assert second == ("dots", "")


def test_a_short_budget_sees_every_slice_and_says_what_it_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, left = [0.0], [3]
    monkeypatch.setattr(search.time, "monotonic", lambda: now[0])

    def compiled(pairs: Any, options: Any) -> Any:
        left[0] -= 1
        now[0] = 0.0 if left[0] else 1e6
        return compile_all(pairs, options)

    monkeypatch.setattr(search, "compile_all", compiled)
    plan = nx.preflight.search(
        model(), on=["v5e-4", "v6e-4", "v4:2x2x1"], input_shape=(64, 256), budget_seconds=100,
        space=SearchSpace.auto(), options=of_one_after_another(),
    )  # fmt: skip
    seen = [c for c in plan.candidates if c.report is not None]
    assert {c.slice.name for c in seen} == {"v5e-4", "v6e-4", "v4-8"}
    assert {(c.remat, c.compiler_options) for c in seen} == {("none", "")}
    left_out = sum("time for the search was up" in c.reason for c in plan.candidates)
    assert left_out == plan.num_not_compiled > 0
    assert f"Best of those compiled ({left_out} were not, the time was up): v" in plan.text(200)
    assert f"the time for the search was up: {left_out} candidates" in plan_page(plan)


def test_what_is_varied_first_is_what_leads_on_its_slice() -> None:
    one, other = of_variants(["v5e-4"])[::4][:2]
    promise = Promise([(one, 2.0), (one, 1.0), (other, None)])
    assert promise.of(one) == 1.0 == promise.of(other)  # which did not fit, and may with remat
    assert Promise([]).of(one) == float("inf")


def test_no_time_no_compiles() -> None:
    plan = nx.preflight.search(
        model(), on=["v5e-1", "v5e-4"], input_shape=(64, 256), budget_seconds=0.0
    )
    assert [c.report for c in plan.candidates] == [None, None]
    assert all("time for the search was up" in c.reason for c in plan.candidates)
    # Four devices have four times the peak, so theirs would have been compiled first.
    assert [c.slice.name for c in plan.candidates] == ["v5e-4", "v5e-1"]


class Shifted(nn.Module):
    """A linear layer, and a shift that every example shares."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 4)

    def __call__(self, features: Any, shift: Any) -> Any:
        return self.linear(features) + shift


def shifted(batch: int, x: Any, y: tuple[Any, ...]) -> dict[str, tuple[int, ...]]:
    trainer = nx.Trainer(Shifted(), optimizer="adam", loss="mse")
    workload = Workload.of(trainer, (x, *y), None, None, None)
    program = workload.program(Choice(chips.resolve("v5e-1"), batch=batch))
    return {leaf.path: leaf.shape for leaf in program.leaves if leaf.role == "batch"}


FEATURES, TARGETS = nx.spec((32, 16)), nx.spec((32, 4))


@pytest.mark.parametrize("shape", [(1, 4), (4,)])
def test_another_batch_leaves_what_has_no_rows_as_it_is(shape: tuple[int, ...]) -> None:
    x = {"features": FEATURES, "shift": nx.spec(shape)}
    found = shifted(64, x, (TARGETS,))
    assert found == {"1.x.features": (64, 16), "1.x.shift": shape, "1.y": (64, 4)}


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ((nx.spec((1, 4)), FEATURES), (TARGETS,), r"x\[0\] has 1, y has 32"),
        ((FEATURES, nx.spec((1, 4))), (), r"x\[0\] has 32, x\[1\] has 1\."),
        ((FEATURES, nx.spec(())), (), r"x\[0\] has 32, x\[1\] has none"),
        ((FEATURES,), ({"a": TARGETS, "b": nx.spec((8, 4))},), r"y\['a'\] has 32, y\['b'\] has 8"),
    ],
)
def test_a_batch_of_which_the_rows_are_not_known_is_not_changed(x: Any, y: Any, says: str) -> None:
    with pytest.raises(nx.ArgumentError, match=f"A batch of 64 cannot be made .*{says}"):
        shifted(64, x, y)


def test_compiler_options_are_part_of_the_choice() -> None:
    plan = nx.preflight.search(
        model(), on="v5e-4", input_shape=(64, 256), space=SearchSpace(compiler_options="auto")
    )
    assert {c.compiler_options for c in plan.candidates} == {
        "",
        "xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000",
    }


def test_a_model_with_policies_of_its_own_is_searched_over_them() -> None:
    sizes = {"num_layers": 4, "embed_dim": 128, "mlp_dim": 512, "head_dim": 32}
    config = nx.models.get("tiny").replace(**sizes, dtype="bfloat16")
    model = nx.models.Decoder.abstract(config)
    model.compile(optimizer="sgd", loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True))
    plan = nx.preflight.search(
        model, nx.spec((16, 128), "int32"), on="v5e-1", space=SearchSpace(remats=["none", "full"])
    )
    kept, again = (by(plan, remat=remat)[0].report for remat in ("none", "full"))
    assert kept.hbm.temporaries_bytes > again.hbm.temporaries_bytes


def test_mistakes() -> None:
    with pytest.raises(nx.NeurenixError, match="'dotz'.*dots"):
        nx.preflight.search(
            model(), on="v5e-1", input_shape=(64, 256), space=SearchSpace(remats=["dotz"])
        )
    with pytest.raises(nx.NeurenixError, match="mesh axis named 'dta'.*'data'"):
        space = SearchSpace(meshes=[{"data": 4}, {"dta": 4}])
        nx.preflight.search(model(), on="v5e-4", input_shape=(64, 256), space=space)
    with pytest.raises(nx.ArgumentError, match='meshes is a list or "auto"'):
        SearchSpace(meshes="all")
    with pytest.raises(nx.ArgumentError, match='compiler_options is a list or "auto"'):
        SearchSpace(compiler_options={"xla_option": 1})
    with pytest.raises(nx.ArgumentError, match="number of seconds; got NaN"):
        nx.preflight.search(model(), on="v5e-1", input_shape=(64, 256), budget_seconds=float("nan"))
    with pytest.raises(nx.ArgumentError, match="names no slice"):
        nx.preflight.search(model(), on=[], input_shape=(64, 256))
    with pytest.raises(nx.ArgumentError, match="argument 3, and there are 1"):
        nx.preflight(
            jnp.tanh, nx.spec((8, 8)), on="v5e-1", options=PreflightOptions(donate_argnums=(3,))
        )
    with pytest.raises(nx.ArgumentError, match="plain function"):
        nx.preflight.search(
            jnp.tanh, nx.spec((8, 8)), on="v5e-1", space=SearchSpace(batches=[8, 16])
        )


def test_what_does_not_fit_is_told_what_would_each_change_compiled() -> None:
    net = nn.Sequential(nn.Linear(128, 65536), nn.ReLU(), nn.Linear(65536, 128))
    net.compile(optimizer="adam", loss="mse")
    report = nx.preflight(net, on="v5e-4", input_shape=(262144, 128))
    assert not report.fits
    changes = {s.change.split(":")[0]: s for s in report.suggestions}
    assert any(s.fits for s in report.suggestions)
    smaller = next(s for s in report.suggestions if s.change.startswith("a global batch of"))
    assert smaller.fits
    assert smaller.analysis.memory.peak_bytes <= smaller.analysis.memory.limit_bytes
    assert "divide parameters and optimizer state" in changes
    assert "hold moments in bfloat16" in changes
    fits = [s.fits for s in report.suggestions]
    assert fits == sorted(fits, reverse=True)
    text = str(report)
    assert "changes, each compiled" in text and smaller.change in text


def test_a_function_that_does_not_fit_is_told_on_which_slices_it_would() -> None:
    rows = nx.spec((65536, 40000), partition=("data",))  # 10 GiB, and as much for the result
    report = nx.preflight(jnp.sin, rows, on="v5e-1")
    assert report.refused == "hbm"
    fits = {s.analysis.where.name: s.fits for s in report.suggestions}
    assert fits == {"v5e-4": True, "v5e-8": True, "v6e-1": True, "v5p-2": True}
    assert "take v5e-4: fits" in report.text(200)
    assert [s["change"] for s in report.to_dict()["suggestions"]] == [
        s.change for s in report.suggestions
    ]


def test_suggestions_can_be_left_out_and_are_not_made_for_what_fits() -> None:
    assert nx.preflight(model(), on="v5e-1", input_shape=(64, 256)).suggestions == ()
    net = nn.Sequential(nn.Linear(65536, 8)).compile(optimizer="sgd", loss="mse")
    report = nx.preflight(
        net, on="v5e-1", input_shape=(131072, 65536), options=PreflightOptions(suggest=False)
    )
    assert report.refused == "hbm" and report.suggestions == ()

"""The largest batch that fits is found by compiling, and nothing else is believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import neurenix as nx
from neurenix import chips, nn
from neurenix.compiler.compile import CompileOptions, Refusal
from neurenix.preflight.search import largest_batch

pytestmark = [pytest.mark.cpu8, pytest.mark.tpu_compile]


def model(**options: Any) -> Any:
    net = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 128))
    net.compile(optimizer="adam", loss="mse", **options)
    return net


def test_the_next_batch_is_refused_by_the_compiler() -> None:
    found = nx.preflight.largest_batch(
        model(), on="v5e-4", input_shape=(1 << 20, 256), step=1 << 20
    )
    assert found.batch > 0 and found.batch % found.step == 0
    assert found.report is not None and found.report.batch_size == found.batch
    for batch, fits in ((found.batch, True), (found.batch + found.step, False)):
        options = nx.preflight.PreflightOptions(suggest=False)
        asked = nx.preflight(model(), on="v5e-4", input_shape=(batch, 256), options=options)
        assert asked.fits is fits
    assert found.refused.batch_size == found.batch + found.step
    assert 0 <= found.forecast - found.batch < found.step
    assert found.compiled[-2:] == (found.batch, found.batch + found.step)
    assert f"{found.batch:,} examples" in str(found) and "GiB" in str(found)


def test_a_forecast_is_of_a_program_that_computes_twice_what_it_need_not_keep() -> None:
    """As the compiler makes it near the limit; of a small batch it keeps all."""
    wide = nn.Linear(512, 512), nn.Tanh()
    net = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), *wide, nn.Linear(512, 128))
    net.compile(optimizer="sgd", loss="mse")
    limit = chips.resolve("v5e-1").generation.hbm_bytes_per_device
    small, kept = (
        nx.preflight(
            net,
            input_shape=(1 << 17, 128),
            on="v5e-1",
            options=nx.preflight.PreflightOptions(suggest=False, compiler=compiler),
        )
        for compiler in (largest_batch.pressed(CompileOptions(), limit), CompileOptions())
    )
    assert small.fits and small.hbm.peak_bytes < 0.95 * kept.hbm.peak_bytes
    recomputed, computed = (
        [one.name for one in report.operations if ".remat" in one.name] for report in (small, kept)
    )
    assert recomputed and not computed


def test_no_batch_may_fit() -> None:
    big = nx.models.abstract("llama3.1-8b")
    big.compile(optimizer="adam", loss="sparse_categorical_crossentropy")
    found = nx.preflight.largest_batch(big, nx.spec((2, 128), "int32"), on="v5e-1")
    assert found.batch == 0 and found.report is None
    assert found.refused.batch_size == 1
    assert "no batch fits on v5e-1" in str(found)


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 8, 100, 1000])
@pytest.mark.parametrize("guess", [0, 1, 5, 100, 4000])
def test_any_limit_is_found_from_any_guess(limit: int, guess: int) -> None:
    asked: list[int] = []

    def fits(steps: int) -> bool:
        asked.append(steps)
        return steps <= limit

    assert largest_batch._last_that_fits(fits, guess) == limit
    assert {limit, limit + 1} <= set(asked) and min(asked) > 0


@pytest.mark.parametrize("guess", [1, 2, 163, 164, 165, 196, 5000])
@pytest.mark.parametrize(
    ("peak", "answers"),
    [
        pytest.param(lambda n: 95 * n, range(163, 165), id="straight"),
        pytest.param(lambda n: 95 * n + 500, range(157, 159), id="with parameters"),
        pytest.param(lambda n: 95 * n if n < 164 else 110 * n, range(140, 164), id="a step"),
        pytest.param(lambda n: 15_700 + n // 16 if n > 80 else 100 * n, range(40, 81), id="flat"),
        pytest.param(lambda n: 20_000, range(1, 2), id="whatever the batch"),
    ],
)
def test_a_forecast_comes_down_to_where_the_peak_is_below_the_limit(
    peak: Callable[[int], int], answers: range, guess: int
) -> None:
    asked: list[int] = []

    def ask(steps: int) -> int:
        asked.append(steps)
        return peak(steps)

    found = largest_batch.corrected(guess, ask, 15_600)
    assert found == 1 or peak(found) <= 15_600
    assert len(asked) <= 16
    assert found in answers if guess >= answers[0] else found == guess


def test_mistakes_are_told_before_any_compile() -> None:
    with pytest.raises(nx.ArgumentTypeError, match="needs a training step"):
        nx.preflight.largest_batch(lambda x: x, nx.spec((8, 8)), on="v5e-8")
    with pytest.raises(nx.ArgumentTypeError, match="one slice"):
        nx.preflight.largest_batch(model(), on=["v5e-4", "v5e-8"], input_shape=(8, 256))
    for step, options, parts in ((12, {}, 8), (0, {}, 8), (8, {"accumulate_steps": 2}, 16)):
        says = f"step={step} cannot be divided over the {parts} parts"
        with pytest.raises(nx.ArgumentError, match=says):
            nx.preflight.largest_batch(
                model(**options), on="v5e-8", input_shape=(8, 256), step=step
            )
    wrong: Any = "a"
    with pytest.raises(nx.ArgumentTypeError, match="step is a whole number of examples; got 'a'"):
        nx.preflight.largest_batch(model(), on="v5e-8", input_shape=(8, 256), step=wrong)


def test_another_refusal_than_for_memory_says_nothing_of_batches(monkeypatch) -> None:
    def refuse(pairs: Any, options: Any) -> list[Refusal]:
        del options
        return [Refusal(target, "vmem", "Ran out of memory in vmem", 0) for _, target in pairs]

    monkeypatch.setattr(largest_batch, "compile_all", refuse)
    with pytest.raises(nx.CompilationError, match="A batch of 8 cannot be compiled"):
        nx.preflight.largest_batch(model(), on="v5e-4", input_shape=(8, 256))


@pytest.mark.parametrize("name", ["preflight", "search", "largest_batch"])
@pytest.mark.parametrize("shape", [(), (0, 256)], ids=str)
def test_a_batch_has_an_axis_and_an_example(name: str, shape: tuple[int, ...]) -> None:
    ask = nx.preflight if name == "preflight" else getattr(nx.preflight, name)
    with pytest.raises(nx.NeurenixError, match=r"batch"):
        ask(model(), on="v5e-8", input_shape=shape)

"""Calls of one model from several threads: one trains, the others are told."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import neurenix as nx
from neurenix import nn
from neurenix._nnx import nnx
from neurenix.train import module_lock

pytestmark = pytest.mark.cpu8

X = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def compiled() -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(4, 8, rngs=nnx.Rngs(0)), nn.Tanh(), nn.Linear(8, 1, rngs=nnx.Rngs(1))
    )
    return model.compile(nx.optim.SGD(1e-2), "mse")


class Held(nx.callbacks.Callback):
    """Keeps a fit running until it is let go."""

    def __init__(self) -> None:
        self.begun, self.let_go = threading.Event(), threading.Event()

    def on_epoch_begin(self, *_) -> None:
        self.begun.set()
        assert self.let_go.wait(60)


def test_four_fits_at_once_are_one_fit_and_three_sentences() -> None:
    model, alone, held = compiled(), compiled(), Held()
    expected = alone.fit(X, Y, epochs=3, shuffle=False, verbose=0)["loss"]
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(model.fit, X, Y, epochs=3, shuffle=False, verbose=0, callbacks=[held])
        assert held.begun.wait(60)
        others = [pool.submit(model.fit, X, Y, epochs=3, verbose=0) for _ in range(3)]
        said = [str(other.exception(60)) for other in others]
        assert all(isinstance(other.exception(), nx.ModuleInUseError) for other in others)
        held.let_go.set()
        np.testing.assert_array_equal(first.result(60)["loss"], expected)
    assert len(set(said)) == 1 and len(said[0].splitlines()) == 1
    assert said[0].startswith("fit() of a Sequential was called while another thread is in its fit")
    for found, wanted in zip(model.parameters().values(), alone.parameters().values(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    again = model.fit(X, Y, epochs=6, initial_epoch=3, shuffle=False, verbose=0)["loss"]
    assert again[-1] < expected[-1]
    assert not module_lock._RUNNING


def test_four_fits_that_race_leave_a_model_that_trains() -> None:
    model, barrier = compiled(), threading.Barrier(4)

    def fit() -> object:
        barrier.wait()
        try:
            return model.fit(X, Y, epochs=3, verbose=0)["loss"]
        except Exception as error:  # what each thread met is what is looked at
            return error

    with ThreadPoolExecutor(4) as pool:
        results = [future.result() for future in [pool.submit(fit) for _ in range(4)]]
    wrong = [one for one in results if isinstance(one, Exception)]
    assert all(isinstance(one, nx.ModuleInUseError) for one in wrong), wrong
    assert len(wrong) < 4
    before = model.evaluate(X, Y, verbose=0)["loss"]
    model.fit(X, Y, epochs=20, verbose=0)
    assert model.evaluate(X, Y, verbose=0)["loss"] < before


@pytest.mark.parametrize("name", ["evaluate", "predict"])
def test_what_reads_waits_for_fit_and_fit_for_what_reads(name) -> None:
    model, held = compiled(), Held()
    arguments = (X, Y) if name == "evaluate" else (X,)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.fit, X, Y, verbose=0, callbacks=[held])
        assert held.begun.wait(60)
        with pytest.raises(nx.ModuleInUseError, match=rf"{name}\(\).*in its fit\(\)"):
            getattr(model, name)(*arguments)
        held.let_go.set()
        first.result(60)
        with module_lock.running(model, name):
            later = pool.submit(model.fit, X, Y, verbose=0)
            assert f"in its {name}()" in str(later.exception(60))
    getattr(model, name)(*arguments)


def test_trainers_of_one_module_know_of_one_another() -> None:
    model, held = compiled(), Held()
    other = nx.Trainer(model, optimizer="sgd", loss="mse")
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(model.fit, X, Y, verbose=0, callbacks=[held])
        assert held.begun.wait(60)
        with pytest.raises(nx.ModuleInUseError):
            other.fit(X, Y, verbose=0)
        copy = nnx.clone(compiled()).compile("sgd", "mse")  # another module is another matter
        assert len(copy.fit(X, Y, verbose=0)["loss"]) == 1
        held.let_go.set()
        first.result(60)


def test_predictions_of_several_threads_are_those_of_one() -> None:
    model = compiled()
    expected = compiled().predict(X)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.predict(X), range(8)):
            np.testing.assert_array_equal(found, expected)


def test_a_callback_may_evaluate_and_predict() -> None:
    class Look(nx.callbacks.Callback):
        seen: list[float] = []  # noqa: RUF012

        def on_epoch_end(self, *_) -> None:
            self.seen.append(self.trainer.evaluate(X, Y)["loss"])
            self.trainer.predict(X)

    model = compiled()
    model.fit(X, Y, epochs=2, verbose=0, callbacks=[Look()])
    assert len(Look.seen) == 2 and Look.seen[1] < Look.seen[0]


def test_a_call_that_fails_is_over() -> None:
    model = compiled()
    with pytest.raises(nx.DataError):
        model.fit(X, Y[:3], verbose=0)
    with ThreadPoolExecutor(1) as pool:
        assert len(pool.submit(model.fit, X, Y, verbose=0).result(60)["loss"]) == 1
    assert not module_lock._RUNNING

"""Losses under PyTorch's names against the formulas of its documentation, written in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import neurenix as nx
from neurenix import ArgumentError, ArgumentTypeError, DataError, ShapeError, losses
from neurenix.losses import TorchLoss

N, C, T = 5, 4, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, C)).astype(np.float32)
Y = RNG.normal(size=(N, C)).astype(np.float32)
P = special.expit(X)
YES = RNG.integers(0, 2, (N, C)).astype(np.float32)
LABELS = np.array([0, 3, 1, -100, 2])
IMAGES = RNG.normal(size=(2, C, T, T)).astype(np.float32)  # classes second; T differs from C
PLACES = RNG.integers(0, C, (2, T, T))
PLACES[0, 1] = -100
SHARES = special.softmax(RNG.normal(size=(N, C)), -1).astype(np.float32)
SHARES_2D = special.softmax(RNG.normal(size=(2, C, T, T)), 1).astype(np.float32)
W = np.array([1.0, 0.5, 2.0, 3.0])
D = np.abs(X - Y)


def of_classes(
    log_p: Any, labels: Any, weight: Any = None, smoothing: float = 0.0, ignored: int = -100
) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each position, by a loop, and what it counts in the mean."""
    weight = np.ones(log_p.shape[1]) if weight is None else weight
    found, counts = np.zeros(labels.shape), np.zeros(labels.shape)
    for place in np.ndindex(labels.shape):
        label, scores = labels[place], log_p[(place[0], slice(None), *place[1:])]
        if label != ignored:
            counts[place] = weight[label]
            even = -(weight * scores).sum() / len(scores)
            found[place] = -(1 - smoothing) * weight[label] * scores[label] + smoothing * even
    return found, counts


def of_shares(
    log_p: Any, shares: Any, weight: Any = None, smoothing: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each position for probabilities as targets, each counting 1."""
    shape = (-1,) + (1,) * (log_p.ndim - 2)
    weight = np.ones(log_p.shape[1]) if weight is None else weight
    smooth = (1 - smoothing) * shares + smoothing / log_p.shape[1]
    found = -(np.reshape(weight, shape) * smooth * log_p).sum(1)
    return found, np.ones(found.shape)


def binary(p: Any, y: Any, weight: Any = 1.0, positive: Any = 1.0) -> Any:
    yes, no = np.maximum(np.log(p), -100), np.maximum(np.log1p(-p), -100)
    return -weight * (positive * y * yes + (1 - y) * no)


LOG_X, LOG_IMAGES = special.log_softmax(X, 1), special.log_softmax(IMAGES, 1)
# name: (loss, its options, input, target, (loss of each position, its count in the mean))
CASES: dict[str, tuple[type[TorchLoss], dict[str, Any], Any, Any, Any]] = {
    "mse": (losses.MSELoss, {}, X, Y, (X - Y) ** 2),
    "l1": (losses.L1Loss, {}, X, Y, D),
    "huber": (
        losses.HuberLoss,
        {"delta": 0.5},
        X,
        Y,
        np.where(D <= 0.5, D**2 / 2, 0.5 * (D - 0.25)),
    ),
    "smooth l1": (
        losses.SmoothL1Loss,
        {"beta": 0.5},
        X,
        Y,
        np.where(D < 0.5, D**2 / (2 * 0.5), D - 0.25),
    ),
    "smooth l1, beta 0": (losses.SmoothL1Loss, {"beta": 0}, X, Y, D),
    "bce": (losses.BCELoss, {}, P, YES, binary(P, YES)),
    "bce, weighted": (losses.BCELoss, {"weight": W}, P, YES, binary(P, YES, W)),
    "bce, soft": (losses.BCELoss, {}, P, SHARES, binary(P, SHARES)),
    "logits": (losses.BCEWithLogitsLoss, {}, X, YES, binary(P, YES)),
    "logits, whole targets": (
        losses.BCEWithLogitsLoss,
        {},
        X,
        YES.astype(np.int32),
        binary(P, YES),
    ),
    "logits, weighted": (
        losses.BCEWithLogitsLoss,
        {"weight": W[:, None][:1], "pos_weight": W},
        X,
        YES,
        binary(P, YES, W[0], W),
    ),
    "kl": (
        losses.KLDivLoss,
        {},
        LOG_X,
        SHARES,
        SHARES * (np.log(SHARES) - LOG_X),
    ),
    "kl, one-hot": (
        losses.KLDivLoss,
        {},
        LOG_X,
        np.eye(C, dtype=np.float32)[[0, 1, 2, 3, 0]],
        -np.eye(C)[[0, 1, 2, 3, 0]] * LOG_X,
    ),
    "kl, log target": (
        losses.KLDivLoss,
        {"log_target": True},
        LOG_X,
        np.log(SHARES),
        SHARES * (np.log(SHARES) - LOG_X),
    ),
    "classes": (losses.CrossEntropyLoss, {}, X, LABELS, of_classes(LOG_X, LABELS)),
    "classes, all": (
        losses.CrossEntropyLoss,
        {"weight": W, "label_smoothing": 0.2, "ignore_index": 1},
        X,
        np.maximum(LABELS, 0),
        of_classes(LOG_X, np.maximum(LABELS, 0), W, 0.2, 1),
    ),
    "classes, weighted": (
        losses.CrossEntropyLoss,
        {"weight": list(W)},
        X,
        LABELS,
        of_classes(LOG_X, LABELS, W),
    ),
    "images": (losses.CrossEntropyLoss, {}, IMAGES, PLACES, of_classes(LOG_IMAGES, PLACES)),
    "images, all": (
        losses.CrossEntropyLoss,
        {"weight": W, "label_smoothing": 0.3},
        IMAGES,
        PLACES,
        of_classes(LOG_IMAGES, PLACES, W, 0.3),
    ),
    "shares": (losses.CrossEntropyLoss, {}, X, SHARES, of_shares(LOG_X, SHARES)),
    "shares of images, all": (
        losses.CrossEntropyLoss,
        {"weight": W, "label_smoothing": 0.1},
        IMAGES,
        SHARES_2D,
        of_shares(LOG_IMAGES, SHARES_2D, W, 0.1),
    ),
    "nll": (losses.NLLLoss, {}, LOG_X, LABELS, of_classes(LOG_X, LABELS)),
    "nll of images, weighted": (
        losses.NLLLoss,
        {"weight": W, "ignore_index": 2},
        LOG_IMAGES,
        np.maximum(PLACES, 0),
        of_classes(LOG_IMAGES, np.maximum(PLACES, 0), W, 0.0, 2),
    ),
}


def expected_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    expected = CASES[name][4]
    return expected if isinstance(expected, tuple) else (expected, np.ones(expected.shape))


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit, nx.jit], ids=["eager", "jax", "nx"])
@pytest.mark.parametrize("name", CASES)
def test_every_reduction_is_that_of_pytorch(name: str, compiled: Any) -> None:
    kind, options, given, target, _ = CASES[name]
    each, counts = expected_of(name)
    wanted = {"none": each, "sum": each.sum(), "mean": each.sum() / counts.sum()}
    if kind is losses.KLDivLoss:
        wanted["batchmean"] = each.sum() / N
    for reduction, value in wanted.items():
        loss = kind(**options, reduction=reduction)
        found = compiled(lambda a, b, loss=loss: loss(a, b))(jnp.asarray(given), target)
        assert found.shape == np.shape(value)
        np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6)
        by_name = loss(input=given, target=target)
        np.testing.assert_allclose(by_name, value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_gradient_is_with_respect_to_the_input(name: str) -> None:
    kind, options, given, target, _ = CASES[name]
    loss = kind(**options)
    gradient = np.asarray(nx.jit(nx.grad(lambda p: loss(p, target)))(jnp.asarray(given)))
    direction = RNG.normal(size=given.shape).astype(np.float32)
    ahead, behind = (float(loss(given + s * direction * 1e-2, target)) for s in (1, -1))
    slope = (gradient * direction).sum()
    np.testing.assert_allclose((ahead - behind) / 2e-2, slope, rtol=0.02, atol=2e-3)


@pytest.mark.parametrize("name", CASES)
def test_fit_and_evaluate_call_it_in_its_order(name: str) -> None:
    """The model is the identity, so that its loss is that of the arrays."""
    kind, options, given, target, _ = CASES[name]

    class Shift(nx.nn.Module):
        def __init__(self) -> None:
            self.by = nx.nn.Linear(1, 1, bias=False)
            self.by.kernel[...] = jnp.zeros((1, 1))

        def __call__(self, x: Any) -> Any:
            return x + self.by.kernel[0, 0]

    loss = kind(**options)
    wanted = float(loss(given, target))
    model = Shift()
    model.compile("sgd", loss, metrics=[loss])
    found = model.evaluate(given, target, batch_size=2)
    assert found["loss"] == pytest.approx(wanted, rel=1e-5)
    assert found[kind.__name__] == pytest.approx(wanted, rel=1e-5)
    slope = float(jax.grad(lambda s: loss(given + s, target))(0.0))
    model.compile(nx.optim.SGD(0.1), loss)
    history = model.fit(given, target, batch_size=len(given), verbose=False)
    assert history["loss"] == [pytest.approx(wanted, rel=1e-5)]
    np.testing.assert_allclose(model.by.kernel[...], -0.1 * slope, rtol=1e-3, atol=1e-6)


def test_weights_of_examples_go_with_those_of_classes() -> None:
    loss, given = losses.CrossEntropyLoss(weight=W), np.array([1.0, 0.0, 2.0, 5.0, 0.5], np.float32)
    each, counts = of_classes(LOG_X, LABELS, W)
    model = nx.nn.Linear(C, C, bias=False)
    model.kernel[...] = jnp.eye(C)
    model.compile("sgd", loss)
    found = model.evaluate(X, LABELS, sample_weight=given, batch_size=2)["loss"]
    assert found == pytest.approx((given * each).sum() / (given * counts).sum(), rel=1e-5)


@pytest.mark.parametrize("given", [losses.BCEWithLogitsLoss, losses.BCEWithLogitsLoss()])
def test_training_with_it_goes_in_the_right_direction(given: Any) -> None:
    x = RNG.normal(size=(64, 3)).astype(np.float32)
    y = (x.sum(1, keepdims=True) > 0).astype(np.float32)
    model = nx.nn.Linear(3, 1)
    model.compile(nx.optim.Adam(0.05), given, metrics=["accuracy"])
    found = model.fit(x, y, epochs=60, batch_size=32, verbose=False)
    assert 0 < found["loss"][-1] < found["loss"][0]
    assert model.evaluate(x, y)["accuracy"] > 0.9


@pytest.mark.parametrize(
    ("loss", "start"),
    [
        (losses.BCELoss(), lambda model, x: jax.nn.sigmoid(model(x))),
        (losses.BCEWithLogitsLoss(), lambda model, x: model(x)),
        (losses.KLDivLoss(reduction="batchmean"), lambda model, x: jax.nn.log_softmax(model(x))),
    ],
)
def test_a_loop_takes_predictions_first_and_refuses_targets_first(loss: Any, start: Any) -> None:
    x = RNG.normal(size=(32, 3)).astype(np.float32)
    y = jax.nn.softmax(jnp.asarray(x @ RNG.normal(size=(3, 2)).astype(np.float32) * 3))
    model = nx.nn.Linear(3, 2)
    optimizer = nx.Optimizer(model, "adam")

    @nx.jit
    def step(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
        value, gradients = nx.value_and_grad(lambda m: loss(start(m, x), y))(model)
        optimizer.update(model, gradients)
        return value

    values = [float(step(model, optimizer, x, y)) for _ in range(100)]
    assert 0 < values[-1] < values[0]

    @nx.jit
    def reversed_step(model: Any, x: Any, y: Any) -> Any:
        return nx.grad(lambda m: loss(y, start(m, x)))(model)

    with pytest.raises(DataError, match=r"targets alone.*\(input, target\): predictions first"):
        reversed_step(model, x, y)


REVERSED = {
    "classes": (losses.CrossEntropyLoss(), LABELS, X),
    "classes of images": (losses.CrossEntropyLoss(), PLACES, IMAGES),
    "nll": (losses.NLLLoss(), LABELS, LOG_X),
    "logits": (losses.BCEWithLogitsLoss(), YES.astype(np.int32), X),
    "flags": (losses.BCEWithLogitsLoss(), YES.astype(bool), X),
    "bce": (losses.BCELoss(), YES.astype(np.int32), P),
    "kl": (losses.KLDivLoss(), YES.astype(np.int32), LOG_X),
}


@pytest.mark.parametrize("compiled", [lambda f: f, jax.jit, nx.jit], ids=["eager", "jax", "nx"])
@pytest.mark.parametrize("name", REVERSED)
def test_targets_that_come_first_are_told(name: str, compiled: Any) -> None:
    loss, target, given = REVERSED[name]
    with pytest.raises((DataError, ShapeError), match=r"\(input, target\): predictions first"):
        compiled(lambda a, b: loss(a, b))(jnp.asarray(target), jnp.asarray(given))


@pytest.mark.parametrize(
    ("loss", "target", "given"),
    [
        (losses.BCEWithLogitsLoss(), YES, X),
        (losses.CrossEntropyLoss(), SHARES, X),
        (losses.CrossEntropyLoss(), SHARES_2D, IMAGES),
        (losses.KLDivLoss(), SHARES, LOG_X),
    ],
)
def test_float_targets_that_come_first_are_told_by_their_values(loss, target, given) -> None:
    with pytest.raises(DataError, match=r"\(input, target\): predictions first"):
        loss(jnp.asarray(target), jnp.asarray(given))


def test_one_example_without_an_axis_of_examples() -> None:
    assert float(losses.CrossEntropyLoss()(X[0], 2)) == pytest.approx(-LOG_X[0, 2], rel=1e-5)
    found = losses.CrossEntropyLoss(reduction="none")(X[0], jnp.asarray(2))
    assert found.shape == () and float(found) == pytest.approx(-LOG_X[0, 2], rel=1e-5)
    expected = -(SHARES[0] * LOG_X[0]).sum()
    assert float(losses.CrossEntropyLoss()(X[0], SHARES[0])) == pytest.approx(expected, rel=1e-5)
    assert float(losses.NLLLoss()(LOG_X[0], 1)) == pytest.approx(-LOG_X[0, 1], rel=1e-5)


def test_logarithms_of_bce_end_at_minus_100_with_the_gradient_of_pytorch() -> None:
    loss, p = losses.BCELoss(reduction="none"), jnp.array([0.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(loss(p, jnp.array([1.0, 0.0, 1.0, 0.0])), [100, 100, 0, 0])
    slope = jax.grad(lambda p: losses.BCELoss(reduction="sum")(p, jnp.array([1.0, 0.0, 1.0, 0.0])))
    np.testing.assert_allclose(slope(p), [-1e12, 1e12, -1, 1], rtol=1e-5)
    assert np.isnan(loss(jnp.array([-0.5, 1.5]), jnp.array([1.0, 1.0]))).all()


def test_the_divergence_of_a_policy_from_a_fixed_reference_has_a_gradient() -> None:
    """PyTorch's idiom: the reference is the input, the policy the target of logarithms."""
    loss = losses.KLDivLoss(reduction="batchmean", log_target=True)
    found = jax.grad(lambda x: loss(np.log(SHARES), jax.nn.log_softmax(x)))(jnp.asarray(X))
    p, ratio = np.exp(LOG_X), LOG_X - np.log(SHARES)
    wanted = p * (ratio - (p * ratio).sum(1, keepdims=True)) / N
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize(
    ("use", "error", "said"),
    [
        (lambda: losses.CrossEntropyLoss(weight=[1, 2])(X, LABELS), ShapeError, "one weight for"),
        (lambda: losses.CrossEntropyLoss(weight="a"), ArgumentTypeError, "array of numbers"),
        (lambda: losses.CrossEntropyLoss(weight=[-1.0]), ArgumentError, "finite weights"),
        (lambda: losses.BCELoss(weight=[1, 2, 3])(P, YES), ShapeError, "does not broadcast"),
        (lambda: losses.SmoothL1Loss(beta=-1), ArgumentError, "at least 0"),
        (lambda: losses.HuberLoss(delta=0), ArgumentError, "above 0"),
        (lambda: losses.KLDivLoss(reduction="batch_mean"), nx.UnknownNameError, "'batchmean'"),
        (lambda: losses.MSELoss(reduction="batchmean"), nx.UnknownNameError, "reduction"),
        (lambda: losses.MSELoss(size_average=False), ArgumentTypeError, "Here that is reduction"),
        (lambda: losses.BCELoss(pos_weight=[1]), ArgumentTypeError, "no option 'pos_weight'"),
        (lambda: losses.CrossEntropyLoss()(X, np.eye(C, dtype=int)[[0] * N]), ShapeError, "argmax"),
        (
            lambda: losses.CrossEntropyLoss()(np.moveaxis(IMAGES, 1, -1), PLACES),
            ShapeError,
            r"SparseCategoricalCrossentropy\(from_logits=True\)",
        ),
        (
            lambda: nx.nn.Linear(2, 2).compile(loss=losses.BCELoss(reduction="sum")),
            ArgumentError,
            "is for training loops of your own",
        ),
    ],
)
def test_what_it_cannot_take_is_told(use: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        use()


@pytest.mark.parametrize("kind", TorchLoss.__subclasses__())
def test_it_is_hashable_and_in_the_public_list(kind: type[TorchLoss]) -> None:
    options: dict[str, Any] = {"weight": nx.tensor(W)} if "weight" in vars(kind) else {}
    assert kind(**options) == kind(**options)
    assert hash(kind(**options)) == hash(kind(**options))
    assert kind.__name__ in losses.__all__
    assert isinstance(losses.get(kind), losses.Loss)
    assert losses.get(kind()) == losses.get(kind)


def test_names_that_are_not_there_say_what_to_use() -> None:
    for name in ("HingeLoss", "PoissonNLLLoss", "TripletMarginLoss", "CTCLoss", "cross_entropy"):
        with pytest.raises(AttributeError, match="Here that is"):
            getattr(losses, name)

"""Training of converted modules: a ResNet-18 step by step, dropout, replicas, sharded weights."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import neurenix as nx

torch = pytest.importorskip("torch")

from neurenix.interop.torch import from_torch  # noqa: E402  after the skip

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]
STEPS = 50


class Basic(torch.nn.Module):
    """Two convolutions and what goes around them (He et al. 2016)."""

    def __init__(self, inside: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inside, width, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(width)
        self.conv2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(width)
        self.shortcut = torch.nn.Sequential()
        if stride != 1 or inside != width:
            self.shortcut = torch.nn.Sequential(
                torch.nn.Conv2d(inside, width, 1, stride, bias=False), torch.nn.BatchNorm2d(width)
            )

    def forward(self, x: Any) -> Any:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(y + self.shortcut(x))


class ResNet18(torch.nn.Module):
    """ResNet-18; ``width`` is 64 in the paper."""

    def __init__(self, width: int, classes: int = 10) -> None:
        super().__init__()
        self.stem = torch.nn.Sequential(
            torch.nn.Conv2d(3, width, 7, 2, 3, bias=False), torch.nn.BatchNorm2d(width),
            torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1),
        )  # fmt: skip
        blocks, inside = [], width
        for stage in range(4):
            for number in range(2):
                wide = width * 2**stage
                blocks.append(Basic(inside, wide, 2 if stage and not number else 1))
                inside = wide
        self.layers = torch.nn.Sequential(*blocks)
        self.fc = torch.nn.Linear(inside, classes)

    def forward(self, x: Any) -> Any:
        return self.fc(self.layers(self.stem(x)).mean((2, 3)))


def batches(count: int, rows: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, (count, rows))
    pictures = generator.normal(size=(10, 3, size, size))[labels]
    noise = generator.normal(size=(count, rows, 3, size, size))
    return pictures + noise, labels.astype(np.int32)


def test_a_resnet_18_trains_as_in_pytorch() -> None:
    """50 steps of SGD with momentum, from the same weights and batches: losses and statistics.

    In float64: in float32 an element of a ReLU within rounding of zero has a gradient on one side
    and none on the other, and such steps end elsewhere.
    """
    torch.manual_seed(0)
    with jax.enable_x64(True):
        net = ResNet18(8).double()
        x, y = batches(STEPS, 32, 32)
        model = from_torch(net, (torch.from_numpy(x[0]),), check=False).train()
        optimizer = nx.Optimizer(model, nx.optim.SGD(0.02, momentum=0.9))

        @nx.jit
        def train_step(model: Any, optimizer: Any, images: Any, labels: Any) -> Any:
            def loss_fn(model: Any) -> Any:
                return nx.losses.sparse_categorical_crossentropy(
                    labels, model(images), from_logits=True
                ).mean()

            loss, slopes = nx.value_and_grad(loss_fn)(model)
            optimizer.update(model, slopes)
            return loss

        ours = [float(train_step(model, optimizer, *batch)) for batch in zip(x, y, strict=True)]
        view = {name: np.asarray(value) for name, value in model.weight_view().items()}
    theirs = []
    other = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9)
    for images, labels in zip(x, y, strict=True):
        other.zero_grad()
        logits = net.train()(torch.from_numpy(images))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(labels).long())
        loss.backward()
        other.step()
        theirs.append(loss.item())
    assert theirs[-1] < theirs[0] / 2
    np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    wanted = {name: t.numpy() for name, t in net.state_dict().items() if "running" in name}
    assert len(wanted) == 40
    for name, b in wanted.items():
        assert view[name].dtype == np.float64
        assert np.linalg.norm(view[name] - b) <= 1e-4 * np.linalg.norm(b), name
    assert int(view["stem.1.num_batches_tracked"]) == STEPS


class Dropped(torch.nn.Module):
    """Two layers with dropout, which gives back what it kept of ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 16)
        self.dropout = torch.nn.Dropout(0.5)
        self.last = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return self.dropout(torch.ones_like(self.last(self.dropout(self.first(x)))))


def masks(strategy: Any, seed: int) -> np.ndarray:
    """Return what dropout kept in three steps."""
    torch.manual_seed(0)
    nx.seed(seed)
    with strategy.scope():
        model = from_torch(Dropped(), (torch.zeros(8, 4),), check=False).train()
        step = nx.jit(lambda model, x: model(x))
        x = np.ones((16, 4), np.float32)
        return np.stack([np.asarray(step(model, x)) for _ in range(3)])


def losses(strategy: Any, seed: int) -> list[float]:
    """Return the losses of three epochs of a model with dropout."""
    torch.manual_seed(0)
    nx.seed(seed)
    net = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    with strategy.scope():
        model = from_torch(net, (torch.zeros(8, 4),), check=False)
        model.compile(optimizer=nx.optim.SGD(0.05), loss="mse")
        history = model.fit(
            x, x[:, :1], batch_size=16, epochs=3, shuffle=False, verbose=False
        )  # fmt: skip
    return history["loss"]


def test_dropout_is_a_new_mask_at_each_step_equal_on_one_and_eight_replicas() -> None:
    one, eight = nx.distribute.OneDeviceStrategy("tpu:0"), nx.distribute.TPUStrategy()
    assert eight.num_replicas_in_sync == 8
    kept = masks(one, 0)
    assert set(np.unique(kept)) == {0.0, 2.0} and 0.4 < (kept == 2).mean() < 0.6
    assert not np.array_equal(kept[0], kept[1]) and not np.array_equal(kept[1], kept[2])
    assert not np.array_equal(kept[0, 0], kept[0, 1])  # nor is it the same for each example
    np.testing.assert_array_equal(masks(one, 0), kept)
    np.testing.assert_array_equal(masks(eight, 0), kept)
    assert not np.array_equal(masks(one, 1), kept)
    trained = losses(one, 0)
    np.testing.assert_allclose(losses(eight, 0), trained, rtol=1e-5)
    assert losses(one, 0) == trained and losses(one, 1) != trained


def test_a_converted_module_trains_on_a_mesh_with_rules_by_the_paths_of_its_parameters() -> None:
    rules = ((r"^0\.weight$", ("tensor", "fsdp")), (r"^2\.weight$", (None, ("fsdp", "tensor"))))
    x = np.random.default_rng(0).normal(size=(32, 16)).astype(np.float32)
    found = []
    for mesh in (None, {"data": 2, "fsdp": 2, "tensor": 2}):
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 16))
        strategy = nx.distribute.TPUStrategy(mesh=mesh, rules=rules if mesh else None)
        with strategy.scope():
            model = from_torch(net, (torch.zeros(8, 16),), check=False)
            model.compile(optimizer=nx.optim.SGD(0.1, momentum=0.9), loss="mse")
            history = model.fit(x, x, batch_size=16, epochs=2, shuffle=False, verbose=False)
        parameters = model.parameters()
        found.append((history["loss"], {n: np.asarray(p) for n, p in parameters.items()}))
    first, last = parameters["0.weight"].sharding.spec, parameters["2.weight"].sharding.spec
    assert tuple(first) == ("tensor", "fsdp") and tuple(last) == (None, ("fsdp", "tensor"))
    assert {s.data.shape for s in parameters["0.weight"].addressable_shards} == {(16, 8)}
    np.testing.assert_allclose(found[1][0], found[0][0], rtol=1e-5)
    for name, weight in found[0][1].items():
        np.testing.assert_allclose(found[1][1][name], weight, rtol=1e-4, atol=1e-6, err_msg=name)

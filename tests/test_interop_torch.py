"""Modules of PyTorch, converted: training, state, loops of layers, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import nn

torch = pytest.importorskip("torch")

from neurenix.interop.torch import (  # noqa: E402  after the skip
    Outputs,
    from_torch,
    register_torch_op,
    to_torch,
)
from neurenix.interop.torch.repeats import Loop  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


def array(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(array(*shape, seed=seed))


class Block(torch.nn.Module):
    """A layer with a residual connection."""

    def __init__(self, width: int, p: float) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.dropout = torch.nn.Dropout(p)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.dropout(self.norm(self.linear(x))))


class Stack(torch.nn.Module):
    """Equal blocks, one after the other."""

    def __init__(self, depth: int, width: int = 8, p: float = 0.0) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width)
        self.blocks = torch.nn.ModuleList(Block(width, p) for _ in range(depth))

    def forward(self, x: Any) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def small() -> Any:
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 5),
    )  # fmt: skip


def test_training_is_that_of_pytorch_batch_by_batch() -> None:
    """Ten steps of SGD from the same weights: losses, weights and running statistics agree."""
    net = small()
    model = from_torch(net, (tensor(6, 3, 8, 8),))
    x, y = array(60, 3, 8, 8, seed=1), np.arange(60) % 5
    model.compile(
        optimizer=nx.optim.SGD(0.1),
        loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    losses: list[float] = []
    collect = nx.callbacks.LambdaCallback(on_train_batch_end=lambda s, logs: losses.append(s))
    del collect
    history = model.fit(x, y, batch_size=6, epochs=1, shuffle=False, verbose=False)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    net.train()
    for at in range(0, 60, 6):
        optimizer.zero_grad()
        logits = net(torch.from_numpy(x[at : at + 6]))
        loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(y[at : at + 6]))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(history["loss"], [np.mean(losses)], rtol=1e-4)
    view = model.weight_view()
    for name, wanted in net.state_dict().items():
        np.testing.assert_allclose(view[name], wanted.numpy(), rtol=1e-3, atol=1e-5, err_msg=name)


def test_weights_go_back_into_the_module() -> None:
    net = small()
    model = from_torch(net, (tensor(6, 3, 8, 8),))
    model.compile(optimizer="adam", loss="mse")
    model.fit(array(12, 3, 8, 8), array(12, 5), batch_size=6, verbose=False)
    other = small()
    to_torch(model, other)
    x = array(4, 3, 8, 8, seed=3)
    wanted = other.eval()(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(model.predict(x, verbose=False), wanted, rtol=1e-4, atol=1e-6)


def test_layers_that_repeat_are_one_loop_with_the_same_results() -> None:
    net = Stack(5)
    x = tensor(6, 4)
    folded, flat = from_torch(net, (x,)), from_torch(net, (x,), scan=False)
    loops = [s for s in folded.program(training=True).steps if isinstance(s, Loop)]
    assert [loop.count for loop in loops] == [5]
    assert not any(isinstance(s, Loop) for s in flat.program(training=True).steps)
    assert "blocks.0-4.linear.weight" in folded.parameters()
    assert folded.parameters()["blocks.0-4.linear.weight"].shape == (5, 8, 8)
    np.testing.assert_allclose(
        folded(jnp.asarray(x.numpy())), flat(jnp.asarray(x.numpy())), rtol=1e-5, atol=1e-6
    )
    for name, wanted in flat.weight_view().items():  # running statistics moved in both
        np.testing.assert_allclose(folded.weight_view()[name], wanted, rtol=1e-5, atol=1e-6)


def test_few_layers_and_layers_of_other_shapes_are_no_loop() -> None:
    assert not any(
        isinstance(s, Loop) for s in from_torch(Stack(3), (tensor(6, 4),)).program().steps
    )
    widths = torch.nn.Sequential(*(torch.nn.Linear(n, n + 1) for n in range(4, 9)))
    assert not any(isinstance(s, Loop) for s in from_torch(widths, (tensor(2, 4),)).program().steps)


def test_dropout_is_new_at_each_call_and_reproducible_by_seed() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Dropout(0.5))
    found = []
    for seed in (0, 0, 1):
        nx.seed(seed)
        model = from_torch(net, (tensor(6, 4),)).train()
        call = nx.jit(lambda model, x: model(x))
        found.append([np.asarray(call(model, array(6, 4))) for _ in range(2)])
    assert not np.array_equal(found[0][0], found[0][1])
    assert np.array_equal(found[0], found[1]) and not np.array_equal(found[0], found[2])
    model.eval()
    assert np.array_equal(model(array(6, 4)), model(array(6, 4)))


def test_what_is_under_no_grad_or_detached_has_no_gradient() -> None:
    class Frozen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.tensor(2.0))
            self.b = torch.nn.Parameter(torch.tensor(3.0))

        def forward(self, x: Any) -> Any:
            with torch.no_grad():
                fixed = self.a * x
            return fixed * self.a + (self.b * x).detach() * self.b

    model = from_torch(Frozen(), (tensor(3),))
    x = jnp.asarray([1.0, 2.0, 3.0])
    slopes = nx.grad(lambda model: model(x).sum())(model)
    np.testing.assert_allclose(slopes["a"][...], (2 * x).sum())
    np.testing.assert_allclose(slopes["b"][...], (3 * x).sum())


def test_tied_weights_are_one_parameter() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(7, 4)
            self.head = torch.nn.Linear(4, 7, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, ids: Any) -> Any:
            return self.head(self.embed(ids))

    net = Tied()
    model = from_torch(net, (torch.tensor([[1, 2, 3]]),))
    assert list(model.parameters()) == ["embed.weight"] and model.num_parameters == 28
    other = copy.deepcopy(net)
    model.embed.weight.set_value(jnp.ones((7, 4)))
    to_torch(model, other)
    assert other.head.weight is other.embed.weight
    assert other.head.weight.sum().item() == 28


def test_named_arguments_and_dataclasses() -> None:
    import dataclasses

    @dataclasses.dataclass
    class Result:
        logits: Any
        hidden: Any

    torch.export.register_dataclass(Result, serialized_type_name="tests.Result")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x: Any, *, scale: Any = None, double: bool = False) -> Result:
            hidden = self.linear(x)
            return Result(hidden * scale * (2 if double else 1), hidden)

    model = from_torch(
        Net(), (tensor(3, 4),), example_kwargs={"scale": torch.tensor(2.0), "double": True}
    )
    found = model(array(3, 4), scale=jnp.asarray(3.0), double=True)
    assert isinstance(found, Outputs)
    np.testing.assert_allclose(found.logits, 6 * found["hidden"], rtol=1e-6)
    with pytest.raises(AttributeError, match="it returns logits, hidden"):
        _ = found.loss
    with pytest.raises(nx.ArgumentTypeError, match="double|converted"):
        model(array(3, 4), scale=jnp.asarray(3.0), double=False)
    with pytest.raises(nx.ArgumentTypeError, match="'scale' is missing"):
        model(array(3, 4), double=True)


def test_parameters_that_need_no_gradient_are_not_trained() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    net[0].requires_grad_(False)
    model = from_torch(net, (tensor(2, 4),))
    assert list(model.parameters()) == ["1.bias", "1.weight"]
    before = np.asarray(model.weight_view()["0.weight"])
    model.compile(optimizer="sgd", loss="mse")
    model.fit(array(8, 4), array(8, 2), verbose=False)
    assert np.array_equal(model.weight_view()["0.weight"], before)


def test_a_module_on_meta_becomes_a_module_of_shapes() -> None:
    with torch.device("meta"):
        net = Stack(6, width=16)
    model = from_torch(net, (torch.zeros(8, 4, device="meta"),))
    found = model.parameters()["blocks.0-5.linear.weight"]
    assert isinstance(found, jax.ShapeDtypeStruct) and found.shape == (6, 16, 16)
    assert model.num_parameters == sum(p.numel() for p in net.parameters())


def test_replicas_train_to_the_weights_of_one_device() -> None:
    """Batch statistics are of the whole batch, wherever its rows are."""
    weights = []
    for strategy in (nx.distribute.OneDeviceStrategy("cpu"), nx.distribute.auto()):
        net = small()
        torch.manual_seed(1)
        for part in net:
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
        with strategy.scope():
            model = from_torch(net, (tensor(8, 3, 8, 8),))
            model.compile(optimizer=nx.optim.SGD(0.1), loss="mse")
            model.fit(array(32, 3, 8, 8), array(32, 5), batch_size=8, shuffle=False, verbose=False)
        weights.append({n: np.asarray(w) for n, w in model.weight_view().items()})
    for name, one in weights[0].items():
        np.testing.assert_allclose(weights[1][name], one, rtol=1e-3, atol=1e-5, err_msg=name)


def test_a_converted_model_is_a_layer_of_another() -> None:
    body = from_torch(torch.nn.Linear(4, 8), (tensor(2, 4),))
    model = nn.Sequential(body, nn.ReLU(), nn.Linear(8, 1))
    model.compile(optimizer="adam", loss="mse")
    history = model.fit(array(64, 4), array(64, 1), epochs=3, verbose=False)
    assert history["loss"][-1] < history["loss"][0]


def test_an_operator_of_ones_own(tmp_path: Any) -> None:
    @torch.library.custom_op("neurenix_tests::cube", mutates_args=())
    def cube(x: torch.Tensor) -> torch.Tensor:
        return x**3

    @cube.register_fake
    def _(x: Any) -> Any:
        return torch.empty_like(x)

    cube.register_autograd(
        lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return torch.special.bessel_j0(cube(self.linear(x)))

    with pytest.raises(nx.NeurenixError) as caught:
        from_torch(Net(), (tensor(2, 4),))
    said = str(caught.value)
    assert "neurenix_tests::cube" in said and "bessel_j0" in said, said
    assert said.count("test_interop_torch.py:") == 2
    register_torch_op("neurenix_tests::cube", lambda x: x**3)

    class Cubed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            return cube(self.linear(x))

    assert from_torch(Cubed(), (tensor(2, 4),)).verification.gradients < 1e-4
    for name in ("cube", "a::", "a::b::c"):
        with pytest.raises(nx.ArgumentError, match="namespace::name"):
            register_torch_op(name, lambda x: x)
    with pytest.raises(nx.ArgumentTypeError, match="takes a function"):
        register_torch_op("a::b", 3)


def test_mistakes_of_a_call() -> None:
    net = torch.nn.Linear(4, 2)
    with pytest.raises(nx.ArgumentError, match="needs example inputs"):
        from_torch(net)
    with pytest.raises(nx.ArgumentTypeError, match="takes a torch.nn.Module; got Linear"):
        from_torch(nn.Linear(4, 2), (tensor(2, 4),))
    with pytest.raises(nx.ArgumentTypeError, match="takes a model of nx.from_torch"):
        to_torch(nn.Linear(4, 2), net)
    model = from_torch(net, (tensor(2, 4),))
    with pytest.raises(nx.ShapeError, match="Input 0"):
        model(array(2, 5))
    with pytest.raises(nx.NeurenixError, match="weight has shape"):
        to_torch(model, torch.nn.Linear(5, 2))
    assert model(array(7, 4)).shape == (7, 2)  # the batch may be of any size


def test_mixed_precision_multiplies_in_bfloat16() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    model = from_torch(net, (tensor(2, 4),))
    model.compile(optimizer="sgd", loss="mse", precision="bfloat16")
    model.fit(array(8, 4), array(8, 2), verbose=False)
    assert model.parameters()["0.weight"].dtype == jnp.float32
    model.to(dtype="bfloat16").eval()
    text = str(jax.make_jaxpr(lambda x: model(x))(jnp.ones((2, 4), jnp.bfloat16)))
    products = [line for line in text.splitlines() if "dot_general" in line]
    assert products and all("bf16" in line for line in products)

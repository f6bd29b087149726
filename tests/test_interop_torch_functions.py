"""Classes of ``torch.autograd.Function``: their own backward pass is used, or they are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import neurenix as nx
from neurenix.interop.torch.repeats import Loop

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]


class Sevenfold(torch.autograd.Function):
    """Another gradient than that of its forward pass."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 7 * g


class Reversal(torch.autograd.Function):
    """Returns its input, and a number with it that needs no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return -ctx.factor * g, None


class Rounded(torch.autograd.Function):
    """Straight through, by ``setup_context``."""

    @staticmethod
    def forward(x: Any) -> Any:
        return x.round()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g * (x.abs() < 1)


class Product(torch.autograd.Function):
    """Two inputs of other shapes, two outputs of which one is of integers, shapes in ``ctx``."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any) -> Any:
        ctx.save_for_backward(x, weight)
        ctx.rows = x.shape[0]
        y = x @ weight
        best = y.argmax(1)
        ctx.mark_non_differentiable(best)
        return y, best

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any, _: Any) -> Any:
        x, weight = ctx.saved_tensors
        return g @ weight.t(), 3 * x.t() @ g / ctx.rows


class Layer(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind = torch.nn.Linear(4, 4), kind

    def forward(self, x: Any) -> Any:
        x = self.linear(x)
        if self.kind == "sevenfold":
            return Sevenfold.apply(x)
        if self.kind == "reversal":
            return Reversal.apply(x, 0.5)
        if self.kind == "rounded":
            return Rounded.apply(x)
        if self.kind == "no_grad":
            with torch.no_grad():
                y = Sevenfold.apply(x)
            return x + y
        return x


class Net(torch.nn.Module):
    def __init__(self, kind: str, depth: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer(kind) for _ in range(depth))
        self.weight = torch.nn.Parameter(torch.randn(4, 3))
        self.kind = kind

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        if self.kind == "product":
            y, best = Product.apply(x, self.weight)
            return y * best[:, None]
        if self.kind == "checkpoint":
            x = torch.utils.checkpoint.checkpoint(torch.tanh, x, use_reentrant=True)
        return x


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


@pytest.mark.parametrize(
    "kind", ["sevenfold", "reversal", "rounded", "product", "no_grad", "checkpoint"]
)
@pytest.mark.parametrize("depth", [1, 5])
def test_the_backward_pass_of_a_function_is_used(kind: str, depth: int) -> None:
    """By our own loss, at a batch of another size than the example."""
    torch.manual_seed(0)
    net = Net(kind, depth)
    model = nx.from_torch(net, (tensor(3, 4),))
    assert model.verification is not None and model.verification.gradients < 1e-4
    folded = any(isinstance(step, Loop) for step in model.program().steps)
    assert folded == (depth == 5), "a call of a Function is like in each layer"
    x = tensor(7, 4, seed=1)
    slopes = nx.grad(lambda model: (model(jnp.asarray(x.numpy())) ** 2).sum())(model)
    (net(x) ** 2).sum().backward()
    wanted = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
    by_name = {".".join(map(str, path)): v[...] for path, v in nnx.to_flat_state(slopes)}
    for name, expected in wanted.items():
        found = by_name.get(name)
        if found is None:
            _, number, _, last = name.split(".")
            found = by_name[f"layers.0-{depth - 1}.linear.{last}"][int(number)]
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


class ByValue(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (x,) = ctx.saved_tensors
        return g if x.sum() > 0 else -g


class Nested(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, xs: Any) -> Any:
        return xs[0]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return [g]


class Applied(torch.nn.Module):
    def __init__(self, call: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(4))
        self.call = call

    def forward(self, x: Any) -> Any:
        return self.call(x * self.weight)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda x: Dirty.apply(x), "Dirty at .* is a torch.autograd.Function.*in place"),
        (
            lambda x: ByValue.apply(x),
            "(?s)ByValue at .* is a torch.*by the values",
        ),
        (lambda x: Nested.apply([x]), "Nested at .* is a torch.autograd.Function.*nested"),
    ],
)
def test_a_function_whose_backward_cannot_be_exported_is_refused_by_name(
    call: Any, said: str
) -> None:
    with pytest.raises(nx.ConversionError, match=said) as caught:
        nx.from_torch(Applied(call), (tensor(3, 4),))
    assert "nx.register_torch_op(" in str(caught.value)
    assert "test_interop_torch_functions.py:" in str(caught.value)


def test_a_rule_for_a_function_is_used() -> None:
    @jax.custom_vjp
    def rule(x: Any) -> Any:
        return 2 * x

    rule.defvjp(lambda x: (2 * x, x), lambda x, g: (jnp.where(x.sum() > 0, g, -g),))
    nx.register_torch_op(ByValue, rule)
    model = nx.from_torch(Applied(lambda x: ByValue.apply(x)), (tensor(3, 4),))
    assert model.verification is not None and model.verification.gradients < 1e-5
    nx.register_torch_op(ByValue, lambda x: 2 * x)
    torch.manual_seed(3)
    with pytest.raises(nx.ConversionError, match="computes something else here"):
        nx.from_torch(Applied(lambda x: ByValue.apply(x)), (-tensor(3, 4).abs(),))

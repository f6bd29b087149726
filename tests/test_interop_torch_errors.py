"""PyTorch modules that cannot be converted: one clear error each, and the report of the check."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import neurenix as nx

torch = pytest.importorskip("torch")

from neurenix.interop.torch import (  # noqa: E402  after the skip
    check,
    from_torch,
    operators,
    registry,
    to_torch,
)

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

HERE = r"test_interop_torch_errors\.py:\d+"


def tensor(*shape: int, seed: int = 0) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


class Refused(torch.nn.Module):
    """A forward pass that cannot be a program, by kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        self.kind = kind

    def forward(self, x: Any) -> Any:
        x = x * self.weight
        if self.kind == "if" and x.sum() > 0:
            return x + 1
        if self.kind == "while":
            while x.abs().max() > 1:
                x = x / 2
        if self.kind == "for":
            for _ in range(int(x.argmax())):
                x = x + 1
        if self.kind == "numpy":
            return torch.from_numpy(x.detach().numpy()) * x
        if self.kind == "tolist":
            return x * sum(x[0].tolist())
        if self.kind == "item" and x.mean().item() > 0:
            return x + 1
        if self.kind == "mask":
            return x[x > 0]
        if self.kind == "nonzero":
            return torch.nonzero(x)
        if self.kind == "shapes":
            return x @ torch.ones(5, 5)
        return x


def linear(*, quantized: bool = False) -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    if not quantized:
        return net
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.ao.quantization.quantize_dynamic(net, {torch.nn.Linear}, torch.qint8)


def scripted() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(linear())


def hooked() -> Any:
    net = linear()
    net[0].register_full_backward_hook(lambda module, inputs, outputs: None)
    return net


def half_on_meta() -> Any:
    net = linear()
    net[0].bias = torch.nn.Parameter(torch.zeros(4, device="meta"))
    return net


def sparse() -> Any:
    net = linear()
    net[0].weight = torch.nn.Parameter(net[0].weight.detach().to_sparse())
    return net


X = tensor(3, 4)
CASES: dict[str, tuple[Any, Any, str]] = {
    "if": (lambda: Refused("if"), X, f"decides by the values of tensors.*{HERE}.*torch.where"),
    "while": (lambda: Refused("while"), X, f"decides by the values of tensors.*{HERE}"),
    "for": (lambda: Refused("for"), X, f"decides by the values of tensors.*{HERE}"),
    "item": (lambda: Refused("item"), X, f"decides by the values of tensors.*{HERE}"),
    "numpy": (lambda: Refused("numpy"), X, f"values leave the program.*numpy.*{HERE}"),
    "mask": (lambda: Refused("mask"), X, r"mask"),
    "nonzero": (lambda: Refused("nonzero"), X, f"size of the result depends on values.*{HERE}"),
    "shapes": (lambda: Refused("shapes"), X, f"fails in PyTorch with these example inputs.*{HERE}"),
    "wrong inputs": (linear, tensor(3, 5), "fails in PyTorch with these example inputs.*cannot be"),
    "too many": (linear, (X, X), "fails in PyTorch.*takes 2 positional arguments"),
    "numpy inputs": (linear, X.numpy(), r"Example input 0 is a numpy\.ndarray.*torch.from_numpy"),
    "sparse input": (linear, X.to_sparse(), "Example input 0 is a sparse tensor.*to_dense"),
    "sparse weight": (sparse, X, "0.weight is sparse.*to_dense"),
    "quantized": (lambda: linear(quantized=True), X, "'0', a Linear: a quantized layer.*before it"),
    "scripted": (scripted, X, "TorchScript"),
    "data parallel": (lambda: torch.nn.DataParallel(linear()), X, r"module\.module"),
    "backward hook": (hooked, X, "'0', a Linear: it has backward hooks"),
    "half meta": (half_on_meta, X, "1 of 2 parameters are on the meta device, such as 0.bias"),
    "meta": (lambda: linear().to("meta"), X, "parameters are on meta, and example inputs on cpu"),
    "lazy": (lambda: torch.nn.LazyLinear(3), X, "not initialized.*Call the module once"),
    "nothing": (linear, None, "needs example inputs"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "inputs", "said"), CASES.values(), ids=list(CASES))
def test_what_cannot_be_converted_is_one_clear_error(make: Any, inputs: Any, said: str) -> None:
    with pytest.raises(nx.NeurenixError, match=f"(?s){said}"):
        from_torch(make(), inputs)


class Several(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        if x.sum() > 0:
            x = x + 1
        y = torch.special.bessel_j0(x)
        if y.max() > 3:
            y = y + 1
        return torch.special.bessel_y0(y).double() * x.argmax(1, keepdim=True)


def test_all_decisions_and_all_unknown_operators_are_named_at_once() -> None:
    with pytest.raises(nx.ConversionError) as caught:
        from_torch(Several(), X)
    assert str(caught.value).count("a number is taken out of a tensor") == 2, caught.value
    report = check(Several(), X)
    assert len(report.problems) == 2 and len({problem.line for problem in report.problems}) == 2


class Unknown(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = torch.special.bessel_j0(x)
        return torch.special.bessel_y0(y).double() * x.argmax(1, keepdim=True)


def test_the_report_has_every_operator_with_its_line() -> None:
    report = check(Unknown(), X)
    assert not report.is_convertible
    unknown = [use.name for use in report.operators if not use.is_supported]
    assert unknown == ["aten::special_bessel_j0.default", "aten::special_bessel_y0.default"]
    assert all(use.line is not None and use.count == 1 for use in report.operators)
    assert {"aten::argmax.default"} < {use.name for use in report.operators}
    said = report.text(200)
    assert "torch.int64 is computed as int32 at" in said
    assert "torch.float64 is computed as float32 at" in said
    assert 'nx.register_torch_op("aten::special_bessel_j0", function)' in said
    for width in (40, 80):
        assert max(map(len, report.text(width).splitlines())) <= width
    good = check(linear(), X)
    assert good.is_convertible and "can be converted" in str(good)


def test_modules_with_wrappers_and_odd_results_work() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(linear())
    model = from_torch(compiled, X)
    assert sorted(model.parameters()) == ["0.bias", "0.weight"]
    to_torch(model, compiled)

    class Odd(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return {"y": 2 * x, "none": None, "count": 3, "best": x.argmax(1), "empty": x[:0]}

    number = from_torch(Refused("tolist"), X).verification  # which has no gradient in PyTorch
    assert number is not None and number.outputs < 1e-5 and number.gradients < 1e-5
    found = from_torch(Odd(), X.clone().requires_grad_())(X.numpy())
    assert found["none"] is None and found["count"] == 3 and found["empty"].shape == (0, 4)
    given = X.clone().requires_grad_()
    from_torch(linear(), given)
    assert given.grad is None

    hook = linear()
    hook[0].register_forward_hook(lambda module, inputs, output: output * 2)
    found = from_torch(hook, X).verification
    assert found is not None and found.outputs < 1e-5


MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, good):
        super().__init__()
        self.linear, self.good = torch.nn.Linear(4, 2), good
    def forward(self, x):
        x = self.linear(x)
        if not self.good and x.sum() > 0:
            x = x + 1
        return x

def good():
    return Net(True), torch.ones(3, 4)
def bad():
    return Net(False), torch.ones(3, 4)
"""


def test_the_command_says_what_is_wrong_and_where(run_python: Any, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    command = ("-m", "neurenix", "check")
    done = run_python(*command, "model.py:good", env={"COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert "can be converted" in done.stdout and "aten::linear.default" in done.stdout
    done = run_python(*command, "model.py:bad", env={"COLUMNS": "40"})
    assert done.returncode == 1, done.stderr
    assert "model.py:10" in done.stdout and "torch.where" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 40
    done = run_python(*command, "model.py:none")
    assert done.returncode == 2 and "has no function 'none'" in done.stderr


def test_weights_go_back_whole_or_not_at_all() -> None:
    """Stacked layers, tied and narrow weights, statistics; a module that differs is as it was."""

    class Layers(torch.nn.Module):
        def __init__(self, widths: tuple[int, ...] = (4, 4, 4, 4)) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(
                torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))
                for width in widths
            )
            self.last = torch.nn.Linear(4, 4, bias=False)
            self.last.weight = self.layers[0][0].weight

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return self.last(x)

    net = Layers()
    model = from_torch(net, X)
    model.compile(optimizer="sgd", loss="mse")
    model.fit(X.numpy(), X.numpy(), verbose=False)
    other = Layers()
    to_torch(model, other)
    assert other.last.weight is other.layers[0][0].weight
    assert [int(layer[1].num_batches_tracked) for layer in other.layers] == [1, 1, 1, 1]
    np.testing.assert_allclose(
        model.eval()(X.numpy()), other.eval()(X).detach().numpy(), rtol=1e-5, atol=1e-6
    )
    narrow = Layers().to(torch.bfloat16)
    to_torch(model, narrow)
    assert narrow.last.weight.dtype == torch.bfloat16
    for wrong in (Layers((4, 4, 4, 5)), torch.nn.Linear(4, 4)):
        before = {name: tensor.clone() for name, tensor in wrong.state_dict().items()}
        with pytest.raises(nx.ConversionError, match="missing|has shape"):
            to_torch(model, wrong)
        assert all(torch.equal(t, before[n]) for n, t in wrong.state_dict().items())


class Plain(torch.nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.weight, self.kind = torch.nn.Parameter(torch.ones(4)), kind

    def forward(self, x: Any) -> Any:
        y = x * self.weight
        if self.kind == "constant":
            return torch.zeros_like(x) * self.weight
        if self.kind == "nan":
            return torch.log(-y.abs() - 1)
        if self.kind == "some nan":
            return torch.log(y)
        if self.kind == "integers":
            return y.argmax(1)
        if self.kind == "half":
            return (y.bfloat16() @ y.t().bfloat16()).softmax(-1)
        if self.kind == "sinh":
            return torch.sinh(y) + self.weight.sinh()
        return y


def test_the_comparison_sees_what_is_wrong() -> None:
    """Wrong values, wrong gradients and missing dependence of a function for an operator."""

    @jax.custom_vjp
    def steep(x: Any) -> Any:
        return jax.numpy.sinh(x)

    steep.defvjp(lambda x: (jax.numpy.sinh(x), x), lambda x, g: (2 * g * jax.numpy.cosh(x),))
    wrong = (lambda x: x, lambda x: jax.numpy.zeros_like(x), steep, lambda x: jax.numpy.nan * x)
    operators.load()
    original = registry.find("aten", "sinh", "default")
    assert original is not None
    try:
        for function in wrong:
            nx.register_torch_op("aten::sinh", function)
            with pytest.raises(nx.ConversionError, match="something else here|does not depend"):
                from_torch(Plain("sinh"), X)
    finally:
        registry.add("aten::sinh", original)
    found = from_torch(Plain("sinh"), X).verification
    assert found is not None and found.gradients < 1e-5


def test_the_comparison_of_odd_outputs() -> None:
    said = from_torch(Plain("constant"), X).verification
    assert said is not None and not said.depends_on_input
    assert "does not depend, here or in PyTorch, on the input" in str(said)
    with pytest.raises(nx.ConversionError, match="All outputs of Plain .* are NaN"):
        from_torch(Plain("nan"), X)
    for kind in ("some nan", "integers", "half"):
        found = from_torch(Plain(kind), X).verification
        assert found is not None and found.depends_on_input, kind
    for dtype in (torch.float64, torch.bfloat16):
        found = from_torch(Plain("").to(dtype), X.to(dtype)).verification
        assert found is not None and found.outputs < 1e-2
    random = from_torch(torch.nn.Sequential(Plain(""), torch.nn.Dropout(0.5)), X).verification
    assert random is not None and random.training is None and random.gradients < 1e-5


def test_an_element_at_a_kink_is_no_error_and_a_wrong_gradient_is() -> None:
    """ReLU at rounding from zero: PyTorch takes one side, and we the other."""

    class Kinked(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = torch.nn.Parameter(torch.zeros(2))

        def forward(self, x: Any) -> Any:
            return torch.relu(torch.ops.kinked.nearly(x + self.bias))

    @torch.library.custom_op("kinked::nearly", mutates_args=())
    def nearly(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    nearly.register_fake(lambda x: torch.empty_like(x))
    nearly.register_autograd(lambda ctx, slope: slope)
    x = torch.tensor([[1.0, 1e-9], [2.0, 3.0]])
    nx.register_torch_op("kinked::nearly", lambda x: x - 2e-9)
    assert from_torch(Kinked(), (x,)).verification.gradients < 1e-3
    nx.register_torch_op("kinked::nearly", lambda x: 2 * x - jax.lax.stop_gradient(x))
    with pytest.raises(nx.ConversionError, match="computes something else"):
        from_torch(Kinked(), (x,))

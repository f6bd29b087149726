"""Preflight of PyTorch modules: without weights, with the lines of their files, in any batch."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx
from neurenix import chips

torch = pytest.importorskip("torch")

from neurenix._core.source_files import SourceLine, converted_function, users  # noqa: E402
from neurenix.interop.torch import from_torch  # noqa: E402  after the skip
from neurenix.preflight.describe_program import describe  # noqa: E402
from neurenix.preflight.torch_target import compiled_model, torch_target  # noqa: E402
from neurenix.preflight.torch_workload import fully_divided  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

HERE = Path(__file__).name
CROSS_ENTROPY = nx.losses.SparseCategoricalCrossentropy(from_logits=True)


class Layer(torch.nn.Module):
    """A product that fills little of the matrix unit, on a line of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(24, 24)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(x @ self.linear.weight)  # the line


class Narrow(torch.nn.Module):
    """Equal layers, one after the other."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(count))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


(LINE,) = [n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
           if text.endswith("# the line")]  # fmt: skip


def on_meta(make: Any, *args: Any) -> Any:
    with torch.device("meta"):
        return make(*args)


def test_the_program_from_shapes_is_that_of_the_same_module_with_values() -> None:
    """Same step, traced: the operations of both, and the same parameters and targets."""
    x = torch.zeros(32, 24)
    abstract = torch_target(
        on_meta(Narrow, 5), (), None, None, example_inputs=x.to("meta"), loss="mse", optimizer="sgd"
    )
    model = from_torch(Narrow(5), x).compile("sgd", "mse")
    where = chips.resolve("v5e-8")
    programs = [
        describe(abstract[0], abstract[1], where, mesh={"fsdp": 8}),
        describe(model, ((nx.spec((32, 24)),), nx.spec((32, 24))), where, mesh={"fsdp": 8}),
    ]
    assert programs[0].model_flops == programs[1].model_flops > 0
    leaves = [[(leaf.path, leaf.shape, leaf.role) for leaf in p.leaves] for p in programs]
    assert leaves[0] == leaves[1]


def test_targets_are_those_that_the_loss_takes() -> None:
    net = torch.nn.Linear(8, 5)
    target = torch_target(
        net, (), (64, 8), None, example_inputs=None, loss=nx.losses.CrossEntropyLoss(),
        optimizer=None,
    )  # fmt: skip
    _, (inputs, targets), shape = target
    assert shape is None and inputs[0].shape == (64, 8)
    assert targets.shape == (64,) and targets.dtype == jnp.int32


@pytest.mark.tpu_compile
def test_findings_name_the_line_of_the_users_module() -> None:
    reports = nx.preflight(
        on_meta(Narrow, 6),
        example_inputs=torch.zeros(4096, 24, device="meta"),
        loss="mse",
        optimizer="sgd",
        on=["v5e-1", "v5e-8"],
    )
    for report in reports:
        assert report.fits
        (small,) = [f for f in report.findings if f.rule == "small-operations"]
        assert small.source is not None and small.source.function == "forward"
        places = [*(f.source for f in report.findings), *(o.source for o in report.operations)]
        here = [place for place in places if place and Path(place.file).name == HERE]
        assert len(here) > 3 and {place.line for place in here} == {LINE}
        assert not any(place and "interop/torch" in place.file for place in places)
        assert f"{HERE}:{LINE}" in str(report)


@pytest.mark.tpu_compile
def test_a_model_that_does_not_fit_names_its_lines_and_what_helps() -> None:
    """Sixteen layers with 4 GiB of activations each: less is kept, and other batches compiled."""

    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1024, 1024)

        def forward(self, x: Any) -> Any:
            return x + torch.tanh(self.linear(torch.sin(x)))

    def make() -> Any:
        return torch.nn.Sequential(*(Wide() for _ in range(16)))

    x = torch.zeros(256 * 1024, 1024, device="meta")
    report = nx.preflight(on_meta(make), example_inputs=x, loss="mse", optimizer="sgd", on="v5e-1")
    assert not report.fits and report.refused == "hbm"
    changes = {suggestion.change: suggestion.fits for suggestion in report.suggestions}
    assert any('nx.from_torch(…, remat="full")' in change for change in changes)
    assert any("a global batch of" in change for change in changes)  # exported anew for it
    assert HERE in str(report)


def test_lines_of_converted_models_are_the_users_even_in_a_library() -> None:
    library = f"{Path(torch.__file__).parent}/nn/modules/linear.py"
    assert users(SourceLine(library, 3, "forward")) is None
    marked = SourceLine(library, 3, converted_function("forward"))
    assert users(marked) == SourceLine(library, 3, "forward")


def test_another_batch_has_a_program_of_its_own_where_no_axis_is_free() -> None:
    """Views with sizes of the batch would be wrong for another one: it is exported anew."""

    class Folds(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)

        def forward(self, x: Any) -> Any:
            return self.linear(x).reshape(len(x) // 2, 8).sum(0) * len(x)

    net = Folds()
    model = from_torch(net, torch.zeros(4, 4), dynamic_shapes={})
    for rows in (4, 6, 2):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_allclose(
            model(jnp.asarray(x)), net(torch.from_numpy(x)).detach().numpy(), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("policy", ["minimal", "full"])
def test_recomputation_changes_no_gradient(policy: str) -> None:
    torch.manual_seed(0)
    net = Narrow(5)
    model = from_torch(net, torch.ones(8, 24))
    again = model.with_remat(policy)
    assert again.remat == policy and model.remat == "none"
    x = jnp.asarray(np.random.default_rng(0).normal(size=(8, 24)), jnp.float32)

    def loss(model: Any) -> Any:
        return (model(x) ** 2).sum()

    ours, theirs = (nx.jit(nx.grad(loss))(each) for each in (model, again))
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)

    with pytest.raises(nx.ArgumentError, match=r"compile\(…, remat=\"dots\"\)"):
        from_torch(Narrow(1), torch.ones(8, 24)).with_remat("full")
    with pytest.raises(nx.UnknownNameError):
        model.with_remat("ful")


class Masked(torch.nn.Module):
    """Attention with a mask that is materialised, as models of transformers do it."""

    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.project, self.mask = torch.nn.Linear(8, 24), mask

    def forward(self, x: Any) -> Any:
        query, key, value = self.project(x)[:, None].chunk(3, -1)
        mask = self.mask(x.shape[1], x)
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, mask)


def _ahead(size: int) -> Any:
    return torch.arange(size)[:, None] - torch.arange(size)


MASKS = {
    "causal": (lambda n, x: _ahead(n) >= 0, {"attn_mask": None, "is_causal": True}),
    "added": (
        lambda n, x: torch.zeros(n, n).masked_fill(_ahead(n) < 0, torch.finfo(x.dtype).min),
        {"attn_mask": None, "is_causal": True},
    ),
    "window": (
        lambda n, x: (_ahead(n) >= 0) & (_ahead(n) < 3),
        {"attn_mask": None, "is_causal": True, "window": 3},
    ),
    "all": (lambda n, x: _ahead(n) > -n, {"attn_mask": None}),
    "both sides": (lambda n, x: _ahead(n).abs() < 3, {}),
    "batch": (lambda n, x: ((_ahead(n) >= 0) & torch.ones(2, 1, 1, 1, dtype=torch.bool)),
              {"attn_mask": None, "is_causal": True}),
    "soft": (lambda n, x: -_ahead(n).abs().float(), {}),
    "of the input": (lambda n, x: (_ahead(n) >= 0) & (x[0, :, 0] < 9), None),
}  # fmt: skip


@pytest.mark.parametrize("name", MASKS)
def test_masks_that_no_input_decides_are_told_by_their_values(name: str) -> None:
    make, expected = MASKS[name]
    net = Masked(make)
    x = torch.randn(2, 7, 8, generator=torch.Generator().manual_seed(0))
    model = from_torch(net, x, dynamic_shapes={}).eval()  # which compares outputs and gradients
    found = nx.jit(lambda model, x: model(x))(model, jnp.asarray(x.numpy()))
    np.testing.assert_allclose(found, net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    (told,) = model.program(training=False).program.masks.values()
    assert told == (expected or {})


def test_zeros_as_example_inputs_compare_more_than_rounding() -> None:
    """Batch statistics of zeros alone are rounding, and 300 times that in the gradients."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 10),
    )  # fmt: skip
    model = from_torch(net, (torch.zeros(2, 3, 32, 32),))
    assert model.verification is not None
    assert model.verification.outputs < 1e-5 and model.verification.depends_on_input


def test_mistakes_say_what_to_do() -> None:
    net, x = torch.nn.Linear(4, 2), torch.zeros(8, 4)
    sgd = torch.optim.SGD(net.parameters(), 0.1)
    for options, kind, message in (
        ({"loss": "mse"}, nx.ArgumentError, "example_inputs="),
        ({"example_inputs": x}, nx.NotCompiledError, "has no loss here"),
        ({"example_inputs": x, "loss": torch.nn.MSELoss()}, nx.ArgumentTypeError,
         r"nx.losses.MSELoss\(…\)"),
        ({"example_inputs": x, "loss": "mse", "optimizer": sgd}, nx.ArgumentTypeError,
         r"nx.optim.SGD\(…\)"),
        ({"example_inputs": x, "input_shape": (8, 4), "loss": "mse"}, nx.ArgumentTypeError,
         "not both"),
        ({"example_inputs": (x, 3), "loss": "mse"}, nx.ArgumentTypeError, "has a int, 3"),
        ({"example_inputs": x, "loss": "ms"}, nx.UnknownNameError, "Did you mean"),
    ):  # fmt: skip
        with pytest.raises(kind, match=message):
            nx.preflight(net, on="v5e-1", **options)
    ours = nx.nn.Linear(4, 2).compile("sgd", "mse")
    with pytest.raises(nx.ArgumentTypeError, match="loss= are for PyTorch modules; got Linear"):
        nx.preflight(ours, on="v5e-1", input_shape=(8, 4), loss="mse")
    with pytest.raises(nx.ArgumentError, match="leave check out"):
        from_torch(on_meta(torch.nn.Linear, 4, 2), x.to("meta"), check=True)


def test_the_mesh_may_follow_from_the_slice() -> None:
    model = compiled_model(on_meta(Narrow), (nx.spec((32, 24)),), loss="mse", optimizer="sgd")
    batch = (nx.spec((32, 24)), nx.spec((32, 24)))
    for name, axes in (("v5e-8", {"fsdp": 8}), ("2xv5e-8", {"data": 2, "fsdp": 8})):
        where = chips.resolve(name)
        assert fully_divided(where) == axes
        program = describe(model, batch, where, mesh=fully_divided(where))
        assert program.axes == axes


@pytest.mark.tpu_compile
def test_the_programs_of_the_docs_run(tmp_path: Path) -> None:
    page = (Path(__file__).parent.parent / "docs" / "torch.md").read_text()
    programs = re.findall(r"```py\n(.*?)```", page, re.DOTALL)
    assert len(programs) == 2
    for program in programs:
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True,
            timeout=540, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{program}\n{done.stdout}\n{done.stderr}"


@pytest.mark.tpu_compile
def test_the_usage_program_runs_unchanged(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "09_from_torch.py"
    done = subprocess.run(
        [sys.executable, str(example)], cwd=tmp_path, capture_output=True, text=True, timeout=540,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        "Preflight of training step on v5e-8" in done.stdout and "fits         yes" in done.stdout
    )
    assert "Sequential converted; largest difference from PyTorch" in done.stderr

"""Files of PyTorch models: the function that makes one, and weights under PyTorch's names."""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

import neurenix as nx
from neurenix import nn
from neurenix.checkpoint.tensor_files import SafetensorsFile
from process_helpers import BEGIN, run_in_two_processes

torch = pytest.importorskip("torch")
safetensors_torch = pytest.importorskip("safetensors.torch")

from neurenix.interop.torch.model_file import load_model  # noqa: E402  after the skip

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

MODEL_FILE = """
import dataclasses
import torch
import beside_it

@dataclasses.dataclass
class Config:
    width: int = 4

class Net(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = torch.nn.Linear(config.width, 2)
    def forward(self, x, scale=None):
        return self.linear(x) * (1 if scale is None else scale)

def one():
    return Net(Config()), torch.ones(3, beside_it.WIDTH)
def several():
    return Net(Config()), (torch.ones(3, 4), torch.tensor(2.0))
def named():
    return Net(Config()), {"x": torch.ones(3, 4), "scale": torch.tensor(2.0)}
def alone():
    return Net(Config())
def without():
    return Net(Config()), None
def no_module():
    return 3, torch.ones(3, 4)
def fails():
    raise ValueError("no weights here")
def leaves():
    raise SystemExit(3)

if __name__ == "__main__":
    raise AssertionError("it is not run as a program")
"""


@pytest.fixture
def model_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "beside_it.py").write_text("WIDTH = 4\n")
    path = tmp_path / "a_model.py"
    path.write_text(MODEL_FILE)
    return path


@pytest.mark.parametrize(
    ("function", "num_args", "names"),
    [("one", 1, []), ("several", 2, []), ("named", 0, ["scale", "x"])],
)
def test_a_function_in_a_file_makes_the_model(
    model_file: Path, function: str, num_args: int, names: list[str]
) -> None:
    module, args, kwargs = load_model(f"{model_file}:{function}")
    assert type(module).__name__ == "Net" and len(args) == num_args and sorted(kwargs) == names
    assert nx.from_torch(module, args, example_kwargs=kwargs).verification is not None


@pytest.mark.parametrize(
    ("function", "said"),
    {
        "alone": r"alone\(\) of .* returned Net\. It returns two things, the module and its",
        "without": "returned no example inputs",
        "no_module": "returned int where the torch.nn.Module belongs",
        "fails": r"fails\(\) of .* failed at .*a_model\.py:30: ValueError: no weights here",
        "leaves": "SystemExit: 3",
        "sevral": "has no function 'sevral'. Did you mean 'several'",
    }.items(),
)
def test_what_such_a_function_does_wrong_is_said(
    model_file: Path, function: str, said: str
) -> None:
    with pytest.raises(nx.NeurenixError, match=said):
        load_model(f"{model_file}:{function}")


def test_what_such_a_file_does_wrong_is_said(tmp_path: Path, model_file: Path) -> None:
    for spec in ("model.py", ":make_model", "model.py:", "model.py:make model", ""):
        with pytest.raises(nx.ArgumentError, match="FILE.py:FUNCTION"):
            load_model(spec)
    with pytest.raises(nx.ArgumentError, match="There is no file"):
        load_model(f"{tmp_path}/none.py:make_model")
    texts: dict[str, Any] = {
        "import not_there_at_all\n": r"broken\.py.*ModuleNotFoundError.*not_there_at_all",
        "def make_model(:\n": r"broken\.py failed at line 1: SyntaxError",
    }
    for text, said in texts.items():
        (tmp_path / "broken.py").write_text(text)
        with pytest.raises(nx.ArgumentError, match=said):
            load_model(f"{tmp_path}/broken.py:make_model")
    named_as_another = tmp_path / "json.py"
    named_as_another.write_text(MODEL_FILE)
    module, _, _ = load_model(f"{named_as_another}:one")
    assert sys.modules[type(module).__module__].__file__ == str(named_as_another)
    assert json.dumps(3) == "3"


class Layer(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(width, width)
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x: Any) -> Any:
        return x + torch.tanh(self.norm(self.linear(x)))


class Net(torch.nn.Module):
    """Repeated layers, tied weights, statistics, and a buffer that is in no file."""

    def __init__(self, width: int = 8, depth: int = 4, stored: bool = False) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, width, bias=False)
        self.layers = torch.nn.ModuleList(Layer(width) for _ in range(depth))
        self.last = torch.nn.Linear(4, width, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.full((width,), 0.5), persistent=stored)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        for layer in self.layers:
            y = layer(y)
        return (y * self.scale) @ self.last.weight


def net(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    made = Net(**options)
    for name, buffer in made.named_buffers():
        if "running" in name:
            buffer.add_(torch.rand(8))
    return made.eval()


X = np.random.default_rng(0).normal(size=(6, 4)).astype(np.float32)


def converted(module: Any) -> Any:
    x = torch.from_numpy(X).to(module.first.weight.device)
    return nx.from_torch(module, (x,), check=False)


def expect_equal(model: Any, module: Any) -> None:
    wanted = module.eval()(torch.from_numpy(X)).detach().float().numpy()
    np.testing.assert_allclose(model.eval()(X), wanted, rtol=1e-5, atol=1e-6)


def test_files_have_the_names_of_pytorch(tmp_path: Path) -> None:
    model, path = converted(net()), tmp_path / "model.safetensors"
    assert "layers.0-3.linear.weight" in model.parameters(), "the layers are one loop"
    model.compile(optimizer="sgd", loss="mse")
    model.fit(X, X, verbose=False)
    model.save(path)
    state = safetensors_torch.load_file(path)
    again = Net()
    assert sorted(state) == sorted(again.state_dict())
    again.load_state_dict(state, strict=True)
    assert int(again.layers[3].norm.num_batches_tracked) == 1
    expect_equal(model, again)
    expect_equal(converted(net(1)).load(path), again)
    flat = nx.from_torch(net(1), (torch.from_numpy(X),), scan=False, check=False)
    expect_equal(flat.load(path), again)
    with safetensors.safe_open(path, framework="pt") as file:
        assert file.metadata()["format"] == "pt", "which transformers asks for"


def test_a_converted_model_in_another_has_them_with_its_own_path(tmp_path: Path) -> None:
    nx.seed(0)
    model = nn.Sequential(converted(net()), nn.Linear(4, 2))
    model.save(tmp_path / "model.safetensors")
    names = safetensors.numpy.load_file(tmp_path / "model.safetensors")
    assert "layers.0.layers.2.norm.running_mean" in names and "layers.1.kernel" in names
    other = nn.Sequential(converted(net(1)), nn.Linear(4, 2)).load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(other.eval()(X), model.eval()(X))


def written(module: Any, folder: Path, form: str) -> Path:
    """Write a module's state in one of the forms that files have."""
    state = module.state_dict()
    if form == "safetensors":
        path = folder / "any_name.safetensors"
        safetensors_torch.save_file({n: t.clone() for n, t in state.items()}, path)
        return path
    if form == "tied once":
        path = folder / "model.safetensors"
        safetensors_torch.save_model(module, str(path))
        return folder
    if form == "sharded":
        places, names = {}, sorted(state)
        for number in range(3):
            part = {n: state[n].clone() for n in names[number::3]}
            file = f"model-{number + 1:05}-of-00003.safetensors"
            safetensors_torch.save_file(part, folder / file)
            places |= dict.fromkeys(part, file)
        index = folder / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": places}))
        return index
    if form == "data parallel":
        torch.save({f"module.{n}": t for n, t in state.items()}, folder / "pytorch_model.bin")
        return folder
    if form == "checkpoint":
        torch.save({"epoch": 3, "state_dict": state}, folder / "last.ckpt")
        return folder / "last.ckpt"
    path = folder / "model.pt"
    torch.save(state, path, _use_new_zipfile_serialization=form != "old pickle")
    return path


@pytest.mark.parametrize(
    "form",
    ["safetensors", "tied once", "sharded", "data parallel", "checkpoint", "pickle", "old pickle"],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_files_of_pytorch_are_read(tmp_path: Path, form: str, dtype: str) -> None:
    other = net(1).to(getattr(torch, dtype))
    model = converted(net()).load(written(other, tmp_path, form))
    assert all(array.dtype == jnp.float32 for array in model.parameters().values())
    expect_equal(model, other.float())


def test_all_that_does_not_fit_is_named_at_once(tmp_path: Path) -> None:
    state = net().state_dict()
    del state["layers.1.linear.bias"]
    state["layers.2.linear.weight"] = torch.ones(3, 8)
    state["head.weight"] = torch.ones(2)
    state["layers.0.norm.num_batches_tracked"] = torch.tensor(1.5)
    torch.save(state, tmp_path / "model.bin")
    model = converted(net())
    with pytest.raises(nx.CheckpointError) as caught:
        model.load(tmp_path / "model.bin")
    said = str(caught.value)
    for line in (
        "layers.1.linear.bias: missing in the file",
        "layers.2.linear.weight: the model has shape (8, 8), the file (3, 8)",
        "head.weight: in the file, not in the model",
        "layers.0.norm.num_batches_tracked: the model has int32, the file float32",
    ):
        assert line in said, said
    expect_equal(model, net())
    untied = net().state_dict()
    untied["last.weight"] = torch.zeros(8, 4)
    torch.save(untied, tmp_path / "model.bin")
    with pytest.raises(nx.CheckpointError, match="are one array of this model, and differ"):
        model.load(tmp_path / "model.bin")
    expect_equal(model, net())


class Evil:
    def __reduce__(self) -> Any:
        return (Path.touch, (Path("executed"),))


def test_damaged_and_foreign_files_are_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = converted(net())
    index = written(net(), tmp_path, "sharded")
    whole = {"safetensors": written(net(), tmp_path, "safetensors"),
             "pickle": written(net(), tmp_path, "pickle"),
             "old": tmp_path / "old.pth"}  # fmt: skip
    torch.save(net().state_dict(), whole["old"], _use_new_zipfile_serialization=False)
    for path in whole.values():
        data = path.read_bytes()
        for size in (0, 1, 7, 100, len(data) // 2, len(data) - 9):
            path.write_bytes(data[:size])
            with pytest.raises(nx.CheckpointError, match="damaged|no file of weights"):
                model.load(path)
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"a": Evil()}))
    with pytest.raises(nx.CheckpointError, match="a pickle is never executed here"):
        model.load(tmp_path / "evil.pt")
    assert not Path("executed").exists()
    torch.save(net(), tmp_path / "whole.pt")
    with pytest.raises(nx.CheckpointError, match=r"Unsupported global: .*Net.*state_dict"):
        model.load(tmp_path / "whole.pt")
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(nx.CheckpointError, match="holds a list, and not a dict of tensors"):
        model.load(tmp_path / "list.pt")
    (tmp_path / "model.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(64))
    with pytest.raises(nx.CheckpointError, match="HDF5"):
        model.load(tmp_path / "model.h5")
    with pytest.raises(nx.CheckpointError, match="There is no file of weights"):
        model.load(tmp_path / "none.safetensors")
    (tmp_path / "empty").mkdir()
    with pytest.raises(nx.CheckpointError, match="folder"):
        model.load(tmp_path / "empty")
    text = index.read_text()
    for bad, said in {
        text[:40]: "damaged or no index",
        "{}": "damaged or no index",
        text.replace("model-00001", "../model-00001"): "files elsewhere",
        text.replace("first.weight", "fist.weight"): "lack tensors that it names: fist.weight",
        text.replace("00001-of", "00009-of"): "There is no file of weights",
    }.items():
        index.write_text(bad)
        with pytest.raises(nx.CheckpointError, match=said):
            model.load(index)
    expect_equal(model, net())


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What is read of safetensors files: name and number of values."""
    found: list[tuple[str, int]] = []
    original = SafetensorsFile.read

    def read(self: Any, name: str, index: Any = ()) -> Any:
        values = original(self, name, index)
        found.append((name, values.size))
        return values

    monkeypatch.setattr(SafetensorsFile, "read", read)
    return found


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_sharded_model_reads_no_array_whole(
    tmp_path: Path, reads: list[tuple[str, int]], device: str
) -> None:
    path = written(net(1, stored=True), tmp_path, "sharded")
    strategy = nx.distribute.Strategy(nx.devices("tpu"), mesh={"fsdp": 8})
    with strategy.scope():
        model = converted(net(stored=True).to(device))
        if device == "cpu":
            model.compile(optimizer="sgd", loss="mse")
            model.fit(np.tile(X, (4, 1)), np.tile(X, (4, 1)), batch_size=24, verbose=False)
        model.load(path)
    weight = model.parameters()["layers.0-3.linear.weight"]
    assert not weight.is_fully_replicated
    assert max(size for name, size in reads if name == "layers.2.linear.weight") == 8
    x = np.tile(X, (4, 1))
    expected = net(1)(torch.from_numpy(x)).detach().numpy()
    model.compile(optimizer="sgd", loss="mse")
    np.testing.assert_allclose(model.predict(x, verbose=False), expected, rtol=1e-5, atol=1e-6)


def test_buffers_that_no_file_has_need_values(tmp_path: Path) -> None:
    path = written(net(1), tmp_path, "tied once")
    with torch.device("meta"):
        model = converted(Net(depth=2).eval())
    with pytest.raises(nx.CheckpointError, match="scale has no values, and no file has them"):
        model.load(path)
    with pytest.raises(nx.CheckpointError, match="shapes without values"):
        model.save(tmp_path / "out.safetensors")


PROCESSES = (
    BEGIN
    + """
import torch
sys.path.insert(0, "TESTS")
from test_interop_torch_files import X, Net, SafetensorsFile, converted, net

counts, original = {}, SafetensorsFile.read
def read(self, name, index=()):
    values = original(self, name, index)
    counts[name] = counts.get(name, 0) + values.size
    return values
SafetensorsFile.read = read
strategy = nx.distribute.Strategy(nx.devices("cpu"), mesh={"fsdp": 4})
with strategy.scope():
    model = converted(net(stored=True).to("meta"))
    model.load(sys.argv[3])
    model.compile(optimizer="sgd", loss="mse")
print(json.dumps({
    "read": counts["layers.2.linear.weight"],
    "outputs": model.predict(np.tile(X, (2, 1)), batch_size=12).tolist(),
}))
"""
)


@pytest.mark.multiprocess
def test_each_process_reads_its_own_shards(tmp_path: Path) -> None:
    written(net(1, stored=True), tmp_path, "sharded")
    program = PROCESSES.replace("TESTS", str(Path(__file__).parent))
    told = run_in_two_processes(program, tmp_path)
    assert [process["read"] for process in told] == [32, 32], "half of 64 each"
    wanted = net(1)(torch.from_numpy(X)).detach().numpy()
    for process in told:
        np.testing.assert_allclose(process["outputs"][:6], wanted, rtol=1e-5, atol=1e-6)


transformers = pytest.importorskip("transformers")


def tiny(kind: str, **more: Any) -> Any:
    sizes = dict(hidden_size=16, intermediate_size=32, num_hidden_layers=4, num_attention_heads=2,
                 num_key_value_heads=2, vocab_size=40, pad_token_id=0)  # fmt: skip
    if kind == "GPT2":
        sizes = dict(
            n_embd=16,
            n_layer=4,
            n_head=2,
            vocab_size=40,
            n_positions=32,
            bos_token_id=1,
            eos_token_id=1,
        )
    if kind == "Mixtral":
        sizes["num_local_experts"] = 3
    return getattr(transformers, f"{kind}Config")(**sizes, **more)


IDS = np.random.default_rng(0).integers(1, 40, (2, 6))


def language(kind: str, head: str, seed: int, **more: Any) -> Any:
    torch.manual_seed(seed)
    return getattr(transformers, f"{kind}{head}")(tiny(kind, **more)).eval()


def expect_same_logits(model: Any, module: Any) -> None:
    found = model.eval()(input_ids=IDS)
    wanted = module(input_ids=torch.from_numpy(IDS))
    name = "logits" if "logits" in found else "last_hidden_state"
    np.testing.assert_allclose(found[name], wanted[name].detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "saved", "loaded"),
    [
        ("Llama", "ForCausalLM", "ForCausalLM"),
        ("Llama", "ForCausalLM", "Model"),
        ("GPT2", "Model", "LMHeadModel"),
        ("Mixtral", "ForCausalLM", "ForCausalLM"),
        ("Bert", "ForMaskedLM", "ForMaskedLM"),
    ],
)
def test_checkpoints_of_transformers_are_read(
    tmp_path: Path, kind: str, saved: str, loaded: str
) -> None:
    """In several files, with tied weights once, and where the head is there or not."""
    source = language(kind, saved, 1)
    source.save_pretrained(tmp_path, max_shard_size="4KB")
    assert (tmp_path / "model.safetensors.index.json").exists()
    module = language(kind, loaded, 0)
    model = nx.from_torch(module, {"input_ids": torch.from_numpy(IDS)}, check=False)
    model.load(tmp_path)
    wanted = type(module).from_pretrained(tmp_path).eval()
    expect_same_logits(model, wanted)
    model.save(tmp_path / "ours" / "model.safetensors")
    module.config.save_pretrained(tmp_path / "ours")
    expect_same_logits(model, type(module).from_pretrained(tmp_path / "ours").eval())


def test_a_large_integer_of_a_file_is_not_cut(tmp_path: Path) -> None:
    state = net().state_dict()
    state["layers.0.norm.num_batches_tracked"] = torch.tensor(2**40)
    for name, write in (("a.bin", torch.save), ("a.safetensors", safetensors_torch.save_file)):
        write({n: t.clone() for n, t in state.items()}, tmp_path / name)
        with pytest.raises(nx.CheckpointError, match="does not fit into"):
            converted(net()).load(tmp_path / name)

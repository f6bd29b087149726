"""``neurenix preflight --hf`` and ``--torch``: models of transformers from configurations alone."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import neurenix as nx
from neurenix._nnx import nnx

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from neurenix.interop.hugging_face import load_config, workload_of  # noqa: E402  after the skips
from neurenix.interop.torch.workload import workload_of_file  # noqa: E402
from neurenix.preflight.torch_workload import target_of  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

TEXT = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "vocab_size": 100}  # fmt: skip
CONFIGS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (transformers.LlamaConfig, TEXT | {"max_position_embeddings": 64}),
    "bert": (transformers.BertConfig, TEXT | {"max_position_embeddings": 64}),
    "classifier": (
        transformers.BertConfig, TEXT | {"architectures": ["BertForSequenceClassification"]}),
    "answers": (transformers.BertConfig, TEXT | {"architectures": ["BertForQuestionAnswering"]}),
    "t5": (transformers.T5Config,
           {"d_model": 32, "d_ff": 64, "d_kv": 8, "num_layers": 2, "num_heads": 4,
            "vocab_size": 100}),
    "vit": (transformers.ViTConfig,
            {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
             "num_attention_heads": 4, "image_size": 32, "patch_size": 8, "num_labels": 10}),
    "resnet": (transformers.ResNetConfig,
               {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": 7,
                "layer_type": "basic"}),
    "whisper": (transformers.WhisperConfig,
                {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "vocab_size": 100,
                 "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 64,
                 "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 16,
                 "max_target_positions": 12, "pad_token_id": 0, "bos_token_id": 1,
                 "eos_token_id": 2, "decoder_start_token_id": 1}),
    "wav2vec2": (transformers.Wav2Vec2Config,
                 {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                  "num_attention_heads": 4, "conv_dim": [16, 16], "conv_kernel": [10, 3],
                  "conv_stride": [5, 2], "num_conv_pos_embeddings": 16,
                  "num_conv_pos_embedding_groups": 4,
                  "architectures": ["Wav2Vec2ForSequenceClassification"]}),
}  # fmt: skip

# Class, kind, shapes of the inputs, shapes of the targets: for 8 examples of 16 tokens.
EXPECTED: dict[str, tuple[str, str, dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]] = {
    "llama": ("LlamaForCausalLM", "language model", {"input_ids": (8, 16)}, {"logits": (8, 16)}),
    "bert": ("BertForMaskedLM", "masked language model", {"input_ids": (8, 16)},
             {"logits": (8, 16)}),
    "classifier": ("BertForSequenceClassification", "text classification", {"input_ids": (8, 16)},
                   {"logits": (8,)}),
    "answers": ("BertForQuestionAnswering", "question answering", {"input_ids": (8, 16)},
                {"start_logits": (8,), "end_logits": (8,)}),
    "t5": ("T5ForConditionalGeneration", "sequence to sequence",
           {"input_ids": (8, 16), "decoder_input_ids": (8, 16)}, {"logits": (8, 16)}),
    "vit": ("ViTForImageClassification", "image classification", {"pixel_values": (8, 3, 32, 32)},
            {"logits": (8,)}),
    "resnet": ("ResNetForImageClassification", "image classification",
               {"pixel_values": (8, 3, 224, 224)}, {"logits": (8,)}),
    "whisper": ("WhisperForConditionalGeneration", "speech to text",
                {"input_features": (8, 8, 32), "decoder_input_ids": (8, 12)}, {"logits": (8, 12)}),
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", "audio classification",
                 {"input_values": (8, 16000)}, {"logits": (8,)}),
}  # fmt: skip
WITHOUT_TOKENS = ("vit", "resnet", "whisper", "wav2vec2")


def folder_of(name: str, path: Path, **more: Any) -> str:
    """Write the configuration of a tiny model, and return its folder."""
    kind, figures = CONFIGS[name]
    kind(**figures, **more).save_pretrained(path / name)
    return str(path / name)


@pytest.mark.parametrize("name", CONFIGS)
def test_class_batch_and_loss_follow_from_the_configuration(name: str, tmp_path: Path) -> None:
    tokens = None if name in WITHOUT_TOKENS else 16
    workload = workload_of(folder_of(name, tmp_path), batch=8, sequence=tokens)
    class_name, kind, inputs, targets = EXPECTED[name]
    assert type(workload.module).__name__ == class_name
    assert {n: spec.shape for n, spec in workload.inputs.items()} == inputs
    assert {n: spec.shape for n, spec in workload.targets.items()} == targets
    assert set(workload.loss) == set(targets)
    assert all(p.is_meta for p in workload.module.parameters())
    assert f"{class_name} of {tmp_path / name}, kind: {kind}" in workload.description
    assert "cross-entrop" in workload.description and "adamw" in workload.description


def test_the_architectures_of_the_file_decide_and_their_absence_is_said(tmp_path: Path) -> None:
    path = folder_of("bert", tmp_path)
    assert "(not said by the file)" in workload_of(path, batch=8, sequence=16).description
    named = folder_of("bert", tmp_path / "b", architectures=["BertLMHeadModel"], is_decoder=True)
    workload = workload_of(named, batch=8, sequence=16)
    assert type(workload.module).__name__ == "BertLMHeadModel"
    assert "kind: language model, " in workload.description


def test_the_dtype_is_the_configurations_unless_another_is_given(tmp_path: Path) -> None:
    path = folder_of("llama", tmp_path, dtype="bfloat16")
    for given, expected in ((None, torch.bfloat16), ("float32", torch.float32)):
        module = workload_of(path, batch=8, sequence=16, dtype=given).module
        assert {p.dtype for p in module.parameters()} == {expected}
    images = workload_of(folder_of("vit", tmp_path), batch=8, dtype="bfloat16").inputs
    assert images["pixel_values"].dtype == "bfloat16"  # else the first convolution is refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"batch": 8}, "--sequence 2048"),
        ("llama", {"batch": 8, "sequence": 65}, "more than the 64 positions"),
        ("llama", {"batch": None, "sequence": 16}, "--batch 64"),
        ("llama", {"batch": 0, "sequence": 16}, "--batch"),
        ("llama", {"batch": 8, "sequence": 16, "dtype": "bf16"}, "Did you mean 'bfloat16'"),
        ("whisper", {"batch": 8, "sequence": 13}, "more than the 12 positions"),
    ],
)
def test_options_that_do_not_fit_the_model(
    name: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(nx.NeurenixError, match=message):
        workload_of(folder_of(name, tmp_path), **options)


def test_configurations_that_are_none(tmp_path: Path) -> None:
    def told(name: str) -> str:
        with pytest.raises(nx.ArgumentError) as error:
            load_config(name)
        return str(error.value)

    assert "has no config.json" in told(str(tmp_path))
    assert "There is no folder" in told(str(tmp_path / "absent"))
    assert "There is no folder './absent'" in told("./absent")
    file = tmp_path / "config.json"
    file.write_text("{")
    assert "not valid JSON" in told(str(tmp_path))
    file.write_text("{}")
    assert "model_type" in told(str(tmp_path))
    file.write_text('{"model_type": "lama"}')
    text = told(str(tmp_path))
    assert "lama" in text and "--torch" in text
    file.write_text('{"model_type": "sam"}')  # a model without a loss here
    with pytest.raises(nx.ArgumentError, match="'sam' is of no kind"):
        workload_of(str(tmp_path), batch=8)
    file.write_text('{"model_type": "llama", "hidden_size": 30, "num_attention_heads": 0}')
    assert "ZeroDivisionError" in told(str(tmp_path))
    file.write_text('{"model_type": "bert", "hidden_size": 30, "num_attention_heads": 4}')
    with pytest.raises(nx.ConversionError, match="cannot be built from its configuration"):
        workload_of(str(tmp_path), batch=8, sequence=16)


def test_a_name_that_is_nowhere_says_what_to_do_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(*args: Any, **options: Any) -> Any:
        raise OSError("We couldn't connect to 'https://huggingface.co'")

    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", offline)
    with pytest.raises(nx.ArgumentError, match="give a folder with the model's config.json"):
        load_config("neurenix/no-such-model")


@pytest.mark.parametrize(("package", "extra"), [("transformers", "hf"), ("torch", "torch")])
def test_a_missing_extra_is_named(
    package: str, extra: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of("llama", tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(nx.MissingExtraError, match=rf"neurenix\[{extra}\]"):
        workload_of(folder, batch=8, sequence=16)


def test_preflight_loads_no_pytorch_of_its_own(run_python) -> None:
    heavy = ("torch", "transformers")
    code = f"import sys, neurenix.preflight; print([m for m in {heavy} if m in sys.modules])"
    done = run_python(code=code)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


FILE = """
import torch
def make():
    with torch.device("meta"):
        return torch.nn.Linear(8, 4), torch.zeros(16, 8)
def whole():
    with torch.device("meta"):
        return {"module": torch.nn.Linear(8, 4), "example_inputs": (torch.zeros(16, 8),),
                "loss": "mse", "optimizer": "sgd"}
def bare():
    return torch.nn.Linear(8, 4)
def other():
    return 3
def fails():
    raise ValueError("too wide")
def more():
    return {"module": bare(), "example_inputs": torch.zeros(16, 8), "lr": 3}
"""


def test_a_function_of_a_file_gives_module_batch_and_loss(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    file = f"{tmp_path}/net.py"
    whole = workload_of_file(f"{file}:whole", batch=64)
    assert whole.inputs[0].shape == (64, 8) and whole.loss == "mse" and whole.optimizer == "sgd"
    made = workload_of_file(f"{file}:make", loss="CrossEntropyLoss", optimizer="adam")
    assert made.inputs[0].shape == (16, 8) and made.optimizer == "adam"
    assert made.loss == nx.losses.CrossEntropyLoss()
    for name, message in {
        "make": "gives no loss",
        "bare": "returns a module and no example inputs",
        "other": "returns int",
        "fails": r"net.py:\d+: ValueError: too wide",
        "more": "a dict with lr",
        "absent": "has no function 'absent'",
    }.items():
        with pytest.raises(nx.NeurenixError, match=message):
            workload_of_file(f"{file}:{name}")
    with pytest.raises(nx.ArgumentError, match="There is no file"):
        workload_of_file("absent.py:make")
    with pytest.raises(nx.ArgumentError, match="FILE.py:FUNCTION"):
        workload_of_file(file)


@pytest.mark.parametrize("name", ["bert", "t5", "whisper", "vit"])
def test_the_step_of_each_kind_is_that_of_its_batch(name: str, tmp_path: Path) -> None:
    """Its loss for zero weights is the logarithm of the number of classes: all are as likely."""
    workload = workload_of(folder_of(name, tmp_path), batch=8, sequence=None if name in
                           WITHOUT_TOKENS else 16)  # fmt: skip
    model, (inputs, targets) = target_of(workload)

    def zeros_like(tree: Any) -> Any:
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), tree)

    nnx.update(model, zeros_like(nnx.state(model, nnx.Not(nnx.RngState))))
    zeros = zeros_like((inputs, targets))
    outputs = nx.jit(lambda model, inputs: model(**inputs))(model, zeros[0])
    (loss,) = workload.loss.values()
    found = float(loss(zeros[1]["logits"], outputs["logits"]))
    assert found == pytest.approx(math.log(10 if name == "vit" else 100), rel=1e-5)


@pytest.mark.tpu_compile
def test_preflight_of_a_folder_says_what_was_picked_and_names_the_models_lines(
    command, tmp_path: Path
) -> None:
    folder = folder_of("llama", tmp_path, dtype="bfloat16")
    done = command(
        "preflight", "--hf", folder, "--batch", "16", "--sequence", "64", "--on", "v5e-4,v6e-8",
        "--json", "r.json", "--html", "r.html",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    text = " ".join(done.stdout.split())
    assert f"workload LlamaForCausalLM of {folder}" in text
    assert "one global batch: 16 × 64 tokens" in text
    assert "modeling_llama.py:" in text and "interop/torch" not in text
    reports = json.loads((tmp_path / "r.json").read_text())
    assert [report["mesh"] for report in reports] == [{"fsdp": 4}, {"fsdp": 8}]
    assert all("bfloat16" in report["workload"] for report in reports)
    assert reports[0]["batch"] == {"examples": 16, "sequence_length": 64, "tokens": 1024}
    # Matrix products of 4 layers and the head, forward and backward: 6 FLOPs a weight and token,
    # and 12 × 64 × 32 a layer and token for the scores, all of which are computed: the fused
    # kernel, which leaves out the causal half, takes multiples of 128 tokens.
    weights = 4 * (4 * 32 * 32 + 3 * 32 * 64) + 32 * 100
    scores = 4 * 12 * 64 * 32
    assert reports[0]["model_flops"] == 1024 * (6 * weights + scores)
    assert "LlamaForCausalLM" in (tmp_path / "r.html").read_text()


@pytest.mark.tpu_compile
def test_plan_of_a_folder_searches_meshes_and_batches(command, tmp_path: Path) -> None:
    folder = folder_of("vit", tmp_path)
    done = command("plan", "--hf", folder, "--batch", "32,64", "--on", "v5e-4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fsdp=4" in done.stdout and "data=4" in done.stdout
    assert "neurenix preflight --on v5e-4" in done.stdout and f"--hf {folder}" in done.stdout
    assert "--batch 64" in done.stdout or "--batch 32" in done.stdout


@pytest.mark.tpu_compile
def test_preflight_of_a_function_of_a_file(command, tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(FILE)
    done = command("preflight", "--torch", "net.py:whole", "--on", "v5e-1", "--batch", "64")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Linear of net.py:whole, 36 parameters in float32" in done.stdout


def test_command_lines_that_do_not_go_together(command, tmp_path: Path) -> None:
    for arguments, message in {
        (): "Give a script, --hf or --torch",
        ("--hf", "a", "--torch", "b"): "got --hf and --torch",
        ("--hf", "a", "--loss", "mse"): "--loss goes with --torch",
        ("--torch", "a.py:f", "--sequence", "3"): "--sequence goes with --hf",
        ("--batch", "8", "train.py"): "--batch goes with --hf or --torch",
        ("--hf", str(tmp_path), "--batch", "8"): "has no config.json",
    }.items():
        done = command("preflight", "--on", "v5e-8", *arguments)
        assert done.returncode == 2, done.stdout + done.stderr
        assert message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr

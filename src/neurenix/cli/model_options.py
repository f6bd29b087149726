"""Options of commands that take a PyTorch model in place of a script: ``--hf`` and ``--torch``.

Owns which of the three a command line names, and how a model's options are checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from neurenix._core.errors import ArgumentError

if TYPE_CHECKING:
    from neurenix.interop.torch.workload import TorchWorkload

ScriptOrModel = Annotated[
    Path | None,
    typer.Argument(help="Python file that trains a model, or FILE.onnx; or give --hf or --torch"),
]
HuggingFace = Annotated[
    str | None,
    typer.Option(
        "--hf",
        help="model of transformers, built from its configuration without weights: a folder with "
        "config.json, or a name on the Hugging Face Hub",
    ),
]
TorchFile = Annotated[
    str | None,
    typer.Option(
        "--torch",
        help="file.py:function, which takes no arguments and returns (module, example_inputs) of "
        "PyTorch, or a dict of module, example_inputs, loss and, if wanted, optimizer",
    ),
]
Sequence_ = Annotated[int | None, typer.Option("--sequence", help="--hf: tokens of an example")]
Dtype = Annotated[
    str | None,
    typer.Option(help="--hf: dtype of the parameters; default: the configuration's, or float32"),
]
LossName = Annotated[
    str | None,
    typer.Option("--loss", help="--torch, FILE.onnx: a loss of nx.losses: CrossEntropyLoss"),
]
OptimizerName = Annotated[
    str | None, typer.Option("--optimizer", help="--hf, --torch: default: adamw")
]


@dataclass(frozen=True)
class ModelOptions:
    """What a command line says of a PyTorch model.

    Attributes:
        hf: ``--hf``.
        torch: ``--torch``.
        sequence: ``--sequence``.
        dtype: ``--dtype``.
        loss: ``--loss``.
        optimizer: ``--optimizer``.
    """

    hf: str | None
    torch: str | None
    sequence: int | None
    dtype: str | None
    loss: str | None
    optimizer: str | None

    def given(self, script: Path | None, **others: Any) -> bool:
        """Return whether there is a model; else there is a script.

        Args:
            script: of the command line.
            **others: further options for models alone, None where not given.

        Raises:
            ArgumentError: not exactly one of script, ``--hf`` and ``--torch`` is given, or an
                option is for another one.
        """
        onnx = is_onnx(script)
        ways = {"a script": script, "--hf": self.hf, "--torch": self.torch}
        given = [way for way, value in ways.items() if value is not None]
        if len(given) != 1:
            raise ArgumentError(
                "Give a script, --hf or --torch"
                + (f"; got {' and '.join(given)}." if given else ": what is to be compiled?")
            )
        of_hf = {"sequence": self.sequence, "dtype": self.dtype}
        if onnx:
            others = {name: value for name, value in others.items() if name != "batch"}
            given[0] = "ONNX"
        of_onnx = {**of_hf, **others}
        wrong = {"--hf": {"loss": self.loss}, "--torch": of_hf, "ONNX": of_onnx}.get(
            given[0], {"loss": self.loss, "optimizer": self.optimizer, **of_hf, **others}
        )
        for name, value in wrong.items():
            if value is not None:
                raise ArgumentError(f"--{name.replace('_', '-')} goes with {_fitting(name)}.")
        return script is None or onnx

    def workload(self, batch: int | None) -> TorchWorkload:
        """Return the model with its batch and loss.

        Raises:
            NeurenixError: it cannot be found or built.
        """
        if self.hf is not None:
            from neurenix.interop.hugging_face import workload_of

            return workload_of(
                self.hf, batch=batch, sequence=self.sequence, dtype=self.dtype,
                optimizer=self.optimizer,
            )  # fmt: skip
        from neurenix.interop.torch.workload import workload_of_file

        return workload_of_file(
            str(self.torch), batch=batch, loss=self.loss, optimizer=self.optimizer
        )

    def words(self, more: Mapping[str, Any]) -> list[str]:
        """Return these options, and more, as a command line."""
        given = {**vars(self), **more}
        return [
            word
            for name, value in given.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", str(value))
        ]


def is_onnx(script: Path | None) -> bool:
    """Tell whether a file is a model of ONNX."""
    return script is not None and script.suffix == ".onnx"


def _fitting(name: str) -> str:
    return {"sequence": "--hf", "dtype": "--hf", "loss": "--torch or FILE.onnx"}.get(
        name, "--hf or --torch"
    )

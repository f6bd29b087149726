"""The configuration of a model of ``transformers``, by name or folder, with worded errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from neurenix._core.errors import ArgumentError, MissingExtraError
from neurenix.interop.torch.convert import import_torch
from neurenix.interop.torch.dtypes import load_torch

_FILE = "config.json"


def load_transformers(purpose: str) -> Any:
    """Import ``transformers``.

    Raises:
        MissingExtraError: it, or PyTorch, is not installed.
    """
    import_torch(purpose)
    try:
        return load_torch("transformers")
    except ImportError as error:
        raise MissingExtraError("transformers", "hf", purpose) from error


def load_config(name: str) -> Any:
    """Return the configuration of a model.

    Args:
        name: a folder with ``config.json``, that file, or a name on the Hugging Face Hub, such as
            ``"meta-llama/Llama-3.1-8B"``, which is looked for in the local cache first. Only the
            configuration is read, and no code of the model's.

    Raises:
        ArgumentError: there is no configuration, or ``transformers`` does not know its model.
        MissingExtraError: ``transformers`` or PyTorch is not installed.
    """
    transformers = load_transformers("--hf")
    path = Path(name).expanduser()
    if path.name == _FILE and path.is_file():
        path = path.parent
    if path.is_dir():
        if not (path / _FILE).is_file():
            raise ArgumentError(
                f"{name} has no {_FILE}. Give the folder of a model of transformers: "
                f"config.save_pretrained(folder) writes the file, and no weights are needed."
            )
        return _read(transformers, str(path), name, local=True)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ArgumentError(f"There is no folder {name!r} with a {_FILE}.")
    try:
        return _read(transformers, name, name, local=True)
    except _Absent:
        return _read(transformers, name, name, local=False)


class _Absent(ArgumentError):
    """Nothing is there under this name."""


def _read(transformers: Any, source: str, name: str, *, local: bool) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(
            source, local_files_only=local, trust_remote_code=False
        )
    except OSError as error:  # also of a file that is no JSON, and without a network
        text = " ".join(str(error).split())
        if "valid JSON" in text:
            raise ArgumentError(f"{name}: its {_FILE} is not valid JSON.") from error
        raise _Absent(
            f"The configuration of {name!r} is neither in the local cache nor could it be read "
            "from the Hugging Face Hub: the name is wrong, the model is gated (huggingface-cli "
            "login), or there is no network. Without one, give a folder with the model's "
            f"{_FILE}. ({text[:200]})"
        ) from error
    except Exception as error:  # of any kind: the model's own code reads the file
        text = " ".join(str(error).split())
        if "trust_remote_code" in text or "custom code" in text:
            raise ArgumentError(
                f"{name} needs code from its own repository, which is not run here. Build the "
                "module yourself: --torch file.py:make_model."
            ) from error
        raise ArgumentError(
            f"transformers {transformers.__version__} makes no model of the configuration of "
            f"{name}: {type(error).__name__}: {text[:300]} Its {_FILE} needs a known model_type "
            "and sound figures; for other models take --torch file.py:make_model."
        ) from error

"""From a configuration of ``transformers`` to a module on ``meta``, with batch and loss."""

from __future__ import annotations

from typing import Any

from neurenix._core.errors import ArgumentError, ConversionError, unknown_name
from neurenix._core.number_checks import whole_number
from neurenix.interop.hugging_face.config import load_config, load_transformers
from neurenix.interop.hugging_face.kinds import kind_of
from neurenix.interop.torch.dtypes import load_torch
from neurenix.interop.torch.workload import TorchWorkload, parameters_text

DTYPES = ("float32", "bfloat16", "float16")


def workload_of(
    name: str,
    *,
    batch: int | None,
    sequence: int | None = None,
    dtype: str | None = None,
    optimizer: Any = None,
) -> TorchWorkload:
    """Return the training step of a model of ``transformers``, built from its configuration.

    The module is built on the ``meta`` device: no weights are read, and none take memory. Its kind
    decides the class, the batch and the loss; the workload's description says what was picked.

    Args:
        name: a folder with ``config.json``, or a name on the Hugging Face Hub.
        batch: examples of one global batch.
        sequence: tokens of one example, for models that take tokens.
        dtype: of the parameters; by default the configuration's, or float32.
        optimizer: as for ``compile``; AdamW by default.

    Raises:
        ArgumentError: there is no configuration, its kind is unknown, or batch or sequence are
            missing or do not fit the model.
        UnknownNameError: unknown dtype.
        ConversionError: the class cannot be built from the configuration.
        MissingExtraError: ``transformers`` or PyTorch is not installed.
    """
    return workload_of_config(
        load_config(name), name, batch=batch, sequence=sequence, dtype=dtype, optimizer=optimizer
    )


def workload_of_config(
    config: Any,
    name: str,
    *,
    batch: int | None,
    sequence: int | None = None,
    dtype: str | None = None,
    optimizer: Any = None,
) -> TorchWorkload:
    """Return the training step of a configuration; see ``workload_of``.

    Args:
        config: of ``transformers``.
        name: what messages call it.
        batch: as for ``workload_of``.
        sequence: as for ``workload_of``.
        dtype: as for ``workload_of``.
        optimizer: as for ``workload_of``.

    Raises:
        NeurenixError: as ``workload_of``.
    """
    transformers = load_transformers("--hf")
    kind = kind_of(config)
    if batch is None:
        raise ArgumentError("--hf needs the examples of one global batch: --batch 64.")
    batch = whole_number("--batch", batch)
    sequence = None if sequence is None else whole_number("--sequence", sequence)
    module = _built(getattr(transformers, kind.auto), config, name, _dtype(config, dtype))
    made = kind.batch(config, module, batch, sequence)
    chosen = "adamw" if optimizer is None else optimizer
    of = "" if type(module).__name__ in (config.architectures or ()) else " (not said by the file)"
    return TorchWorkload(
        module,
        made.inputs,
        kind.losses(made),
        chosen,
        made.targets,
        f"{type(module).__name__} of {name}, kind: {kind.name}{of}, {parameters_text(module)}, "
        f"from its configuration alone; loss: {kind.loss}; one global batch: {made.words}; "
        f"optimizer: {getattr(chosen, 'name', chosen)}",
    )


def _dtype(config: Any, name: str | None) -> Any:
    if name is not None and name not in DTYPES:
        raise unknown_name("dtype", name, DTYPES)
    own = getattr(config, "dtype", None) or getattr(config.get_text_config(), "dtype", None)
    found = str(name or own or "float32").removeprefix("torch.")
    return getattr(load_torch(), found)


def _built(auto: Any, config: Any, name: str, dtype: Any) -> Any:
    torch = load_torch()
    try:
        with torch.device("meta"):
            return auto.from_config(config, dtype=dtype).to("meta").train()
    except Exception as error:  # of any kind: the model's own code runs on the user's figures
        text = " ".join(str(error).split())[:300]
        raise ConversionError(
            f"{name} cannot be built from its configuration: {type(error).__name__}: {text} Check "
            "the figures of its config.json, or build the module yourself: --torch "
            "file.py:make_model."
        ) from error

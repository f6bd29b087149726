"""Kinds of models of ``transformers``: the class, the batch and the loss of each.

Letters: N examples, T tokens, C channels, H and W sizes of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from neurenix._core.errors import ArgumentError
from neurenix.interop.torch.dtypes import load_torch
from neurenix.losses import SparseCategoricalCrossentropy

_DEFAULT_IMAGE = 224
_SECOND_OF_SOUND = 16_000
_CROSS_ENTROPY = SparseCategoricalCrossentropy(from_logits=True)


@dataclass(frozen=True)
class Batch:
    """One global batch of a kind of model.

    Attributes:
        inputs: named arguments of ``forward``, as shapes and dtypes.
        targets: by output, as shapes and dtypes.
        words: the batch in words.
    """

    inputs: dict[str, Any]
    targets: dict[str, Any]
    words: str


Maker = Callable[[Any, Any, int, int | None], Batch]
"""From a configuration, a module, N and, if given, T to a batch."""


@dataclass(frozen=True)
class Kind:
    """One kind of model.

    Attributes:
        name: in words.
        auto: the name of its class in ``transformers``.
        mapping: the name of its table from the type of a model to class names.
        loss: the loss in words.
        batch: makes a batch.
    """

    name: str
    auto: str
    mapping: str
    loss: str
    batch: Maker

    def classes(self, config: Any) -> tuple[str, ...]:
        """Return the names of the classes of this kind for a configuration, often one."""
        table = getattr(load_torch("transformers.models.auto.modeling_auto"), self.mapping)
        found = table.get(config.model_type, ())
        return (found,) if isinstance(found, str) else tuple(found)

    @property
    def losses(self) -> Callable[[Batch], dict[str, Any]]:
        """The loss of each output that has targets, as ``compile`` takes it."""
        return lambda batch: dict.fromkeys(batch.targets, _CROSS_ENTROPY)


def kind_of(config: Any) -> Kind:
    """Return the kind of a model: that of its ``architectures``, or the first that its type has.

    Raises:
        ArgumentError: there is no such kind here.
    """
    fitting = [kind for kind in KINDS if kind.classes(config)]
    named = [
        kind for kind in fitting for a in config.architectures or () if a in kind.classes(config)
    ]
    if named:
        return named[0]
    if not fitting:
        raise ArgumentError(
            f"A model of type {config.model_type!r} is of no kind that has a batch and a loss "
            f"here: {', '.join(kind.name for kind in KINDS)}. Build the module yourself: --torch "
            "file.py:make_model."
        )
    return fitting[0]


def _ids(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype("int32"))


def _floats(module: Any, *shape: int) -> jax.ShapeDtypeStruct:
    """Return numbers of the dtype of the module's parameters."""
    dtype = next(p.dtype for p in module.parameters() if p.is_floating_point())
    return jax.ShapeDtypeStruct(shape, jax.numpy.dtype(str(dtype).removeprefix("torch.")))


def _length(config: Any, length: int | None, *, most: int | None = None) -> int:
    """Return T, checked against the positions that the model has."""
    if length is None:
        raise ArgumentError(
            f"A model of type {config.model_type!r} takes tokens: say how many one example has, "
            "--sequence 2048."
        )
    text = config.get_text_config()
    known = most or getattr(text, "max_position_embeddings", None)
    if isinstance(known, int) and 0 < known < length:
        raise ArgumentError(
            f"--sequence {length} is more than the {known} positions of this model "
            f"({config.model_type})."
        )
    return length


def _tokens(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    tokens = _length(config, length)
    inputs, targets = {"input_ids": _ids(batch, tokens)}, {"logits": _ids(batch, tokens)}
    return Batch(inputs, targets, f"{batch} × {tokens} tokens")


def _sequences(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    tokens = _length(config, length)
    ids = {"input_ids": _ids(batch, tokens), "decoder_input_ids": _ids(batch, tokens)}
    words = f"{batch} × {tokens} tokens for the encoder, as many for the decoder"
    return Batch(ids, {"logits": _ids(batch, tokens)}, words)


def _speech(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    most = getattr(config, "max_target_positions", None)
    tokens = _length(config, length or most, most=most)
    sound, words = _sound(config, module, batch, None)
    inputs = {**sound, "decoder_input_ids": _ids(batch, tokens)}
    return Batch(inputs, {"logits": _ids(batch, tokens)}, f"{words} and {tokens} tokens each")


def _sound(config: Any, module: Any, batch: int, length: int | None) -> tuple[dict[str, Any], str]:
    """Return the sound that a model takes: features of its whole window, or samples."""
    name = module.main_input_name
    frames = getattr(config, "max_source_positions", None)
    if name == "input_features" and frames and hasattr(config, "num_mel_bins"):
        shape = (batch, config.num_mel_bins, 2 * frames)  # the first convolutions halve it
    elif name == "input_features" and frames and hasattr(config, "input_feat_per_channel"):
        shape = (batch, frames, config.input_feat_per_channel * config.input_channels)
    elif hasattr(config, "max_length") and hasattr(config, "num_mel_bins"):
        shape = (batch, config.max_length, config.num_mel_bins)
    elif name == "input_values":
        shape = (batch, length or _SECOND_OF_SOUND)
    else:
        raise ArgumentError(
            f"The sound that a model of type {config.model_type!r} takes is not known here. Build "
            "the module yourself: --torch file.py:make_model."
        )
    return {name: _floats(module, *shape)}, f"{batch} sounds of {' × '.join(map(str, shape[1:]))}"


def _sounds(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    inputs, words = _sound(config, module, batch, length)
    return Batch(inputs, {"logits": _ids(batch)}, words)


def _images(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    size = getattr(config, "image_size", None) or _DEFAULT_IMAGE
    height, width = (size, size) if isinstance(size, int) else tuple(size)[-2:]
    channels = getattr(config, "num_channels", 3)
    shape = (batch, channels, height, width)
    words = f"{batch} images of {channels} × {height} × {width}"
    return Batch({"pixel_values": _floats(module, *shape)}, {"logits": _ids(batch)}, words)


def _texts(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    tokens = _length(config, length)
    inputs = {"input_ids": _ids(batch, tokens)}
    return Batch(inputs, {"logits": _ids(batch)}, f"{batch} × {tokens} tokens")


def _spans(config: Any, module: Any, batch: int, length: int | None) -> Batch:
    tokens = _length(config, length)
    targets = {"start_logits": _ids(batch), "end_logits": _ids(batch)}
    return Batch({"input_ids": _ids(batch, tokens)}, targets, f"{batch} × {tokens} tokens")


_NEXT, _CLASS = "cross-entropy of the next token", "cross-entropy of the class"

KINDS = (
    Kind("speech to text", "AutoModelForSpeechSeq2Seq", "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
         _NEXT, _speech),
    Kind("sequence to sequence", "AutoModelForSeq2SeqLM",
         "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES", _NEXT, _sequences),
    Kind("masked language model", "AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
         "cross-entropy of every token", _tokens),
    Kind("language model", "AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES", _NEXT,
         _tokens),
    Kind("image classification", "AutoModelForImageClassification",
         "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES", _CLASS, _images),
    Kind("audio classification", "AutoModelForAudioClassification",
         "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES", _CLASS, _sounds),
    Kind("text classification", "AutoModelForSequenceClassification",
         "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES", _CLASS, _texts),
    Kind("token classification", "AutoModelForTokenClassification",
         "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES", "cross-entropy of each token's class",
         _tokens),
    Kind("question answering", "AutoModelForQuestionAnswering",
         "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES", "cross-entropies of start and end", _spans),
    Kind("images and text to text, of which the text is computed", "AutoModelForImageTextToText",
         "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", _NEXT, _tokens),
)  # fmt: skip

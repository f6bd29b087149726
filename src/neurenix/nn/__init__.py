"""Layers with PyTorch's names and defaults on Flax NNX modules, channels last.

Every layer computes in the dtype of its input. Parameters are drawn from the process's random
stream unless ``rngs`` is given.

A module that behaves differently in training reads ``self.training``, or takes ``training`` as an
argument of ``__call__``, as in Keras. ``fit`` passes True; ``evaluate`` and ``predict`` pass False,
to nested modules as well. Every layer of ``nx.nn`` accepts ``training=``: the call sets the mode of
the layer and of the ``nx.nn`` layers inside it, except frozen ones. Layers of other libraries
follow ``train()`` and ``eval()``. For a module that does not derive from ``nx.nn.Module``,
``nx.Trainer`` passes ``training``, ``train`` or ``deterministic`` to the outermost call only.
"""

from typing import TYPE_CHECKING

from neurenix._core.names import names_of
from neurenix._migration import layers
from neurenix.nn.activations import (
    ELU,
    GELU,
    SELU,
    Hardsigmoid,
    Hardswish,
    LeakyReLU,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Softsign,
    Swish,
    Tanh,
)
from neurenix.nn.batch_norm import BatchNorm, BatchNorm1d, BatchNorm2d, BatchNorm3d
from neurenix.nn.containers import Flatten, ModuleDict, ModuleList, Residual, Sequential
from neurenix.nn.conv import Conv1d, Conv2d, Conv3d, DepthwiseConv2d
from neurenix.nn.conv_transpose import ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from neurenix.nn.dot_product import dot_product_attention
from neurenix.nn.dropout import Dropout
from neurenix.nn.embedding import Embedding
from neurenix.nn.linear import Identity, Linear
from neurenix.nn.module import Module
from neurenix.nn.multihead import MultiHeadAttention
from neurenix.nn.norm import GroupNorm, LayerNorm, RMSNorm
from neurenix.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    GlobalAvgPool1d,
    GlobalAvgPool2d,
    GlobalAvgPool3d,
    GlobalMaxPool1d,
    GlobalMaxPool2d,
    GlobalMaxPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from neurenix.nn.recurrent import GRU, LSTM
from neurenix.nn.summary import Summary
from neurenix.nn.transformer import TransformerBlock

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "DepthwiseConv2d",
    "Dropout",
    "ELU",
    "Embedding",
    "Flatten",
    "GELU",
    "GRU",
    "GlobalAvgPool1d",
    "GlobalAvgPool2d",
    "GlobalAvgPool3d",
    "GlobalMaxPool1d",
    "GlobalMaxPool2d",
    "GlobalMaxPool3d",
    "GroupNorm",
    "Hardsigmoid",
    "Hardswish",
    "Identity",
    "LSTM",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LogSoftmax",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "Mish",
    "Module",
    "ModuleDict",
    "ModuleList",
    "MultiHeadAttention",
    "PReLU",
    "RMSNorm",
    "ReLU",
    "ReLU6",
    "Residual",
    "SELU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Softsign",
    "Summary",
    "Swish",
    "Tanh",
    "TransformerBlock",
    "dot_product_attention",
]

if not TYPE_CHECKING:  # with __getattr__, a type checker would accept any name
    __getattr__ = names_of(__name__, __all__, layers.LAYERS)

"""Names of layers, options, arguments and methods in Keras, PyTorch and Flax, and names here.

Errors about unknown names use these tables. Names that differ only in case or underscores, or that
have no equivalent here, need no entry.
"""

from __future__ import annotations

LAYERS = {
    "Activation": "a layer such as nn.ReLU(), or a function such as jax.nn.relu",
    "AveragePooling1D": "nn.AvgPool1d",
    "AveragePooling2D": "nn.AvgPool2d",
    "AveragePooling3D": "nn.AvgPool3d",
    "BatchNormalization": "nn.BatchNorm",
    "Attention": "nn.MultiHeadAttention, or nn.dot_product_attention",
    "Conv": "nn.Conv1d, nn.Conv2d or nn.Conv3d",
    "Bidirectional": "two layers, one with reverse=True, and nx.concatenate",
    "Conv1DTranspose": "nn.ConvTranspose1d",
    "Conv2DTranspose": "nn.ConvTranspose2d",
    "Conv3DTranspose": "nn.ConvTranspose3d",
    "Dense": "nn.Linear",
    "Embed": "nn.Embedding",
    "GLU": "jax.nn.glu",
    "GlobalAveragePooling1D": "nn.GlobalAvgPool1d",
    "GlobalAveragePooling2D": "nn.GlobalAvgPool2d",
    "GlobalAveragePooling3D": "nn.GlobalAvgPool3d",
    "GlobalMaxPooling1D": "nn.GlobalMaxPool1d",
    "GlobalMaxPooling2D": "nn.GlobalMaxPool2d",
    "GlobalMaxPooling3D": "nn.GlobalMaxPool3d",
    "GroupNormalization": "nn.GroupNorm",
    "Lambda": "the function itself, as a layer of nn.Sequential",
    "Layer": "nn.Module",
    "LayerNormalization": "nn.LayerNorm",
    "MaxUnpool2d": "jax.image.resize, or nn.ConvTranspose2d",
    "Masking": "mask= in the calls of nn.LSTM, nn.GRU and nn.MultiHeadAttention",
    "MaxPooling1D": "nn.MaxPool1d",
    "MaxPooling2D": "nn.MaxPool2d",
    "MaxPooling3D": "nn.MaxPool3d",
    "Model": "nn.Module",
    "Param": "nnx.Param (from flax import nnx)",
    "Parameter": "nnx.Param (from flax import nnx)",
    "RMSNormalization": "nn.RMSNorm",
    "Rngs": "nnx.Rngs (from flax import nnx)",
    "SpatialDropout2D": "nn.Dropout, which drops single numbers",
    "Transformer": "nn.Sequential of nn.TransformerBlock",
    "TransformerEncoder": "nn.Sequential of nn.TransformerBlock",
    "SimpleRNN": "nn.GRU or nn.LSTM, or jax.lax.scan over a cell of your own",
    "SmoothL1Loss": "nx.losses.HuberLoss",
    "TimeDistributed": "the layer itself: it works on the last axis",
    "TransformerEncoderLayer": "nn.TransformerBlock",
    "avg_pool": "nn.AvgPool2d, and likewise in 1 and 3 dimensions",
    "functional": "jax.nn, with relu, softmax and their like",
    "init": "jax.nn.initializers",
    "initializers": "jax.nn.initializers",
    "max_pool": "nn.MaxPool2d, and likewise in 1 and 3 dimensions",
    **{
        name: f"nx.losses.{name}"
        for name in (
            "BCELoss",
            "BCEWithLogitsLoss",
            "CrossEntropyLoss",
            "HuberLoss",
            "KLDivLoss",
            "L1Loss",
            "MSELoss",
            "NLLLoss",
            "SmoothL1Loss",
        )
    },
    **{
        name: f"jax.nn.{name}"
        for name in ("elu", "gelu", "leaky_relu", "relu", "sigmoid", "silu", "softmax", "tanh")
    },
}

METHODS = {
    "add": "nn.Sequential(*layers), which takes the layers when it is made",
    "apply": "model(x)",
    "backward": "nx.grad, or nx.value_and_grad, of a function of the model",
    "astype": "model.to(dtype=…)",
    "bfloat16": 'model.to(dtype="bfloat16")',
    "count_params": "model.num_parameters",
    "cpu": 'model.to("cpu")',
    "cuda": 'model.to("cuda")',
    "double": 'model.to(dtype="float64"), with jax.config.update("jax_enable_x64", True) before',
    "fit_generator": "model.fit",
    "float": 'model.to(dtype="float32")',
    "forward": "model(x)",
    "get_weights": "model.parameters()",
    "half": 'model.to(dtype="float16")',
    "init": "not needed: a model has its parameters when it is made",
    "load_state_dict": "model.load(path)",
    "load_weights": "model.load(path)",
    "named_parameters": "model.parameters().items()",
    "num_params": "model.num_parameters",
    "predict_on_batch": "model.predict(x, batch_size=len(x))",
    "requires_grad_": "model.freeze() or model.unfreeze()",
    "save_weights": "model.save(path)",
    "set_weights": "nnx.update(model, state), or model.load(path)",
    "state_dict": "model.save(path) for a file, model.parameters() for the arrays",
    "test_on_batch": "model.evaluate(x, y, batch_size=len(x))",
    "tpu": 'model.to("tpu")',
    "train_on_batch": "model.fit(x, y, batch_size=len(x))",
    "trainable_variables": "model.parameters()",
    "trainable_weights": "model.parameters()",
    "type": "model.to(dtype=…)",
    "variables": "nnx.state(model)",
    "weights": "model.parameters()",
    "zero_grad": "not needed: gradients are results of nx.grad, and nothing keeps them",
}

_ALL_FIT = (
    "fixed: every name and shape must fit. For a part, build the model that was saved, "
    "load it, and take its layers: model.backbone = saved.backbone"
)
OF_LOAD = {
    "assign": "not needed: arrays are placed like those of the model",
    "by_name": _ALL_FIT,
    "filepath": "path",
    "map_location": "not needed: arrays are placed like those of the model; model.to(device)",
    "skip_mismatch": _ALL_FIT,
    "state_dict": "path, of a file that model.save wrote",
    "strict": _ALL_FIT,
    "weights_only": "not needed: a file of weights holds no code",
}
OF_SAVE = {
    "filepath": "path",
    "include_optimizer": "model.trainer.save(path), for weights, optimizer and where training is",
    "overwrite": "fixed: an existing file is replaced",
    "save_format": "fixed: safetensors",
}
OF_TO = {
    "copy": "copy.deepcopy(model), before it",
    "memory_format": "fixed: channels are last",
    "non_blocking": "not needed: no move waits for the device",
}

_OF_EACH_LAYER = {
    "activation": "a layer after it, such as nn.ReLU(), or a function such as jax.nn.relu",
    "data_format": "fixed: channels are last",
    "device": "layer.to(device)",
    "epsilon": "eps",
    "input_shape": "the number of inputs, which comes first",
    "kernel_init": "layer.kernel[...] = an array, once it is made",
    "kernel_initializer": "layer.kernel[...] = an array, once it is made",
    "kernel_regularizer": "weight_decay= of the optimizer",
    "name": "the name of the attribute that holds it",
    "seed": "rngs=nnx.Rngs(seed), or nx.seed(seed) before",
    "use_bias": "bias",
}
_OF_PRODUCTS = {"features": "out_features", "input_dim": "in_features", "units": "out_features"}
_OF_CONVOLUTIONS = {
    "dilation_rate": "dilation",
    "features": "out_channels",
    "feature_group_count": "groups",
    "filters": "out_channels",
    "kernel_dilation": "dilation",
}
_OF_WINDOWS = {"pool_size": "kernel_size", "window_shape": "kernel_size"}
_OF_RECURRENCE = {
    "bidirectional": "a second layer with reverse=True",
    "dropout": "nn.Dropout after it",
    "features": "hidden_size",
    "go_backwards": "reverse",
    "in_features": "input_size",
    "num_layers": "one layer after another",
    "return_sequences": "the first of what a call returns",
    "return_state": "the second of what a call returns",
    "recurrent_dropout": "not available: nn.Dropout between layers",
    "stateful": "layer(x, state), with the state that the call before returned",
    "time_major": "x.swapaxes(0, 1), since sequences are (N, T, features)",
    "units": "hidden_size",
    "unroll": "fixed: time is one compiled loop",
    "zero_output_for_mask": "lengths= of a call, or nx.where(mask[..., None], outputs, 0)",
}
_OF_ATTENTION = {
    "batch_first": "fixed: the batch comes first",
    "d_model": "embed_dim",
    "dropout_rate": "dropout",
    "in_features": "embed_dim",
    "key_dim": "embed_dim / num_heads",
    "nhead": "num_heads",
    "qkv_features": "embed_dim",
}
_OPTIONS = {
    "AvgPool": _OF_WINDOWS,
    "BatchNorm": {"center": "affine", "scale": "affine", "use_running_average": "model.eval()"},
    "Conv": _OF_CONVOLUTIONS,
    "DepthwiseConv": {
        "depth_multiplier": "multiplier",
        "dilation_rate": "dilation",
        "filters": "in_channels * multiplier",
        "kernel_dilation": "dilation",
    },
    "Dropout": {"deterministic": "model.eval()", "rate": "p"},
    "ELU": {"negative_slope": "alpha"},
    "Embedding": {
        "features": "embedding_dim",
        "input_dim": "num_embeddings",
        "mask_zero": "mask=tokens != 0 in calls of nn.LSTM and nn.GRU, "
        "key_padding_mask=tokens == 0 in those of attention",
        "output_dim": "embedding_dim",
        "padding_idx": "mask= or lengths= in the calls of the layers after it",
    },
    "GRU": _OF_RECURRENCE,
    "GroupNorm": {"groups": "num_groups"},
    "LSTM": _OF_RECURRENCE,
    "LayerNorm": {"center": "bias", "scale": "elementwise_affine"},
    "LeakyReLU": {"alpha": "negative_slope"},
    "Linear": _OF_PRODUCTS,
    "LogSoftmax": {"axis": "dim"},
    "MaxPool": _OF_WINDOWS,
    "MultiHeadAttention": _OF_ATTENTION,
    "Softmax": {"axis": "dim"},
    "TransformerBlock": {**_OF_ATTENTION, "dim_feedforward": "mlp_dim"},
}


def options_of(layer: type) -> dict[str, str]:
    """Return the options of other libraries and their equivalents for a layer.

    Example:
        >>> from neurenix import nn
        >>> options_of(nn.Conv2d)["filters"], options_of(nn.Linear)["units"]
        ('out_channels', 'out_features')
    """
    return _OF_EACH_LAYER | _OPTIONS.get(_plain(layer).removesuffix("Transpose"), {})


_MODE = "model.train() or model.eval(), before the call"
_OF_EACH_CALL = {
    "deterministic": _MODE,
    "dtype": "x.astype(dtype): a layer computes in the dtype of its input",
    "input": "x",
    "input_ids": "x",
    "inputs": "x",
    "is_training": _MODE,
    "rngs": "rngs=, when the layer is made",
    "sequences": "x",
    "src": "x",
    "train": _MODE,
    "training": _MODE,
    "use_running_average": _MODE,
}
_STATE = "state, (N, hidden_size), without PyTorch's axis of layers"
_CALLS_OF_RECURRENCE = {
    "batch_first": "fixed: sequences are (N, T, features)",
    "carry": "state",
    "go_backwards": "reverse=True, when the layer is made",
    "h0": _STATE,
    "h_0": _STATE,
    "hidden": "state",
    "hx": _STATE,
    "initial_carry": "state",
    "initial_state": "state",
    "input_lengths": "lengths",
    "keep_order": "not needed: outputs of reverse=True stay at their places",
    "return_carry": "the second of what a call returns",
    "reverse": "reverse=True, when the layer is made",
    "seq_lens": "lengths",
    "seq_lengths": "lengths",
    "sequence_length": "lengths",
    "states": "state",
}
_PAIR = "state=(h, c), each (N, hidden_size), without PyTorch's axis of layers"
_NO_WEIGHTS = "not available: a call returns its output alone, since fused kernels keep no weights"
_CAUSAL = "causal=True, when the layer is made"
_ALLOWED = "mask, True where a query may attend to a key: the opposite of PyTorch's booleans"
_CALLS_OF_ATTENTION = {
    "attention_mask": "mask, booleans (N, T, S), True where a query may attend to a key; of tokens "
    "(N, S), 1 for those that count, key_padding_mask=attention_mask == 0",
    "attn_mask": _ALLOWED,
    "average_attn_weights": _NO_WEIGHTS,
    "bias": "not available: only masks are added to the scores",
    "inputs_k": "key",
    "inputs_q": "query",
    "inputs_v": "value",
    "is_causal": _CAUSAL,
    "need_weights": _NO_WEIGHTS,
    "output_attentions": _NO_WEIGHTS,
    "return_attention_scores": _NO_WEIGHTS,
    "src_key_padding_mask": "key_padding_mask",
    "src_mask": _ALLOWED,
    "use_causal_mask": _CAUSAL,
}
OF_DOT_PRODUCT = {
    "attn_mask": "mask, True where a query may attend to a key",
    "bias": "not available: only masks are added to the scores",
    "dropout_p": "dropout of nn.MultiHeadAttention",
    "enable_gqa": "not needed: the heads of keys may divide those of queries",
    "is_causal": "causal",
    "k": "key",
    "local_window_size": "window",
    "logits_soft_cap": "softcap",
    "q": "query",
    "scale": "fixed: 1 / √D; scale the queries before",
    "v": "value",
}
_CALLS = {
    "ConvTranspose": {"output_size": "output_padding=, when the layer is made"},
    "GRU": _CALLS_OF_RECURRENCE,
    "GlobalAvgPool": {"mask": "jnp.mean(x, axis=1, where=mask[..., None])"},
    "GlobalMaxPool": {"mask": "jnp.max(x, axis=1, where=mask[..., None], initial=-jnp.inf)"},
    "LSTM": {**_CALLS_OF_RECURRENCE, **dict.fromkeys(("c0", "c_0", "h0", "h_0", "hx"), _PAIR)},
    "MultiHeadAttention": {**_CALLS_OF_ATTENTION, "x": "query"},
    "Sequential": {"mask": "mask= of one layer, in a module of your own: here each gets one array"},
    "TransformerBlock": _CALLS_OF_ATTENTION,
}


def arguments_of(layer: type) -> dict[str, str]:
    """Return the call arguments of other libraries and their equivalents for a layer.

    Example:
        >>> from neurenix import nn
        >>> arguments_of(nn.GRU)["initial_state"], arguments_of(nn.Linear)["training"]
        ('state', 'model.train() or model.eval(), before the call')
    """
    ours = next(base for base in layer.__mro__ if base.__module__.startswith("neurenix.nn."))
    return _OF_EACH_CALL | _CALLS.get(_plain(ours), {})


def _plain(layer: type) -> str:
    return layer.__name__.removesuffix("1d").removesuffix("2d").removesuffix("3d")

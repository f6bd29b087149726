"""What Keras and PyTorch call the layers, their options and the methods of models otherwise.

Owns these tables, from which a name that is not there is explained. Names that differ in case
or underscores only need no entry, nor do those that nothing here corresponds to.
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
    "bfloat16": 'model.to(device, dtype="bfloat16")',
    "count_params": "model.num_parameters",
    "cpu": 'model.to("cpu")',
    "cuda": 'model.to("cuda")',
    "fit_generator": "model.fit",
    "forward": "model(x)",
    "get_weights": "model.parameters()",
    "half": 'model.to(device, dtype="float16")',
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
    "train_on_batch": "model.fit(x, y, batch_size=len(x))",
    "trainable_variables": "model.parameters()",
    "trainable_weights": "model.parameters()",
    "variables": "nnx.state(model)",
    "weights": "model.parameters()",
    "zero_grad": "not needed: gradients are results of nx.grad, and nothing keeps them",
}

_OF_EACH_LAYER = {
    "activation": "a layer after it, such as nn.ReLU(), or a function such as jax.nn.relu",
    "data_format": "not to be chosen: channels are last",
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
    "units": "hidden_size",
}
_OF_ATTENTION = {
    "batch_first": "not to be chosen: the batch comes first",
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
    "Dropout": {"rate": "p"},
    "ELU": {"negative_slope": "alpha"},
    "Embedding": {
        "features": "embedding_dim",
        "input_dim": "num_embeddings",
        "output_dim": "embedding_dim",
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
    """Return from options of other libraries to what does the same in a layer of this package.

    Example:
        >>> from neurenix import nn
        >>> options_of(nn.Conv2d)["filters"], options_of(nn.Linear)["units"]
        ('out_channels', 'out_features')
    """
    kind = layer.__name__.removesuffix("1d").removesuffix("2d").removesuffix("3d")
    return _OF_EACH_LAYER | _OPTIONS.get(kind.removesuffix("Transpose"), {})

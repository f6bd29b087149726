"""Operators of ONNX, compiled: results are those of ONNX's reference or of onnxruntime."""

from __future__ import annotations

import warnings
import zlib
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neurenix as nx

onnx = pytest.importorskip("onnx")

from onnx import helper  # noqa: E402  after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402

from neurenix.interop.onnx import from_onnx  # noqa: E402

pytestmark = [pytest.mark.interop, pytest.mark.cpu8]

MICROSOFT, ML = "com.microsoft", "ai.onnx.ml"


@dataclass
class Case:
    """One node: its inputs are shapes of random numbers, or arrays, or None."""

    op: str
    inputs: list[Any]
    attributes: dict[str, Any] = field(default_factory=dict)
    results: int = 1
    version: int = 20
    domain: str = ""
    by: str = "reference"

    def __str__(self) -> str:
        given = "-".join(str(each) for each in self.attributes.values() if isinstance(each, str))
        return f"{self.op}-{self.version}-{given}"

    def arrays(self) -> list[np.ndarray | None]:
        rng = np.random.default_rng(zlib.crc32(repr(self.attributes).encode()))

        def one(given: Any) -> np.ndarray | None:
            if isinstance(given, tuple):
                return (0.5 * rng.normal(size=given)).astype(np.float32)
            return given

        return [one(each) for each in self.inputs]


def ints(*values: int, dtype: Any = np.int64) -> np.ndarray:
    return np.array(values, dtype)


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def scalar(value: float, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype)


def whole(*shape: int, low: int = 0, high: int = 60, dtype: Any = np.uint8) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


def unit(*shape: int, low: float = -1.6, high: float = 1.6) -> np.ndarray:
    return np.random.default_rng(1).uniform(low, high, shape).astype(np.float32)


def model_of(case: Case, arrays: list[np.ndarray | None]) -> Any:
    names = ["" if each is None else f"x{number}" for number, each in enumerate(arrays)]
    outputs = [f"y{number}" for number in range(case.results)]
    node = helper.make_node(case.op, names, outputs, domain=case.domain, **case.attributes)
    ports = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in zip(names, arrays, strict=True)
        if each is not None
    ]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    imports = [helper.make_opsetid("", 20 if case.domain else case.version)]
    if case.domain:
        imports.append(helper.make_opsetid(case.domain, case.version))
    graph = helper.make_graph([node], "graph", ports, results)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def wanted_of(case: Case, model: Any, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if case.by == "reference":
            return ReferenceEvaluator(model).run(None, given)
        runtime = pytest.importorskip("onnxruntime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4
        data, providers = model.SerializeToString(), ["CPUExecutionProvider"]
        return runtime.InferenceSession(data, options, providers=providers).run(None, given)


def compiled(model: Any, given: dict[str, np.ndarray]) -> list[Any]:
    module = from_onnx(model, check=False)
    known = {name: given[name] for name in module.known_inputs}
    rest = {name: jnp.asarray(each) for name, each in given.items() if name not in known}
    found = jax.jit(lambda rest: module(**known, **rest))(rest)
    return list(found) if isinstance(found, tuple) else [found]


def recurrent(op: str, gates: int, direction: str, **attributes: Any) -> Case:
    d, h = 2 if direction == "bidirectional" else 1, 5
    inputs = [(4, 3, 2), (d, gates * h, 2), (d, gates * h, h), (d, 2 * gates * h)]
    inputs += [ints(4, 1, 3, dtype=np.int32), (d, 3, h)]
    inputs += [(d, 3, h), (d, 3 * h)] if op == "LSTM" else []
    attributes = {"direction": direction, "hidden_size": h, **attributes}
    results = 3 if op == "LSTM" else 2
    return Case(op, inputs, attributes, results, 14, by="onnxruntime")


RECURRENT = [
    recurrent(op, gates, direction, **extra)
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    for direction, extra in (
        ("forward", {}), ("reverse", {}), ("bidirectional", {"clip": 0.3}),
    )
] + [
    recurrent("GRU", 3, "bidirectional", linear_before_reset=1),
    recurrent("LSTM", 4, "reverse", input_forget=1),
    recurrent(
        "LSTM", 4, "forward", activations=["HardSigmoid", "ScaledTanh", "LeakyRelu"],
        activation_alpha=[0.3, 0.4, 0.1], activation_beta=[0.6, 0.7],
    ),
    recurrent("RNN", 1, "forward", activations=["Elu"], activation_alpha=[0.3]),
    recurrent(
        "GRU", 3, "forward", activations=["Affine", "Softsign"], activation_alpha=[0.3],
        activation_beta=[0.6],
    ),
    # onnxruntime has no batch-first layout.
    Case(
        "LSTM", [(3, 4, 2), (1, 20, 2), (1, 20, 5), (1, 40)], {"hidden_size": 5, "layout": 1}, 3, 14
    ),
]  # fmt: skip

QUANTISED = [
    Case("QuantizeLinear", [(3, 4), np.abs(unit(4)), whole(4)], {"axis": 1}, version=13),
    Case("QuantizeLinear", [(3, 6), np.abs(unit(3, 2))], {"block_size": 3}, version=21),
    Case("DequantizeLinear", [whole(3, 4), floats(1, 2, 3), whole(3)], {"axis": 0}, version=19),
    Case(
        "DequantizeLinear",
        [whole(3, 5, dtype=np.int16), np.abs(unit(3, 3))],
        {"block_size": 2},
        version=21,
    ),
    Case("DynamicQuantizeLinear", [(4, 5)], results=3, by="onnxruntime"),
    Case("DynamicQuantizeLinear", [np.zeros((2, 3), np.float32)], results=3, by="onnxruntime"),
    Case(
        "QLinearConv",
        [
            whole(2, 4, 7, 8), scalar(0.03), scalar(3, np.uint8), whole(6, 2, 3, 3), floats(
                0.1, 0.2, 0.3, 0.1, 0.2, 0.3
            ), np.full(6, 5, np.uint8), scalar(0.9), scalar(7, np.uint8),
            whole(6, dtype=np.int32),
        ],
        {"group": 2, "pads": [1, 0, 1, 2], "strides": [2, 1]},
        by="onnxruntime",
    ),
    Case(
        "ConvInteger",
        [whole(1, 2, 7, 8), whole(3, 2, 3, 3), scalar(3, np.uint8), scalar(5, np.uint8)],
        {"auto_pad": "SAME_UPPER", "dilations": [1, 1]},
        by="onnxruntime",
    ),
    Case("MatMulInteger", [whole(2, 3, 4), whole(2, 4, 5), scalar(3, np.uint8), whole(5)]),
    Case(
        "QLinearMatMul",
        [
            whole(4, 5), scalar(0.1), scalar(4, np.uint8), whole(5, 6), scalar(0.2),
            scalar(9, np.uint8), scalar(0.7), scalar(3, np.uint8),
        ],
    ),
    *(
        Case(
            op,
            [
                whole(2, 3, 4), scalar(0.1), scalar(3, np.uint8), whole(3, 1), scalar(0.2),
                scalar(9, np.uint8), scalar(0.3), scalar(100, np.uint8),
            ],
            version=1, domain=MICROSOFT, by="onnxruntime",
        )
        for op in ("QLinearAdd", "QLinearMul")
    ),
    Case(
        "QGemm",
        [
            whole(4, 5), scalar(0.1), scalar(4, np.uint8), whole(6, 5), scalar(0.2),
            scalar(3, np.uint8), whole(6, dtype=np.int32), scalar(0.7), scalar(3, np.uint8),
        ],
        {"transB": 1, "alpha": 1.0}, version=1, domain=MICROSOFT, by="onnxruntime",
    ),
    Case(
        "DynamicQuantizeMatMul",
        [(4, 5), whole(5, 6, dtype=np.int8), np.abs(unit(6)), whole(6, dtype=np.int8), (6,)],
        version=1, domain=MICROSOFT, by="onnxruntime",
    ),
    Case(
        "QLinearAveragePool",
        [
            whole(2, 3, 6, 7), scalar(0.1), scalar(30, np.uint8), scalar(0.0701),
            scalar(3, np.uint8),
        ],
        {"kernel_shape": [3, 2], "strides": [2, 2]}, version=1, domain=MICROSOFT, by="onnxruntime",
    ),
]  # fmt: skip

ATTENTION = [
    Case("Attention", [(2, 4, 5, 8), (2, 2, 5, 8), (2, 2, 5, 6)], {"is_causal": 1}, 3, 23),
    Case(
        "Attention",
        [(2, 5, 32), (2, 7, 16), (2, 7, 16), unit(5, 7) > 0],
        {"q_num_heads": 4, "kv_num_heads": 2, "softcap": 2.0, "scale": 0.3},
        version=23,
    ),
    Case(
        "Attention",
        [(2, 2, 3, 8), (2, 2, 3, 8), (2, 2, 3, 8), None, (2, 2, 4, 8), (2, 2, 4, 8)],
        {"is_causal": 1, "qk_matmul_output_mode": 3},
        4,
        23,
    ),
    Case(
        "Attention",
        [(2, 2, 3, 8), (2, 2, 6, 8), (2, 2, 6, 8), None, None, None, ints(6, 2)],
        {"is_causal": 1},
        version=24,
    ),
    Case("RotaryEmbedding", [(2, 3, 4, 8), (5, 4), (5, 4), whole(2, 4, high=5)], version=23),
    Case(
        "RotaryEmbedding",
        [(2, 4, 24), (2, 4, 2), (2, 4, 2)],
        {"interleaved": 1, "num_heads": 3, "rotary_embedding_dim": 4},
        version=23,
    ),
]

SIGNAL = [
    Case("DFT", [(2, 10, 1), ints(8)[0]], {"axis": 1, "onesided": 1}, version=17),
    Case("DFT", [(2, 9, 3, 1), None, ints(1)[0]]),
    Case("DFT", [(2, 10, 2), ints(12)[0], ints(1)[0]], {"inverse": 1}),
    Case("DFT", [(2, 6, 2), ints(10)[0], ints(1)[0]], {"inverse": 1, "onesided": 1}),
    Case("STFT", [(2, 30, 1), ints(5)[0], (8,)], version=17),
    Case("STFT", [(2, 30, 2), ints(4)[0], None, ints(8)[0]], {"onesided": 0}, version=17),
    Case("HannWindow", [ints(9)[0]], {"periodic": 0}, version=17),
    Case("HammingWindow", [ints(10)[0]], version=17),
    Case("BlackmanWindow", [ints(10)[0]], version=17),
    Case(
        "MelWeightMatrix",
        [ints(20)[0], ints(64)[0], ints(16000)[0], scalar(30.0), scalar(8000.0)],
        version=17,
    ),
]

IMAGE = [
    *(
        Case(
            "Resize",
            [(1, 2, 7, 10), None, floats(1, 1, 1.7, 0.6)],
            {"mode": mode, "coordinate_transformation_mode": coordinates},
            version=18,
            by="onnxruntime",
        )
        for mode in ("nearest", "linear", "cubic")
        for coordinates in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    ),
    Case(
        "Resize",
        [(1, 2, 6, 10), floats(0, 0, 0.1, -0.2, 1, 1, 0.8, 1.3), None, ints(1, 2, 5, 4)],
        {
            "mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize",
            "extrapolation_value": 7.0,
        },
        version=13,
    ),
    Case("Resize", [(2, 6, 10), None, None, ints(5, 7)], {"mode": "linear", "axes": [0, 2]}),
    Case(
        "Resize",
        [(1, 2, 6, 10), None, None, ints(9, 17)],
        {"mode": "cubic", "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"},
    ),
    *(
        Case(
            "Resize",
            [(1, 2, 6, 10), None, None, ints(1, 2, 3, 4)],
            {"mode": mode, "antialias": 1, "exclude_outside": outside},
            version=18,
        )
        for mode in ("linear", "cubic")
        for outside in (0, 1)
    ),
    Case("Resize", [(1, 2, 6, 10), floats(1, 1, 0.5, 1.5)], version=10, by="onnxruntime"),
    Case("Upsample", [(1, 2, 6, 10), floats(1, 1, 2, 3)], version=9),
    Case("Upsample", [(1, 2, 6, 10)], {"mode": "linear", "scales": [1.0, 1.0, 2.0, 1.5]},
         version=7, by="onnxruntime"),
    *(
        Case(
            "GridSample",
            [(2, 3, 5, 6), unit(2, 4, 7, 2)],
            {"mode": mode, "padding_mode": padding, "align_corners": corners},
            by="onnxruntime",
        )
        for mode in ("nearest", "linear", "cubic")
        for padding, corners in (("zeros", 0), ("border", 1), ("reflection", 0), ("reflection", 1))
    ),
    Case("GridSample", [(1, 2, 3, 4, 5), unit(1, 2, 3, 4, 3)], by="onnxruntime"),
    Case("AffineGrid", [(2, 2, 3), ints(2, 3, 5, 6)], {"align_corners": 1}, by="onnxruntime"),
    Case("AffineGrid", [(2, 3, 4), ints(2, 3, 4, 5, 6)], by="onnxruntime"),
    Case(
        "DeformConv",
        [(2, 4, 6, 7), (6, 2, 3, 3), (2, 36, 4, 5), (6,), np.abs(unit(2, 18, 4, 5))],
        {"group": 2, "offset_group": 2},
        by="onnxruntime",
    ),
    Case(
        "Col2Im",
        [(2, 12, 16), ints(8, 7), ints(2, 2)],
        {"pads": [0, 1, 1, 0], "dilations": [2, 1], "strides": [2, 2]},
    ),
    *(
        Case(
            "RoiAlign",
            [(2, 3, 8, 9), floats(1, 2, 7, 6, 0, 0, 30, 5, 3, 3, 3.5, 4).reshape(3, 4),
             ints(0, 1, 1)],
            {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "mode": mode,
             "spatial_scale": 0.6},
            version=16,
            by="onnxruntime",
        )
        for mode, ratio in (("avg", 0), ("avg", 2), ("max", 2))
    ),
    Case(
        "MaxRoiPool",
        [(2, 3, 8, 9), floats(0, 1, 2, 7, 6, 1, 0, 0, 5, 5).reshape(2, 5)],
        {"pooled_shape": [3, 2]}, version=1, by="onnxruntime",
    ),
    Case(
        "NonMaxSuppression",
        [unit(1, 20, 4, low=0), unit(1, 2, 20, low=0), ints(7), floats(0.3), floats(0.2)],
        version=11,
    ),
]  # fmt: skip

LOSSES = [
    Case("NegativeLogLikelihoodLoss", [(3, 5, 2), whole(3, 2, high=5, dtype=np.int64), (5,)],
         {"reduction": "mean", "ignore_index": 2}, version=13),
    Case("SoftmaxCrossEntropyLoss", [(3, 5), ints(4, 0, -1), np.abs(unit(5))],
         {"reduction": "none", "ignore_index": -1}, 2, 13),
]  # fmt: skip

FOREST = {
    "nodes_treeids": [0, 0, 0, 1, 1, 1], "nodes_nodeids": [0, 1, 2, 0, 1, 2],
    "nodes_featureids": [1, 0, 0, 2, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"],
    "nodes_values": [0.1, 0.0, 0.0, -0.2, 0.0, 0.0],
    "nodes_truenodeids": [1, 0, 0, 1, 0, 0], "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
    "nodes_missing_value_tracks_true": [1, 0, 0, 0, 0, 0],
}  # fmt: skip
LEAVES = {"treeids": [0, 0, 1, 1], "nodeids": [1, 2, 1, 2], "ids": [0, 1, 1, 0]}
ROWS = np.where(unit(9, 3) > 1.2, np.nan, unit(9, 3)).astype(np.float32)


def forest(kind: str, weights: list[float], **attributes: Any) -> dict[str, Any]:
    return {
        **FOREST, **{f"{kind}_{name}": ids for name, ids in LEAVES.items()},
        f"{kind}_weights": weights, **attributes,
    }  # fmt: skip


LEARNED = [
    Case(op, inputs, attributes, results, 3, ML, by="onnxruntime")
    for op, inputs, attributes, results in (
        ("Scaler", [(4, 3)], {"offset": [0.1, 0.2, 0.3], "scale": [2.0, 3.0, 4.0]}, 1),
        *(("Normalizer", [(4, 3)], {"norm": norm}, 1) for norm in ("MAX", "L1", "L2")),
        ("Binarizer", [(4, 3)], {"threshold": 0.1}, 1),
        ("Imputer", [ROWS], {"imputed_value_floats": [1.0, 2.0, 3.0],
                             "replaced_value_float": float("nan")}, 1),
        ("OneHotEncoder", [whole(4, 2, high=4, dtype=np.int64)], {"cats_int64s": [0, 1, 2]}, 1),
        ("LabelEncoder", [whole(4, 2, high=4, dtype=np.int64)],
         {"keys_int64s": [0, 1, 3], "values_floats": [0.5, 1.5, 2.5], "default_float": -7.0}, 1),
        ("ArrayFeatureExtractor", [(4, 5), ints(3, 0, 3)], {}, 1),
        ("FeatureVectorizer", [(4, 2), (4, 3)], {"inputdimensions": [2, 3]}, 1),
        ("LinearRegressor", [(4, 3)], {"coefficients": [1.0, 2, 3, 4, 5, 6], "targets": 2,
                                       "intercepts": [0.1, 0.2]}, 1),
        *(
            ("LinearClassifier", [(4, 3)],
             {"coefficients": [1.0, 2, 3, 4, 5, 6], "intercepts": [0.1, 0.2],
              "classlabels_ints": [7, 9], "post_transform": transform}, 2)
            for transform in ("NONE", "LOGISTIC", "SOFTMAX")
        ),
        ("TreeEnsembleRegressor", [ROWS],
         forest("target", [1.0, 2.0, 3.0, 4.0], n_targets=2), 1),
        ("TreeEnsembleRegressor", [ROWS],
         forest("target", [1.0, 2.0, 3.0, 4.0], n_targets=2, aggregate_function="AVERAGE"), 1),
        ("TreeEnsembleClassifier", [ROWS],
         forest("class", [0.1, 0.2, 0.3, 0.4], classlabels_int64s=[5, 6, 7],
                post_transform="SOFTMAX"), 2),
        ("TreeEnsembleClassifier", [ROWS],
         {**forest("class", [0.4, 0.2, 0.3, 0.4], classlabels_int64s=[5, 6]),
          "class_ids": [0, 0, 0, 0]}, 2),
        ("TreeEnsembleClassifier", [ROWS],
         {**forest("class", [0.4, -0.2, 0.3, -0.4], classlabels_int64s=[5, 6],
                   post_transform="LOGISTIC"), "class_ids": [0, 0, 0, 0]}, 2),
    )
] + [
    # onnxruntime leaves base values out where no leaf adds anything.
    Case(
        "TreeEnsembleRegressor", [np.nan_to_num(ROWS)],
        forest("target", [1.0, 2.0, 3.0, 4.0], n_targets=2, base_values=[0.5, 0.25]),
        version=3, domain=ML,
    ),
]  # fmt: skip

CASES = RECURRENT + QUANTISED + ATTENTION + SIGNAL + IMAGE + LOSSES + LEARNED


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator(case: Case) -> None:
    arrays = case.arrays()
    model = model_of(case, arrays)
    given = {f"x{number}": each for number, each in enumerate(arrays) if each is not None}
    wanted = wanted_of(case, model, given)
    for ours, theirs in zip(compiled(model, given), wanted, strict=True):
        theirs = np.asarray(theirs)
        assert ours.shape == theirs.shape
        assert ours.dtype == jax.dtypes.canonicalize_dtype(theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", ["int4", "uint4", "int2", "float8_e4m3fn", "float4_e2m1fn"])
def test_quantised_numbers_of_few_bits(kind: str) -> None:
    import ml_dtypes

    x, scale = unit(3, 4, low=-9, high=9), scalar(0.5)
    dtype = np.dtype(getattr(ml_dtypes, kind))
    model = model_of(Case("QuantizeLinear", [x, scale], {}, version=25), [x, scale])
    model.graph.node[0].attribute.append(
        helper.make_attribute("output_dtype", int(helper.np_dtype_to_tensor_dtype(dtype)))
    )
    (found,) = compiled(model, {"x0": x, "x1": scale})
    assert found.dtype == dtype
    limits = jnp.iinfo(dtype) if "int" in kind else jnp.finfo(dtype)
    wanted = np.clip(x / 0.5, float(limits.min), float(limits.max))
    wanted = np.rint(wanted) if "int" in kind else wanted.astype(dtype)
    np.testing.assert_array_equal(
        np.asarray(found).astype(np.float32), np.asarray(wanted).astype(np.float32)
    )


@pytest.mark.parametrize(
    "case",
    [RECURRENT[4], RECURRENT[7], ATTENTION[0], IMAGE[4], IMAGE[19], LEARNED[10], LOSSES[1]],
    ids=str,
)
def test_gradients(case: Case) -> None:
    arrays = case.arrays()
    module = from_onnx(model_of(case, arrays), check=False)
    given = {f"x{number}": each for number, each in enumerate(arrays) if each is not None}
    first = given.pop("x0")

    @jax.jit
    def loss(x: Any) -> Any:
        found = module(x0=x, **given)
        return jnp.sum(jnp.sin(found[0] if isinstance(found, tuple) else found))

    direction = unit(*first.shape)
    slope = jnp.vdot(jax.jit(jax.grad(loss))(first), direction)
    step = 1e-2
    wanted = (loss(first + step * direction) - loss(first - step * direction)) / (2 * step)
    np.testing.assert_allclose(slope, wanted, rtol=2e-2, atol=2e-3)


@pytest.mark.parametrize(
    "case, said",
    [
        (Case("RNN", [(4, 3, 2), (1, 5, 2), (1, 5, 5)], {"hidden_size": 5,
              "activations": ["Foo"]}, version=14), "Foo"),
        (Case("LSTM", [(4, 3, 2), (1, 20, 2), (1, 20, 5)], {"hidden_size": 5,
              "direction": "bidirectional"}, version=14), "bidirectional"),
        (Case("Resize", [(1, 2, 4, 4), None, floats(1, 1, 0, 2)]), "positive"),
        (Case("Resize", [(1, 2, 4, 4), None, floats(1, 1, 1e9, 1e9)]), "elements"),
        (Case("Resize", [(1, 2, 4, 4), None, floats(1, 2)]), "4 axes"),
        (Case("STFT", [(1, 8, 1), ints(0)[0], (4,)], version=17), "steps of 0"),
        (Case("Attention", [(1, 3, 8), (1, 3, 8), (1, 3, 8)], version=23), "heads"),
        (Case("QuantizeLinear", [(3, 4), (3,)], {"axis": 1}, version=13), "axis 1"),
        (Case("TreeEnsembleRegressor", [(3, 2)], forest("target", [1.0] * 4, n_targets=2),
              version=3, domain=ML), "feature"),
        (Case("TreeEnsembleRegressor", [(3, 3)], {**forest("target", [1.0] * 4, n_targets=2),
              "nodes_truenodeids": [0, 0, 0, 1, 0, 0]}, version=3, domain=ML), "nothing leads"),
        (Case("NegativeLogLikelihoodLoss", [(3, 5), ints(0, 1, 2)], {"reduction": "foo"},
              version=13), "foo"),
    ],
)  # fmt: skip
def test_what_contradicts_itself_is_an_error(case: Case, said: str) -> None:
    arrays = case.arrays()
    given = {f"x{number}": each for number, each in enumerate(arrays) if each is not None}
    with pytest.raises(nx.ConversionError, match=said):
        compiled(model_of(case, arrays), given)


def test_labels_that_are_text_become_numbers() -> None:
    attributes = {
        "coefficients": [1.0, 0.0, 0.0, 1.0], "intercepts": [0.0, 0.0],
        "classlabels_strings": ["cat", "dog"],
    }  # fmt: skip
    x = floats(2, 1, 1, 2).reshape(2, 2)
    case = Case("LinearClassifier", [x], attributes, 2, 1, ML)
    assert compiled(model_of(case, [x]), {"x0": x})[0].tolist() == [0, 1]

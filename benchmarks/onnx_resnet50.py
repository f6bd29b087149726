"""ResNet-50 in ONNX: a batch through ``nx.from_onnx`` beside onnxruntime, on the CPU.

    python benchmarks/onnx_resnet50.py [--rows 8] [--rounds 7]

``nx.to_onnx`` writes the file from the model of ``nx.models``, with random weights in float32. Both
compute the same batch in turns.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
from common import count, ratio, report, rounds

import neurenix as nx


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=count, default=7)
    options = parser.parse_args()
    source = nx.models.build("resnet50", dtype="float32").eval()
    images = np.random.default_rng(0).normal(size=(options.rows, 224, 224, 3)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "resnet50.onnx"
        nx.to_onnx(source, path, example_inputs=(images[:2],), check=False)
        model = nx.from_onnx(path, check=False).eval()
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    predict = nx.jit(lambda model, images: model(images))
    name = session.get_inputs()[0].name
    ours, theirs = predict(model, images), session.run(None, {name: images})[0]
    apart = float(np.abs(np.asarray(ours) - theirs).max() / np.abs(theirs).max())
    seconds = rounds(
        {
            "neurenix": lambda: predict(model, images).block_until_ready(),
            "onnxruntime": lambda: session.run(None, {name: images}),
        },
        count=options.rounds,
    )
    report(
        "onnx_resnet50",
        rows=options.rows,
        neurenix_to_onnxruntime=ratio(seconds, "neurenix", "onnxruntime"),
        difference=apart,
    )


if __name__ == "__main__":
    main()

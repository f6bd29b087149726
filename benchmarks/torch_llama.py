"""Llama 3.1 of transformers from its configuration alone: converted, and preflighted for a slice.

    python benchmarks/torch_llama.py 70b                           # converts
    python benchmarks/torch_llama.py 70b --on v6e-256 --batch 256 --remat full
    python benchmarks/torch_llama.py 8b --on v6e-8 --batch 64 --remat full

Prints seconds of building, converting and preflighting, processor seconds of converting, and the
peak memory of the process (that of the compiler's own process is not in it). The figures of the two
configurations are those that Meta published: https://arxiv.org/abs/2407.21783, table 3.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

from common import report as print_json

import neurenix as nx
from neurenix.interop.hugging_face.workload import workload_of_config
from neurenix.preflight.torch_workload import fully_divided, target_of

SIZES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
            "num_attention_heads": 64, "num_key_value_heads": 8},
}  # fmt: skip
ROPE = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip


def config_of(size: str):
    """Return the configuration of Llama 3.1, as its ``config.json`` has it."""
    from transformers import LlamaConfig

    return LlamaConfig(
        **SIZES[size],
        vocab_size=128256,
        max_position_embeddings=131072,
        rms_norm_eps=1e-5,
        rope_parameters=ROPE,
        tie_word_embeddings=False,
        dtype="bfloat16",
        architectures=["LlamaForCausalLM"],
    )


def peak_gib() -> float:
    """Return the peak memory of this process."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--on", default=None)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--remat", default="none")
    given = parser.parse_args()
    began = time.perf_counter()
    config = config_of(given.size)
    imported = time.perf_counter()
    workload = workload_of_config(
        config, f"Llama 3.1 {given.size}", batch=given.batch, sequence=given.sequence
    )
    built, busy = time.perf_counter(), time.process_time()
    model, batch = target_of(workload, given.remat)
    converted, busy = time.perf_counter(), time.process_time() - busy
    figures = {
        "import_seconds": round(imported - began, 1),
        "build_seconds": round(built - imported, 1),
        "convert_seconds": round(converted - built, 1),
        "convert_processor_seconds": round(busy, 1),
        "peak_gib_converted": peak_gib(),
        "parameters": model.num_parameters,
        "steps_of_the_program": len(model.program().steps),
    }
    print_json("torch_llama_converted", size=given.size, **figures)
    if given.on is not None:
        report = nx.preflight(model, *batch, on=given.on, mesh=fully_divided)
        sys.stdout.write(f"{report}\n")
        time_of_step = report.step_time
        figures = {
            "on": given.on,
            "remat": given.remat,
            "batch": [given.batch, given.sequence],
            "preflight_seconds": round(time.perf_counter() - converted, 1),
            "whole_seconds": round(time.perf_counter() - began, 1),
            "fits": report.fits,
            "step_seconds": time_of_step and round(time_of_step.seconds, 3),
            "mfu": report.mfu and round(report.mfu, 3),
            "peak_gib": peak_gib(),
        }
        print_json("torch_llama_preflighted", size=given.size, **figures)


if __name__ == "__main__":
    main()

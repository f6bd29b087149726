"""Does a training step of Llama 3.1 8B fit on a TPU v5e-8? If it does not, which changes make it fit?

The TPU compiler compiles the step and each change, which takes minutes. No TPU is needed.
The argument names another model of ``nx.models.names()``: ``python examples/08_llama.py tiny``.
"""
import sys

import neurenix as nx

model = nx.models.abstract(sys.argv[1] if len(sys.argv) > 1 else "llama3.1-8b", remat="full")  # shapes, no weights
model.compile(optimizer=nx.optim.AdamW(3e-4), loss=nx.losses.SparseCategoricalCrossentropy(from_logits=True))

tokens = nx.spec((8, min(2048, model.config.max_length)), "int32")  # a global batch of 8 sequences
report = nx.preflight(model, tokens, tokens, on="v5e-8", mesh={"fsdp": 8})
print(report)

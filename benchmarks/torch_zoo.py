"""Architectures of ``transformers`` and ``timm`` through ``nx.from_torch``, beside PyTorch.

    python benchmarks/torch_zoo.py [NAME …] [--compile v5e-1] [--every] [--write] [--jobs 1]

Each architecture is made of a small configuration with random weights in float32, without dropout,
and runs in a process of its own with a time limit. Both sides compute its outputs in evaluation,
and in training its outputs and the gradients of every parameter; the loss is the sum of all
floating-point outputs, each times fixed random numbers. PyTorch's gradients are those of its own
autograd. Differences are relative, by norms: of each output ‖ours − theirs‖ ÷ ‖theirs‖, of each
parameter's gradient the same, where a gradient of less than a thousandth of the largest norm (zero
but for rounding) is measured against that thousandth.

``--compile`` also compiles forward and backward pass of one architecture in three with the TPU
compiler, of each with ``--every``. ``--write`` puts the rows into ``docs/torch_models.md``, where
those of other architectures stay.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import torch_zoo_language
import torch_zoo_vision

Builder = Callable[[], tuple[Any, tuple[Any, ...], dict[str, Any]]]
MODELS: dict[str, Builder] = {**torch_zoo_language.MODELS, **torch_zoo_vision.MODELS}
ASKED = 1e-4  # the largest relative difference that agrees
PAGE = Path(__file__).parents[1] / "docs" / "torch_models.md"
BEGIN, END = "<!-- rows -->", "<!-- end of rows -->"
COLUMNS = ("architecture", "parameters", "evaluation", "training", "gradients", "layers in loops",
           "seconds", "v5e", "note")  # fmt: skip


def measure(name: str, compile_on: str | None) -> dict[str, Any]:
    """Return one row: what a conversion took, and its differences from PyTorch."""
    import torch

    import neurenix as nx
    from neurenix.interop.torch.repeats import Loop

    torch.manual_seed(0)
    module, args, kwargs = MODELS[name]()
    without_dropout(module)
    began = time.perf_counter()
    model = nx.from_torch(module, args, example_kwargs=kwargs, check=False)
    seconds = time.perf_counter() - began
    random = model.program(training=True).is_random
    differences, said = compared(module, model, args, kwargs, training=not random)
    loops = [step for step in model.program(training=True).steps if isinstance(step, Loop)]
    row = {
        "architecture": name,
        "parameters": sum(p.numel() for p in module.parameters()),
        **differences,
        "layers in loops": " + ".join(str(loop.count) for loop in loops) or "none",
        "seconds": round(seconds, 1),
        "v5e": "",
        "note": "draws random numbers in training: gradients are those of evaluation"
        if random else said,
    }  # fmt: skip
    if compile_on is not None:
        row["v5e"] = compiled(model, args, kwargs, compile_on)
    return row


def without_dropout(module: Any) -> None:
    """Set every probability of dropout to zero: random numbers of PyTorch cannot be had here."""
    import torch

    for part in module.modules():
        if isinstance(part, torch.nn.modules.dropout._DropoutNd):
            part.p = 0.0
        for key, value in list(vars(part).items()):
            if ("drop" in key) and isinstance(value, float):
                setattr(part, key, 0.0)


def compared(
    module: Any, model: Any, args: Any, kwargs: Any, *, training: bool
) -> tuple[dict[str, float | None], str]:
    """Return the largest relative differences of outputs and of gradients, and a note on them."""
    exact = copy.deepcopy(module)
    outputs, _, ours, slopes = both(module, model, args, kwargs, training=False)
    worst = max(map(difference, ours, outputs))
    trained = None
    if training:
        outputs, theirs, ours, slopes = both(module, model, args, kwargs, training=True)
        trained = max(map(difference, ours, outputs))
    else:
        _, theirs, _, slopes = both(module, model, args, kwargs, training=False)
    least = 1e-3 * max(norm(slope) for slope in theirs.values())
    steep = largest(slopes, theirs, least)
    said = ""
    if steep > ASKED:
        # An element within rounding of a ReLU's kink has the gradient of one side or the other.
        wanted = in_float64(exact, args, kwargs, training=training)
        ours_off, theirs_off = largest(slopes, wanted, least), largest(theirs, wanted, least)
        said = (
            f"from PyTorch's gradients in float64 ours are {ours_off:.0e} off, its own in float32 "
        )
        said += f"{theirs_off:.0e}"
        if ours_off <= ASKED:
            steep, said = ours_off, f"{said}: the column is ours beside float64"
    return {"evaluation": worst, "training": trained, "gradients": steep}, said


def largest(slopes: Mapping[str, Any], wanted: Mapping[str, Any], least: float) -> float:
    """Return the largest relative difference of gradients."""
    return max(difference(slopes[name], slope, least) for name, slope in wanted.items())


def in_float64(module: Any, args: Any, kwargs: Any, *, training: bool) -> dict[str, Any]:
    """Return PyTorch's gradients by name, computed in float64."""
    import torch

    def wide(leaf: Any) -> Any:
        real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.double() if real else leaf

    module = module.double()
    module.train(training)
    found = leaves(module(*map(wide, args), **{n: wide(v) for n, v in kwargs.items()}))
    total = sum(
        (tensor * tensor.new_tensor(factor(path, tuple(tensor.shape)))).sum()
        for path, tensor in found if tensor.is_floating_point() and tensor.requires_grad
    )  # fmt: skip
    total.backward()
    return {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}


def both(module: Any, model: Any, args: Any, kwargs: Any, *, training: bool) -> Any:
    """Return outputs and gradients by name of PyTorch, then ours, from the same weights."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    before = {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}
    module.train(training)
    module.zero_grad()
    theirs = dict(leaves(module(*args, **kwargs)))
    factors = {path: factor(path, tuple(t.shape)) for path, t in theirs.items()}
    total = sum(
        (tensor * tensor.new_tensor(factors[path])).sum()
        for path, tensor in theirs.items() if tensor.is_floating_point() and tensor.requires_grad
    )  # fmt: skip
    total.backward()
    wanted = {n: p.grad.numpy() for n, p in module.named_parameters() if p.grad is not None}
    module.load_state_dict(before)
    model.train() if training else model.eval()
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)

    @jax.jit
    def ours(parameters: Any, rest: Any, args: Any, kwargs: Any) -> Any:
        def loss(parameters: Any) -> Any:
            found = dict(leaves(nnx.merge(graph, parameters, rest, copy=True)(*args, **kwargs)))
            floating = {p: x for p, x in found.items() if jnp.issubdtype(x.dtype, jnp.floating)}
            return sum((x * factors[p]).sum() for p, x in floating.items()), found

        return jax.grad(loss, has_aux=True)(parameters)

    slopes, found = ours(parameters, rest, as_arrays(args), as_arrays(kwargs))
    by_name = dict(nnx.merge(graph, slopes, rest).weight_view())
    shared = [path for path in theirs if path in found]
    if not shared:
        raise ValueError(f"no output is shared: {list(theirs)} and {list(found)}")
    return [theirs[p].detach().numpy() for p in shared], wanted, [found[p] for p in shared], by_name


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of nested results with their paths; caches are left out."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from leaves(value, f"{path}.{name}")
    elif isinstance(tree, (list, tuple)):
        for number, value in enumerate(tree):
            yield from leaves(value, f"{path}.{number}")
    elif hasattr(tree, "dtype"):
        yield path, tree


def as_arrays(tree: Any) -> Any:
    """Return nested tensors as NumPy arrays of 32-bit numbers."""
    import torch

    if isinstance(tree, dict):
        return {name: as_arrays(value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return tuple(map(as_arrays, tree))
    if isinstance(tree, torch.Tensor):
        return tree.int().numpy() if tree.dtype == torch.int64 else tree.detach().numpy()
    return tree


def factor(path: str, shape: tuple[int, ...]) -> Any:
    """Return fixed random numbers for an output."""
    import numpy as np

    return np.random.default_rng(len(path)).normal(size=shape).astype(np.float32)


def norm(array: Any) -> float:
    """Return the norm of an array in float64."""
    import numpy as np

    return float(np.linalg.norm(np.asarray(array, np.float64).ravel()))


def difference(ours: Any, theirs: Any, least: float = 1e-30) -> float:
    """Return the relative difference of two arrays by norm; infinite for NaN."""
    import numpy as np

    a, b = np.asarray(ours), np.asarray(theirs)
    if a.dtype.kind in "biu":
        return float(not np.array_equal(a, b))
    finite = np.isfinite(b)
    if not np.array_equal(np.isfinite(a), finite):
        return float("inf")
    return norm(a[finite] - b[finite]) / max(norm(b[finite]), least)


def compiled(model: Any, args: Any, kwargs: Any, on: str) -> str:
    """Compile the forward and backward pass for a TPU; return what came of it."""
    import jax
    import jax.numpy as jnp
    from flax import nnx

    import neurenix as nx

    model.train()
    graph, parameters, rest = nnx.split(model, nnx.Param, ...)
    inputs = as_arrays((args, kwargs))
    arrays, places = jax.tree.flatten(inputs)
    fixed = {n: a for n, a in enumerate(arrays) if not hasattr(a, "dtype")}

    def gradients(parameters: Any, rest: Any, arrays: list[Any]) -> Any:
        given = iter(arrays)
        whole = [fixed[n] if n in fixed else next(given) for n in range(places.num_leaves)]
        args, kwargs = jax.tree.unflatten(places, whole)

        def loss(parameters: Any) -> Any:
            found = dict(leaves(nnx.merge(graph, parameters, rest, copy=True)(*args, **kwargs)))
            floating = [x for x in found.values() if jnp.issubdtype(x.dtype, jnp.floating)]
            return sum(x.astype(jnp.float32).sum() for x in floating)

        return jax.grad(loss)(parameters)

    began = time.perf_counter()
    given = [a for n, a in enumerate(arrays) if n not in fixed]
    nx.preflight(gradients, parameters, rest, given, on=on)
    return f"{time.perf_counter() - began:.0f} s"


def in_a_process(name: str, compile_on: str | None, limit: float) -> dict[str, Any]:
    """Measure one architecture in a process of its own; what ends it is the row's note."""
    command = [sys.executable, __file__, name, "--here"]
    command += ["--compile", compile_on] if compile_on else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"architecture": name, "note": f"not done within {limit:.0f} s"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    last = [line for line in done.stderr.splitlines() if line.strip()][-1:]
    return {"architecture": name, "note": done.stdout.strip() or f"ended by {last}"}


def agrees(row: Mapping[str, Any]) -> bool:
    """Tell whether outputs and gradients are PyTorch's."""
    figures = [row.get(key) for key in ("evaluation", "gradients")]
    training = row.get("training")
    return all(f is not None and f <= ASKED for f in figures) and (training or 0) <= ASKED


def as_text(row: Mapping[str, Any]) -> str:
    """Return a row of the table."""

    def cell(key: str) -> str:
        value = row.get(key)
        if isinstance(value, float) and key != "seconds":
            return f"{value:.0e}"
        return (
            f"{value:,}" if key == "parameters" and value else "" if value is None else f"{value}"
        )

    cells = [cell(key) for key in COLUMNS]
    if not agrees(row):
        cells[0] = f"**{cells[0]}**"
    return "| " + " | ".join(cells) + " |"


def write(rows: list[str]) -> None:
    """Put rows into the page, where those of other architectures stay; in order of the names."""
    text = PAGE.read_text()
    head, _, rest = text.partition(BEGIN)
    middle, _, tail = rest.partition(END)
    known = {_name(row): row for row in middle.splitlines() if row.startswith("| ")}
    known = {name: row for name, row in known.items() if name in MODELS}
    known |= {_name(row): row for row in rows}
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
    lines += [known[name] for name in sorted(known, key=str.lower)]
    PAGE.write_text(head + BEGIN + "\n\n" + "\n".join(lines) + "\n\n" + END + tail)


def _name(row: str) -> str:
    return re.sub(r"\*\*", "", row.split("|")[1]).strip()


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="architectures; all by default")
    parser.add_argument("--compile", help="a slice for which one in three is compiled as well")
    parser.add_argument("--every", action="store_true", help="compile each of them")
    parser.add_argument("--write", action="store_true", help="write docs/torch_models.md")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds for each")
    parser.add_argument("--here", action="store_true", help="one, in this process, as JSON")
    given = parser.parse_args()
    names = given.names or list(MODELS)
    unknown = [name for name in names if name not in MODELS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(MODELS)}")
    if given.here:
        try:
            print(json.dumps(measure(names[0], given.compile)))
        except Exception as error:
            traceback.print_exc()
            print(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            sys.exit(1)
        return
    rows, agreeing = [], 0
    for name in names:
        number = list(MODELS).index(name)
        on = given.compile if given.compile and (given.every or number % 3 == 0) else None
        row = in_a_process(name, on, given.limit)
        agreeing += agrees(row)
        rows.append(as_text(row))
        print(rows[-1], flush=True)
        if given.write:
            write(rows[-1:])
    print(f"{agreeing} of {len(rows)} agree to {ASKED:.0e}")


if __name__ == "__main__":
    main()

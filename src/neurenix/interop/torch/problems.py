"""What is wrong with a PyTorch module or its example inputs before anything is exported.

Owns wrappers, quantized and lazy parts, devices and kinds of input, and the lines at which a module
decides by the values of tensors. Does not own operators (``check``) or the export (``export``).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from neurenix._core.errors import ConversionError
from neurenix._core.source_files import SourceLine, is_neurenix
from neurenix.interop.check_report import Problem
from neurenix.interop.torch.dtypes import load_torch

# Operators whose result, or its size, the program needs to know as a number.
BY_VALUE = {
    "aten::_local_scalar_dense": "a number is taken out of a tensor (if, while, int(), .item())",
    "aten::is_nonzero": "a number is taken out of a tensor (if, while)",
    "aten::equal": "torch.equal gives a number",
    "aten::nonzero": "the size of the result depends on values (nonzero, x[mask])",
    "aten::masked_select": "the size of the result depends on values (x[mask])",
    "aten::unique_dim": "the size of the result depends on values",
    "aten::_unique2": "the size of the result depends on values",
}
_BY_METHOD = {"numpy": ".numpy()", "tolist": ".tolist()", "__array__": "a NumPy function"}
_HOOKS = ("_backward_hooks", "_backward_pre_hooks")  # of every module of PyTorch
NO_NUMBERS = (
    "A compiled program cannot: write torch.where, torch.cond, a mask that is multiplied, or a "
    "fixed size."
)


def found_in(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Problem]:
    """Return the problems that can be seen without running the module."""
    return [*_of_parts(module), *_of_inputs(args, kwargs), *_of_devices(module, args, kwargs)]


def raise_any(module: Any, problems: list[Problem]) -> None:
    """Raise one error for all problems, if there are any.

    Raises:
        ConversionError: there are.
    """
    if len(problems) == 1:
        raise ConversionError(f"{type(module).__name__} cannot be converted: {problems[0]}")
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise ConversionError(f"{type(module).__name__} cannot be converted:\n{lines}")


def _of_parts(module: Any) -> Iterator[Problem]:
    torch = load_torch()
    seen: set[str] = set()
    for path, part in module.named_modules():
        name, where = type(part).__name__, f"{path!r}, a " if path else "It is a "
        said = _of_part(torch, part, name)
        if said is not None and said[0] not in seen:
            seen.add(said[0])
            yield Problem(f"{where}{name}: {said[0]}", said[1])
    for name, parameter in module.named_parameters():
        kind = type(parameter)
        if torch.nn.parameter.is_lazy(parameter):
            yield Problem(
                f"The parameter {name} is not initialized",
                "Call the module once in PyTorch, so that its lazy layers know their sizes.",
            )
            break
        if parameter.is_quantized or kind.__module__.partition(".")[0] in (
            "torchao",
            "bitsandbytes",
        ):
            yield Problem(f"The parameter {name} is quantized ({kind.__name__})", _QUANTIZED)
            break
        if parameter.layout is not torch.strided:
            yield Problem(f"The parameter {name} is sparse", "Make it dense: parameter.to_dense().")
            break


_QUANTIZERS = ("torchao", "bitsandbytes")
_QUANTIZED = "Convert the model before it is quantized: its floating-point weights can be trained."


def _of_part(torch: Any, part: Any, name: str) -> tuple[str, str] | None:
    bases = {base.__name__ for base in type(part).__mro__}
    if isinstance(part, torch.jit.ScriptModule):
        return "TorchScript, of which torch.export sees no code", "Convert the module of Python."
    if bases & {"DataParallel", "DistributedDataParallel"}:
        return (
            "it divides batches over devices, which strategies do here (nx.distribute)",
            "Convert what is inside: module.module.",
        )
    if bases & {"FullyShardedDataParallel", "FSDPModule"}:
        return (
            "its parameters are divided over processes, which strategies do here (nx.distribute)",
            "Convert the module before it is wrapped, and load its weights from a file.",
        )
    if ".quantized" in type(part).__module__ or "qat" in type(part).__module__.split("."):
        return "a quantized layer", _QUANTIZED
    if any(getattr(part, hooks, None) for hooks in _HOOKS):
        return (
            "it has backward hooks, which torch.export drops",
            "Remove them: handle.remove(). Change gradients in a loss or an optimizer.",
        )
    return None


def _of_inputs(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    torch = load_torch()
    pytree = load_torch("torch.utils._pytree")
    for path, leaf in pytree.tree_flatten_with_path((args, dict(kwargs)))[0]:
        name = _called(path)
        if isinstance(leaf, torch.Tensor):
            if leaf.layout is not torch.strided:
                yield Problem(f"{name} is a sparse tensor", "Give a dense one: x.to_dense().")
            elif leaf.is_quantized:
                yield Problem(f"{name} is a quantized tensor", "Give x.dequantize().")
        elif hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
            yield Problem(
                f"{name} is a {type(leaf).__module__}.{type(leaf).__name__}, and no torch.Tensor",
                "Example inputs are tensors, as the module takes them: torch.from_numpy(x).",
            )


def _called(path: Any) -> str:
    """Return what messages call an example input."""
    of_args, *rest = [getattr(key, "idx", getattr(key, "key", key)) for key in path]
    if of_args == 0 and rest:
        return f"Example input {'.'.join(map(str, rest))}"
    return f"The example input {'.'.join(map(str, rest))!r}"


def _of_devices(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Problem]:
    torch = load_torch()
    pytree = load_torch("torch.utils._pytree")
    inputs = [t for t in pytree.tree_leaves((args, dict(kwargs))) if isinstance(t, torch.Tensor)]
    named = list(module.named_parameters())
    others = {t.device.type for _, t in [*named, *module.named_buffers()]} - {"cpu", "meta"}
    if others:
        yield Problem(
            f"Parameters are on the device {', '.join(sorted(others))}",
            "A module is converted on the CPU: module.cpu(). Example inputs, too.",
        )
        return
    if far := {t.device.type for t in inputs} - {"cpu", "meta"}:
        yield Problem(f"An example input is on {far.pop()}", "Put it on the CPU: x.cpu().")
        return
    abstract = [name for name, parameter in named if parameter.device.type == "meta"]
    if abstract and len(abstract) < len(named):
        real = next(name for name, parameter in named if parameter.device.type != "meta")
        yield Problem(
            f"{len(abstract)} of {len(named)} parameters are on the meta device, such as "
            f"{abstract[0]}, and others have values, such as {real}",
            "Put all of them on one: module.to('meta') for shapes alone; or load the weights.",
        )
    elif named and inputs:
        kinds = {t.device.type for t in inputs}
        own = "meta" if abstract else "cpu"
        if kinds != {own}:
            yield Problem(
                f"The parameters are on {own}, and example inputs on {', '.join(sorted(kinds))}",
                f"Put them on one device: x.to({own!r}).",
            )


def decisions_by_value(
    module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Problem]:
    """Run a module in PyTorch and return all lines at which it needs values of tensors as numbers.

    Nothing of the module stays changed but running statistics, which are put back.
    """
    torch = load_torch()
    modes = load_torch("torch.utils._python_dispatch")
    found: dict[tuple[str, Any], Problem] = {}

    def note(what: str) -> None:
        problem = Problem(f"It decides by the values of tensors: {what}", NO_NUMBERS, line_now())
        found.setdefault((what, problem.line), problem)

    class Watch(modes.TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
            name = func.name().partition(".")[0]
            mask = name == "aten::index" and any(
                isinstance(each, torch.Tensor) and each.dtype in (torch.bool, torch.uint8)
                for each in args[1]
            )
            if name in BY_VALUE or mask:
                note(BY_VALUE["aten::nonzero" if mask else name])
            return func(*args, **(kwargs or {}))

    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    random = torch.random.get_rng_state()
    try:
        with torch.no_grad(), _watched_methods(torch, note), Watch():
            module(*args, **kwargs)
    except Exception:  # what was found until then is what is asked for
        pass
    finally:
        torch.random.set_rng_state(random)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
    return list(found.values())


@contextmanager
def _watched_methods(torch: Any, note: Any) -> Iterator[None]:
    originals = {name: getattr(torch.Tensor, name) for name in _BY_METHOD}
    inherited = [name for name in originals if name not in vars(torch.Tensor)]

    def watched(name: str) -> Any:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            note(f"values leave the program ({_BY_METHOD[name]})")
            return originals[name](self, *args, **kwargs)

        return call

    for name in originals:
        setattr(torch.Tensor, name, watched(name))
    try:
        yield
    finally:
        for name, original in originals.items():
            if name in inherited:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, original)


def line_now() -> SourceLine | None:
    """Return the innermost line of the running stack that is not PyTorch's or ours."""
    own = str(load_torch().__path__[0])
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((own, "<")) and not is_neurenix(file):
            return SourceLine(file, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None

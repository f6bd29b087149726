"""``torch.export`` of a module, as a program of operators that have a function here.

Owns the call of ``torch.export`` and what it loses without help: ``no_grad`` regions, the backward
pass of an ``autograd.Function``, and the cache that transformers return by default. Nothing of
PyTorch stays changed.
"""

from __future__ import annotations

import inspect
import operator
import sys
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from neurenix._core.errors import ConversionError
from neurenix.interop.check_report import Problem
from neurenix.interop.torch import registry
from neurenix.interop.torch.dtypes import is_abstract, load_torch, schema_of
from neurenix.interop.torch.functions import add_operators, watched
from neurenix.interop.torch.problems import (
    NO_NUMBERS,
    decisions_by_value,
    raise_any,
)
from neurenix.interop.torch.program import read_program, source_line
from neurenix.interop.torch.replacements import traceable_parts

# Operators that write into running statistics, which their schemas do not say.
_WRITERS = {"aten::batch_norm", "aten::instance_norm", "aten::native_batch_norm"}


def export(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    dynamic_shapes: Any = None,
) -> Any:
    """Return the ``torch.export.ExportedProgram`` of a module, decomposed.

    Args:
        module: a ``torch.nn.Module``.
        args: positional example inputs.
        kwargs: named example inputs.
        training: in training mode, or in evaluation.
        dynamic_shapes: as ``torch.export.export`` takes them.

    Raises:
        ConversionError: the module cannot be exported; the message names the user's line.
    """
    try:
        return export_raw(module, args, kwargs, training=training, dynamic_shapes=dynamic_shapes)
    except ConversionError:
        raise
    except Exception as error:  # of many kinds, each worded for who writes PyTorch's compiler
        found = problems_of(error, module, args, kwargs)
        try:
            raise_any(module, found)
        except ConversionError as ours:
            raise ours from error
        raise


def export_raw(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    training: bool,
    dynamic_shapes: Any = None,
) -> Any:
    """Return what ``export`` does, and raise what PyTorch raises."""
    torch = load_torch()

    with ExitStack() as stack:
        stack.enter_context(in_mode(module, training))
        stack.enter_context(without_cache(module))
        left_out = stack.enter_context(without_drawn_structure(module)) if training else []
        functions = stack.enter_context(watched())
        stack.enter_context(traceable_parts())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # what torch.export says of PyTorch's own code
        exported = torch.export.export(
            module, args, dict(kwargs), dynamic_shapes=_by_name(module, args, dynamic_shapes),
            strict=False,
        )  # fmt: skip
        if left_out:
            sys.stderr.write(f"neurenix: {_left_out(module, left_out)}\n")
        _keep_no_grad(exported)
        add_operators(functions, _export_function, partial(read_program, names={}))
        if _is_decomposed(exported):  # which takes longer than the export
            return exported
        table = {
            target: rule
            for target, rule in torch.export.default_decompositions().items()
            if not _is_known(target)
        }
        return exported.run_decompositions(table)


def _export_function(module: Any, args: tuple[Any, ...], dynamic_shapes: Any) -> Any:
    """Export forward and backward pass of an ``autograd.Function``."""
    return export(module, args, {}, training=True, dynamic_shapes=dynamic_shapes)


def _by_name(module: Any, args: tuple[Any, ...], shapes: Any) -> Any:
    """Return ``(of args, of kwargs)`` as the dict by argument that ``torch.export`` takes."""
    if not (isinstance(shapes, tuple) and len(shapes) == 2 and isinstance(shapes[1], dict)):
        return shapes
    of_args, of_kwargs = shapes
    parameters = inspect.signature(module.forward).parameters.values()
    rest = list(of_args)
    by_name: dict[str, Any] = {}
    for parameter in parameters:
        if not rest:
            break
        if parameter.kind is parameter.VAR_POSITIONAL:
            by_name[parameter.name], rest = tuple(rest), []
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            by_name[parameter.name] = rest.pop(0)
    var = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), None)
    known = {p.name for p in parameters}
    extra = {name: value for name, value in of_kwargs.items() if name not in known}
    by_name |= {name: value for name, value in of_kwargs.items() if name in known}
    if extra and var is not None:
        by_name[var] = extra
    return by_name


def _is_decomposed(exported: Any) -> bool:
    """Tell whether all operators have a function here and none writes into its arguments."""
    for node in exported.graph.nodes:
        if node.op == "get_attr":
            return False  # a nested graph
        schema = schema_of(node.target) if node.op == "call_function" else None
        if schema is not None and (
            schema.is_mutable or schema.name in _WRITERS or not _is_known(node.target)
        ):
            return False
        if schema is None and node.op == "call_function" and not _is_python(node.target):
            return False
    return True


def _is_python(target: Any) -> bool:
    """Tell whether a node calls a function of Python, such as one of sizes."""
    return getattr(target, "__module__", "") in ("_operator", "math") or target is operator.getitem


def _is_known(target: Any) -> bool:
    schema = schema_of(target)
    if schema is None:
        return False
    namespace, _, name = schema.name.partition("::")
    return registry.find(namespace, name, schema.overload_name or "default") is not None


@contextmanager
def in_mode(module: Any, training: bool) -> Iterator[None]:
    """Put every part of a module in training or evaluation while entered."""
    modes = [(each, each.training) for each in module.modules()]
    module.train(training)
    try:
        yield
    finally:
        for each, mode in modes:
            each.training = mode


@contextmanager
def without_cache(module: Any) -> Iterator[None]:
    """Have models of transformers return no cache of keys and values: training needs none."""
    configs = [
        each.config for each in module.modules()
        if getattr(getattr(each, "config", None), "use_cache", None) is True
    ]  # fmt: skip
    for config in configs:
        config.use_cache = False
    try:
        yield
    finally:
        for config in configs:
            config.use_cache = True


# What transformers draw on the host in training: which layers are skipped, which frames are masked.
_DRAWN = {
    "layerdrop": 0.0, "encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0,
    "apply_spec_augment": False,
}  # fmt: skip


@contextmanager
def without_drawn_structure(module: Any) -> Iterator[list[str]]:
    """Switch off what draws on the host in training, which a compiled program cannot.

    Yields:
        the names of the settings that were on.
    """
    before: list[tuple[Any, str, Any]] = []
    for part in module.modules():
        for owner in (part, getattr(part, "config", None)):
            for name, off in _DRAWN.items():
                value = vars(owner).get(name) if hasattr(owner, "__dict__") else None
                if isinstance(value, (bool, int, float)) and value != off:
                    before.append((owner, name, value))
                    setattr(owner, name, off)
    try:
        yield sorted({name for _, name, _ in before})
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def _left_out(module: Any, names: list[str]) -> str:
    settings = ", ".join(f"{name}={_DRAWN[name]}" for name in names)
    return (
        f"{type(module).__name__} is converted with {settings}: its forward draws on the host "
        "which layers or frames to leave out, and a compiled program would leave out the same "
        "ones in every step."
    )


def _keep_no_grad(exported: Any) -> None:
    """Put a ``detach`` behind each result of a region under ``torch.no_grad``.

    ``run_decompositions`` merges such regions into the graph, and forgets that they had no
    gradient.
    """
    torch = load_torch()

    for module in exported.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        changed = False
        for node in list(module.graph.nodes):
            if str(node.target) != "wrap_with_set_grad_enabled" or node.args[0] is not False:
                continue
            for item in [user for user in node.users if user.target is operator.getitem]:
                with module.graph.inserting_after(item):
                    detached = module.graph.call_function(torch.ops.aten.detach.default, (item,))
                detached.meta.update(
                    {k: item.meta[k] for k in ("val", "stack_trace", "nn_module_stack")
                     if k in item.meta}
                )  # fmt: skip
                item.replace_all_uses_with(
                    detached, delete_user_cb=lambda user, new=detached: user is not new
                )
                changed = True
        if changed:
            module.recompile()


def problems_of(
    error: Exception, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Problem]:
    """Return why ``torch.export`` failed: what went wrong, at which line, and what to do."""
    kind, text, line = type(error).__name__, str(error), _user_line(error)
    torch = load_torch()
    leaves = load_torch("torch.utils._pytree").tree_leaves((args, dict(kwargs)))
    tensors = [*module.parameters(), *(t for t in leaves if isinstance(t, torch.Tensor))]
    concrete = not any(map(is_abstract, tensors))
    if concrete and (own := _own_failure(module, args, kwargs)):
        return [own]
    decisions = decisions_by_value(module, args, kwargs) if concrete else []
    by_value = "data-dependent" in text or kind.startswith(("GuardOnDataDependent", "DataDep"))
    if by_value or any(each.line == line for each in decisions):
        what = "It decides by the values of tensors: an `if`, a loop or a size depends on data"
        first = [] if any(each.line == line for each in decisions) else [
            Problem(what, NO_NUMBERS, line)
        ]  # fmt: skip
        return [*first, *decisions]
    return [Problem(f"torch.export refuses it: {kind}: {_first_lines(text)}", _WRITE, line)]


_WRITE = "Write that line with functions of PyTorch on tensors, or convert the parts around it."


def _own_failure(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Problem | None:
    """Return the problem that a module has with its example inputs in PyTorch itself."""
    torch = load_torch()
    buffers = {name: b.detach().clone() for name, b in module.named_buffers()}
    random = torch.random.get_rng_state()
    try:
        with torch.no_grad():
            module(*args, **kwargs)
    except Exception as error:
        return Problem(
            f"It fails in PyTorch with these example inputs: {type(error).__name__}: "
            f"{_first_lines(str(error)).rstrip('.')}",
            "Give example inputs as its forward takes them.",
            _user_line(error),
        )
    finally:
        torch.random.set_rng_state(random)
        with torch.no_grad():
            for name, buffer in module.named_buffers():
                buffer.copy_(buffers[name])
    return None


def _user_line(error: BaseException) -> Any:
    return source_line("".join(traceback.format_exception(error)))


def _first_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()[:3])

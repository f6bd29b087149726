"""``torch.export`` of a module, as a program of operators that have a function here.

Owns the call of ``torch.export`` and what it loses without help: ``no_grad`` regions, the backward
pass of an ``autograd.Function``, and the cache that transformers return by default. Nothing of
PyTorch stays changed.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from neurenix._core.errors import ConversionError
from neurenix.interop.torch import registry
from neurenix.interop.torch.dtypes import load_torch, schema_of
from neurenix.interop.torch.program import source_line


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
    torch = load_torch()

    with ExitStack() as stack:
        stack.enter_context(in_mode(module, training))
        stack.enter_context(without_cache(module))
        stack.enter_context(_watched_functions())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # what torch.export says of PyTorch's own code
        try:
            exported = torch.export.export(
                module, args, dict(kwargs), dynamic_shapes=_by_name(module, args, dynamic_shapes),
                strict=False,
            )  # fmt: skip
            _keep_no_grad(exported)
            table = {
                target: rule
                for target, rule in torch.export.default_decompositions().items()
                if not _is_known(target)
            }
            return exported.run_decompositions(table)
        except ConversionError:
            raise
        except Exception as error:  # of many kinds, each worded for who writes PyTorch's compiler
            raise explain(error, module) from error


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


@contextmanager
def _watched_functions() -> Iterator[None]:
    """Refuse an ``autograd.Function`` by name: ``torch.export`` drops its backward pass.

    Its forward pass would be differentiated instead, which may be another gradient.
    """
    torch = load_torch()

    kind = torch.autograd.Function
    original = vars(kind)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls.__name__.startswith("GeneratedBackwardFor_"):
            # Of torch.library: the operator itself is exported, and has a function here or not.
            return original.__get__(None, cls)(*args, **kwargs)
        raise ConversionError(
            f"{cls.__name__} is a torch.autograd.Function, and torch.export drops its backward "
            "pass, so another gradient would be computed. Write it as an operator "
            "(torch.library.custom_op with register_autograd), and say how that is computed in "
            'JAX: nx.register_torch_op("my_lib::my_op", function), with jax.custom_vjp for its '
            "gradient."
        )

    kind.apply = classmethod(apply)
    try:
        yield
    finally:
        kind.apply = original


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


def explain(error: Exception, module: Any) -> ConversionError:
    """Return our error for one of ``torch.export``: what went wrong, at which line, what to do."""
    name, text = type(module).__name__, str(error)
    line = _user_line(error)
    at = f" at {line}" if line else ""
    if "data-dependent" in text or type(error).__name__.startswith("GuardOnDataDependent"):
        return ConversionError(
            f"{name} decides by the values of a tensor{at}: an `if`, a loop or a size depends on "
            "data. A compiled program cannot: write torch.where, torch.cond or a fixed size."
        )
    return ConversionError(
        f"torch.export cannot export {name}{at}: {type(error).__name__}: {_first_lines(text)}"
    )


def _user_line(error: BaseException) -> Any:
    import traceback

    return source_line("".join(traceback.format_exception(error)))


def _first_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.strip().splitlines()[:3])

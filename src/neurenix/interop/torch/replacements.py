"""Parts of PyTorch that decide by values, written so that ``torch.export`` can trace them.

Owns the table of such parts, and that they are as PyTorch has them afterwards. Each replacement
returns what the part returns for arguments that are right; where the part checks the values of
tensors, the compiled program does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from neurenix.interop.torch.dtypes import load_torch

CTC_LOSS = "neurenix::ctc_loss"
CROSS_MAP_LRN = "neurenix::cross_map_lrn"


class AdaptiveOutput(NamedTuple):
    """What ``nn.AdaptiveLogSoftmaxWithLoss`` returns."""

    output: Any
    loss: Any


@contextmanager
def traceable_parts() -> Iterator[None]:
    """Put the replacements into PyTorch while entered."""
    torch = load_torch()
    distribution = load_torch("torch.distributions").Distribution
    batch_norm = torch.nn.BatchNorm2d.__bases__[0]  # of all of them
    places: list[tuple[Any, str, Callable[..., Any]]] = [
        (torch.nn.functional, "gaussian_nll_loss", gaussian_nll_loss),
        (torch.nn.AdaptiveLogSoftmaxWithLoss, "forward", adaptive_log_softmax),
        (batch_norm, "forward", _batch_norm(batch_norm.forward)),
        (torch.nn.CrossMapLRN2d, "forward", cross_map_lrn),
        (torch.nn.functional, "instance_norm", _instance_norm(torch.nn.functional.instance_norm)),
        (torch, "ctc_loss", ctc_loss),
    ]
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    for owner, name, replacement in places:
        setattr(owner, name, replacement)
    distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        distribution.set_default_validate_args(__debug__)  # as PyTorch begins
        for owner, name, original in before:
            setattr(owner, name, original)


def gaussian_nll_loss(
    input: Any, target: Any, var: Any, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    """Return ``F.gaussian_nll_loss``, which stops where a variance is negative."""
    torch = load_torch()

    if not isinstance(var, torch.Tensor):
        var = var * torch.ones_like(input)
    if var.dim() == input.dim() - 1:
        var = var.unsqueeze(-1)
    # The value is limited from below, and the gradient is that of the variance as it is.
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.9189385332046727  # ln(2π) / 2
    return {"none": lambda: loss, "mean": loss.mean, "sum": loss.sum}[reduction]()


def adaptive_log_softmax(module: Any, input_: Any, target_: Any) -> Any:
    """Return what ``nn.AdaptiveLogSoftmaxWithLoss`` returns, by way of every class's probability.

    PyTorch computes of each example the cluster of its target alone.
    """
    rows, targets = (input_, target_) if target_.dim() else (input_[None], target_[None])
    every = module.log_prob(rows)
    output = every.gather(1, targets[:, None]).squeeze(1)
    loss = (-output).mean()
    return AdaptiveOutput(output if target_.dim() else output.squeeze(0), loss)


def _batch_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the forward pass of a batch norm whose running statistics may be plain means."""

    @functools.wraps(original)
    def forward(module: Any, input: Any) -> Any:
        tracked = getattr(module, "num_batches_tracked", None)
        fixed = module.momentum is not None or not module.track_running_stats
        if fixed or tracked is None or not module.training:
            return original(module, input)
        torch = load_torch()

        tracked.add_(1)
        axes = [0, *range(2, input.dim())]
        var, mean = torch.var_mean(input.detach(), axes)
        part = 1.0 / tracked.to(mean.dtype)
        module.running_mean.add_(part * (mean - module.running_mean))
        module.running_var.add_(part * (var - module.running_var))
        return torch.nn.functional.batch_norm(
            input, None, None, module.weight, module.bias, True, 0.0, module.eps
        )

    return forward


def _instance_norm(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``F.instance_norm`` whose change of the running statistics is seen."""

    @functools.wraps(original)
    def instance_norm(
        input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
        bias: Any = None, use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5,
    ) -> Any:  # fmt: skip
        if not use_input_stats or running_mean is None:
            return original(input, running_mean, running_var, weight, bias, use_input_stats,
                            momentum, eps)  # fmt: skip
        var, mean = load_torch().var_mean(input.detach(), list(range(2, input.dim())))
        running_mean.add_(momentum * (mean.mean(0) - running_mean))
        running_var.add_(momentum * (var.mean(0) - running_var))
        return original(input, None, None, weight, bias, True, momentum, eps)

    return instance_norm


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """Return ``torch.ctc_loss`` as one operator; its shapes do not depend on the lengths."""
    torch = load_torch()

    lengths = (torch.as_tensor(each) for each in (input_lengths, target_lengths))
    return _ctc_operator()(log_probs, targets, *lengths, blank, reduction, zero_infinity)


@functools.cache
def _ctc_operator() -> Any:
    def shape(
        log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int,
        reduction: int, zero_infinity: bool,
    ) -> Any:  # fmt: skip
        batch = log_probs.shape[1:2] if log_probs.dim() == 3 else ()
        return log_probs.new_empty(() if reduction else batch)

    return _define(
        CTC_LOSS,
        "(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, "
        "int blank, int reduction, bool zero_infinity) -> Tensor",
        shape,
    )


def cross_map_lrn(module: Any, input: Any) -> Any:
    """Return ``nn.CrossMapLRN2d`` as one operator: it is an ``autograd.Function`` in PyTorch."""
    return _lrn_operator()(input, module.size, module.alpha, module.beta, module.k)


@functools.cache
def _lrn_operator() -> Any:
    def shape(input: Any, size: int, alpha: float, beta: float, k: float) -> Any:
        return input.new_empty(input.shape)

    return _define(
        CROSS_MAP_LRN,
        "(Tensor input, int size, float alpha, float beta, float k) -> Tensor",
        shape,
    )


def _define(name: str, schema: str, shape: Callable[..., Any]) -> Any:
    """Define an operator that is traced and never run by PyTorch."""
    torch = load_torch()

    torch.library.define(name, schema)
    torch.library.register_fake(name, shape)
    return getattr(torch.ops.neurenix, name.partition("::")[2]).default

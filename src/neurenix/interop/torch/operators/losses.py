"""Losses. ``reduction`` is PyTorch's number: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from neurenix.interop.torch.registry import operator
from neurenix.interop.torch.replacements import CTC_LOSS

Array = Any


def _reduce(values: Array, reduction: int) -> Array:
    if reduction == 1:
        return values.mean()
    return values.sum() if reduction == 2 else values


@operator("cross_entropy_loss")
def cross_entropy(
    x: Array, target: Array, weight: Any = None, reduction: int = 1, ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:  # fmt: skip
    axis = min(1, x.ndim - 1)
    logs = jax.nn.log_softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis)
    classes = x.shape[axis]
    per_class = None if weight is None else weight.reshape((-1,) + (1,) * (x.ndim - 1 - axis))
    if jnp.issubdtype(target.dtype, jnp.floating):
        soft = target * (1 - label_smoothing) + label_smoothing / classes
        values = -(logs * soft * (1 if per_class is None else per_class)).sum(axis)
        total = values.size
        return values.sum() / total if reduction == 1 else _reduce(values, reduction)
    return _negative_log_likelihood(
        logs, target, weight, reduction, ignore_index, label_smoothing, per_class
    ).astype(x.dtype)


def _negative_log_likelihood(
    logs: Array, target: Array, weight: Any, reduction: int, ignore_index: int,
    label_smoothing: float = 0.0, per_class: Any = None,
) -> Array:  # fmt: skip
    axis = min(1, logs.ndim - 1)
    counts = target != ignore_index
    safe = jnp.where(counts, target, 0)
    picked = jnp.squeeze(jnp.take_along_axis(logs, jnp.expand_dims(safe, axis), axis), axis)
    each = counts.astype(logs.dtype) if weight is None else weight[safe] * counts
    values = -picked * each
    if label_smoothing:
        spread = -(logs if per_class is None else logs * per_class).sum(axis) * counts
        values = (1 - label_smoothing) * values + label_smoothing / logs.shape[axis] * spread
    return values.sum() / each.sum() if reduction == 1 else _reduce(values, reduction)


@operator("nll_loss_forward", "nll_loss2d_forward")
def nll_loss_forward(
    x: Array, target: Array, weight: Any, reduction: int, ignore_index: int
) -> tuple[Array, Array]:
    counts = target != ignore_index
    each = counts if weight is None else weight[jnp.where(counts, target, 0)] * counts
    return nll_loss(x, target, weight, reduction, ignore_index), each.sum().astype(x.dtype)


@operator("nll_loss", "nll_loss_nd", "nll_loss2d")
def nll_loss(
    x: Array, target: Array, weight: Any = None, reduction: int = 1, ignore_index: int = -100
) -> Array:
    return _negative_log_likelihood(x, target, weight, reduction, ignore_index)


@operator("mse_loss")
def mse_loss(x: Array, target: Array, reduction: int = 1) -> Array:
    return _reduce((x - target) ** 2, reduction)


@operator("l1_loss")
def l1_loss(x: Array, target: Array, reduction: int = 1) -> Array:
    return _reduce(jnp.abs(x - target), reduction)


@operator("smooth_l1_loss")
def smooth_l1_loss(x: Array, target: Array, reduction: int = 1, beta: float = 1.0) -> Array:
    size = jnp.abs(x - target)
    if beta == 0:
        return _reduce(size, reduction)
    return _reduce(jnp.where(size < beta, 0.5 * size**2 / beta, size - 0.5 * beta), reduction)


@operator("huber_loss")
def huber_loss(x: Array, target: Array, reduction: int = 1, delta: float = 1.0) -> Array:
    size = jnp.abs(x - target)
    values = jnp.where(size <= delta, 0.5 * size**2, delta * (size - 0.5 * delta))
    return _reduce(values, reduction)


@operator("binary_cross_entropy")
def binary_cross_entropy(x: Array, target: Array, weight: Any = None, reduction: int = 1) -> Array:
    values = -(
        target * jnp.maximum(jnp.log(x), -100) + (1 - target) * jnp.maximum(jnp.log1p(-x), -100)
    )
    return _reduce(values if weight is None else values * weight, reduction)


@operator("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    x: Array, target: Array, weight: Any = None, pos_weight: Any = None, reduction: int = 1
) -> Array:
    positive = 1 if pos_weight is None else 1 + (pos_weight - 1) * target
    values = (1 - target) * x + positive * jax.nn.softplus(-x)
    return _reduce(values if weight is None else values * weight, reduction)


@operator("kl_div")
def kl_div(x: Array, target: Array, reduction: int = 1, log_target: bool = False) -> Array:
    if log_target:
        return _reduce(jnp.exp(target) * (target - x), reduction)
    return _reduce(jax.scipy.special.xlogy(target, target) - target * x, reduction)


@operator("multilabel_margin_loss_forward")
def multilabel_margin_loss_forward(x: Array, target: Array, reduction: int) -> tuple[Array, Array]:
    """Return the loss, and which classes are targets; the first -1 ends the targets of an example.

    PyTorch's own decomposition counts what stands behind that -1 (2.13.0).
    """
    valid = jnp.cumprod(target != -1, -1).astype(bool)
    classes = jnp.arange(x.shape[-1])
    is_target = ((target[..., None] == classes) & valid[..., None]).any(-2)
    picked = jnp.take_along_axis(x, jnp.where(valid, target, 0), -1)
    margins = jax.nn.relu(1 - picked[..., :, None] + x[..., None, :])
    counts = valid[..., :, None] & ~is_target[..., None, :]
    values = jnp.where(counts, margins, 0).sum((-2, -1)) / x.shape[-1]
    return _reduce(values, reduction), is_target.astype(x.dtype)


@operator("multilabel_margin_loss")
def multilabel_margin_loss(x: Array, target: Array, reduction: int = 1) -> Array:
    return multilabel_margin_loss_forward(x, target, reduction)[0]


@operator("poisson_nll_loss")
def poisson_nll_loss(
    input: Array, target: Array, log_input: bool, full: bool, eps: float, reduction: int
) -> Array:
    if log_input:
        values = jnp.exp(input) - target * input
    else:
        values = input - target * jnp.log(input + eps)
    if full:
        safe = jnp.maximum(target, 1)
        stirling = safe * jnp.log(safe) - safe + 0.5 * jnp.log(2 * jnp.pi * safe)
        values = values + jnp.where(target > 1, stirling, 0)
    return _reduce(values, reduction)


@operator("_ctc_loss")
def ctc_loss_raw(
    log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Array, Array]:  # fmt: skip
    """Return the loss of each example: log_probs (T, N, C), targets (N, S) or joined."""
    lengths = jnp.asarray(target_lengths)
    if targets.ndim == 1:
        most = (
            int(max(target_lengths)) if isinstance(target_lengths, (list, tuple)) else targets.size
        )
        starts = jnp.cumsum(lengths) - lengths
        places = starts[:, None] + jnp.arange(most)[None]
        targets = jnp.take(targets, jnp.clip(places, 0, max(targets.size - 1, 0)))
    values = _ctc(log_probs, targets, jnp.asarray(input_lengths), lengths, blank)
    if zero_infinity:
        values = jnp.where(jnp.isinf(values), 0, values)
    return values, jnp.zeros((0,), log_probs.dtype)


@operator("ctc_loss", CTC_LOSS)
def ctc_loss(
    log_probs: Array, targets: Array, input_lengths: Any, target_lengths: Any, blank: int = 0,
    reduction: int = 1, zero_infinity: bool = False,
) -> Array:  # fmt: skip
    single = log_probs.ndim == 2
    if single:
        log_probs, targets = log_probs[:, None], targets.reshape(1, -1)
        input_lengths, target_lengths = (
            jnp.asarray(each).reshape(1) for each in (input_lengths, target_lengths)
        )
    values, _ = ctc_loss_raw(
        log_probs, targets, input_lengths, target_lengths, blank, zero_infinity
    )
    if reduction == 1:
        return (values / jnp.maximum(jnp.asarray(target_lengths), 1)).mean()
    return _reduce(values[0] if single else values, reduction)


def _ctc(logs: Array, targets: Array, input_lengths: Any, lengths: Any, blank: int) -> Array:
    """Sum the paths through the labels with blanks between them (Graves et al. 2006)."""
    steps, batch, _ = logs.shape
    size = targets.shape[1]
    never = -1e30
    labels = jnp.full((batch, 2 * size + 1), blank).at[:, 1::2].set(targets)
    skips = jnp.pad(labels[:, 2:] != labels[:, :-2], ((0, 0), (2, 0))) & (labels != blank)
    start = jnp.full((batch, 2 * size + 1), never)
    first = jnp.take_along_axis(logs[0], labels, 1)
    start = start.at[:, 0].set(first[:, 0])
    if size:
        start = start.at[:, 1].set(jnp.where(lengths > 0, first[:, 1], never))

    def step(alpha: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        time, log = given
        one = jnp.pad(alpha[:, :-1], ((0, 0), (1, 0)), constant_values=never)
        two = jnp.pad(alpha[:, :-2], ((0, 0), (2, 0)), constant_values=never)[:, : alpha.shape[1]]
        total = jnp.logaddexp(jnp.logaddexp(alpha, one), jnp.where(skips, two, never))
        new = total + jnp.take_along_axis(log, labels, 1)
        return jnp.where((time < input_lengths)[:, None], new, alpha), None

    alpha, _ = jax.lax.scan(step, start, (jnp.arange(1, steps), logs[1:]))
    last = jnp.take_along_axis(alpha, 2 * lengths[:, None], 1)[:, 0]
    before = jnp.take_along_axis(alpha, jnp.maximum(2 * lengths - 1, 0)[:, None], 1)[:, 0]
    total = jnp.where(lengths > 0, jnp.logaddexp(last, before), last)
    return jnp.where(total < never / 2, jnp.inf, -total)

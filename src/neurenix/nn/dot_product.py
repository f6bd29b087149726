"""Scaled dot-product attention by the fused kernel of the device, where one fits.

Chooses the implementation; the TPU kernel is called in ``splash_attention``, the layer with
projections is in ``multihead``.

If tracing knows the devices of the mesh, the choice is made while tracing. Otherwise it is made
when the program is lowered for a platform: the traced program contains every implementation that
fits the shapes.

=========  =========================================  ==============================================
platform   implementation                             when
=========  =========================================  ==============================================
TPU        Pallas splash attention (ships with JAX)   no ``mask``; T and S multiples of 128; head
                                                      sizes up to 128 or multiples of 64; the trace
                                                      sizes up to 128 or multiples of 64; tracing
                                                      knows the mesh (``jax.set_mesh``), because XLA
                                                      does not partition a kernel; on v2 and v3
                                                      float32 only
                                                      ``softcap``; bfloat16 or float16; head size a
                                                      multiple of 8, up to 128, also of values;
                                                      compute capability 8.0 or above
any        XLA                                        otherwise
=========  =========================================  ==============================================
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name as named

from neurenix._core.errors import ArgumentError, ArgumentTypeError, ShapeError
from neurenix._core.names import answers
from neurenix._jit.target_device import traced_kind
from neurenix._migration import layers
from neurenix.device import DeviceType, devices
from neurenix.nn import splash_attention
from neurenix.nn._checks import as_mask, expect_array

# The score of a masked key: finite, so that a row without keys gives no NaN.
_NEVER = -0.7 * float(jnp.finfo(jnp.float32).max)


@answers(layers.OF_DOT_PRODUCT)
def dot_product_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    mask: jax.Array | None = None,
    causal: bool = False,
    window: int | None = None,
    sinks: jax.Array | None = None,
    softcap: float | None = None,
    checkpoint_name: str | None = None,
) -> jax.Array:
    """Return ``softmax(query · keyᵀ / √D) · value``, with the softmax in float32.

    Letters: ``N`` batch, ``T`` queries, ``S`` keys, ``H`` query heads, ``K`` key heads (K divides
    H), ``D`` head size, ``C`` head size of the values.

    Args:
        query: (N, T, H, D).
        key: (N, S, K, D), of the same dtype.
        value: (N, S, K, C), of the same dtype.
        mask: booleans, True where a query may attend to a key: (T, S), (N, T or 1, S) or
            (N, H or 1, T or 1, S). PyTorch's layer (not its function) uses the opposite meaning.
            Two axes always mean (T, S); write a mask (N, S) of keys that are not padding as
            ``mask[:, None, :]``.
        causal: whether query t may attend only to keys 0 … t.
        window: number of positions query t may attend to, itself included: keys
            t - window + 1 … t, and without ``causal`` as many after it. None: no limit.
        sinks: (H,), per head the score of an extra key whose value is 0, so that a head can attend
            to nothing (Xiao et al. 2024).
        softcap: soft cap: scores s become softcap · tanh(s / softcap), before mask, window and
            sinks (Gemma Team 2024, Gemma 2, section 2).
        checkpoint_name: name of the result, and of the residuals of a fused kernel, for policies
            of ``jax.checkpoint``.

    Returns:
        (N, T, H, C), in the dtype of ``query``.

    Raises:
        ArgumentError: ``window`` is not an integer of at least 1, or ``softcap`` is not a positive
            number.
        ArgumentTypeError: an argument is not an array, or the dtypes of query, key and value
            differ.
        ShapeError: the shapes are incompatible.

    Example:
        >>> x = nx.ones((2, 5, 4, 8))
        >>> nn.dot_product_attention(x, x, x, causal=True).shape
        (2, 5, 4, 8)
    """
    _check(query, key, value)
    _check_options(query, window, sinks, softcap)
    mask = None if mask is None else four_axes(mask, query, key)
    arrays = (query, key, value) if sinks is None else (query, key, value, sinks)
    kind = traced_kind()
    fits_tpu = mask is None and splash_attention.fits(query, key, value, kind or "")
    options: dict[str, Any] = {"causal": causal, "window": window, "softcap": softcap}
    kernel = functools.partial(
        splash_attention.attention, **options, checkpoint_name=checkpoint_name
    )
    if fits_tpu and kind is not None and kind.startswith("TPU"):
        return kernel(*arrays)
    branches: dict[str, Callable[..., jax.Array]] = {}
    if fits_tpu and kind is None:
        branches["tpu"] = kernel
    unchanged = mask is None and window is None and sinks is None and softcap is None
    if unchanged and _cudnn_fits(query, value):
        branches["cuda"] = functools.partial(
            jax.nn.dot_product_attention, is_causal=causal, implementation="cudnn"
        )

    def plain(*arrays: jax.Array) -> jax.Array:
        out = _plain(*arrays, mask=mask, **options)
        return out if checkpoint_name is None else named(out, checkpoint_name)

    if not branches:
        return plain(*arrays)
    # A branch not taken still reserves memory for its residuals, here T x S weights.
    default = jax.checkpoint(plain) if "tpu" in branches else plain
    return lax.platform_dependent(*arrays, default=default, **branches)


def _plain(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    sinks: jax.Array | None = None,
    *,
    mask: jax.Array | None,
    causal: bool,
    window: int | None,
    softcap: float | None,
) -> jax.Array:
    """Return attention computed by XLA, for any shapes."""
    if sinks is None and softcap is None and value.shape == key.shape:
        return jax.nn.dot_product_attention(
            query,
            key,
            value,
            mask=mask,
            is_causal=causal,
            local_window_size=None if window is None else window - 1,
            implementation="xla",
        )
    batch, queries, heads, size = query.shape
    keys, groups = key.shape[1:3]
    query = query.reshape(batch, queries, groups, -1, size)
    scores = jnp.einsum("ntkgd,nskd->nkgts", query, key, preferred_element_type=jnp.float32)
    scores = scores / math.sqrt(size)
    if softcap is not None:
        scores = softcap * jnp.tanh(scores / softcap)
    ahead = jnp.arange(queries)[:, None] - jnp.arange(keys)
    allowed = (ahead >= 0) | (not causal)
    if window is not None:
        allowed &= jnp.abs(ahead) < window
    if mask is not None:
        of_all_heads = jnp.broadcast_to(mask, (mask.shape[0], heads, queries, keys))
        allowed = allowed & of_all_heads.reshape(-1, groups, heads // groups, queries, keys)
    scores = jnp.where(allowed, scores, _NEVER)
    if sinks is not None:
        last = sinks.astype(jnp.float32).reshape(groups, -1, 1, 1)
        scores = jnp.append(scores, jnp.broadcast_to(last, (*scores.shape[:-1], 1)), axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., :keys].astype(value.dtype)
    return jnp.einsum("nkgts,nskc->ntkgc", weights, value).reshape(batch, queries, heads, -1)


def four_axes(mask: Any, query: jax.Array, key: jax.Array) -> jax.Array:
    """Return a mask as (N or 1, H or 1, T or 1, S).

    Raises:
        ShapeError: the mask has another shape, or is not boolean.
    """
    mask = as_mask("mask", mask)
    batch, queries, heads, _ = query.shape
    keys = key.shape[1]
    shape = mask.shape
    if mask.ndim == 2:
        mask = mask[None, None]
    elif mask.ndim == 3:
        mask = mask[:, None]
    wanted = (batch, heads, queries, keys)
    fits = mask.ndim == 4 and all(
        m in ((n, 1) if axis < 3 else (n,))
        for axis, (m, n) in enumerate(zip(mask.shape, wanted, strict=True))
    )
    fits = fits and (len(shape) > 2 or shape == (queries, keys))
    if not fits or mask.dtype != jnp.bool_:
        hint = " Write a mask of keys that are not padding as mask[:, None, :]."
        raise ShapeError(
            f"An attention mask is boolean, {(queries, keys)}, {(batch, queries, keys)} or "
            f"{wanted}; got {mask.dtype}, shape {shape}.{hint if shape == (batch, keys) else ''}"
        )
    return mask


def _check(query: jax.Array, key: jax.Array, value: jax.Array) -> None:
    for array in (query, key, value):
        expect_array("dot_product_attention", array)
    shapes = f"query {query.shape}, key {key.shape}, value {value.shape}"
    kinds = [jax.dtypes.canonicalize_dtype(array.dtype) for array in (query, key, value)]
    if len(set(kinds)) > 1:
        raise ArgumentTypeError(
            "Attention takes queries, keys and values of one dtype; got query {}, key {}, value "
            "{}. Cast them: key.astype(query.dtype).".format(*kinds)
        )
    if query.ndim != 4 or key.ndim != 4 or value.ndim != 4 or key.shape[:3] != value.shape[:3]:
        raise ShapeError(
            f"Attention takes (N, T, H, D), (N, S, K, D) and (N, S, K, C); got {shapes}."
        )
    same = query.shape[0] == key.shape[0] and query.shape[3] == key.shape[3]
    if not same or query.shape[2] % key.shape[2]:
        raise ShapeError(
            f"Queries and keys must agree in N and D, and the number of key heads must divide that "
            f"of query heads; got {shapes}."
        )


def _check_options(
    query: jax.Array, window: int | None, sinks: jax.Array | None, softcap: float | None
) -> None:
    whole = isinstance(window, numbers.Integral) and not isinstance(window, bool)
    if window is not None and (not whole or window < 1):
        raise ArgumentError(f"`window` must be an integer of at least 1, or None; got {window!r}.")
    number = isinstance(softcap, numbers.Real) and not isinstance(softcap, bool)
    if softcap is not None and not (number and 0 < softcap < math.inf):
        raise ArgumentError(f"`softcap` must be a number above 0, or None; got {softcap!r}.")
    if sinks is not None:
        expect_array("The argument `sinks`", sinks)
    if sinks is not None and sinks.shape != query.shape[2:3]:
        raise ShapeError(
            f"`sinks` must have one number per head, {query.shape[2]}; got {sinks.shape}."
        )


def _cudnn_fits(query: jax.Array, value: jax.Array) -> bool:
    size = query.shape[3]
    if value.shape[3] != size:
        return False
    if query.dtype not in (jnp.bfloat16, jnp.float16) or size % 8 or size > 128:
        return False
    found = devices(DeviceType.CUDA)
    return bool(found) and all(
        float(device.jax_device.compute_capability) >= 8.0 for device in found
    )

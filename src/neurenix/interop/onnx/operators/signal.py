"""Fourier transforms, windows and the mel scale. Complex numbers are pairs along the last axis."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from neurenix._core.errors import ConversionError
from neurenix.interop.onnx.arrays import expect_size
from neurenix.interop.onnx.files import dtype_of
from neurenix.interop.onnx.registry import operator

Array = Any


@operator("DFT", since=20, known=(1, 2))
def dft(x, length=None, axis=None, *, inverse=0, onesided=0):
    axis = -2 if axis is None else int(np.reshape(axis, ()))
    return _dft(x, _number(length), axis, inverse, onesided)


@operator("DFT", since=17, known=(1,))
def dft_17(x, length=None, *, axis=1, inverse=0, onesided=0):
    return _dft(x, _number(length), axis, inverse, onesided)


@operator("STFT", known=(1, 3))
def stft(x, frame_step, window=None, frame_length=None, *, onesided=1):
    step, length = _number(frame_step), _number(frame_length)
    x = x[..., None] if x.ndim == 2 else x
    if length is None:
        length = x.shape[1] if window is None else window.shape[0]
    if not step or step < 1 or not 1 <= length <= x.shape[1]:
        raise ConversionError(
            f"it takes frames of {length} with steps of {step} from a signal of {x.shape[1]}."
        )
    starts = np.arange(0, x.shape[1] - length + 1, step)
    frames = x[:, starts[:, None] + np.arange(length)]
    frames = frames if window is None else frames * window[:, None]
    return _dft(frames, length, 2, 0, onesided and x.shape[-1] == 1)


def _number(value: Any) -> int | None:
    return None if value is None else int(np.reshape(value, ()))


def _dft(x: Array, length: int | None, axis: int, inverse: int, onesided: Any) -> Array:
    if x.shape[-1] not in (1, 2) or axis % x.ndim == x.ndim - 1:
        raise ConversionError(
            "it takes numbers along the last axis, 1 real or 2 of a complex number, and transforms "
            f"another axis; here axis {axis} of {list(x.shape)}."
        )
    axis %= x.ndim
    # XLA transforms numbers of 32 and 64 bits.
    dtype, x = x.dtype, x.astype(jnp.promote_types(x.dtype, jnp.float32))
    real = x[..., 0]
    values = real if x.shape[-1] == 1 else real + 1j * x[..., 1]
    if inverse and onesided:
        return jnp.fft.irfft(values, length, axis)[..., None].astype(dtype)
    if inverse:
        result = jnp.fft.ifft(values, length, axis)
    elif onesided or x.shape[-1] == 1:
        result = jnp.fft.rfft(real, length, axis)
    else:
        result = jnp.fft.fft(values, length, axis)
    if x.shape[-1] == 1 and not inverse and not onesided:
        # The other half of a real signal's spectrum mirrors the first.
        rest = (length or real.shape[axis]) - result.shape[axis]
        mirrored = jnp.flip(jnp.take(result, np.arange(1, rest + 1), axis), axis).conj()
        result = jnp.concatenate([result, mirrored], axis)
    return jnp.stack([result.real, result.imag], -1).astype(dtype)


@operator("HannWindow", known=(0,), folds=True)
def hann_window(size, *, periodic=1, output_datatype=1):
    return _window(size, (0.5, 0.5), periodic, output_datatype)


@operator("HammingWindow", known=(0,), folds=True)
def hamming_window(size, *, periodic=1, output_datatype=1):
    return _window(size, (25 / 46, 21 / 46), periodic, output_datatype)


@operator("BlackmanWindow", known=(0,), folds=True)
def blackman_window(size, *, periodic=1, output_datatype=1):
    return _window(size, (0.42, 0.5, 0.08), periodic, output_datatype)


def _window(size: Any, factors: tuple[float, ...], periodic: int, output_datatype: int) -> Any:
    """Return a sum of cosines, whose signs alternate."""
    (count,) = expect_size((int(np.reshape(size, ())),), "A window")
    turns = np.arange(count) * 2 * np.pi / max(count if periodic else count - 1, 1)
    waves = [(-1) ** n * factor * np.cos(n * turns) for n, factor in enumerate(factors)]
    return np.sum(waves, axis=0).astype(dtype_of(output_datatype, "A window"))


@operator("MelWeightMatrix", known=(0, 1, 2, 3, 4), folds=True)
def mel_weight_matrix(bins, dft_length, sample_rate, low, high, *, output_datatype=1):
    count, length, rate = (int(np.reshape(each, ())) for each in (bins, dft_length, sample_rate))
    rows, count = expect_size((length // 2 + 1, count), "MelWeightMatrix")
    ends = [2595 * np.log10(1 + float(np.reshape(each, ())) / 700) for each in (low, high)]
    mels = ends[0] + np.arange(count + 2) * (ends[1] - ends[0]) / (count + 2)
    hertz = 700 * (10 ** (mels / 2595) - 1)
    edges = np.floor((length + 1) * hertz / rate)
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    places = np.arange(rows)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising = np.where(peak > left, (places - left) / (peak - left), places == peak)
        falling = np.where(right > peak, (right - places) / (right - peak), 0)
    inside = (places >= left) & (places <= right)
    triangles = np.where((places < peak) | (right <= peak), rising, falling) * inside
    triangles = np.where(places == peak, 1, triangles) * (places <= np.maximum(peak, right))
    return triangles.astype(dtype_of(output_datatype, "MelWeightMatrix"))

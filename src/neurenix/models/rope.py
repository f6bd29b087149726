"""Rotary positions (Su et al. 2021) and their scaling to longer contexts.

Element i is rotated with element i + D/2, as in the published Transformers weights of Llama 2 and
3; the paper and Llama 4 rotate neighbours. The two differ in the column order within a head of the
query and key kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class LinearScaling:
    """Scale all frequencies equally (Chen et al. 2023, position interpolation).

    Attributes:
        factor: divisor of the frequencies.
    """

    factor: float = 8.0

    def slowed(self, frequency: np.ndarray) -> np.ndarray:
        """Return the frequencies (D/2,), in radians per position, after scaling."""
        return frequency / self.factor


@dataclass(frozen=True)
class RopeScaling:
    """Scale low frequencies, as Llama 3.1 does (rope_type ``llama3``).

    Attributes:
        factor: divisor of the low frequencies.
        low: the full factor applies to wavelengths of at least ``original_length / low`` positions.
        high: wavelengths below ``original_length / high`` are unchanged; between the two bounds,
            the factor is interpolated (a step if both are equal).
        original_length: context length of the original training.
    """

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_length: int = 8192

    def slowed(self, frequency: np.ndarray) -> np.ndarray:
        """Return the frequencies (D/2,), in radians per position, after scaling."""
        turns = self.original_length * frequency / (2 * math.pi)
        keep = np.clip((turns - self.low) / max(self.high - self.low, 1e-9), 0, 1)
        return frequency * (keep + (1 - keep) / self.factor)


@dataclass(frozen=True)
class YarnScaling:
    """Scale low frequencies by YaRN (Peng et al. 2023), and increase the attention scores.

    Attributes:
        factor: divisor of the frequencies with fewer than ``slow`` turns in ``original_length``.
        fast: frequencies with at least this many turns are unchanged; between the two bounds, the
            factor is interpolated linearly in the index of the pair.
        slow: see ``factor``.
        original_length: context length of the original training.
        truncate: whether the two bounds are rounded outwards to whole pairs.
    """

    factor: float = 32.0
    fast: float = 32.0
    slow: float = 1.0
    original_length: int = 4096
    truncate: bool = True

    def slowed(self, frequency: np.ndarray) -> np.ndarray:
        """Return the frequencies (D/2,), in radians per position, after scaling."""
        count = len(frequency)
        octave = math.log(frequency[0] / frequency[-1]) / max(1, count - 1)
        turns = self.original_length * frequency[0] / (2 * math.pi)
        first, last = (math.log(turns / bound) / octave for bound in (self.fast, self.slow))
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * count - 1)
        slow = np.clip((np.arange(count) - first) / max(last - first, 1e-3), 0, 1)
        return frequency * (1 - slow + slow / self.factor)

    @property
    def score_factor(self) -> float:
        """Factor on attention scores: (0.1 ln factor + 1)², section 3.4."""
        return (0.1 * math.log(self.factor) + 1) ** 2


Scaling = LinearScaling | RopeScaling | YarnScaling


def angles(
    length: int, head_dim: int, theta: float, scaling: Scaling | None, proportion: float = 1.0
) -> jax.Array:
    """Return the angle of each position and pair, (T, D/2) float32.

    Args:
        length: T.
        head_dim: D.
        theta: the base of the frequencies.
        scaling: scaling of the frequencies, or None.
        proportion: share of the pairs that is rotated, highest frequencies first.

    Example:
        >>> angles(4, 8, 10000.0, None).shape
        (4, 4)
    """
    frequency = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if scaling is not None:
        frequency = scaling.slowed(frequency)
    if proportion < 1:
        frequency[int(proportion * head_dim // 2) :] = 0
    return jnp.arange(length, dtype=jnp.float32)[:, None] * jnp.asarray(frequency, jnp.float32)


def rotate(x: jax.Array, angles: jax.Array) -> jax.Array:
    """Rotate (N, T, H, D) by (T, D/2), in float32; the result has the dtype of ``x``."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    cosine, sine = jnp.cos(angles)[:, None], jnp.sin(angles)[:, None]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)

"""Optimisers in NumPy, float64, written from their papers; weights after six given gradients."""

from __future__ import annotations

import math

import numpy as np

RNG = np.random.default_rng(0)
START = RNG.normal(size=(3, 4))
GRADIENTS = RNG.normal(size=(6, 3, 4))


def sgd(momentum=0.0, nesterov=False, decay=0.0, rate=0.1):
    w, velocity = START.copy(), np.zeros_like(START)
    for gradient in GRADIENTS:
        g = gradient + decay * w
        velocity = momentum * velocity + g
        w = w - rate * (g + momentum * velocity if nesterov else velocity)
    return w


def adam(l2=0.0, decay=0.0, rate=0.01, b1=0.9, b2=0.999, eps=1e-8):
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, gradient in enumerate(GRADIENTS, start=1):
        g = gradient + l2 * w
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        update = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + eps)
        w = w - rate * (update + decay * w)
    return w


def rmsprop(momentum=0.0, centered=False, rate=0.01, alpha=0.9, eps=1e-8):
    w = START.copy()
    square, average, buffer = (np.zeros_like(w) for _ in range(3))
    for g in GRADIENTS:
        square = alpha * square + (1 - alpha) * g**2
        average = alpha * average + (1 - alpha) * g
        scale = np.sqrt(square - average**2 if centered else square) + eps
        buffer = momentum * buffer + g / scale
        w = w - rate * buffer
    return w


def adagrad(rate=0.1, start=0.1):
    w, total = START.copy(), np.full_like(START, start)
    for g in GRADIENTS:
        total = total + g**2
        w = w - rate * g / np.sqrt(total)
    return w


def lion(rate=0.01, b1=0.9, b2=0.99, decay=0.1):
    w, m = START.copy(), np.zeros_like(START)
    for g in GRADIENTS:
        w = w - rate * (np.sign(b1 * m + (1 - b1) * g) + decay * w)
        m = b2 * m + (1 - b2) * g
    return w


def adadelta(rho=0.9, eps=1e-6):
    w, square, moved = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for g in GRADIENTS:
        square = rho * square + (1 - rho) * g**2
        update = np.sqrt(moved + eps) / np.sqrt(square + eps) * g
        moved = rho * moved + (1 - rho) * update**2
        w = w - update
    return w


def clipped(norm=None, value=None):
    w = START.copy()
    for g in GRADIENTS:
        if value is not None:
            g = np.clip(g, -value, value)
        if norm is not None:
            g = g * min(1, norm / np.linalg.norm(g))
        w = w - 0.1 * g
    return w


def clipped_then_decayed(norm=0.5, decay=0.1):
    w = START.copy()
    for g in GRADIENTS:
        w = w - 0.1 * (g * min(1, norm / np.linalg.norm(g)) + decay * w)
    return w


def by_moments(direction, rate=0.01, b1=0.9, b2=0.8):
    """Follow ``direction(t, gradient, first moment, second moment, weights, b1, b2)``."""
    w, m, v = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, g in enumerate(GRADIENTS, start=1):
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g**2
        w = w - rate * direction(t, g, m, v, w, b1, b2)
    return w


def nadam(t, g, m, v, w, b1, b2):
    ahead = b1 * m / (1 - b1 ** (t + 1)) + (1 - b1) * g / (1 - b1**t)
    return ahead / (np.sqrt(v / (1 - b2**t)) + 1e-8)


def radam(t, g, m, v, w, b1, b2):
    most = 2 / (1 - b2) - 1
    length = most - 2 * t * b2**t / (1 - b2**t)
    if length < 5:
        return m / (1 - b1**t)
    part = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
    return math.sqrt(part) * m / (1 - b1**t) / (np.sqrt(v / (1 - b2**t)) + 1e-8)


def lamb(t, g, m, v, w, b1, b2):
    update = (m / (1 - b1**t)) / (np.sqrt(v / (1 - b2**t)) + 1e-6) + 0.1 * w
    return update * np.linalg.norm(w) / np.linalg.norm(update)


def adamax(rate=0.01, b1=0.9, b2=0.8):
    w, m, u = START.copy(), np.zeros_like(START), np.zeros_like(START)
    for t, g in enumerate(GRADIENTS, start=1):
        m, u = b1 * m + (1 - b1) * g, np.maximum(b2 * u, np.abs(g) + 1e-8)
        w = w - rate / (1 - b1**t) * m / u
    return w


def lars(rate=0.1, trust=0.02, decay=0.1):
    w, velocity = START.copy(), np.zeros_like(START)
    for g in GRADIENTS:
        g = g + decay * w
        velocity = 0.9 * velocity + rate * trust * np.linalg.norm(w) / np.linalg.norm(g) * g
        w = w - velocity
    return w


def adafactor(factored, rate=0.05, power=0.6, clip=0.7):
    w, v, rows, columns = START.copy(), np.zeros_like(START), np.zeros(3), np.zeros(4)
    for t, g in enumerate(GRADIENTS, start=1):
        b = 1 - t**-power
        v = b * v + (1 - b) * g**2
        rows = b * rows + (1 - b) * (g**2).mean(1)
        columns = b * columns + (1 - b) * (g**2).mean(0)
        update = g / np.sqrt(np.outer(rows / rows.mean(), columns) if factored else v)
        update = update / max(1, np.sqrt((update**2).mean()) / clip)
        w = w - rate * update * max(np.sqrt((w**2).mean()), 1e-3)
    return w

"""Constants of ``jax.numpy``, re-exported: ``nx.pi``, ``nx.inf``, ``nx.newaxis``."""

from jax.numpy import e, euler_gamma, inf, nan, newaxis, pi

__all__ = ["e", "euler_gamma", "inf", "nan", "newaxis", "pi"]

"""Preflight of a user's script: it runs up to its first training step, which is then compiled."""

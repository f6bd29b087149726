"""Checkpoint files: weights in safetensors files, written atomically and checked on reading."""

from neurenix.checkpoint.weights import load_weights, save_weights

__all__ = ["load_weights", "save_weights"]

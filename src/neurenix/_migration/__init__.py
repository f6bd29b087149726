"""What names of Keras, PyTorch, TensorFlow, NumPy and JAX are here: hints for near misses."""

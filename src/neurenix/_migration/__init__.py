"""Names of Keras, PyTorch, TensorFlow, NumPy and JAX, and their equivalents here, for errors."""

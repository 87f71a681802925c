"""The operations on every message: defined in PyTorch, and the same in C."""

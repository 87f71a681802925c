"""What is done to every message: in PyTorch, and the same in C."""

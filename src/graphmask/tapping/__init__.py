"""Reads the messages of the user's model, and replaces them; the model is restored afterwards."""

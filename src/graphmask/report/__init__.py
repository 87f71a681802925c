"""Explanations as something a person likes to read."""

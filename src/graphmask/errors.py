"""The one exception this library raises on purpose."""


class GraphMaskError(ValueError):
    """Says what was expected, what was found, and what to do about it."""

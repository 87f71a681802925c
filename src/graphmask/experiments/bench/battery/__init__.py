"""The battery: models of the kinds users have, none of them tuned for GraphMask, explained with default settings."""

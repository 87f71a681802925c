"""GraphMask inside other libraries."""

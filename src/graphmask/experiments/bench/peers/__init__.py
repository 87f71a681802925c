"""All methods on models that others trained, or that anyone would train."""

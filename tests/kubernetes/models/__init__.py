"""Functions with models in real pods of a real node."""

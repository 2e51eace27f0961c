"""The `gnomon` command."""

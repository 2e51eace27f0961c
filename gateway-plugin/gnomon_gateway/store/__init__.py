"""Stores of functions, secrets and namespaces."""

"""Hostile and careless use of a running gateway: one module for each figure."""

"""Builds handler folders into environments, without Docker: the local platform's `Builder`."""

from gnomon_platforms.local.builder.builder import BuiltImage, EnvironmentBuilder, Housekeeping

__all__ = ["BuiltImage", "EnvironmentBuilder", "Housekeeping"]

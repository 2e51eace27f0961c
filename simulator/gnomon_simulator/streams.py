"""Chance, from one seed.

Every purpose (arrivals, noise, sizes) draws from a stream of its own, so that turning one of them on or off changes no other:
two runs that differ only in a policy see the same arrivals to the last bit.
"""

from __future__ import annotations

import random


def stream(seed: int, purpose: str) -> random.Random:
    """The stream of one purpose: the same seed and purpose give the same numbers on every machine."""
    return random.Random(f"{seed}/{purpose}")  # noqa: S311 - reproducible numbers are wanted, nothing is kept secret by them

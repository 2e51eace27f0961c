"""Arrival processes made of others, and what kind one is: for tests of what fits, counts and draws them."""

from __future__ import annotations

import numpy as np

from gnomon_planner.maps import Map


def superposed(one: Map, other: Map) -> Map:
    """Both processes at once, independently: rates add, phases multiply."""
    ones, others = np.eye(one.order), np.eye(other.order)
    return Map(np.kron(one.D0, others) + np.kron(ones, other.D0), np.kron(one.D1, others) + np.kron(ones, other.D1))


def is_mmpp(process: Map) -> bool:
    """True if arrivals leave the phase alone."""
    return not np.any(process.D1 - np.diag(process.D1.diagonal()))

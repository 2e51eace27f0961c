"""Markovian arrival processes for tests: superposition, and the check for an MMPP."""

from __future__ import annotations

import numpy as np

from gnomon_planner.maps import Map


def superposed(one: Map, other: Map) -> Map:
    """Superpose two independent processes: rates add, phases multiply."""
    ones, others = np.eye(one.order), np.eye(other.order)
    return Map(np.kron(one.D0, others) + np.kron(ones, other.D0), np.kron(one.D1, others) + np.kron(ones, other.D1))


def is_mmpp(process: Map) -> bool:
    """True if no arrival changes the phase: a Markov-modulated Poisson process."""
    return not np.any(process.D1 - np.diag(process.D1.diagonal()))

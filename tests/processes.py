"""Markovian arrival processes for tests: superposition, and the check for an MMPP."""

from __future__ import annotations

import numpy as np

from gnomon_planner.maps import Map


def superposed(first: Map, second: Map) -> Map:
    """Superpose two independent processes: rates add, phases multiply."""
    ones, others = np.eye(first.order), np.eye(second.order)
    return Map(np.kron(first.D0, others) + np.kron(ones, second.D0), np.kron(first.D1, others) + np.kron(ones, second.D1))


def is_mmpp(process: Map) -> bool:
    """True if no arrival changes the phase: a Markov-modulated Poisson process."""
    return not np.any(process.D1 - np.diag(process.D1.diagonal()))

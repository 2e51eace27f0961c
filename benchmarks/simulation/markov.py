"""Arrivals drawn from a Markovian arrival process: samples of the planner's `Map`.

The chain is followed jump by jump: in phase i it stays Exp(−D0_ii), then moves, with an arrival or without one. That is
sequential, but each jump is a random function of the phase before it, and functions can be composed in any grouping: the
jumps are cut into blocks whose compositions are computed side by side. A million arrivals take about 0.3 s.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from gnomon_planner.maps import Map

Vector = npt.NDArray[np.float64]
BLOCK = 512


def markov_arrivals(process: Map, count: int, rng: np.random.Generator) -> Vector:
    """The first `count` arrivals after second 0, at which the process is stationary; ascending."""
    exit_rates = -process.D0.diagonal()
    jumps_per_arrival = float(process.stationary @ exit_rates) / process.rate_rps
    phase = int(rng.choice(process.order, p=process.stationary))
    chunks_s, drawn_count, now_s = [], 0, 0.0
    while drawn_count < count:
        steps = math.ceil((count - drawn_count) * jumps_per_arrival * 1.02 / BLOCK + 4) * BLOCK
        functions, arrives = _drawn(process, steps, rng)
        phases = _walked(functions, phase)
        ends_s = now_s + np.cumsum(rng.exponential(1.0, steps) / exit_rates[phases])
        times_s = ends_s[arrives[np.arange(steps), phases]]
        chunks_s.append(times_s)
        drawn_count += len(times_s)
        phase, now_s = int(functions[-1, phases[-1]]), float(ends_s[-1])
    return np.concatenate(chunks_s)[:count] if chunks_s else np.empty(0)


def _drawn(process: Map, steps: int, rng: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Draw the phase after each step and whether a request arrives, for each phase before it; both (steps, phases)."""
    order = process.order
    uniform = rng.random(steps)
    next_phase = np.empty((steps, order), dtype=np.int64)
    arrives = np.empty((steps, order), dtype=np.bool_)
    for phase in range(order):
        rates = np.concatenate([process.D0[phase], process.D1[phase]])
        rates[phase] = 0.0
        outcome = np.searchsorted(np.cumsum(rates) / rates.sum(), uniform, side="right")
        # Rounding may leave the last border a little below 1.
        outcome = np.minimum(outcome, int(np.flatnonzero(rates)[-1]))
        next_phase[:, phase], arrives[:, phase] = outcome % order, outcome >= order
    return next_phase, arrives


def _walked(functions: npt.NDArray[np.int64], phase: int) -> npt.NDArray[np.int64]:
    """The phase before each step, from the phase before the first; whole blocks of steps only."""
    steps, order = functions.shape
    blocks = functions.reshape(steps // BLOCK, BLOCK, order)
    rows = np.arange(len(blocks))
    composition = np.tile(np.arange(order), (len(blocks), 1))
    for step in range(BLOCK):
        composition = np.take_along_axis(blocks[:, step], composition, axis=1)
    phases = np.empty(len(blocks), dtype=np.int64)
    for block in range(len(blocks)):
        phases[block] = phase
        phase = int(composition[block, phase])
    phase_before = np.empty((len(blocks), BLOCK), dtype=np.int64)
    for step in range(BLOCK):
        phase_before[:, step] = phases
        phases = blocks[rows, step, phases]
    return phase_before.reshape(-1)

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


def markov_arrivals(process: Map, count: int, chance: np.random.Generator) -> Vector:
    """The first `count` arrivals after second 0, at which the process is stationary; ascending."""
    leaving = -process.D0.diagonal()
    jumps_per_arrival = float(process.stationary @ leaving) / process.rate_rps
    phase = int(chance.choice(process.order, p=process.stationary))
    parts, found, now_s = [], 0, 0.0
    while found < count:
        steps = math.ceil((count - found) * jumps_per_arrival * 1.02 / BLOCK + 4) * BLOCK
        functions, arrives = _drawn(process, steps, chance)
        phases = _walked(functions, phase)
        ends_s = now_s + np.cumsum(chance.exponential(1.0, steps) / leaving[phases])
        times_s = ends_s[arrives[np.arange(steps), phases]]
        parts.append(times_s)
        found += len(times_s)
        phase, now_s = int(functions[-1, phases[-1]]), float(ends_s[-1])
    return np.concatenate(parts)[:count] if parts else np.empty(0)


def _drawn(process: Map, steps: int, chance: np.random.Generator) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each step and each phase before it: the phase after it, and whether a request arrives."""
    order = process.order
    drawn = chance.random(steps)
    after = np.empty((steps, order), dtype=np.int64)
    arrives = np.empty((steps, order), dtype=np.bool_)
    for phase in range(order):
        rates = np.concatenate([process.D0[phase], process.D1[phase]])
        rates[phase] = 0.0
        outcome = np.searchsorted(np.cumsum(rates) / rates.sum(), drawn, side="right")
        # Rounding may leave the last border a little below 1.
        outcome = np.minimum(outcome, int(np.flatnonzero(rates)[-1]))
        after[:, phase], arrives[:, phase] = outcome % order, outcome >= order
    return after, arrives


def _walked(functions: npt.NDArray[np.int64], phase: int) -> npt.NDArray[np.int64]:
    """The phase before each step, from the phase before the first; whole blocks of steps only."""
    steps, order = functions.shape
    blocks = functions.reshape(steps // BLOCK, BLOCK, order)
    rows = np.arange(len(blocks))
    composed = np.tile(np.arange(order), (len(blocks), 1))
    for step in range(BLOCK):
        composed = np.take_along_axis(blocks[:, step], composed, axis=1)
    now = np.empty(len(blocks), dtype=np.int64)
    for block in range(len(blocks)):
        now[block] = phase
        phase = int(composed[block, phase])
    walked = np.empty((len(blocks), BLOCK), dtype=np.int64)
    for step in range(BLOCK):
        walked[:, step] = now
        now = blocks[rows, step, now]
    return walked.reshape(-1)

"""Replay requests through a buffer, batch by batch, with measured service times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gnomon_planner.validation import buffered

Vector = npt.NDArray[np.float64]
ATOM = 0.002  # of probability: at an atom or a flat stretch a percentile is right if F there is
SEED = 1
ASIDE = 0.005  # of a time: measured service times lie so near to their median, mostly


def served(times: Vector, batch: int, timeout_s: float, seconds: Sequence[float], ratios: Vector) -> tuple[Vector, Vector]:
    """The latency of each request, its wait and what its batch took, and what each batch took.

    That is the time of its size times a ratio drawn for that batch.
    """
    sent = buffered(times, batch, timeout_s)
    sizes = sent.sizes[sent.first]
    taken: Vector = np.array(seconds)[sizes - 1] * np.random.default_rng(SEED).choice(ratios, len(sizes))
    return sent.wait_s + np.repeat(taken, sizes), taken


def off(happened: Vector, predicted_s: float, percent: float) -> float:
    """The relative error of a percentile; 0 where F at the predicted time is right, as at atoms."""
    q = percent / 100.0
    low, high = (np.searchsorted(happened, predicted_s * (1.0 + side), side="right") / len(happened) for side in (-ASIDE, ASIDE))
    if low - ATOM <= q <= high + ATOM:
        return 0.0
    return predicted_s / float(np.quantile(happened, q)) - 1.0

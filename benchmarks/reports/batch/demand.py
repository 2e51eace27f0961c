"""The arrivals: a day of Twitter, a day of the NYS Thruway, and two bursty processes; and their replay behind a buffer.

Twitter is the paper's own trace, in counts per second; within a second requests are placed at random. Of the Thruway there is no
trace: its hours are drawn from the MAPs that the authors published for them, already fifteen times as busy as the road. The two
MMPP(2)s are the authors' published ones with the longest bursts; which two of them the paper used it does not say.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.arrivals import TRACE
from benchmarks.buffer import PUBLISHED, PUBLISHED_BURSTY
from benchmarks.simulation.markov import markov_arrivals
from gnomon_planner.fit import fit
from gnomon_planner.maps import Map
from gnomon_planner.samples import sample_of_counts, sample_of_times
from gnomon_planner.validation import replay_buffer
from gnomon_simulator.arrivals import from_trace
from gnomon_simulator.events import stream
from gnomon_simulator.traces import Trace, read_trace

Vector = npt.NDArray[np.float64]
HOUR = 3600
KEPT = 48  # both days' hours: 70 MB, and a report asks for each a dozen times
BURSTY = {"MMPP(2)₁": "W14", "MMPP(2)₂": "W16"}
FILES = (TRACE, PUBLISHED, PUBLISHED_BURSTY)


def bursty(name: str) -> Map:
    """The arrivals of one of the two MMPP(2)s."""
    return Map.from_json(_published(PUBLISHED_BURSTY.name)["synthetic_workload"][BURSTY[name]])


def published(day: str, hour: int) -> Map:
    """The MAP that the paper's authors fitted to an hour, from 0."""
    return Map.from_json(_published(PUBLISHED.name)[day][str(hour + 1)])


def counts(hour: int | None = None) -> tuple[float, ...]:
    """Twitter's requests per second, of the day or of one hour."""
    trace = _twitter()
    return trace.counts if hour is None else trace.slice(hour * HOUR, HOUR).counts


@lru_cache(maxsize=KEPT)
def times(day: str, hour: int) -> Vector:
    """Arrival times of an hour, in seconds from its start."""
    if day == "Twitter":
        return np.array(from_trace(Trace(1.0, counts(hour)), stream(hour, "arrivals")))
    process = published(day, hour)
    drawn = markov_arrivals(process, int(process.rate_rps * HOUR * 1.3) + 1000, np.random.default_rng((20201117, hour)))
    return drawn[drawn < HOUR]


@lru_cache(maxsize=KEPT)
def fitted(day: str, hour: int) -> Map:
    """The process that is fitted to what came in an hour: to counts, where there are counts only."""
    sample = sample_of_counts(counts(hour), 1.0) if day == "Twitter" else sample_of_times(times(day, hour))
    return fit(sample).process


def drawn(process: Map, count: int, seed: int) -> Vector:
    """`count` arrivals of a process."""
    return markov_arrivals(process, count, np.random.default_rng(seed))


@lru_cache(maxsize=1)
def _twitter() -> Trace:
    return read_trace(TRACE)


def _published(file: str) -> Any:
    return json.loads((PUBLISHED.parent / file).read_text(encoding="utf-8"))


ATOM = 0.002  # of probability: at an atom or a flat stretch a percentile is right if F there is
SEED = 1
ASIDE = 0.005  # of a time: measured service times lie so near to their median, mostly


def served(times: Vector, batch: int, timeout_s: float, seconds: Sequence[float], ratios: Vector) -> tuple[Vector, Vector]:
    """The latency of each request, its wait and what its batch took, and what each batch took.

    That is the time of its size times a ratio drawn for that batch.
    """
    sent = replay_buffer(times, batch, timeout_s)
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

"""When requests arrive: a sorted list of seconds from the start.

Everything that offers load begins with such a list: the simulator walks it in virtual time, `replay` sends at those times. It
comes from a trace, from a Poisson process, from a constant rate or from a recorded run.

A trace says how many requests a bin has, not when they came. They are placed uniformly at random within it, independently,
which is what a Poisson process conditioned on its count does. A fractional count, as scaling leaves it, becomes the next whole
number with the probability of the fraction: 2.25 is 2 three times of four.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path

from gnomon_core.errors import bad_request
from gnomon_simulator.traces import Trace, open_text


def from_trace(trace: Trace, chance: random.Random) -> list[float]:
    """The arrivals of a trace, from second 0."""
    draw = chance.random
    arrivals: list[float] = []
    for index, count in enumerate(trace.counts):
        whole = math.floor(count)
        if count > whole and draw() < count - whole:
            whole += 1
        arrivals += [(index + draw()) * trace.bin_s for _ in range(whole)]
    arrivals.sort()
    return arrivals


def poisson(rate_rps: float, duration_s: float, chance: random.Random) -> list[float]:
    """A Poisson process: independent exponential times between arrivals."""
    _check(rate_rps, duration_s)
    arrivals: list[float] = []
    time_s = chance.expovariate(rate_rps)
    while time_s < duration_s:
        arrivals.append(time_s)
        time_s += chance.expovariate(rate_rps)
    return arrivals


def constant(rate_rps: float, duration_s: float) -> list[float]:
    """One every 1/rate seconds, the first at 0; multiplied out, so that no error adds up over hours."""
    _check(rate_rps, duration_s)
    return [index / rate_rps for index in range(math.ceil(rate_rps * duration_s))]


def recorded(path: Path) -> list[float]:
    """The times at which a recorded live run really sent, from the run's start: what the gateway saw.

    Requests that the client never got to send are left out.

    Raises:
        GnomonError: 400 `bad_record`, with the line that is wrong.

    """
    arrivals: list[float] = []
    with open_text(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                document = json.loads(line)
                if "sent_s" in document and document["sent_s"] is not None:
                    arrivals.append(float(document["sent_s"]))
            except (ValueError, TypeError, OverflowError, RecursionError):
                raise bad_request("bad_record", f"{path.name}: line {number} is not a record.", "Record with replay.") from None
    if not arrivals:
        raise bad_request("bad_record", f"{path.name} has no request that was sent (sent_s).", "Record with replay.")
    return sorted(arrivals)


def selected(arrivals: Sequence[float], start_s: float = 0.0, duration_s: float | None = None) -> list[float]:
    """The arrivals from `start_s` for `duration_s`, moved so that the stretch begins at second 0."""
    end_s = math.inf if duration_s is None else start_s + duration_s
    return [time_s - start_s for time_s in arrivals if start_s <= time_s < end_s]


def _check(rate_rps: float, duration_s: float) -> None:
    if not (math.isfinite(rate_rps) and rate_rps > 0 and math.isfinite(duration_s) and duration_s >= 0):
        raise bad_request("bad_rate", f"{rate_rps} requests/s for {duration_s} s.", "A rate and a duration are positive numbers.")

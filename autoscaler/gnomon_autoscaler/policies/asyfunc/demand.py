"""R_burst: the rate that Bodies and Shadows must sustain now, so that everything that is there ends within the objective.

    R_burst = max(arrivals / window, L / t_SLO)

Arrivals alone are the paper's reading. They forget what already waits: after a burst beyond capacity they fall, Shadows are
released while a queue stands, the queue ages, and the next arrivals make the Shadows anew. The second term remembers it. L are
the requests in the system in this window, waiting or in a batch, on average. Each of them has to end within t_SLO of its arrival,
so all of them within t_SLO from now, which takes L / t_SLO. By Little's law (L = R·W) a system that answers in time has W ≤
t_SLO, hence L / t_SLO ≤ R: there the term says nothing, and batches that fill on purpose are no backlog. It exceeds the arrivals
exactly where answers take longer than the objective.

Example: SLO 0.5 s, 10 rps arrive, 12 requests are there: 12 / 0.5 = 24 rps must be sustained. With 4 there it is 10, as they say.
"""

from __future__ import annotations

from gnomon_autoscaler.policies.asyfunc.options import Options
from gnomon_core.scaling import Observation


def burst_rps(seen: Observation, options: Options, ticks_ago: int = 0) -> float:
    """R_burst at one of the last ticks."""
    arriving_rps, there = _window(seen, options, ticks_ago)
    return max(arriving_rps, there / seen.settings.slo_s)


def told(seen: Observation, options: Options) -> str:
    """R_burst now, and what it comes from."""
    (arriving_rps, there), slo_s = _window(seen, options, 0), seen.settings.slo_s
    if there / slo_s > arriving_rps:
        return f"burst of {there / slo_s:.2f} rps, for {there:.3g} requests to end in {slo_s * 1e3:g} ms"
    return f"burst of {arriving_rps:.2f} rps in {options.burst_window_s * 1e3:g} ms"


def _window(seen: Observation, options: Options, ticks_ago: int) -> tuple[float, float]:
    """The rate of arrivals and L; 0 where what waits does not count."""
    history, window_s, until_s = seen.history, options.burst_window_s, ticks_ago * options.tick_s
    arriving_rps = history.rate_rps(history.arrivals, window_s, until_s=until_s)
    there = history.mean(history.concurrency, window_s, until_s=until_s) if options.backlog else 0.0
    return arriving_rps, there

"""The profile of the handler, measured apart from every run: what its batches take, how long it starts, what it reserves.

So many requests at the same moment make one batch of that size. What it takes is what the gateway's own metrics say: the time
from arrival to answer less the time in the queue. The way between client and gateway is in neither; the simulator has none.
The model's profile is that of `gnomon models profile`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from benchmarks import burst, gnomon
from benchmarks.parity.live import HANDLER, MODEL, WORKLOADS, target_of
from benchmarks.programs import Endpoint, step
from benchmarks.report import machine
from gnomon_simulator.profiles import Profile, modelled, profile_from_json
from gnomon_simulator.replay import Plan, replay_apart

BATCHES = (1, 2, 4)
ROUNDS, QUICK_ROUNDS = 30, 4
EVERY_S = 0.4
WARM_UP = 3
"""Rounds before those that count."""
STARTS = 5


def handler_profile(*, quick: bool) -> dict[str, Any]:
    """Measure the handler: the document of a variant's profile, with the machine and how it was measured."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    latency_s: dict[str, float] = {}
    with gnomon.serving(options=["--cores", str(WORKLOADS["handler"].cores)]) as ours:
        for batch in BATCHES:
            annotations = {
                "gnomon/autoscaler": "fixed", "gnomon/scheduler": "fixed", "gnomon/max-batch": str(batch),
                "gnomon/max-wait-ms": "1000",
            }  # fmt: skip
            endpoint = ours.up(HANDLER, "noop", annotations)
            ours.wait_replicas(HANDLER, 1)
            _send(endpoint, batch, WARM_UP)
            before = _executing_s(ours)
            spread_s = _send(endpoint, batch, rounds)
            after = _executing_s(ours)
            latency_s[str(batch)] = (after[0] - before[0]) / (after[1] - before[1])
            step(f"profile: {batch} in a batch take {1e3 * latency_s[str(batch)]:.1f} ms")
        starts_s = [_start_s(ours) for _ in range(STARTS)]
        memory_bytes = ours.call("GET", f"/gnomon/functions/{HANDLER}")["bodies"][0]["memory_bytes"]
    step(f"profile: an instance starts in {1e3 * statistics.median(starts_s):.0f} ms")
    return {
        "variant": HANDLER,
        "latency_s": {"1": latency_s},
        "load_s": statistics.median(starts_s),
        "memory_bytes": memory_bytes,
        "noise": {"kind": "lognormal", "cv": spread_s / latency_s[str(BATCHES[-1])]},
        "provenance": {
            "machine": machine(),
            "date": datetime.now(UTC).date().isoformat(),
            "rounds": rounds,
            "starts_s": starts_s,
        },
    }


def profile_of(document: Mapping[str, Any] | None) -> Profile:
    """The simulator's profile: of the handler by its document, of the model by its profile on this machine."""
    return profile_from_json(document) if document is not None else modelled(burst.read_profile(MODEL), "private")


def _send(endpoint: Endpoint, batch: int, rounds: int) -> float:
    """Send so many full batches, one after the other. Returns the standard deviation of their latencies."""
    times_s = [EVERY_S * number for number in range(rounds) for _ in range(batch)]
    samples = replay_apart(Plan(times_s, 5.0), target_of(endpoint)).samples
    taken_s = [answered - sent for answered, sent in zip(samples.answered_s, samples.sent_s, strict=True)]
    return statistics.pstdev([statistics.fmean(taken_s[at : at + batch]) for at in range(0, len(taken_s), batch)])


def _executing_s(ours: gnomon.Gnomon) -> tuple[float, float]:
    """Seconds that requests were executed in all so far, and how many there were."""
    total_s, queued_s, count = (
        ours.series(name, HANDLER)
        for name in ("gateway_functions_seconds_sum", "gnomon_queue_seconds_sum", "gateway_functions_seconds_count")
    )
    return total_s - queued_s, count


def _start_s(ours: gnomon.Gnomon) -> float:
    """From the order of a second instance until it can take requests."""
    begun_s = time.monotonic()
    ours.scale(HANDLER, 2)
    taken_s = time.monotonic() - begun_s
    ours.scale(HANDLER, 1)
    return taken_s

"""How far a live stretch and its simulation agree: figures of both sides, decisions second by second, and verdicts.

A decision is what the policy had decided at the end of a second: the number of Bodies, the cores of a Body, and the Shadows.

    live        1 Body, 1 Body,   2 Bodies, 2 Bodies
    simulated   1 Body, 2 Bodies, 2 Bodies, 2 Bodies      3 of 4 seconds are equal: 75 %

Both sides are folded from the same documents, those of `GET /gnomon/functions/{name}/decisions`, with the time of the first
decision as second 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from gnomon_core.clock import parse_time_s
from gnomon_simulator.results import percentile

LATE_POINTS = 2.0
LATENCY_PERCENT = 10.0
MEMORY_PERCENT = 5.0
EQUAL_PERCENT = 95.0
EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Decided:
    """The decision in force at one moment: Bodies, cores of a Body, and Shadows."""

    bodies: int
    cores: int
    shadows: int


@dataclass(frozen=True, slots=True)
class Side:
    """One side's figures. `late` is the share of requests not answered 200 within the objective."""

    requests: int
    late: float
    mean_s: float
    p95_s: float
    memory_gb_s: float
    decided: tuple[Decided, ...]

    def to_json(self) -> dict[str, Any]:
        """The figures; equal decisions that follow each other are one row with their number of seconds."""
        decided = [{"seconds": sum(1 for _ in run), **asdict(decision)} for decision, run in groupby(self.decided)]
        return {**asdict(self), "decided": decided}


@dataclass(frozen=True, slots=True)
class Verdict:
    """One criterion: how far the sides are apart, in the unit of its limit."""

    name: str
    live: float
    simulated: float
    apart: float
    limit: float
    unit: str
    within: bool


def side(latencies_s: Sequence[float], requests: int, slo_s: float, memory_gb_s: float, decided: Sequence[Decided]) -> Side:
    """The figures of requests with these latencies; those that are missing were refused, failed or left."""
    ordered = sorted(latencies_s)
    in_time = sum(latency_s <= slo_s for latency_s in ordered)
    return Side(
        requests=requests,
        late=1.0 - in_time / requests if requests else 0.0,
        mean_s=math.fsum(ordered) / len(ordered) if ordered else math.nan,
        p95_s=percentile(ordered, 95.0) or math.nan,
        memory_gb_s=memory_gb_s,
        decided=tuple(decided),
    )


def decided_by_second(documents: Sequence[Mapping[str, Any]], begin_s: float, seconds: float) -> list[Decided]:
    """Return the decision in force at the end of each second from `begin_s` on, counted from the first that did something.

    Documents are those of the decisions route, in any order; times are RFC 3339 or seconds.
    """
    ordered = sorted(((_time_s(document["at"]), document) for document in documents), key=lambda entry: entry[0])
    first_s = next((at_s for at_s, row in ordered if row["actions"]), 0.0)
    rows: list[Decided] = []
    now, place = Decided(0, 0, 0), 0
    for number in range(1, math.floor(seconds / EVERY_S) + 1):
        until_s = first_s + begin_s + number * EVERY_S
        while place < len(ordered) and ordered[place][0] <= until_s:
            now = _after(now, ordered[place][1])
            place += 1
        rows.append(now)
    return rows


def equal_share(live: Sequence[Decided], simulated: Sequence[Decided]) -> float:
    """The share of seconds in which both sides had decided the same; 1.0 where there is no second."""
    count = max(len(live), len(simulated))
    return sum(ours == theirs for ours, theirs in zip(live, simulated, strict=False)) / count if count else 1.0


def verdicts(live: Side, simulated: Side) -> list[Verdict]:
    """The criteria of parity. Relative distances are shares of the live value."""
    equal = 100.0 * equal_share(live.decided, simulated.decided)
    points = 100.0 * abs(live.late - simulated.late)
    return [
        Verdict("late", live.late, simulated.late, points, LATE_POINTS, "points", points <= LATE_POINTS),
        _relative("mean", live.mean_s, simulated.mean_s, LATENCY_PERCENT),
        _relative("p95", live.p95_s, simulated.p95_s, LATENCY_PERCENT),
        _relative("memory × time", live.memory_gb_s, simulated.memory_gb_s, MEMORY_PERCENT),
        Verdict("decisions", equal, equal, 100.0 - equal, 100.0 - EQUAL_PERCENT, "% differ", equal >= EQUAL_PERCENT),
    ]


def byte_s(looks: Sequence[tuple[float, int]], end_s: float) -> float:
    """Memory × time of samples (seconds, bytes), each of which holds until the next, the last until `end_s`."""
    untils_s = [at_s for at_s, _ in looks[1:]] + [end_s]
    return sum(
        held * max(0.0, min(until_s, end_s) - at_s)
        for (at_s, held), until_s in zip(looks, untils_s, strict=False)
        if at_s < end_s
    )


def _relative(name: str, live: float, simulated: float, limit: float) -> Verdict:
    apart = 100.0 * abs(simulated - live) / live if live else (0.0 if live == simulated else math.inf)
    return Verdict(name, live, simulated, apart, limit, "%", apart <= limit)


def _after(now: Decided, document: Mapping[str, Any]) -> Decided:
    """Return the decision in force after this one. A refused decision is what the policy decided all the same."""
    bodies = now.bodies if document["desired"] is None else int(document["desired"])
    cores, shadows = now.cores, now.shadows
    for action in document["actions"]:
        kind = action["action"]
        if kind in ("CreateBody", "Resize"):
            cores = int(action["cores"])
        elif kind == "CreateShadow":
            shadows += 1
        elif kind in ("DestroyShadow", "PromoteShadow"):
            shadows = max(0, shadows - 1)
    return Decided(bodies, cores, shadows)


def _time_s(at: str | float) -> float:
    return parse_time_s(at) if isinstance(at, str) else at

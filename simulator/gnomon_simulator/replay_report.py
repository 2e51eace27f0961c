"""What an open-loop run showed: outcomes, latencies from the intended times, and how punctual the generator itself was.

A latency counts from the moment at which the request was meant to be sent. Where the generator ran late, or waited for a
connection, that is part of what a client would have seen; the lag stands beside it, so that a reader can tell the two apart.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gnomon_simulator.results import spread_ms
from gnomon_simulator.samples import Outcome, Samples, Token

FORMAT = "gnomon-replay/1"
SUCCESSES = range(200, 300)


@dataclass(frozen=True, slots=True)
class Report:
    """A run: what was to happen is in `target` and `deadline_s`, what happened in `samples`.

    `started_monotonic_s` is the run's second 0 on the machine's monotonic clock, which the gateway's decisions are stamped with;
    `started_at` the same as a date.
    """

    target: str
    deadline_s: float
    duration_s: float
    started_at: str
    started_monotonic_s: float
    samples: Samples

    def latencies_s(self, statuses: Collection[int] = SUCCESSES) -> list[float]:
        """From the intended time to the whole answer, of the requests answered with one of these statuses."""
        rows = self.samples
        return [
            answered - intended
            for intended, answered, outcome, status in zip(
                rows.intended_s, rows.answered_s, rows.outcome, rows.status, strict=True
            )
            if outcome == Outcome.ANSWERED and status in statuses
        ]

    def lags_s(self) -> list[float]:
        """How much later than intended each request was sent."""
        rows = self.samples
        return [sent - intended for intended, sent in zip(rows.intended_s, rows.sent_s, strict=True) if not math.isnan(sent)]

    @property
    def succeeded(self) -> int:
        """Requests answered 2xx before the client's deadline, with the right token where it was checked."""
        rows = self.samples
        return sum(
            outcome == Outcome.ANSWERED and status in SUCCESSES and token != Token.WRONG
            for outcome, status, token in zip(rows.outcome, rows.status, rows.token, strict=True)
        )

    @property
    def goodput_rps(self) -> float:
        """Successes per second of the run's length."""
        return self.succeeded / self.duration_s if self.duration_s else 0.0

    @property
    def offered_rps(self) -> float:
        """Intended requests per second of the run's length."""
        return len(self.samples) / self.duration_s if self.duration_s else 0.0

    def summary(self) -> dict[str, Any]:
        """The figures as a JSON document."""
        rows = self.samples
        outcomes = Counter(Outcome(outcome).name.lower() for outcome in rows.outcome)
        statuses = Counter(status for status in rows.status if status)
        return {
            "target": self.target,
            "started_at": self.started_at,
            "duration_s": round(self.duration_s, 3),
            "deadline_s": self.deadline_s,
            "requests": len(rows),
            "offered_rps": round(self.offered_rps, 3),
            "succeeded": self.succeeded,
            "goodput_rps": round(self.goodput_rps, 3),
            "outcomes": {outcome.name.lower(): outcomes[outcome.name.lower()] for outcome in Outcome},
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "wrong_tokens": sum(token == Token.WRONG for token in rows.token),
            "latency_ms": dict(spread_ms(self.latencies_s())),
            "latency_by_status_ms": {str(status): dict(spread_ms(self.latencies_s((status,)))) for status in sorted(statuses)},
            "lag_ms": dict(spread_ms(self.lags_s())),
        }

    def table(self) -> str:
        """The figures for a reader."""
        figures = self.summary()
        outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in figures["outcomes"].items() if count)
        statuses = ", ".join(f"{count} × {status}" for status, count in figures["statuses"].items())
        return "\n".join(
            (
                f"{figures['requests']} requests in {figures['duration_s']:g} s to {self.target}",
                f"  offered   {figures['offered_rps']:g}/s, answered well in time {figures['goodput_rps']:g}/s",
                f"  outcomes  {outcomes}" + (f" ({statuses})" if statuses else ""),
                *([f"  tokens    {figures['wrong_tokens']} answers were another request's"] if figures["wrong_tokens"] else []),
                f"  latency   {_spread(figures['latency_ms'])}",
                f"  own lag   {_spread(figures['lag_ms'])}",
            )
        )

    def write_record(self, path: Path) -> None:
        """The heading and one line a request, as `arrivals.recorded` and `parity` read them."""
        heading = {
            "format": FORMAT,
            "target": self.target,
            "started_at": self.started_at,
            "started_monotonic_s": self.started_monotonic_s,
            "duration_s": self.duration_s,
            "deadline_s": self.deadline_s,
        }
        with path.open("w", encoding="utf-8") as file:
            file.write(json.dumps(heading) + "\n")
            file.writelines(self.samples.lines())


def _spread(spread: Mapping[str, float | None]) -> str:
    shown = [f"{name} {value:.2f}" for name, value in spread.items() if value is not None and name != "mean"]
    return ", ".join(shown) + " ms" if shown else "none"

"""Accuracy of the simulator: a recorded live run, replayed in virtual time and compared with the live results.

    recorded = Recording(record.jsonl, GET /gnomon/functions/{name}/decisions)
    plan = recorded.plan(settings, profile)          # the same function, its arrivals as they were sent
    report = compare(recorded, simulate([plan], nodes)[plan.name])

The recording begins with the function's deployment, so that both sides decide without earlier history. The simulation begins with
the first recorded decision, and its autoscaler has the phase that the later decisions show.

Decisions are compared as steps: those that did something, each with its number of instances. Two equal sequences agree; where
they differ, the longest common blocks say how much is alike. Latencies are compared from sending to answer, percentile by
percentile, as live divided by simulated.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from gnomon_autoscaler.windows import BIN_S
from gnomon_core.clock import parse_time_s
from gnomon_core.errors import bad_request
from gnomon_core.settings import Settings
from gnomon_simulator.profiles import Profile
from gnomon_simulator.replay_report import FORMAT, Samples, read_samples
from gnomon_simulator.results import FunctionResult, percentile
from gnomon_simulator.simulation import FunctionPlan

COMPARED = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A decision with actions: its time since the first decision, its instance count and its actions."""

    at_s: float
    desired: int | None
    created: int
    destroyed: int
    shadows_created: int = 0
    shadows_released: int = 0

    @property
    def what(self) -> tuple[int | None, int, int, int, int]:
        """The step without its time."""
        return self.desired, self.created, self.destroyed, self.shadows_created, self.shadows_released


@dataclass(frozen=True, slots=True)
class Recording:
    """A live stretch: what the generator recorded and what the autoscaler decided.

    `lead_s` lies between the first decision and the generator's second 0.
    """

    samples: Samples
    steps: tuple[Step, ...]
    lead_s: float

    def plan(self, name: str, settings: Settings, profile: Profile, knowledge: str = "learned") -> FunctionPlan:
        """The function as the simulator's plan, with the arrivals as they were sent."""
        sent = sorted(time_s + self.lead_s for time_s in self.samples.sent_s if not math.isnan(time_s))
        return FunctionPlan(name, settings, profile, sent, knowledge, ticks_from_s=self._rhythm_s())

    def _rhythm_s(self) -> float:
        """Phase of the live autoscaler's half-second period. The first decision is left out: the deployment triggered it."""
        return self.steps[1].at_s % BIN_S if len(self.steps) > 1 else 0.0


def read_recording(record: Path, decisions: Sequence[Mapping[str, Any]]) -> Recording:
    """The stretch in a replay's record and the documents of the decisions route, in any order.

    Raises:
        GnomonError: 400 `bad_record` if the file is no record, or no decision did anything.

    """
    with record.open(encoding="utf-8") as lines:
        heading = json.loads(next(lines, "{}"))
    if heading.get("format") != FORMAT:
        raise bad_request("bad_record", f"{record.name} does not begin with {FORMAT}.", "Record with replay.")
    steps = _steps(sorted((_moment(document["at"]), document) for document in decisions if document["actions"]))
    if not steps:
        raise bad_request("bad_record", "No decision did anything.", "Record from the function's deployment on.")
    first_s = steps[0].at_s
    shifted = tuple(Step(step.at_s - first_s, *step.what) for step in steps)
    return Recording(read_samples(record), shifted, _moment(heading["started_at"]) - first_s)


@dataclass(frozen=True, slots=True)
class Percentile:
    """A latency percentile of both sides in seconds."""

    percent: float
    live_s: float
    simulated_s: float

    @property
    def ratio(self) -> float:
        """Live divided by simulated."""
        return self.live_s / self.simulated_s if self.simulated_s else math.inf


@dataclass(frozen=True, slots=True)
class Parity:
    """The comparison."""

    live: tuple[Step, ...]
    simulated: tuple[Step, ...]
    pairs: tuple[tuple[Step, Step], ...]
    percentiles: tuple[Percentile, ...]
    answered: tuple[int, int]

    @property
    def same_decisions(self) -> bool:
        """True if both sides did the same in the same order."""
        return [step.what for step in self.live] == [step.what for step in self.simulated]

    @property
    def agreement(self) -> float:
        """The share of steps that both sides have in the same order; 1.0 where neither did anything."""
        most = max(len(self.live), len(self.simulated))
        return len(self.pairs) / most if most else 1.0

    @property
    def largest_shift_s(self) -> float:
        """Largest time difference of a step that both made."""
        return max((abs(live.at_s - simulated.at_s) for live, simulated in self.pairs), default=0.0)

    def summary(self) -> dict[str, Any]:
        """The comparison as a JSON document."""
        return {
            "same_decisions": self.same_decisions,
            "agreement": self.agreement,
            "largest_shift_s": round(self.largest_shift_s, 6),
            "steps": {
                "live": [_step_to_json(step) for step in self.live],
                "simulated": [_step_to_json(step) for step in self.simulated],
            },
            "answered": {"live": self.answered[0], "simulated": self.answered[1]},
            "latency": [
                {
                    "percentile": row.percent,
                    "live_ms": round(row.live_s * 1e3, 3),
                    "simulated_ms": round(row.simulated_s * 1e3, 3),
                    "ratio": round(row.ratio, 4),
                }
                for row in self.percentiles
            ],
        }

    def table(self) -> str:
        """The comparison for a reader."""
        same = "the same" if self.same_decisions else f"{self.agreement:.0%} the same"
        shift = f"{self.largest_shift_s:.2f} s apart at most"
        lines = [
            f"decisions: {len(self.live)} live, {len(self.simulated)} simulated; {same}, {shift}",
            f"answered: {self.answered[0]} live, {self.answered[1]} simulated",
        ]
        lines += [
            f"p{row.percent:g}: {row.live_s * 1e3:.2f} ms live, {row.simulated_s * 1e3:.2f} ms simulated, ratio {row.ratio:.3f}"
            for row in self.percentiles
        ]
        return "\n".join(lines)


def compare(recorded: Recording, result: FunctionResult) -> Parity:
    """Compare the live run with the simulation of the same arrivals."""
    simulated = _from_result(result)
    blocks = SequenceMatcher(
        None, [step.what for step in recorded.steps], [step.what for step in simulated], autojunk=False
    ).get_matching_blocks()
    pairs = tuple((recorded.steps[block.a + i], simulated[block.b + i]) for block in blocks for i in range(block.size))
    live_s = sorted(_latencies_s(recorded.samples))
    simulated_s = sorted(result.requests.latencies_s())
    percentiles = tuple(
        Percentile(percent, live, virtual)
        for percent in COMPARED
        if (live := percentile(live_s, percent)) is not None and (virtual := percentile(simulated_s, percent)) is not None
    )
    return Parity(recorded.steps, simulated, pairs, percentiles, (len(live_s), len(simulated_s)))


def _from_result(result: FunctionResult) -> tuple[Step, ...]:
    steps = _steps([(record.at, record.to_json()) for record in result.decisions if record.actions])
    return tuple(Step(step.at_s - steps[0].at_s, *step.what) for step in steps)


def _steps(decisions: Sequence[tuple[float, Mapping[str, Any]]]) -> list[Step]:
    steps: list[Step] = []
    for at_s, document in sorted(decisions, key=lambda entry: entry[0]):
        did = Counter(action["action"] for action in document["actions"])
        counts = (did[name] for name in ("CreateBody", "DestroyBody", "CreateShadow", "DestroyShadow"))
        steps.append(Step(at_s, document["desired"], *counts))
    return steps


def _latencies_s(samples: Samples) -> list[float]:
    rows = zip(samples.sent_s, samples.answered_s, samples.status, strict=True)
    return [answered - sent for sent, answered, status in rows if 200 <= status < 300]


def _moment(at: str | float) -> float:
    return parse_time_s(at) if isinstance(at, str) else at


def _step_to_json(step: Step) -> dict[str, Any]:
    return {**asdict(step), "at_s": round(step.at_s, 3)}

"""The comparison of a recorded stretch with its simulation, on stretches whose answer is known."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.parity import compare, read_recording
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.replay_report import Outcome, Report, Samples
from gnomon_simulator.results import FunctionResult
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import FunctionPlan, simulate

BEGUN = 1_700_000_000.0
LEAD_S = 2.5
SETTINGS = Settings(autoscaler="od", scheduler="immediate", scale=ScaleSettings(min=1, max=8))
PROFILE = constant_profile("f", 0.1, load_s=0.2)
# 5 requests/s for 10 s need one instance, 35 for 10 s four, then 5 for 10 s again one.
ARRIVALS = [*constant(5, 10), *(10 + at_s for at_s in constant(35, 10)), *(20 + at_s for at_s in constant(5, 10))]


def simulated(arrivals: Sequence[float]) -> FunctionResult:
    return simulate([FunctionPlan("f", SETTINGS, PROFILE, arrivals, "learned")], [NodePlan("node-1", 8)])["f"]


def written(folder: Path, result: FunctionResult, *, slower: float = 1.0) -> tuple[Path, list[dict[str, Any]]]:
    """A simulated run as the generator and the gateway would have recorded it, with latencies `slower` times as long."""
    samples = Samples.unsent(ARRIVALS)
    for row, request in enumerate(result.requests.rows()):
        samples.sent_s[row] = request["arrived_s"] - LEAD_S
        samples.answered_s[row] = samples.sent_s[row] + slower * (request["finished_s"] - request["arrived_s"])
        samples.outcome[row], samples.status[row] = Outcome.ANSWERED, request["status"]
    started_at = datetime.fromtimestamp(BEGUN + LEAD_S, UTC).isoformat()
    record = folder / "record.jsonl"
    Report("POST http://127.0.0.1/", 30.0, 30.0, started_at, 0.0, samples).write_record(record)
    decisions = [
        {
            "at": datetime.fromtimestamp(BEGUN + decision.at, UTC).isoformat().replace("+00:00", "Z"),
            "policy": decision.policy,
            "desired": decision.desired,
            "reason": decision.reason,
            "actions": [{"action": type(action).__name__, **asdict(action)} for action in decision.actions],
        }
        for decision in reversed(result.decisions)
    ]
    return record, decisions


@pytest.fixture
def live() -> FunctionResult:
    return simulated([at_s + LEAD_S for at_s in ARRIVALS])


def test_a_run_agrees_with_itself(tmp_path: Path, live: FunctionResult) -> None:
    recording = read_recording(*written(tmp_path, live))
    plan = recording.plan("f", SETTINGS, PROFILE)
    parity = compare(recording, simulated(plan.arrivals_s))
    assert recording.lead_s == pytest.approx(LEAD_S)
    assert parity.same_decisions
    assert parity.agreement == 1.0
    assert {step.desired for step in parity.live} >= {1, 4}
    assert parity.largest_shift_s == pytest.approx(0.0, abs=1e-5)
    assert [row.ratio for row in parity.percentiles] == pytest.approx([1.0] * 4, abs=1e-3)
    assert parity.answered == (len(ARRIVALS), len(ARRIVALS))
    assert "the same" in parity.table()


def test_slower_answers_show_as_ratios(tmp_path: Path, live: FunctionResult) -> None:
    recording = read_recording(*written(tmp_path, live, slower=1.5))
    parity = compare(recording, live)
    assert [row.ratio for row in parity.percentiles] == pytest.approx([1.5] * 4, rel=1e-3)


def test_a_decision_that_one_side_lacks_lowers_the_agreement(tmp_path: Path, live: FunctionResult) -> None:
    record, decisions = written(tmp_path, live)
    acted = [decision for decision in decisions if decision["actions"]]
    decisions.remove(acted[1])
    parity = compare(read_recording(record, decisions), live)
    assert not parity.same_decisions
    assert parity.agreement == pytest.approx((len(acted) - 1) / len(acted))
    assert json.loads(json.dumps(parity.summary()))["same_decisions"] is False


def test_invalid_recording_is_refused(tmp_path: Path, live: FunctionResult) -> None:
    record, decisions = written(tmp_path, live)
    with pytest.raises(GnomonError, match="deployment"):
        read_recording(record, [])
    record.write_text("{}\n")
    with pytest.raises(GnomonError, match="gnomon-replay"):
        read_recording(record, decisions)

"""A live stretch and its simulation: the same decisions, and latencies that are close.

The real `gnomon serve` builds, deploys and scales a function of 100 ms a request while the load generator records. The record and
the decisions are all that the simulator gets.
"""

import json
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.parity.recording import Parity, compare, read_recording
from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.replay import Plan, Target, replay
from gnomon_simulator.replay_report import Outcome, Report, Token
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import simulate
from tests.integration.serve.conftest import GNOMON, Serving

SERVICE_S = 0.1
HANDLER = f"import time\n\n\ndef handle(event, context):\n    time.sleep({SERVICE_S})\n    return event.body\n"
STACK = """
version: 1.0
provider: {name: openfaas}
functions:
  slow:
    lang: python3-http
    handler: ./slow
    image: slow:1
    labels: {com.openfaas.scale.min: 1, com.openfaas.scale.max: 6}
    annotations: {gnomon/autoscaler: od, gnomon/max-batch: 1}
"""
LABELS = {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": "6"}
ANNOTATIONS = {"gnomon/autoscaler": "od", "gnomon/max-batch": "1", "gnomon/concurrency": "1"}
# The autoscaler decides at three quarters of each second of the run. What od sees then, the arrivals of the last second, crosses
# a multiple of what an instance serves once a step: one, two, three, two and one instance. An instance serves 10 requests/s, and
# 7.7 on a machine that adds 30 ms to each; for all of these a decision up to 0.25 s earlier or later would be the same.
# Worked out: 0.75 s after a whole second 5 requests/s become 13. The last second has more than 7.7 of them after 0.35 s and more
# than 10 after 0.7 s, between 1.1 and 1.45 s; the looks are at 0.75 and 1.75 s.
DECIDES_AT_S = 0.75
LEVELS = ((5, 0.0, 2.75), (13, 2.75, 5.75), (23, 5.75, 9.75), (13, 9.75, 12.75), (5, 12.75, 15.0))
ATTEMPTS = 3
STOOD_STILL_S = 0.1
SLOW_S = 1.25 * SERVICE_S
LAG_BUCKET = 'gnomon_event_loop_lag_seconds_bucket{le="0.1"}'
LAG_COUNT = "gnomon_event_loop_lag_seconds_count"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "slow").mkdir()
    (tmp_path / "slow" / "handler.py").write_text(HANDLER)
    (tmp_path / "stack.yml").write_text(STACK)
    template = tmp_path / "template" / "python3-http"
    (template / "function").mkdir(parents=True)
    (template / "template.yml").write_text("language: python3-http\nfprocess: python index.py\n")
    return tmp_path


@pytest.fixture
def gateway(home: Path) -> Iterator[str]:
    serving = Serving(home / ".gnomon")
    serving.start()
    yield serving.url
    serving.stop()
    serving.client.clear()


def asked(gateway: str, path: str, method: str = "GET", document: Any = None) -> bytes:
    body = None if document is None else json.dumps(document).encode()
    request = urllib.request.Request(f"{gateway}{path}", body, {"Content-Type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return bytes(answer.read())


def decisions(gateway: str) -> Any:
    return json.loads(asked(gateway, "/gnomon/functions/slow/decisions?limit=1000"))


def long_pauses(gateway: str) -> int:
    """How often the gateway's event loop woke a sleeper more than 100 ms late."""
    samples = dict(line.rsplit(" ", 1) for line in asked(gateway, "/metrics").decode().splitlines() if not line.startswith("#"))
    return round(float(samples[LAG_COUNT]) - float(samples[LAG_BUCKET]))


def a_decision_s(gateway: str) -> float:
    """The next moment at which the autoscaler decides, on this process's monotonic clock."""

    def newest() -> list[int]:
        """None just after the deployment."""
        return [decision["repeats"] for decision in decisions(gateway)[:1]]

    before = newest()
    for _ in range(1000):
        if newest() != before:
            return time.monotonic()
        time.sleep(0.005)
    pytest.fail("the autoscaler does not decide")


def deploy_anew(gateway: str, looked_s: float) -> None:
    """The function afresh, in the middle of two looks of the autoscaler, so that no doubt remains which comes next."""
    asked(gateway, "/system/functions", "DELETE", {"functionName": "slow"})
    deadline_s = time.monotonic() + 30.0
    while b'"slow"' in asked(gateway, "/system/functions"):
        assert time.monotonic() < deadline_s, "the function does not end"
        time.sleep(0.05)
    time.sleep((looked_s + 0.15 - time.monotonic()) % 0.5)
    asked(
        gateway, "/system/functions", "POST", {"service": "slow", "image": "slow:1", "labels": LABELS, "annotations": ANNOTATIONS}
    )


def target(gateway: str) -> Target:
    return Target(f"{gateway}/function/slow", body=b"{token}", check_token=True)


def stretch(gateway: str, times_s: list[float]) -> tuple[Report, Any]:
    """A live stretch from the deployment on, and its decisions; anew where this machine did not keep up.

    One that never does says nothing about the simulator: the test is left out, whatever it would have found.
    """
    looked_s, said = a_decision_s(gateway), []
    for attempt in range(1, ATTEMPTS + 1):
        pauses = long_pauses(gateway)
        deploy_anew(gateway, looked_s)
        looked_s = a_decision_s(gateway)
        lead_s = (looked_s - DECIDES_AT_S - time.monotonic()) % 1.0 + 1.0
        report = replay(Plan(times_s, deadline_s=10.0, lead_s=lead_s), target(gateway))
        lag_s, pauses = max(report.lags_s()), long_pauses(gateway) - pauses
        usual_s = median(report.latencies_s())
        if lag_s <= STOOD_STILL_S and not pauses and usual_s <= SLOW_S:
            return report, decisions(gateway)
        said.append(f"attempt {attempt}: sent {lag_s * 1e3:.0f} ms late, {pauses} long pauses, {usual_s * 1e3:.0f} ms a request")
    pytest.skip(f"this machine does not keep up: {'; '.join(said)}")


def compared(home: Path, report: Report, decided: Any) -> tuple[Parity, str]:
    """A stretch beside its simulation, and what differs too much; nothing where it agrees."""
    report.write_record(home / "record.jsonl")
    assert set(report.samples.outcome) == {Outcome.ANSWERED}, report.table()
    assert set(report.samples.token) == {Token.RIGHT}
    recording = read_recording(home / "record.jsonl", decided)
    settings = Settings(autoscaler="od", scale=ScaleSettings(min=1, max=6))
    # A profile says what requests take on this machine, as it is: hardly any of them waits for another.
    plan = recording.plan("slow", settings, constant_profile("slow", median(report.latencies_s()), load_s=0.02))
    parity = compare(recording, simulate([plan], [NodePlan("node-1", 8)])["slow"])
    agrees = (
        [step.desired for step in parity.live] == [1, 2, 3, 2, 1]
        and parity.same_decisions
        and parity.largest_shift_s < 0.2
        # Between 0.75 and 1.33: two cores serve the system, its load and whatever else runs here.
        and all(0.75 < row.ratio < 1.33 for row in parity.percentiles[:3])
    )
    return parity, "" if agrees else f"{parity.table()}\n{parity.summary()['steps']}"


@pytest.mark.timeout(400)
def test_the_simulator_decides_as_the_live_system_did(gateway: str, home: Path) -> None:
    """To the second. A machine that holds back one sample by a moment makes a decision a second late: one stretch of three has
    to agree, and a simulator that decides otherwise agrees with none."""
    subprocess.run(
        [*GNOMON, "up", "-f", "stack.yml", "--gateway", gateway], cwd=home, check=True, timeout=60, capture_output=True
    )
    times_s = [begin_s + at_s for rate, begin_s, end_s in LEVELS for at_s in constant(rate, end_s - begin_s)]
    differed: list[str] = []
    while len(differed) < ATTEMPTS:
        parity, differs = compared(home, *stretch(gateway, times_s))
        assert parity.answered == (len(times_s), len(times_s))
        if not differs:
            return
        differed.append(differs)
    pytest.fail("\n\n".join(differed))

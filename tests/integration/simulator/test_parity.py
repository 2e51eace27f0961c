"""A live stretch and its simulation: the same decisions, and latencies that are close.

The real `gnomon serve` builds, deploys and scales a function of 100 ms a request while the load generator records. The record and
the decisions are all that the simulator gets.
"""

import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gnomon_core.settings import ScaleSettings, Settings
from gnomon_simulator.arrivals import constant
from gnomon_simulator.parity import compare, read_recording
from gnomon_simulator.profiles import constant as constant_profile
from gnomon_simulator.replay import Plan, Target, replay
from gnomon_simulator.samples import Outcome, Token
from gnomon_simulator.simulated_platform import NodePlan
from gnomon_simulator.simulation import simulate

GNOMON = [sys.executable, "-c", "from gnomon_cli.main import main; main()"]
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
# What od sees, the mean of the last second, crosses a multiple of an instance's 10 requests/s once a step: one, two, three, two
# and one instance. Steps up are at whole seconds of the run, steps down at half ones, and the autoscaler decides between half and
# whole seconds: at least 0.1 s from where the mean crosses, so that a late timer changes nothing.
LEVELS = ((6, 0.0, 3.0), (16, 3.0, 6.0), (26, 6.0, 9.5), (16, 9.5, 12.5), (6, 12.5, 15.0))


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
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPENFAAS_")}
    command = [*GNOMON, "serve", "--port", "0", "--cores", "8", "--state", str(home / ".gnomon")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=home, env=environment) as server:
        assert server.stdout is not None
        try:
            readable, _, _ = select.select([server.stdout], [], [], 60.0)
            found = re.search(r"http://[0-9.:]*\d", server.stdout.readline()) if readable else None
            assert found, "gnomon serve did not say where it serves"
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()


def decisions(gateway: str) -> Any:
    with urllib.request.urlopen(f"{gateway}/gnomon/functions/slow/decisions?limit=1000", timeout=10) as answer:
        return json.load(answer)


def half_a_second_after_a_decision_s(gateway: str) -> float:
    """How long until then. The autoscaler decides at whole seconds after the deployment, or up to half a second later."""
    deployed = datetime.fromisoformat(decisions(gateway)[-1]["at"])
    since_s = (datetime.now(UTC) - deployed).total_seconds()
    return 0.5 - since_s % 1.0 + 2.0


def test_the_simulator_decides_as_the_live_system_did(gateway: str, home: Path) -> None:
    subprocess.run(
        [*GNOMON, "up", "-f", "stack.yml", "--gateway", gateway], cwd=home, check=True, timeout=60, capture_output=True
    )
    time.sleep(1.0)  # real time: the first decision is taken, and the first instance starts
    times_s = [begin_s + at_s for rate, begin_s, end_s in LEVELS for at_s in constant(rate, end_s - begin_s)]
    target = Target(f"{gateway}/function/slow", body=b"{token}", check_token=True)
    report = replay(Plan(times_s, deadline_s=10.0, lead_s=half_a_second_after_a_decision_s(gateway)), target)
    report.write_record(home / "record.jsonl")
    assert set(report.samples.outcome) == {Outcome.ANSWERED}, report.table()
    assert set(report.samples.token) == {Token.RIGHT}

    recording = read_recording(home / "record.jsonl", decisions(gateway))
    settings = Settings(autoscaler="od", scale=ScaleSettings(min=1, max=6))
    plan = recording.plan("slow", settings, constant_profile("slow", SERVICE_S, load_s=0.02))
    parity = compare(recording, simulate([plan], [NodePlan("node-1", 8)])["slow"])

    said = f"{parity.table()}\n{parity.summary()['steps']}"
    assert [step.desired for step in parity.live] == [1, 2, 3, 2, 1], said
    assert parity.same_decisions, said
    assert parity.largest_shift_s < 0.2, said
    assert parity.answered == (len(times_s), len(times_s))
    # Between 0.75 and 1.33: two cores serve the system, its load and whatever else runs here.
    assert all(0.75 < row.ratio < 1.33 for row in parity.percentiles[:3]), said

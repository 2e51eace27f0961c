"""Policies on a running gateway: `gnomon` by learned latency, and those of a package that somebody has installed."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.serve.conftest import GNOMON, Load, Serving, echoing
from tests.waiting import eventually

PACKAGE = """
from dataclasses import dataclass

from gnomon_autoscaler import replica_policy_plugin
from gnomon_autoscaler.replica_policy import DesiredCount
from gnomon_core.policy_registry import PolicyPlugin, own_settings
from gnomon_core.scheduling import Dispatch, Reject
from gnomon_core.settings import integer
from gnomon_core.settings import Setting


@dataclass(frozen=True)
class Exactly:
    count: int = 1
    name: str = "exactly"
    version: int = 1
    period_s: float = 0.2
    default_scheduler: str = "picky"

    def desired_count(self, seen, memory):
        return DesiredCount(self.count, "as told", {})


class Picky:
    name = "picky"

    def next(self, queue, fleet, latency, now_s):
        large = tuple(one for one in queue.requests if len(one.body) > 3)
        if large:
            return (Reject(large, "It is too large for me."),)
        return (Dispatch(fleet.idle[0].instance_id, (queue.requests[0],)),) if fleet.idle else ()


SETTINGS = (Setting("count", "count", integer(1, 5), "a whole number from 1 to 5", "instances"),)
EXACTLY = replica_policy_plugin(lambda settings: Exactly(**own_settings(settings, SETTINGS)), "As many as it is told.", SETTINGS)
PICKY = PolicyPlugin(lambda settings: Picky(), "Refuses what is large.")
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = tmp_path / "site" / "odd-1.0.dist-info"
    information.mkdir(parents=True)
    (tmp_path / "site" / "odd.py").write_text(PACKAGE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    points = "[gnomon.scaling_policies]\nexactly = odd:EXACTLY\n[gnomon.scheduling_policies]\npicky = odd:PICKY\n"
    (information / "entry_points.txt").write_text(points)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))


@pytest.fixture
def gateway(tmp_path: Path, installed: None) -> Iterator[Serving]:
    del installed
    started = Serving(tmp_path / "state")
    started.start("--policy=exactly", "--policy=picky")
    yield started
    started.stop()
    started.client.clear()


def test_own_policies_are_listed_configured_and_validated(gateway: Serving) -> None:
    known = gateway.call("GET", "/gnomon/policies").json()
    listed = {row["name"]: row["description"] for kind in ("scaling", "scheduling") for row in known[kind]}
    assert listed["exactly"] == "As many as it is told. gnomon/exactly.count: instances, a whole number from 1 to 5."
    assert listed["picky"] == "Refuses what is large."

    annotations = {"gnomon/autoscaler": "exactly", "gnomon/exactly.count": "3"}
    assert gateway.deploy("echo", annotations=annotations).status == 202
    eventually(lambda: gateway.status("echo").get("availableReplicas") == 3, "its own setting does not hold")
    assert gateway.call("POST", "/function/echo", b"abc").data == b"abc"
    refused = gateway.call("POST", "/function/echo", b"abcd")
    assert (refused.status, "It is too large for me." in refused.data.decode()) == (504, True), "its scheduler was not asked"

    for wrong, code in (
        ({"gnomon/exactly.count": "6"}, "invalid_setting"),
        ({"gnomon/exactly.cuont": "3"}, "unknown_setting"),
        ({"gnomon/exactyl.count": "3"}, "unknown_setting"),
        ({"gnomon/scheduler": "pikcy"}, "unknown_policy"),
    ):
        answer = gateway.deploy("echo", method="PUT", annotations={"gnomon/autoscaler": "exactly"} | wrong)
        assert (answer.status, answer.json()["error"]["code"]) == (400, code)
    moved = {"gnomon/autoscaler": "fixed", "gnomon/exactly.count": "3"}
    assert gateway.deploy("echo", method="PUT", annotations=moved).status == 202, "a rival is tried by one annotation"


@pytest.mark.usefixtures("installed")
def test_own_policies_are_simulated() -> None:
    command = [*GNOMON, "simulate", "--rate", "10", "--duration", "5s", "--service-time", "10ms", "--policy", "exactly"]
    command += ["--policy", "picky", "--annotation", "gnomon/autoscaler=exactly", "--annotation", "gnomon/exactly.count=2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, "picky" in done.stdout) == (0, True), done.stderr
    unnamed = subprocess.run([*command[:-8], *command[-4:]], capture_output=True, text=True, check=False)
    assert unnamed.returncode == 1
    assert "start Gnomon with `--policy exactly` to use it" in unnamed.stderr


SLOW = "perl -pe select(undef,undef,undef,0.1)"
"""Answers what it reads, a tenth of a second later; without blanks, at which a command line is cut."""
CALLERS = 6


def bodies(serving: Serving, name: str) -> int:
    return int(serving.status(name).get("availableReplicas") or 0)


def reasons(serving: Serving, name: str) -> list[str]:
    records = serving.call("GET", f"/gnomon/functions/{name}/decisions").json()
    return [record["reason"] for record in records if record["policy"] == "gnomon"]


def test_a_burst_gets_bodies_by_learned_latency_and_every_request_its_answer(serving: Serving) -> None:
    annotations = {"gnomon/autoscaler": "gnomon", "gnomon/slo-ms": "400", "gnomon/concurrency": "1"}
    made = serving.deploy("waved", SLOW, annotations=annotations, labels={"com.openfaas.scale.max": "5"})
    assert made.status in (200, 202), made.data
    eventually(lambda: bodies(serving, "waved") == 1, "the first Body does not start")
    assert serving.status("waved")["annotations"]["gnomon/autoscaler"] == "gnomon"
    ask = echoing(serving, "waved")
    assert ask(0, 0) == "ok"

    # Each caller asks ten times a second at best: six of them are more than one Body answers within the objective, let alone two.
    with Load(ask, CALLERS) as load:
        eventually(lambda: bodies(serving, "waved") >= 3, "the burst gets no Bodies")
        load.more(5 * CALLERS)
        assert set(load.stop()) == {"ok"}
    assert any("a Body answers" in reason and "replayed" in reason for reason in reasons(serving, "waved"))

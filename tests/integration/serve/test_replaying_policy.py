"""`gnomon` on a running gateway: a handler whose latency is learned, an objective, and a burst."""

from __future__ import annotations

from tests.integration.serve.conftest import Serving
from tests.integration.serve.load import Load, echoing
from tests.waiting import eventually

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

"""A Body in its pod and a Shadow in the node's pool, through the pod's own socket: real processes, a played kubelet."""

from __future__ import annotations

import os
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from gnomon_coordinator.node.pod_sockets import SOCKET
from gnomon_core import packets
from tests.integration.coordinator_node.known import Known
from tests.integration.coordinator_node.node import PATIENT, SPLIT, Body, Node
from tests.waiting import eventually

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]


def pair_of(node: Node, shadow: str, pod_uid: str) -> tuple[Body, Known]:
    """A Body that works with a Shadow, and what it answered before."""
    node.warm()
    body = node.body(pod_uid)
    known = Known.of(node, body)
    node.pair(shadow, pod_uid)
    return body, known


def pool_processes(node: Node, name: str) -> list[int]:
    """The processes of this name below the pool's first one."""
    found: list[int] = []
    parents = [node.pool.process.pid]
    while parents:
        pid = parents.pop()
        try:
            children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            found += [child for child in children if Path(f"/proc/{child}/comm").read_text().strip() == name]
        except OSError:
            continue
        parents += children
    return found


def test_a_pair_answers_as_its_body_does_alone_bit_for_bit(node: Node) -> None:
    node.warm()
    body = node.body("uid-pair")
    known = {samples: Known.of(node, body, samples) for samples in (1, 2, 3, 4, 8)}

    status, row = node.wish("s-pair", "uid-pair", node.blocks, SPLIT)
    assert (status, row["state"], row["cores"]) == (200, "starting", 1)
    row = node.paired("s-pair")
    assert (row["state"], row["blocks"], row["split"], row["pod_uid"]) == ("ready", node.blocks, SPLIT, "uid-pair")
    assert row["resident_bytes"] > 0
    for samples in (2, 3, 4, 8):
        assert known[samples].together(body)
    assert known[1].alone(body)

    # Other shares, between two batches: of two samples none is given away.
    what = {"epoch": node.epoch, "cores": 1, "blocks": node.blocks, "split": [0, 0, 1, 2], "expected_ms": PATIENT}
    assert node.ask("PATCH", "/v1/shadows/s-pair", what)[0] == 200
    eventually(lambda: node.shadow("s-pair")["split"] == [0, 0, 1, 2], "it does not change")
    assert known[2].alone(body)
    assert known[4].together(body)

    assert node.end("s-pair") == "stopped"
    assert known[8].alone(body)
    assert node.state()["pool"]["claimed_cores"] == 0


def test_a_shadow_is_a_process_that_was_there_before_the_wish(node: Node) -> None:
    """No container is made and nothing is imported for it: that is what it is quick by, on a quiet machine and on a busy one."""
    node.warm()
    node.body("uid-quick")
    containers = eventually(lambda: pool_processes(node, "gnomon empty"), "the pool is empty")
    eventually(lambda: node.state()["pool"]["containers"] > 0, "the pool keeps none")
    node.pair("s-quick", "uid-quick")

    [shadow] = pool_processes(node, "gnomon line.ope")
    assert shadow in containers
    node.end("s-quick")


def test_a_coordinator_that_is_killed_is_replaced_and_the_pair_goes_on(node: Node) -> None:
    body, known = pair_of(node, "s-kill", "uid-kill")
    [shadow] = pool_processes(node, "gnomon line.ope")
    [before] = pool_processes(node, "gnomon coord")
    os.kill(before, signal.SIGKILL)

    for _ in range(20):
        assert known.together(body)
    [after] = eventually(lambda: [pid for pid in pool_processes(node, "gnomon coord") if pid != before])
    assert after != before
    # The new one knows the pair, and ends it when it is told to.
    node.paired("s-kill")
    assert pool_processes(node, "gnomon line.ope") == [shadow]
    assert node.end("s-kill") == "stopped"
    assert known.alone(body)


def test_a_pool_that_ends_takes_its_shadows_along_and_no_answer(node: Node) -> None:
    body, known = pair_of(node, "s-pool", "uid-pool")
    node.end_pool()

    assert known.answered(body)
    assert node.ended("s-pool") == "the node's pool has ended"
    assert node.wish("s-early", "uid-pool", node.blocks, SPLIT)[0] == 503
    # Its container is started again. The Body has never let go of the agent: it obeys a coordinator that counts on.
    node.begin_pool()
    node.warm()
    node.pair("s-next", "uid-pool")
    assert known.together(body)
    node.end("s-next")


def test_an_agent_that_is_killed_finds_volumes_and_bodies_again(node: Node) -> None:
    body, known = pair_of(node, "s-agent", "uid-agent")
    incarnation = node.state()["incarnation"]
    node.agent.kill()

    assert known.answered(body)
    node.begin_agent()
    node.warm()
    node.has_come("uid-agent")
    state = node.state()
    assert state["incarnation"] != incarnation
    assert state["shadows"] == []
    eventually(lambda: known.alone(body), "the Body has a Shadow that has gone")
    node.pair("s-after", "uid-agent")
    assert known.together(body)
    node.end("s-after")


def test_a_body_that_ends_takes_its_shadow_along(node: Node) -> None:
    node.warm()
    body = node.body("uid-end")
    node.pair("s-end", "uid-end")
    assert body.kill(signal.SIGTERM) == 0

    assert "Body has gone" in node.ended("s-end")
    eventually(lambda: "uid-end" not in [row["pod_uid"] for row in node.state()["bodies"]], "it is still there")


def test_a_pod_whose_volume_is_taken_away_has_no_shadow_any_more(node: Node) -> None:
    body, known = pair_of(node, "s-away", "uid-away")
    node.kubelet.unpublish(node.pod("uid-away"))

    node.ended("s-away")
    assert known.alone(body)
    status, refusal = node.wish("s-again", "uid-away", node.blocks, SPLIT)
    assert (status, refusal["code"]) == (409, "no_such_body")


def test_a_stranger_at_anothers_socket_is_that_pods_business_and_nobody_elses(node: Node) -> None:
    """A pod has only its own folder mounted. Whoever is in there speaks as that pod: never as another one, whatever it says."""
    body, known = pair_of(node, "s-mine", "uid-mine")
    stranger = node.pod("uid-stranger")
    with stranger.connect() as connection:
        node.has_come("uid-stranger")
        packets.receive(connection)
        # It claims the other's Shadow, in every way that there is.
        for said in (
            {"say": "body", "epoch": 1, "pairs": [{"shadow": "s-mine", "blocks": node.blocks, "split": SPLIT}]},
            {"say": "unpaired", "epoch": 1, "shadow": "s-mine", "reason": "mine now"},
            {"say": "failed", "epoch": 1, "shadow": "s-mine", "reason": "mine now"},
        ):
            packets.send(connection, said)
        for _ in range(5):
            assert known.together(body)
        assert node.shadow("s-mine")["paired"]
        # One that says that it is the other's Shadow is no Body, and not heard any more.
        packets.send(connection, {"say": "registered", "epoch": 1, "shadow": "s-mine", "body": "x", "blocks": [0],
                                  "resident_bytes": 1, "load_ms": 1.0})  # fmt: skip
        eventually(lambda: hung_up(connection), "it is still heard")
    assert known.together(body)
    node.end("s-mine")


def hung_up(connection: socket.socket) -> bool:
    """Whether nothing that is sent is taken any more, or nobody reads it: the coordinator has closed its end."""
    connection.setblocking(False)  # noqa: FBT003 - the signature is socket's
    try:
        while True:
            packets.receive(connection)
    except BlockingIOError:
        pass
    except packets.PeerGoneError:
        return True
    try:
        packets.send(connection, {"say": "empty", "epoch": 1})
    except (BlockingIOError, packets.PeerGoneError):
        return True
    return False


def test_who_has_not_come_has_no_shadow_and_who_has_no_token_no_say(node: Node) -> None:
    node.warm()
    status, refusal = node.wish("s-none", "uid-none", node.blocks, SPLIT)
    assert (status, refusal["code"]) == (409, "no_such_body")
    for method, path in (("GET", "/v1/state"), ("PUT", "/v1/shadows/s"), ("PATCH", "/v1/shadows/s"), ("DELETE", "/v1/shadows/s")):
        assert node.ask(method, path, {}, token="guessed")[0] == 401
    with urllib.request.urlopen(f"http://{node.host}:{node.port}/metrics") as answer:
        assert b"\ngnomon_node_pool_ready 1\n" in answer.read(), "numbers are for everybody"


def test_an_older_leader_is_refused_also_after_a_restart(node: Node) -> None:
    node.warm()
    node.body("uid-epoch")
    node.epoch += 1
    older = node.epoch - 1
    node.pair("s-epoch", "uid-epoch")
    for method, path, document in (
        ("PUT", "/v1/shadows/s-other", {"epoch": older}),
        ("PATCH", "/v1/shadows/s-epoch", {"epoch": older}),
        ("DELETE", f"/v1/shadows/s-epoch?epoch={older}", None),
    ):
        status, refusal = node.ask(method, path, document)
        assert (status, refusal["code"]) == (409, "stale_epoch")
    assert node.shadow("s-epoch")["paired"]
    node.agent.kill()
    node.begin_agent()
    assert node.ask("DELETE", f"/v1/shadows/s-epoch?epoch={older}")[1]["code"] == "stale_epoch"
    assert node.ask("DELETE", f"/v1/shadows/s-epoch?epoch={node.epoch}")[0] == 200


def test_a_body_without_the_volume_says_so_and_serves(node: Node, tmp_path: Path) -> None:
    pod = node.pod("uid-without")
    has = Body(tmp_path, pod.uid, pod.target / SOCKET, node.models, node.head)
    without = Body(tmp_path, "uid-nothing", tmp_path / "nothing" / SOCKET, node.models, node.head)
    node.started += [has, without]

    assert without.ask(node.batch()) == has.ask(node.batch())
    assert "this Body works without Shadows" in without.said
    assert "works without Shadows" not in has.said


@pytest.mark.parametrize(
    "fields",
    [
        {"weights": "../../etc/passwd"},
        {"program": "/etc/passwd"},
        {"layers": ""},
        {"weight_mode": "stolen"},
        {"cores": 0},
        {"blocks": [2, 1]},
        {"split": [0, 2]},
        {"max_batch": "8"},
        {"epoch": -1},
    ],
)
def test_a_wish_that_cannot_be_read_changes_nothing(node: Node, fields: dict[str, object]) -> None:
    status, refusal = node.wish("s-bad", "uid-none", node.blocks, SPLIT, fields)
    assert (status, refusal["code"]) == (400, "bad_request")
    assert node.shadow("s-bad") == {}

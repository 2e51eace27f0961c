"""The messages that instances may send, the effect of a breach of the protocol on its sender, and the link."""

import json
import math
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.links import BURST, Link, LinkBrokenError, LinkEndedError
from gnomon_coordinator.protocol import BadMessageError, Change, PairReport, Task, read_change, read_instance_message, read_task
from gnomon_coordinator.table import Status
from gnomon_core import packets
from tests.unit.coordinator.conftest import FakeNode

REGISTERED = {
    "say": "registered",
    "epoch": 3,
    "shadow": "s1",
    "body": "b1",
    "blocks": [1, 2],
    "resident_bytes": 9,
    "load_ms": 1.5,
}
PAIR = {"shadow": "s", "blocks": [3], "split": [0, 1]}
TASK = {
    "shadow": "s1",
    "body": "b1",
    "program": "/p",
    "weights": "/w",
    "layers": "/l",
    "weight_mode": "shared",
    "cores": 2,
    "cpus": [0, 1],
    "blocks": [0, 1],
    "split": [0, 1, 1],
    "max_batch": 3,
    "expected_ms": [[1, 2.5]],
    "join": ["/sys/fs/cgroup/x/cgroup.procs"],
}


def test_messages_of_an_instance_are_read() -> None:
    said = read_instance_message({**REGISTERED, "phases_ms": [1, 2]})
    assert (said.say, said.epoch, said.shadow, said.blocks, said.paired) == ("registered", 3, "s1", (1, 2), False)
    assert read_instance_message({"say": "empty", "epoch": 1, "pid": 5}).say == "empty"
    assert read_instance_message({"say": "body", "epoch": 1, "pairs": []}).pairs == ()
    paired = read_instance_message({"say": "body", "epoch": 1, "pairs": [PAIR, {**PAIR, "shadow": "t"}]})
    assert paired.pairs == (PairReport("s", (3,), (0, 1)), PairReport("t", (3,), (0, 1)))
    assert read_instance_message({"say": "failed", "epoch": 1, "shadow": "", "reason": "no pair"}).shadow is None


def test_logged_text_is_one_line() -> None:
    said = read_instance_message({"say": "unpaired", "epoch": 1, "shadow": "s", "reason": "a\nb\x1b[2J\ud800" + "c" * 10_000})
    assert said.reason.startswith("a b [2J c")
    assert len(said.reason) == 300


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"say": 3},
        {"say": ["registered"]},
        {"say": "shutdown"},
        {**REGISTERED, "epoch": -1},
        {**REGISTERED, "epoch": True},
        {**REGISTERED, "epoch": 1 << 70},
        {**REGISTERED, "epoch": "3"},
        {**REGISTERED, "shadow": "../../etc"},
        {**REGISTERED, "shadow": "x" * 400},
        {**REGISTERED, "shadow": None},
        {**REGISTERED, "blocks": [2, 1]},
        {**REGISTERED, "blocks": [1, 1]},
        {**REGISTERED, "blocks": [-1]},
        {**REGISTERED, "blocks": [1.0]},
        {**REGISTERED, "blocks": [True]},
        {**REGISTERED, "blocks": list(range(5000))},
        {**REGISTERED, "blocks": {"0": 1}},
        {**REGISTERED, "load_ms": math.nan},
        {**REGISTERED, "load_ms": math.inf},
        {**REGISTERED, "load_ms": -1},
        {**REGISTERED, "load_ms": 10**400},
        {**REGISTERED, "paired": 1},
        {"say": "body", "epoch": 1, "pairs": "s"},
        {"say": "body", "epoch": 1, "pairs": ["s"]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "split": [1]}]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "shadow": None}]},
        {"say": "body", "epoch": 1, "pairs": [PAIR, PAIR]},
        {"say": "body", "epoch": 1, "pairs": [{**PAIR, "shadow": f"s{number}"} for number in range(9)]},
        {"say": "changed", "epoch": 1, "shadow": "/", "blocks": []},
        {"say": "unpaired", "epoch": 1, "shadow": "s", "reason": 5},
    ],
)
def test_oversized_message_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError):
        read_instance_message(wrong)


def test_an_instance_sends_no_descriptors() -> None:
    with pytest.raises(BadMessageError, match="descriptors"):
        read_instance_message(REGISTERED, 1)


def test_deep_nesting_costs_nothing() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    for field in ("say", "epoch", "shadow", "blocks", "load_ms"):
        with pytest.raises(BadMessageError):
            read_instance_message({**REGISTERED, field: deep})


def test_a_task_is_read_whole() -> None:
    task = read_task(TASK)
    assert (task.cores, task.cpus, task.split, task.expected_ms, task.max_batch) == (2, (0, 1), (0, 1, 1), ((1.0, 2.5),), 3)
    changed = read_change({**TASK, "blocks": [1], "cores": 1}).applied_to(task)
    assert (changed.blocks, changed.cores, changed.shadow, changed.max_batch) == ((1,), 1, "s1", 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"program": "relative"},
        {"program": "/nul\0"},
        {"weight_mode": "borrowed"},
        {"cores": 0},
        {"split": [0, 2]},
        {"max_batch": 5000},
        {"expected_ms": [1]},
        {"expected_ms": [["1"]]},
        {"join": "x"},
    ],
)
def test_a_task_with_something_wrong_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadMessageError):
        read_task({**TASK, **wrong})


MakeTask = Callable[..., Task]


@pytest.mark.parametrize(
    ("who", "said"),
    [
        ("b1", {"say": "registered", "shadow": "b1", "body": "b1"}),
        ("b1", {"say": "empty"}),
        ("e1", {"say": "body"}),
        ("e1", {"say": "registered", "shadow": "e1", "body": "b1"}),
        ("s1", {"say": "registered", "shadow": "s2", "body": "b1", "blocks": (1, 2)}),
        ("s1", {"say": "registered", "shadow": "s1", "body": "b2", "blocks": (1, 2)}),
        ("s1", {"say": "registered", "shadow": "s1", "body": "b1", "blocks": (1,)}),
        ("s1", {"say": "body"}),
    ],
)
def test_an_instance_speaks_for_itself_and_its_own_pair_only(node: FakeNode, who: str, said: dict[str, Any]) -> None:
    node.body()
    node.body("b2")
    node.empty("e0")
    node.create()
    node.empty("e1")
    with pytest.raises(BadMessageError):
        node.say(who, **said)


def test_a_body_cannot_end_the_pair_of_another(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.body("b2")
    for said in ("unpaired", "paired", "failed", "changed"):
        node.say("b2", say=said, shadow="s1")
    assert node.status("s1") is Status.PAIRED
    del task


def test_a_hostile_body_serves_on_without_a_shadow(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.state.broken("b1", "nonsense", node.now_s)
    node._execute_effects()
    assert node.closed() == ["b1"]
    assert node.status("b1") is Status.BARRED
    assert node.sent("s1")[-1] == "stop"
    assert "b1" not in node.killed()
    node.say("b1", say="body")
    node.gone("s1")
    node.create(task("s2"))
    assert "protocol" in node.last_event("failed")["reason"]


def test_a_hostile_shadow_is_ended_and_its_body_told(node: FakeNode) -> None:
    node.paired()
    node.state.broken("s1", "nonsense", node.now_s)
    node._execute_effects()
    assert node.killed() == ["s1"]
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_event("unpaired")["shadow"] == "s1"


@pytest.mark.parametrize("said", [(1, 2, 3, 4000), (1, 2, 3, 5), (2, 3), ()])
def test_shadow_that_reports_wrong_blocks_does_not_change_its_body(node: FakeNode, said: tuple[int, ...]) -> None:
    node.paired()
    change_to(node, (2, 3))
    with pytest.raises(BadMessageError, match="other blocks"):
        node.say("s1", say="changed", blocks=said)
    assert "change" not in node.sent("b1")


@pytest.mark.parametrize("said", [(4000,), (1, 2, 3), (2,), ()])
def test_shadow_that_keeps_wrong_blocks_is_not_promoted(node: FakeNode, said: tuple[int, ...]) -> None:
    node.paired()
    change_to(node, (2, 3))
    node.say("s1", say="changed", blocks=(1, 2, 3))
    node.say("b1", say="changed", shadow="s1", blocks=(2, 3))
    # What is missing of it for a whole model is reckoned by its blocks.
    node.state.promote("s1", Descriptors(()), node.now_s)
    with pytest.raises(BadMessageError, match="other blocks"):
        node.say("s1", say="changed", blocks=said)
    assert "promote" not in node.sent("s1")


def change_to(node: FakeNode, blocks: tuple[int, ...]) -> None:
    node.state.change("s1", Change(1, (0,), blocks, (0, 1)), node.now_s)
    node._execute_effects()


Ends = tuple[Link, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    ours, theirs = packets.socket_pair()
    link = Link(ours, max_waiting=4)
    yield link, theirs
    link.close()
    theirs.close()


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208


def test_outbox_keeps_messages_with_duplicated_descriptors(ends: Ends) -> None:
    link, theirs = ends
    before = open_descriptors()
    read, write = os.pipe()
    sent = 0
    while not link.wants_to_write:
        link.send({"number": sent, "padding": "x" * 8000})
        sent += 1
    link.send({"last": True}, [write])
    os.close(write)
    for number in range(sent):
        assert packets.receive(theirs)[0]["number"] == number
        link.flush()
    message, descriptors = packets.receive(theirs)
    assert message == {"last": True}
    os.write(descriptors[0], b"x")
    assert os.read(read, 1) == b"x"
    for descriptor in (read, *descriptors):
        os.close(descriptor)
    assert open_descriptors() == before


def test_peer_that_never_reads_breaks_the_link_without_leaking_descriptors(ends: Ends) -> None:
    link, _ = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    for _ in range(1000):
        try:
            link.send({"padding": "x" * 8000}, [nothing])
        except LinkBrokenError as error:
            assert "outbox is full" in str(error)  # noqa: PT017 - how many it takes is the kernel's to say
            break
    else:
        pytest.fail("it was never given up")
    link.close()
    os.close(nothing)
    assert open_descriptors() == before - 2


def test_peer_beyond_its_rate_limit_breaks_the_link(ends: Ends) -> None:
    link, theirs = ends
    for number in range(BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0) is not None
    packets.send(theirs, {})
    with pytest.raises(LinkBrokenError, match="rate limit"):
        link.receive(1000.0)


def test_peer_within_its_rate_limit_is_never_limited(ends: Ends) -> None:
    link, theirs = ends
    for number in range(10 * BURST):
        packets.send(theirs, {"number": number})
        assert link.receive(1000.0 + number * 0.05) is not None


@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"[1]", b"{", b"7", b"null", b"[" * 60_000, b'{"a": ' + b"9" * 9000 + b"}", b"x" * 70_000]
)
def test_invalid_packet_breaks_the_link_without_leaking_descriptors(ends: Ends, data: bytes) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [data], [nothing] * 3)
    with pytest.raises(LinkBrokenError):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


@pytest.mark.parametrize("count", [9, 64, 253])
def test_too_many_descriptors_break_the_link_without_leaking_any(ends: Ends, count: int) -> None:
    link, theirs = ends
    nothing = os.open(os.devnull, os.O_RDONLY)
    before = open_descriptors()
    socket.send_fds(theirs, [b"{}"], [nothing] * count)
    with pytest.raises(LinkBrokenError, match="too many"):
        link.receive(0.0)
    assert open_descriptors() == before
    os.close(nothing)


def test_closed_socket_is_told_apart_from_a_broken_link(ends: Ends) -> None:
    link, theirs = ends
    assert link.receive(0.0) is None
    theirs.close()
    with pytest.raises(LinkEndedError):
        link.receive(0.0)
    with pytest.raises(LinkEndedError):
        link.send({})

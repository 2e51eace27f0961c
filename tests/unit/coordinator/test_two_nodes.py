"""A pair on two nodes, as each of their coordinators sees its half of it."""

import os
from collections.abc import Callable

import pytest

from gnomon_coordinator.effects import Descriptors, Send
from gnomon_coordinator.protocol import PairReport, Task, Way
from gnomon_coordinator.table import Kind, Status
from tests.unit.coordinator.conftest import FakeNode

MakeTask = Callable[..., Task]
WAY = Way("http://10.0.0.7:7469", "token")
WITH_S1 = PairReport("s1", (1, 2), (0, 1), elsewhere=True)


# The Shadow's node


def loaded(node: FakeNode, request: Task) -> None:
    """A Shadow that has its blocks, and whose Body has not come."""
    node.empty()
    node.create(request)
    node.registered(request)


def comes(node: FakeNode, shadow: str = "s1") -> list[Send]:
    """The message to a Shadow whose Body has connected."""
    before = len(node.done)
    connection = os.open(os.devnull, os.O_RDONLY)
    descriptors = Descriptors((connection,))
    node.state.remote_body_connected(shadow, descriptors)
    node._execute_effects()
    descriptors.close()
    return [effect for effect in node.done[before:] if isinstance(effect, Send)]


def test_a_shadow_is_made_without_a_body_and_gets_its_connection(node: FakeNode, task: MakeTask) -> None:
    request = task(body="uid-elsewhere", afar=True)
    loaded(node, request)
    assert node.last_sent("s1")["do"] == "load"
    assert node.last_sent("s1")["afar"]
    assert node.last_event("registered")["shadow"] == "s1"
    [join] = comes(node)
    # As a pair's buffers are, for any run.
    assert join.message == {
        "do": "join", "shadow": "s1", "body": "uid-elsewhere", "blocks": (1, 2), "split": (0, 1),
        "to_bytes": 64, "from_bytes": 448,
    }  # fmt: skip
    node.say("s1", say="paired", shadow="s1")
    assert node.status("s1") is Status.PAIRED
    assert "paired" not in node.events(), "what the pair does is told on its Body's node"
    node.wait(3600)
    assert "ending" not in node.events()
    # The same Body again, over another connection.
    assert [come.message["do"] for come in comes(node)] == ["join"]


def test_connection_to_a_shadow_of_this_node_is_not_passed_on(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    assert comes(node) == []
    node.empty()
    node.create(task("s2", "uid-elsewhere", afar=True))
    assert comes(node, "s2") == [], "it loads"
    assert comes(node, "s9") == []


def test_shadow_without_a_connection_ends(node: FakeNode, task: MakeTask) -> None:
    loaded(node, task(body="uid-elsewhere", afar=True))
    node.wait(61)
    assert "60 s for its Body" in node.last_event("ending")["reason"]
    assert node.sent("s1")[-1] == "stop"


def test_shadow_whose_remote_body_has_gone_ends(node: FakeNode, task: MakeTask) -> None:
    loaded(node, task(body="uid-elsewhere", afar=True))
    comes(node)
    node.say("s1", say="paired", shadow="s1")
    node.say("s1", say="unpaired", shadow="s1", reason="the Body has gone")
    assert node.last_event("ending")["reason"] == "the Body has gone"
    assert node.sent("s1")[-1] == "stop"
    node.gone("s1")
    assert "s1" not in node.state.table


def test_remote_shadow_is_resized_and_ended_on_request(node: FakeNode, task: MakeTask) -> None:
    request = task(body="uid-elsewhere", afar=True)
    loaded(node, request)
    comes(node)
    node.say("s1", say="paired", shadow="s1")
    node.create(task(body="uid-elsewhere", afar=True, cores=2, cpus=(0, 1)), descriptors=False)
    assert node.last_sent("s1") == {"do": "change", "blocks": (1, 2), "split": (0, 1), "cores": 2, "cpus": (0, 1), "shadow": "s1"}
    node.say("s1", say="changed", blocks=(1, 2))
    assert node.status("s1") is Status.PAIRED
    node.destroy()
    assert node.sent("s1")[-1] == "stop"


def test_a_new_coordinator_takes_it_up_as_it_is(next_node: FakeNode, task: MakeTask) -> None:
    node, request = next_node, task(body="uid-elsewhere", afar=True)
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="registered", shadow="s1", body="uid-elsewhere", blocks=(1, 2), paired=True, afar=True)
    node.create(request, descriptors=False)
    node.say("s1", say="changed", blocks=(1, 2))
    node.wait(3600)
    assert "ending" not in node.events()
    assert node.status("s1") is Status.PAIRED
    # Nobody requests this one, and that one says that its Body is elsewhere, which is not so.
    node.found("s2", Kind.SHADOW)
    node.say("s2", say="registered", shadow="s2", body="uid-elsewhere", blocks=(1, 2), paired=True, afar=True)
    node.wait(11)
    assert node.sent("s2")[-1] == "stop"
    node.body("b1")
    node.found("s3", Kind.SHADOW)
    node.create(task("s3"), descriptors=False)
    node.gone("b1")
    node.say("s3", say="registered", shadow="s3", body="b1", blocks=(1, 2), paired=True, afar=True)
    assert node.killed() == ["s3"]


def test_shadow_whose_body_left_before_the_request_waits_for_it(next_node: FakeNode, task: MakeTask) -> None:
    node = next_node
    node.found("s1", Kind.SHADOW)
    node.say("s1", say="registered", shadow="s1", body="uid-elsewhere", blocks=(1, 2), paired=True, afar=True)
    node.say("s1", say="unpaired", shadow="s1", reason="the Body has gone")
    node.create(task(body="uid-elsewhere", afar=True), descriptors=False)
    assert [come.message["do"] for come in comes(node)] == ["join"]
    node.wait(61)
    assert "60 s for its Body" in node.last_event("ending")["reason"]


# The Body's node


def met(node: FakeNode, request: Task) -> None:
    """A Body that works with a Shadow on another node."""
    node.body()
    node.create(request, descriptors=False)
    node.say("b1", say="paired", shadow="s1")


def test_a_body_is_told_the_way_and_nothing_is_made_here(node: FakeNode, task: MakeTask) -> None:
    node.body()
    node.create(task(way=WAY), descriptors=False)
    message = node.last_sent("b1")
    assert (message["do"], message["url"], message["token"], message["blocks"]) == ("pair", WAY.url, WAY.token, (1, 2))
    assert (node.forks(), node.connected(), node.assigned(), node.sent("s1")) == ([], [], [], [])
    assert node.status("b1") is Status.PAIRING
    node.say("b1", say="paired", shadow="s1")
    assert node.status("b1") is Status.PAIRED
    assert node.last_event("paired") == {
        "event": "paired",
        "shadow": "s1",
        "body": "b1",
        "blocks": [1, 2],
        "split": [0, 1],
    }


def test_split_of_a_remote_shadow_changes_at_its_body_only(node: FakeNode, task: MakeTask) -> None:
    met(node, task(way=WAY))
    node.create(task(way=WAY, blocks=(1,), split=(0, 0), cores=2), descriptors=False)
    assert node.last_sent("b1")["do"] == "change"
    assert node.last_sent("b1")["shadow_cores"] == 2
    node.say("b1", say="changed", shadow="s1", blocks=(1,))
    assert node.last_event("paired")["blocks"] == [1]
    assert node.sent("s1") == []
    node.wait(3600)
    assert "ending" not in node.events()


@pytest.mark.parametrize("how", ["told to", "it gave up", "it cannot", "it has gone", "it breaks the protocol"])
def test_remote_shadow_is_forgotten_once_its_body_is_unpaired(node: FakeNode, task: MakeTask, how: str) -> None:
    met(node, task(way=WAY))
    if how == "told to":
        node.destroy()
        assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
        assert "failed" not in node.events()
        node.say("b1", say="unpaired", shadow="s1", reason="told to")
    elif how == "it gave up":
        node.say("b1", say="unpaired", shadow="s1", reason="3 misses in a row")
        assert node.last_event("ending")["reason"] == "3 misses in a row"
    elif how == "it cannot":
        node.say("b1", say="failed", shadow="s1", reason="no way")
        node.say("b1", say="unpaired", shadow="s1", reason="told to")
    elif how == "it has gone":
        node.gone("b1")
    else:
        node.state.broken("b1", "nonsense", node.now_s)
        node._execute_effects()
    assert node.events()[-2:] == ["unpaired", "failed"]
    assert "s1" not in node.state.table
    assert (node.killed(), node.sent("s1")) == ([], [])
    node.wait(3600)
    assert node.events().count("failed") == 1


def test_a_body_that_never_says_that_it_has_come_there_goes_on_alone(node: FakeNode, task: MakeTask) -> None:
    node.body()
    node.create(task(way=WAY), descriptors=False)
    node.wait(61)
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    node.wait(6)
    assert node.events()[-1] == "failed"


@pytest.mark.parametrize("body_first", [True, False])
def test_a_new_coordinator_finds_the_pair_by_its_bodys_words(next_node: FakeNode, task: MakeTask, *, body_first: bool) -> None:
    node = next_node
    node.found("b1", Kind.BODY)
    if body_first:
        node.say("b1", say="body", pairs=(WITH_S1,))
        node.create(task(way=WAY), descriptors=False)
    else:
        node.create(task(way=WAY), descriptors=False)
        node.say("b1", say="body", pairs=(WITH_S1,))
    node.wait(60)
    assert node.sent("b1") == ["hello"]
    assert node.last_event("paired")["shadow"] == "s1"
    assert node.status("b1") is Status.PAIRED


def test_body_is_unpaired_from_a_remote_shadow_that_is_not_requested(next_node: FakeNode) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    assert node.sent("b1") == ["hello"], "the request may be on its way"
    assert node.state.due_s() is not None
    node.wait(11)
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    assert node.state.due_s() is None


def test_a_share_that_was_changed_over_a_restart_is_told_to_the_body(next_node: FakeNode, task: MakeTask) -> None:
    node = next_node
    node.body("b1", WITH_S1)
    node.create(task(way=WAY, split=(0, 0)), descriptors=False)
    assert (node.last_sent("b1")["do"], node.last_sent("b1")["split"]) == ("change", (0, 0))


def test_repeated_request_for_an_ended_remote_pair_is_refused(node: FakeNode, task: MakeTask) -> None:
    met(node, task(way=WAY))
    node.say("b1", say="unpaired", shadow="s1", reason="the Shadow has gone")
    node.create(task(way=WAY), descriptors=False)
    assert node.last_event("failed")["reason"] == "it has ended"
    assert node.sent("b1").count("pair") == 1

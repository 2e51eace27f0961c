"""A Shadow's way to a Body, and whoever fails on it."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator import shadow_lifecycle
from gnomon_coordinator.effects import Descriptors, Send
from gnomon_coordinator.protocol import BadMessageError, PairReport, Task, read_instance_message
from gnomon_coordinator.table import Kind, Status
from tests.unit.coordinator.conftest import FakeNode

MakeTask = Callable[..., Task]


class Held(Descriptors):
    """Descriptors that say whether they were let go."""

    def __init__(self) -> None:
        super().__init__(())
        self.open = True

    def close(self) -> None:
        self.open = False


def promote(node: FakeNode, shadow: str = "s1") -> Held:
    descriptors = Held()
    node.state.promote(shadow, descriptors, node.now_s)
    node._execute_effects()
    return descriptors


def complete(node: FakeNode, shadow: str = "s1") -> None:
    node.say(shadow, say="complete", shadow=shadow, resident_bytes=100, load_ms=2.0)


def status(node: FakeNode, instance_id: str) -> Status | None:
    row = node.state.table.get(instance_id)
    return None if row is None else row.status


def promoted(node: FakeNode, shadow: str = "s1") -> None:
    """The supervisor says so."""
    node.state.promoted(shadow)
    node._execute_effects()


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights that the Shadow lacks take long to load."""
    monkeypatch.setattr(shadow_lifecycle, "UNPAIR_AT_ONCE_BYTES", 0)


@pytest.mark.usefixtures("large")
def test_promotion_loads_then_unpairs_then_serves(node: FakeNode) -> None:
    node.paired()
    descriptors = promote(node)
    assert node.last_sent("s1") == {"do": "promote", "shadow": "s1"}
    assert [event.descriptors for event in node.done if isinstance(event, Send) and event.message["do"] == "promote"] == [
        descriptors
    ]
    assert (status(node, "b1"), status(node, "s1"), descriptors.open) == (Status.PAIRED, Status.PAIRED, True)
    assert "unpair" not in node.sent("b1"), "the Body has not noticed anything"
    complete(node)
    assert node.last_event("complete") == {"event": "complete", "shadow": "s1", "resident_bytes": 100, "load_ms": 2.0}
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    assert node.sent("s1")[-1] == "promote", "it serves its Body until that has let go"
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert node.sent("s1")[-1] == "serve"
    assert node.last_event("unpaired")["body"] == "b1"
    assert (status(node, "b1"), descriptors.open) == (Status.READY, False)
    promoted(node)
    row = node.state.table.get("s1")
    assert (row.kind, row.partners) == (Kind.BODY, ())
    assert node.sent("s1")[-1] == "hello"
    node.say("s1", say="body")
    assert status(node, "s1") is Status.READY
    assert "ending" not in node.events()


@pytest.mark.parametrize("first", ["complete", "unpaired"])
def test_promotion_with_little_to_load_unpairs_at_once(node: FakeNode, first: str) -> None:
    node.paired()
    promote(node)
    assert (node.last_sent("s1")["do"], node.last_sent("b1")) == ("promote", {"do": "unpair", "shadow": "s1"})
    assert (status(node, "b1"), status(node, "s1")) == (Status.PAIRED, Status.PAIRED), "until it has let go"
    for what in ("complete", "unpaired") if first == "complete" else ("unpaired", "complete"):
        assert node.sent("s1")[-1] == "promote"
        if what == "complete":
            complete(node)
        else:
            node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert node.sent("s1")[-1] == "serve"
    assert status(node, "b1") is Status.READY
    promoted(node)
    assert "ending" not in node.events()


def test_promoted_body_may_have_a_shadow(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    promote(node)
    complete(node)
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    promoted(node)
    node.say("s1", say="body")
    node.paired(task("s2", "s1"))
    assert node.last_event("paired")["body"] == "s1"
    node.gone("s1")
    assert node.killed() == ["s2"]


def test_promotion_waits_for_a_change_under_way(node: FakeNode) -> None:
    node.paired()
    from gnomon_coordinator.protocol import Change  # noqa: PLC0415 - of this test alone

    node.state.change("s1", Change(1, (0,), (2, 3), (0, 1)), node.now_s)
    node._execute_effects()
    promote(node)
    assert node.sent("s1")[-1] == "change"
    node.say("s1", say="changed", blocks=(1, 2, 3))
    node.say("b1", say="changed", shadow="s1", blocks=(2, 3))
    node.say("s1", say="changed", blocks=(2, 3))
    assert node.sent("s1")[-1] == "promote"


@pytest.mark.parametrize("when", ["loading", "yielding"])
def test_promotion_survives_the_end_of_its_body(node: FakeNode, when: str) -> None:
    for how in ("gone", "unpaired", "broken"):
        played = type(node)()
        played.paired()
        promote(played)
        if when == "yielding":
            complete(played)
        if how == "gone":
            played.gone("b1")
        elif how == "unpaired":
            played.say("b1", say="unpaired", shadow="s1", reason="three misses in a row")
        else:
            played.state.broken("b1", "nonsense", played.now_s)
            played._execute_effects()
        if when == "loading":
            assert played.sent("s1")[-1] == "promote"
            complete(played)
        assert played.sent("s1")[-1] == "serve"
        assert played.killed() == []
        assert "ending" not in played.events()


def test_promotion_ends_on_destroy_failure_and_timeout(node: FakeNode) -> None:
    for step, ends in (("loading", "unpair"), ("yielding", "unpair"), ("serving", "stop")):
        for how in ("destroy", "fail", "wait"):
            played = type(node)()
            played.paired()
            descriptors = promote(played)
            if step != "loading":
                complete(played)
            if step == "serving":
                played.say("b1", say="unpaired", shadow="s1", reason="told to")
            if how == "destroy":
                played.destroy()
            elif how == "fail":
                played.say("s1", say="failed", shadow="s1", reason="OSError: no space")
            else:
                played.wait(60.1)
            assert "ending" in played.events()
            assert not descriptors.open
            if ends == "unpair":
                assert played.sent("b1")[-1] == "unpair"
                played.say("b1", say="unpaired", shadow="s1", reason="told to")
            assert played.sent("s1")[-1] == "stop"
            played.gone("s1")
            assert list(played.state.table.of_kind(Kind.SHADOW)) == []
            assert status(played, "b1") is Status.READY


def test_shadow_dying_in_promotion_leaves_its_body_serving(node: FakeNode) -> None:
    node.paired()
    descriptors = promote(node)
    node.gone("s1")
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_event("unpaired")["shadow"] == "s1"
    assert not descriptors.open
    assert "s1" not in node.state.table


def test_the_next_coordinator_finds_the_pair_and_begins_anew(next_node: FakeNode) -> None:
    next_node.found("b1", Kind.BODY)
    next_node.found("s1", Kind.SHADOW)
    next_node.say("b1", say="body", pairs=(PairReport("s1", (1, 2), (0, 1)),))
    next_node.registered(paired=True)
    next_node.create(descriptors=False)
    promote(next_node)
    assert next_node.sent("s1") == ["hello", "promote"]
    complete(next_node)
    assert next_node.sent("b1")[-1] == "unpair"


def test_restarted_coordinator_pairs_again_before_it_promotes(next_node: FakeNode) -> None:
    next_node.body("b1")
    next_node.found("s1", Kind.SHADOW)
    next_node.registered()
    next_node.create(descriptors=False)
    promote(next_node)
    assert next_node.connected()
    next_node.say("b1", say="paired", shadow="s1")
    assert next_node.sent("s1")[-1] == "promote"


def test_restarted_coordinator_waits_for_the_supervisor_on_a_serving_shadow(next_node: FakeNode) -> None:
    next_node.body("b1")
    next_node.found("s1", Kind.SHADOW)
    next_node.say("s1", say="body")
    next_node.create(descriptors=False)
    descriptors = promote(next_node)
    assert next_node.killed() == []
    promoted(next_node)
    assert next_node.state.table.get("s1").kind is Kind.BODY
    assert not descriptors.open
    assert next_node.state.due_s() is None or "s1" not in next_node.state.lifecycle.shadows


def test_shadow_claiming_to_be_a_body_is_refused(node: FakeNode) -> None:
    node.paired()
    with pytest.raises(BadMessageError, match="says that it is a Body"):
        node.say("s1", say="body")
    complete(node)
    assert "unpair" not in node.sent("b1"), "nobody has asked it to be complete"
    for name in ("b1", "nobody"):
        promoted(node, name)
    assert node.state.table.get("b1").kind is Kind.BODY
    assert not promote(node, "nobody").open


@pytest.mark.parametrize(
    "wrong", [{"shadow": None}, {"shadow": "s 1"}, {"resident_bytes": -1}, {"load_ms": float("nan")}, {"resident_bytes": True}]
)
def test_complete_message_is_validated(wrong: dict[str, Any]) -> None:
    right = {"say": "complete", "epoch": 1, "shadow": "s1", "resident_bytes": 1, "load_ms": 0.5}
    assert read_instance_message(right).resident_bytes == 1
    with pytest.raises(BadMessageError):
        read_instance_message(right | wrong)

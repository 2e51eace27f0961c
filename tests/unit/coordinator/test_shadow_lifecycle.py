"""From a request to a pair, and to its end: how Shadows are loaded, paired, changed and ended."""

from collections.abc import Callable
from typing import Any

import pytest

from gnomon_coordinator.effects import Descriptors
from gnomon_coordinator.protocol import Change, PairReport, Task
from gnomon_coordinator.shadow_lifecycle import ShadowLifecycle
from gnomon_coordinator.shadow_states import ENDING, TRANSITIONS, State, UndeclaredTransitionError
from gnomon_coordinator.table import Kind, Status
from gnomon_core.pairs import MAX_SHADOWS
from tests.unit.coordinator.conftest import FakeNode, task

MakeTask = Callable[..., Task]


def test_request_takes_a_pool_container_loads_it_and_pairs_it(node: FakeNode) -> None:
    node.body()
    node.empty("pool-0-1")
    descriptors = node.create()
    assert node.assigned() == [("pool-0-1", "s1")]
    assert node.forks() == []
    assert node.last_sent("s1")["do"] == "load"
    assert node.last_sent("s1")["blocks"] == (1, 2)
    assert node.status("s1") is Status.LOADING
    assert "pool-0-1" not in node.state.table
    node.registered()
    assert descriptors is not None
    assert node.last_event("registered")["shadow"] == "s1"
    [connect] = node.connected()
    assert (connect.body, connect.shadow) == ("b1", "s1")
    assert connect.pair["expected_ms"] == ()
    assert connect.join["body"] == "b1"
    # Four samples of 10 bytes are padded to 64; the last run makes 100 bytes a sample.
    assert (connect.to_bytes, connect.from_bytes) == (64, 448)
    assert node.status("b1") is Status.PAIRING
    node.say("b1", say="paired", shadow="s1")
    assert node.status("b1") is node.status("s1") is Status.PAIRED
    assert node.last_event("paired") == {
        "event": "paired",
        "shadow": "s1",
        "body": "b1",
        "blocks": [1, 2],
        "split": [0, 1],
    }


def test_without_a_container_one_is_forked_for_it(node: FakeNode) -> None:
    node.body()
    node.create()
    [container] = node.forks()
    assert node.state.table.get("s1").partner == "b1"
    node.found(container, Kind.EMPTY)
    assert node.assigned() == [(container, "s1")]
    assert node.last_sent("s1")["do"] == "load"


def test_a_container_that_is_not_ready_yet_is_as_good(node: FakeNode) -> None:
    node.body()
    node.state.pool.resize(1, node.now_s)
    node.wait(0)
    [container] = node.forks()
    node.found(container, Kind.EMPTY)
    node.create()
    assert node.assigned() == [(container, "s1")]
    node.say("s1", say="empty")
    assert node.status("s1") is Status.LOADING


def test_a_container_found_after_a_restart_is_asked_first_whether_it_is_still_empty(node: FakeNode) -> None:
    node.body()
    node.found("pool-0-1", Kind.EMPTY)
    node.create()
    assert node.assigned() == []
    node.say("pool-0-1", say="registered", shadow="s9", body="b1", blocks=(1,))
    assert node.killed() == ["pool-0-1"]


def test_each_shadow_gets_a_container_of_its_own(node: FakeNode, task: MakeTask) -> None:
    for number in (1, 2, 3):
        node.body(f"b{number}")
    node.empty("pool-0-1")
    for number in (1, 2, 3):
        node.create(task(f"s{number}", f"b{number}"))
    assert node.assigned() == [("pool-0-1", "s1")]
    assert len(node.forks()) == 2
    for container in reversed(node.forks()):
        node.found(container, Kind.EMPTY)
    assert {shadow for _, shadow in node.assigned()} == {"s1", "s2", "s3"}


@pytest.mark.parametrize(
    ("requested", "why"),
    [
        ({"body": "b9"}, "no Body b9"),
        ({"body": "pool-0-1"}, "no Body"),
        ({"blocks": (6,)}, "no such blocks"),
        ({"blocks": ()}, "no such blocks"),
        ({"shadow": "b1"}, "it has ended"),
    ],
)
def test_impossible_request_is_refused_with_the_reason(
    node: FakeNode, task: MakeTask, requested: dict[str, Any], why: str
) -> None:
    node.body()
    node.empty("pool-0-1")
    node.create(task(**requested))
    assert why in node.last_event("failed")["reason"]
    assert node.assigned() == []
    assert node.forks() == []


def test_a_body_has_so_many_shadows_and_no_more(node: FakeNode, task: MakeTask) -> None:
    names = [f"s{number}" for number in range(1, MAX_SHADOWS + 1)]
    for name in names:
        node.paired(task(name))
    assert node.state.table.get("b1").partners == tuple(names)
    node.create(task("s99"))
    assert f"has {MAX_SHADOWS} Shadows already" in node.last_event("failed")["reason"]


def test_descriptors_are_closed_once_they_are_not_needed(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Descriptors] = []
    monkeypatch.setattr(Descriptors, "close", lambda descriptors: closed.append(descriptors))  # noqa: PLW0108 - bound to the instance
    node.body()
    first = node.create()
    assert closed == []
    second = node.create()
    assert closed == [second]
    node.found(node.forks()[0], Kind.EMPTY)
    node.registered()
    assert closed == [second, first]


WITH_S1 = PairReport("s1", (1, 2), (0, 1))


def both(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.paired(task("s2"))


def test_a_second_shadow_is_paired_beside_the_first(node: FakeNode, task: MakeTask) -> None:
    both(node, task)
    assert [(connect.body, connect.shadow) for connect in node.connected()] == [("b1", "s1"), ("b1", "s2")]
    assert node.state.table.get("b1").partners == ("s1", "s2")
    assert node.status("b1") is node.status("s1") is node.status("s2") is Status.PAIRED
    assert "unpair" not in node.sent("b1"), "the first goes on meanwhile"


def test_a_body_is_paired_while_one_of_its_shadows_is(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.empty("pool-0-2")
    node.create(task("s2"))
    node.registered(task("s2"))
    assert (node.status("b1"), node.status("s2")) == (Status.PAIRED, Status.PAIRING)
    node.gone("s1")
    assert node.status("b1") is Status.PAIRING
    node.gone("s2")
    assert node.status("b1") is Status.READY


def test_the_end_of_one_shadow_leaves_the_other_at_work(node: FakeNode, task: MakeTask) -> None:
    both(node, task)
    node.destroy("s1")
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.gone("s1")
    assert node.state.table.get("b1").partners == ("s2",)
    assert node.status("b1") is node.status("s2") is Status.PAIRED
    assert [event for event in node.events() if event in ("ending", "unpaired")] == ["ending", "unpaired"]


def test_report_of_a_body_concerns_the_named_shadow(node: FakeNode, task: MakeTask) -> None:
    both(node, task)
    node.say("b1", say="unpaired", shadow="s2", reason="three misses")
    assert node.last_event("unpaired") == {"event": "unpaired", "shadow": "s2", "body": "b1", "reason": "three misses"}
    assert node.sent("s2")[-1] == "stop"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", reason="nobody")
    assert node.status("s1") is Status.PAIRED


def test_shadows_change_one_after_the_other(node: FakeNode, task: MakeTask) -> None:
    both(node, task)
    for shadow in ("s1", "s2"):
        node.state.change(shadow, Change(1, (0,), (1, 2), (0, 0, 1)), node.now_s)
        node._execute_effects()
        assert (node.last_sent("b1")["do"], node.last_sent("b1")["shadow"]) == ("change", shadow)
        node.say("b1", say="changed", shadow=shadow, blocks=(1, 2))
        assert node.last_event("paired") == {
            "event": "paired",
            "shadow": shadow,
            "body": "b1",
            "blocks": [1, 2],
            "split": [0, 0, 1],
        }


def test_a_body_takes_all_of_its_shadows_along(node: FakeNode, task: MakeTask) -> None:
    both(node, task)
    node.gone("b1")
    assert node.killed() == ["s1", "s2"]


def test_a_restart_finds_both_pairs(next_node: FakeNode, task: MakeTask) -> None:
    node = next_node
    for name in ("s1", "s2"):
        node.found(name, Kind.SHADOW)
    node.body("b1", WITH_S1, PairReport("s2", (1, 2), (0, 1)))
    for name in ("s1", "s2"):
        node.registered(task(name), paired=True)
        node.create(task(name), descriptors=False)
    assert node.connected() == []
    assert node.sent("b1") == node.sent("s1") == node.sent("s2") == ["hello"]
    assert node.state.table.get("b1").partners == ("s1", "s2")


def test_the_body_lets_go_before_the_shadow_stops(node: FakeNode) -> None:
    node.paired()
    node.destroy()
    assert node.sent("b1")[-1] == "unpair"
    assert "stop" not in node.sent("s1")
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert node.last_event("unpaired")["body"] == "b1"
    assert node.sent("s1")[-1] == "stop"
    node.gone("s1")
    assert "s1" not in node.state.table
    assert node.status("b1") is Status.READY


def test_a_body_that_does_not_answer_delays_the_end_by_seconds_only(node: FakeNode) -> None:
    node.paired()
    node.destroy()
    node.wait(5)
    assert node.sent("s1")[-1] == "stop"
    node.wait(2)
    assert node.killed() == ["s1"]


def test_a_body_takes_its_shadow_along(node: FakeNode) -> None:
    node.paired()
    node.gone("b1")
    assert node.killed() == ["s1"]
    node.gone("s1")
    assert len(node.state.table) == 0


def test_a_shadow_that_dies_leaves_its_body_alone_and_able_to_have_another(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.gone("s1")
    assert node.sent("b1")[-1] == "unpair"
    assert node.last_event("unpaired")["shadow"] == "s1"
    assert node.status("b1") is Status.READY
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    node.create(task("s2"))
    assert node.state.table.get("b1").partner == "s2"


def test_a_body_that_gives_up_its_shadow_ends_it(node: FakeNode) -> None:
    node.paired()
    node.say("b1", say="unpaired", shadow="s1", reason="three misses")
    assert node.last_event("unpaired")["reason"] == "three misses"
    assert node.sent("s1")[-1] == "stop"


def test_destroy_before_a_container_is_forked_leaves_it_to_the_pool(node: FakeNode) -> None:
    node.body()
    node.create()
    node.destroy()
    assert node.last_event("failed")["reason"] == "asked to"
    node.empty(node.forks()[0])
    assert node.status(node.forks()[0]) is Status.READY


def test_destroy_of_an_unknown_shadow_is_answered(node: FakeNode) -> None:
    node.destroy("s9")
    assert node.last_event("failed")["shadow"] == "s9"


def change(node: FakeNode, blocks: tuple[int, ...], split: tuple[int, ...] = (0, 1), cores: int = 1) -> None:
    node.state.change("s1", Change(cores, (0,), blocks, split), node.now_s)
    node._execute_effects()


def test_new_blocks_reach_the_shadow_first_then_the_body_then_the_old_ones_go(node: FakeNode) -> None:
    node.paired()
    change(node, (2, 3))
    assert node.last_sent("s1")["blocks"] == (1, 2, 3)
    assert "change" not in node.sent("b1")
    node.say("s1", say="changed", blocks=(1, 2, 3))
    assert node.last_sent("b1")["blocks"] == (2, 3)
    node.say("b1", say="changed", shadow="s1", blocks=(2, 3))
    assert node.last_event("paired")["blocks"] == [2, 3]
    assert node.last_sent("s1")["blocks"] == (2, 3)
    node.say("s1", say="changed", blocks=(2, 3))
    assert node.status("s1") is Status.PAIRED
    assert node.state.table.get("b1").blocks == (2, 3)
    assert node.state.due_s() is None


def test_another_split_concerns_the_body_alone(node: FakeNode) -> None:
    node.paired()
    before = len(node.sent("s1"))
    change(node, (1, 2), (0, 0, 2))
    assert node.last_sent("b1")["split"] == (0, 0, 2)
    assert len(node.sent("s1")) == before
    node.say("b1", say="changed", shadow="s1", blocks=(1, 2))
    assert node.last_event("paired")["split"] == [0, 0, 2]


def test_a_change_during_a_change_comes_after_it(node: FakeNode) -> None:
    node.paired()
    change(node, (2, 3))
    change(node, (4,))
    for _ in range(2):
        node.say("s1", say="changed", blocks=node.last_sent("s1")["blocks"])
        node.say("b1", say="changed", shadow="s1", blocks=node.last_sent("b1")["blocks"])
        node.say("s1", say="changed", blocks=node.last_sent("s1")["blocks"])
    assert node.state.table.get("s1").blocks == (4,)
    assert [
        message["blocks"]
        for message in (event.message for event in node.done if hasattr(event, "message"))
        if message.get("event") == "paired"
    ] == [
        [1, 2],
        [2, 3],
        [4],
    ]


def test_a_change_while_it_loads_is_made_when_it_has_loaded(node: FakeNode) -> None:
    node.body()
    node.empty()
    node.create()
    change(node, (3,))
    node.registered()
    assert node.last_sent("s1")["blocks"] == (1, 2, 3)
    node.say("s1", say="changed", blocks=(1, 2, 3))
    [connect] = node.connected()
    assert connect.pair["blocks"] == (3,)
    node.say("b1", say="paired", shadow="s1")
    assert node.last_event("paired")["blocks"] == [3]
    assert node.last_sent("s1")["blocks"] == (3,)


def test_a_larger_batch_gets_larger_buffers(node: FakeNode, task: MakeTask) -> None:
    node.paired()
    node.create(task(max_batch=64), descriptors=False)
    assert node.sent("b1")[-1] == "unpair"
    assert len(node.connected()) == 1, "the Body would take the end of the old socket for the end of its Shadow"
    node.say("b1", say="unpaired", shadow="s1", reason="told to")
    assert [connect.to_bytes for connect in node.connected()] == [64, 640]
    node.say("b1", say="paired", shadow="s1")
    assert node.status("b1") is Status.PAIRED


def reachable(*states: State) -> set[State]:
    found: set[State] = set()
    waiting = list(states)
    while waiting:
        state = waiting.pop()
        if state not in found:
            found.add(state)
            waiting += TRANSITIONS[state]
    return found


def test_every_state_is_reachable_and_leads_to_an_end() -> None:
    created, found_after_restart, remote = State.AWAITING_CONTAINER, State.FOUND, State.AWAITING_BODY

    assert reachable(created, found_after_restart, remote) == set(State)
    assert all(State.KILLED in reachable(state) for state in State)
    assert TRANSITIONS[State.KILLED] == frozenset()
    assert all(TRANSITIONS[state] <= set(ENDING) for state in ENDING)


def test_states_without_a_timeout_are_the_resting_ones() -> None:
    assert {state for state in State if state.timeout_s is None} == {State.PAIRED, State.KILLED}


def test_every_process_of_a_shadow_can_be_killed_in_any_state() -> None:
    assert all(State.KILLED in TRANSITIONS[state] for state in State if state not in (State.AWAITING_CONTAINER, State.KILLED))


def test_an_undeclared_transition_is_refused_and_changes_nothing(node: FakeNode) -> None:
    node.paired()
    lifecycle: ShadowLifecycle = node.state.lifecycle

    with pytest.raises(UndeclaredTransitionError, match="s1: undeclared transition from PAIRED to LOADING"):
        lifecycle._enter(lifecycle.shadows["s1"], State.LOADING, node.now_s)

    assert lifecycle.shadows["s1"].state is State.PAIRED


@pytest.mark.parametrize("event", ["message", "timeout", "destroy"])
def test_an_undeclared_transition_ends_its_shadow_alone(node: FakeNode, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    node.paired(task("s2"))
    node.empty()
    node.create(task("s1"))
    node.registered(task("s1"))
    assert node.state.lifecycle.shadows["s1"].state is State.CONNECTING
    monkeypatch.setitem(TRANSITIONS, State.CONNECTING, frozenset({State.KILLED}))

    if event == "message":
        node.say("b1", say="paired", shadow="s1")
    elif event == "timeout":
        node.wait(State.CONNECTING.timeout_s or 0)
    else:
        node.destroy("s1")

    to = "PAIRED" if event == "message" else "UNPAIRING"
    assert node.errors() == [f"s1: undeclared transition from CONNECTING to {to}; this Shadow is killed"]
    assert node.killed() == ["s1"]
    assert node.last_sent("b1") == {"do": "unpair", "shadow": "s1"}
    assert node.last_event("ending")["shadow"] == "s1"
    node.gone("s1")
    assert node.status("s1") is None
    assert node.status("b1") is node.status("s2") is Status.PAIRED


def test_an_undeclared_transition_of_one_shadow_leaves_no_other_waiting(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.empty("pool-0-s1")
    node.empty("pool-0-s2")
    node.body()
    node.create(task("s1"))
    node.create(task("s2", cpus=(1,)))
    monkeypatch.setitem(TRANSITIONS, State.LOADING, frozenset({State.KILLED}))

    # Both time out in the same turn, and the end of neither is declared.
    monkeypatch.setattr(node.state.lifecycle, "end", lambda shadow, _reason, now_s: node.state.lifecycle._stop(shadow, now_s))
    node.wait(State.LOADING.timeout_s or 0)

    assert len(node.errors()) == 2
    assert node.killed() == ["s1", "s2"]

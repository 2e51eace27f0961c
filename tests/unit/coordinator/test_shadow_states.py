"""The transition table of a Shadow's state machine."""

import pytest

from gnomon_coordinator.shadow_lifecycle import ShadowLifecycle
from gnomon_coordinator.shadow_states import ENDING, TRANSITIONS, State, UndeclaredTransitionError
from gnomon_coordinator.table import Status
from tests.unit.coordinator.conftest import PlayedNode, task


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


def test_an_undeclared_transition_is_refused_and_changes_nothing(node: PlayedNode) -> None:
    node.paired()
    lifecycle: ShadowLifecycle = node.state.lifecycle

    with pytest.raises(UndeclaredTransitionError, match="s1: undeclared transition from PAIRED to LOADING"):
        lifecycle._enter(lifecycle.shadows["s1"], State.LOADING, node.now_s)

    assert lifecycle.shadows["s1"].state is State.PAIRED


@pytest.mark.parametrize("event", ["message", "timeout", "destroy"])
def test_an_undeclared_transition_ends_its_shadow_alone(node: PlayedNode, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
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
    assert node.last_told("ending")["shadow"] == "s1"
    node.gone("s1")
    assert node.status("s1") is None
    assert node.status("b1") is node.status("s2") is Status.PAIRED


def test_an_undeclared_transition_of_one_shadow_leaves_no_other_waiting(
    node: PlayedNode, monkeypatch: pytest.MonkeyPatch
) -> None:
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

"""The transition table of a Shadow's state machine."""

import pytest

from gnomon_coordinator.shadow_lifecycle import ShadowLifecycle
from gnomon_coordinator.shadow_states import ENDING, TRANSITIONS, State
from tests.unit.coordinator.conftest import PlayedNode


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


def test_an_undeclared_transition_is_a_programming_error(node: PlayedNode) -> None:
    node.paired()
    lifecycle: ShadowLifecycle = node.state.lifecycle

    with pytest.raises(AssertionError, match="PAIRED to LOADING"):
        lifecycle._enter(lifecycle.shadows["s1"], State.LOADING, node.now_s)

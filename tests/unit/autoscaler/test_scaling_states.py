"""A policy's memory survives JSON and another clock."""

import json
from collections.abc import Mapping

import pytest

from gnomon_autoscaler.runner import state_from_json, state_to_json
from gnomon_core.scaling import PolicyState, StateValue

STATE = PolicyState(
    "kpa",
    3,
    {
        "most": 4,
        "empty_at_s": 100.5,
        "nothing_at_s": None,
        "inner": {"wished_at_s": (1.0, 2.0), "wished": (3, 4), "on": True, "text": "x"},
    },
)


def test_a_state_survives_json() -> None:
    assert state_from_json(json.loads(json.dumps(state_to_json(STATE)))) == STATE


def test_moments_move_to_another_clock_and_nothing_else_does() -> None:
    moved = state_from_json(json.loads(json.dumps(state_to_json(STATE))), shift_s=-90.0)
    assert moved.values == {
        "most": 4,
        "empty_at_s": 10.5,
        "nothing_at_s": None,
        "inner": {"wished_at_s": (-89.0, -88.0), "wished": (3, 4), "on": True, "text": "x"},
    }


@pytest.mark.parametrize("values", [{"seen": {1, 2}}, {"by": {1: 2}}, {"inner": {"at": [b"x"]}}], ids=str)
def test_a_third_partys_state_that_is_no_json_is_refused(values: Mapping[str, StateValue]) -> None:
    with pytest.raises(TypeError, match="JSON"):
        state_to_json(PolicyState("odd", 1, values))

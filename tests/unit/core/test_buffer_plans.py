"""The plan of a buffer as one process tells it another, and what is none."""

import json
from typing import Any

import pytest

from gnomon_core.scaling import SetBufferPlan, plan_from_json, plan_to_json


@pytest.mark.parametrize("plan", [SetBufferPlan(8, 0.05), SetBufferPlan(1, 0.0), SetBufferPlan(32, 1 / 3)])
def test_written_plan_is_read_back(plan: SetBufferPlan) -> None:
    assert plan_from_json(json.loads(json.dumps(plan_to_json(plan)))) == plan


def test_unknown_keys_of_a_plan_are_ignored() -> None:
    assert plan_from_json({"policy": "batch", "max_batch": 4, "max_wait_s": 0}) == SetBufferPlan(4, 0.0)


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        None,
        7,
        {"max_batch": 4},
        {"max_wait_s": 0.1},
        {"max_batch": 0, "max_wait_s": 0.1},
        {"max_batch": -3, "max_wait_s": 0.1},
        {"max_batch": "many", "max_wait_s": 0.1},
        {"max_batch": None, "max_wait_s": 0.1},
        {"max_batch": float("inf"), "max_wait_s": 0.1},
        {"max_batch": 4, "max_wait_s": -0.1},
        {"max_batch": 4, "max_wait_s": float("nan")},
        {"max_batch": 4, "max_wait_s": float("inf")},
        {"max_batch": 4, "max_wait_s": [0.1]},
    ],
    ids=str,
)
def test_invalid_plan_is_refused(said: Any) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
        plan_from_json(said)

"""The plans of functions' buffers, as the leader tells the replicas that make their batches.

    leader: `told` ─ with each question ─▶ replica: `follow` ─▶ batches within these bounds, or within those that were deployed

The whole table each time: a function that is not in it any more is as it was deployed. What a replica follows is its own when it
leads, until the policy has another one: that sees which plan is in force.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from gnomon_core import buffer_plans
from gnomon_core.scaling import SetBufferPlan


class Planned(Protocol):
    """The functions whose batches are made by plans."""

    def plans(self) -> Mapping[str, SetBufferPlan]:
        """Those in force."""
        ...

    def plan_buffer(self, function: str, plan: SetBufferPlan | None) -> None:
        """Make its batches within these bounds from now on, None for those that it was deployed with."""
        ...


def told(plans: Mapping[str, SetBufferPlan]) -> dict[str, dict[str, Any]]:
    """The table as JSON."""
    return {function: buffer_plans.told(plan) for function, plan in plans.items()}


def follow(functions: Planned, document: Mapping[str, Any]) -> None:
    """The leader says which functions have plans.

    Raises:
        KeyError, TypeError, ValueError, OverflowError, AttributeError: this is no table.

    """
    table = {str(function): buffer_plans.heard(plan) for function, plan in document.items()}
    for function in functions.plans().keys() - table.keys():
        functions.plan_buffer(function, None)
    for function, plan in table.items():
        functions.plan_buffer(function, plan)

"""What becomes of a decision on a Revision of which a node refuses something."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from gnomon_core.actuation import PartlyRefused
from gnomon_core.clock import VirtualClock
from gnomon_core.errors import GnomonError
from gnomon_core.pairs import Pair
from gnomon_core.scaling import Action, CreateBody, CreateShadow, SetBufferPlan
from gnomon_platforms.knative.autoscaler.revision import RevisionInstances, Surroundings
from tests.unit.knative_autoscaler.played import Played

FIRST, SECOND, THIRD = (CreateShadow(f"f-{number}", Pair(1, (0,), (0, 1))) for number in range(3))


class OneFree:
    """Nodes of which only the second Body's has room for a Shadow."""

    async def create(self, body_id: str, _pair: Pair) -> None:
        if body_id != SECOND.body:
            raise GnomonError(503, "no_capacity", f"No room for a Shadow of {body_id}.")


async def test_what_was_done_of_it_is_told_with_the_refusal() -> None:
    played = Played()
    around = SimpleNamespace(shadows=OneFree(), clock=VirtualClock())
    instances = RevisionInstances(played.facts.key, cast("Surroundings", around))
    decision: list[Action] = [FIRST, SECOND, THIRD, CreateBody(1), SetBufferPlan(4, 0.01)]
    with pytest.raises(PartlyRefused, match="No room") as refused:
        await instances.apply(decision, played.rules)
    assert instances.wanted == 1, "a Shadow that is refused holds nothing up"
    assert refused.value.done == (SECOND, CreateBody(1), SetBufferPlan(4, 0.01))
    assert refused.value.message == f"No room for a Shadow of {THIRD.body}."


class Told:
    """Nodes that hear whose Bodies have gone."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def body_gone(self, body_id: str) -> None:
        self.gone.append(body_id)


def test_shadows_end_with_instances_that_are_no_more_and_with_their_revision() -> None:
    """Else a node has them for as long as the pod lives, and the next Revision of this name takes them for its own."""
    played, told = Played(), Told()
    instances = RevisionInstances(played.facts.key, cast("Surroundings", SimpleNamespace(shadows=told)))
    instances.begin(3)
    instances.begin(1)
    assert told.gone == ["f-00001.users-2", "f-00001.users-3"]
    instances.leave()
    assert told.gone[2:] == ["f-00001.users-1"]
    assert instances.wanted == 1, "its pods are left as they are"

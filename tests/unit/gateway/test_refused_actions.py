"""The actions that are still carried out when one action of a decision is refused."""
# ruff: noqa: ARG002 - who stands in for a seam takes what the seam gives

from __future__ import annotations

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.fleet import Instance
from gnomon_core.interfaces import InstanceRequest
from gnomon_core.pairs import Pair
from gnomon_core.scaling import ChangeShadow, CreateBody, CreateShadow, DestroyBody, PromoteShadow, Resize
from tests.unit.gateway.shadow_stage import NAME, OTHER, PAIR, Scripted, Stage


class Full(Scripted):
    """Refuses Shadows, their changes and other sizes, each with a text of its own; and Bodies where it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.full = False
        self.asked_on: list[str | None] = []

    async def create(self, request: InstanceRequest) -> Instance:
        if self.full:
            raise no_room("for a Body")
        self.asked_on.append(request.node)
        return await super().create(request)

    async def create_shadow(self, body_id: str, pair: Pair) -> Instance:
        raise no_room(f"for a Shadow of {body_id}")

    async def change_shadow(self, shadow_id: str, pair: Pair) -> None:
        raise no_room("for another pair")

    async def promote_shadow(self, shadow_id: str) -> Instance:
        raise no_room("for a whole model")

    async def resize(self, instance_id: str, cores: int) -> None:
        raise no_room("for a larger Body")


def no_room(text: str) -> GnomonError:
    return GnomonError(503, "no_capacity", f"No room {text}.", "")


@pytest.fixture
async def full() -> Full:
    return Full()


@pytest.fixture
async def stage(full: Full) -> Stage:
    made = Stage(full)
    await made.begin()
    made.instances.shadows.add("s", "b1")
    return made


REFUSED = [CreateShadow("b1", PAIR), ChangeShadow("s", OTHER), PromoteShadow("s"), Resize("b1", 2)]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda action: type(action).__name__)
async def test_help_that_is_refused_holds_up_no_body(
    stage: Stage, full: Full, refused: CreateShadow | ChangeShadow | PromoteShadow | Resize
) -> None:
    """In a burst it is refused at each tick: what waited for it would never be made."""
    with pytest.raises(GnomonError, match="No room") as refusal:
        await stage.instances.apply(NAME, [refused, CreateBody(1, "other")])
    assert refusal.value.code == "no_capacity"
    assert full.asked_on[1:] == ["other"]
    assert "b2" in full.there


async def test_a_body_that_is_refused_ends_the_decision(stage: Stage, full: Full) -> None:
    """The next action may be the end of the instance that the refused one was to replace."""
    full.full = True
    with pytest.raises(GnomonError, match="for a Body"):
        await stage.instances.apply(NAME, [CreateShadow("b1", PAIR), CreateBody(1), DestroyBody("b1")])
    await stage.settle()
    assert full.destroyed == []

"""The profile of a Revision's model: read beside the event loop, however long that takes, and gone by once it is known."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import bad_request
from gnomon_core.profiles import REREAD_S, ModelProfile
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.configuration import ClusterSettings
from gnomon_platforms.knative.autoscaler.objects import ScaleTarget
from gnomon_platforms.knative.autoscaler.revision import PATIENCE_S, ScaledRevision, Surroundings
from tests.unit.autoscaler.asyfunc_stage import PROFILE
from tests.unit.knative_autoscaler.played import EPOCH_S, LeftToKnative, Played, pod
from tests.waiting import until

STANDS_STILL_S = 5.0
"""Only an event loop that waits for the repository does not turn within it."""


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


class Repository:
    """Models' profiles, which are read when the test lets them be."""

    def __init__(self) -> None:
        self.profiles: dict[str, ModelProfile] = {}
        self.asked: list[str] = []
        self.held = threading.Event()
        self.stood_still = False

    def profile(self, spec: Any) -> ModelProfile | None:
        model = spec.settings.model
        self.asked.append(model)
        self.stood_still |= not self.held.wait(STANDS_STILL_S)
        return self.profiles.get(model)


class Stage:
    """A Revision of one pod, whose policy needs a profile of its model."""

    def __init__(self) -> None:
        self.clock, self.repository, self.poked = Clock(), Repository(), list[str]()
        self._cluster, self._pods = ClusterSettings(), (pod(),)
        self.model("m@1")
        brain = SimpleNamespace(
            check=lambda _: None,
            check_profile=_needs,
            makes_shadows=lambda _: False,
            decisions=lambda *_: (),
            poke=self.poked.append,
        )
        steps = SimpleNamespace(route=_done, tell=_done, resize=_done)
        shadows = SimpleNamespace(
            profile=self.repository.profile, nodes=lambda **_: (), instances=lambda _: (), told=False,
            body_found=lambda _: None, body_gone=lambda _: None,
        )  # fmt: skip
        around = SimpleNamespace(
            pa=lambda _: self.facts, sks=lambda _: None, target=lambda _: ScaleTarget("deployment-uid", "1", 1),
            pods=lambda _: self._pods, live=lambda _: None, cluster=lambda: self._cluster, rival=lambda _: None,
            wakeable=lambda: True, resizes=False, shadows=shadows, brain=brain, steps=steps, clock=self.clock,
            public=LeftToKnative(), wall_s=lambda: EPOCH_S, gateways=SimpleNamespace(learned=lambda _: None, queues=1),
        )  # fmt: skip
        self.revision = ScaledRevision(self.facts, cast("Surroundings", around))

    def model(self, name: str) -> None:
        self.facts = Played({"gnomon/model": name, "gnomon/autoscaler": "asyfunc"}).facts

    @property
    def seen(self) -> tuple[str, ModelProfile | None] | None:
        """By which policy it is scaled, and with which profile; None where nobody is asked."""
        load = self.revision.function_load()
        return None if load is None else (load.settings.autoscaler, load.profile)

    async def settled(self) -> None:
        """Whatever was read has been taken."""
        await until(lambda: self.revision._measured._reading is None)


async def _done(*_: Any) -> bool:
    return True


def _needs(settings: Settings, profile: ModelProfile | None) -> None:
    if settings.model is not None and profile is None:
        raise bad_request("no_profile", "There is none.")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    made = Stage()
    yield made
    made.repository.held.set()
    await made.revision.close()


async def test_its_policy_is_asked_when_the_profile_has_been_read_and_nobody_waits_for_that(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    await until(lambda: stage.repository.asked == ["m@1"])
    assert stage.seen is None, "without its profile its policy would end the Shadows that are there"
    stage.repository.held.set()
    await until(lambda: stage.poked == ["f-00001.users"])
    assert stage.seen == ("asyfunc", PROFILE)
    assert not stage.repository.stood_still


async def test_a_model_that_nobody_has_measured_is_known_to_have_no_profile(stage: Stage) -> None:
    stage.repository.held.set()
    await until(lambda: bool(stage.poked))
    assert stage.seen == ("kpa", None)


async def test_a_repository_that_does_not_answer_is_waited_for_so_long_and_no_longer(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    assert stage.seen is None
    stage.clock.time_s += PATIENCE_S
    assert stage.seen == ("kpa", None)
    stage.repository.held.set()
    await until(lambda: stage.seen == ("asyfunc", PROFILE))


async def test_a_model_that_is_measured_anew_is_gone_by_and_one_that_is_equal_changes_nothing(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    stage.repository.held.set()
    await until(lambda: stage.seen == ("asyfunc", PROFILE))

    async def read_again(anew: ModelProfile) -> ModelProfile | None:
        asked, stage.repository.profiles["m@1"] = len(stage.repository.asked), anew
        stage.clock.time_s += REREAD_S
        await until(lambda: stage.seen is not None and len(stage.repository.asked) > asked)
        await stage.settled()
        return None if stage.seen is None else stage.seen[1]

    assert await read_again(replace(PROFILE)) is PROFILE
    other = replace(PROFILE, body_start_s=PROFILE.body_start_s + 1.0)
    assert await read_again(other) is other
    assert len(stage.poked) == 2


async def test_what_is_read_late_of_the_model_before_is_not_taken(stage: Stage) -> None:
    stage.repository.profiles["m@1"] = PROFILE
    await until(lambda: stage.repository.asked == ["m@1"])
    stage.model("n@1")
    assert stage.seen is None
    await until(lambda: stage.repository.asked == ["m@1", "n@1"])
    stage.repository.held.set()
    await until(lambda: bool(stage.poked))
    assert stage.seen == ("kpa", None)

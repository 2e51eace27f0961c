"""The plan of a Revision's buffer: from a policy's decision to the PodAutoscaler's status, where gateways read it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from gnomon_core.clock import VirtualClock
from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import LoadCounters, SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.metrics import Learned
from gnomon_platforms.knative.autoscaler.objects import PaFacts, pa_facts
from gnomon_platforms.knative.autoscaler.revision import RevisionInstances, Surroundings
from gnomon_platforms.knative.autoscaler.status import Outcome, status
from gnomon_platforms.knative.buffer_status import ANNOTATION, BufferStatus, buffer_of
from tests.unit.knative_autoscaler.played import EPOCH_S, Played, pod_autoscaler

PLAN = SetBufferPlan(4, 0.05)
BATCH, BATCH_PLUS, KPA = Settings(autoscaler="batch"), Settings(autoscaler="batch+"), Settings()


class Gateways:
    """Two that know how long batches of one, two and three take."""

    queues = 2

    def learned(self, key: FunctionKey) -> Learned | None:
        return Learned((0.1, 0.15, 0.2), 0.07) if key.name == "f-00001" else None


def instances_of(played: Played) -> RevisionInstances:
    around = SimpleNamespace(shadows=None, clock=VirtualClock(), pods=lambda _: (), gateways=Gateways())
    return RevisionInstances(played.facts.key, cast("Surroundings", around))


def batching(name: str = "batch", **annotations: str) -> Played:
    return Played({"gnomon/autoscaler": name, **annotations})


def told(pa: PaFacts, buffer: BufferStatus | None) -> dict[str, Any]:
    return status(pa, None, Outcome(1, 1, 1, "batch", "planned", buffer=buffer), EPOCH_S)


async def test_a_plan_that_is_decided_is_the_policys_until_another_one_is() -> None:
    played = batching()
    instances = instances_of(played)
    assert instances.buffer(BATCH) is None
    await instances.apply([PLAN], played.rules)
    assert instances.buffer(BATCH) == BufferStatus("batch", PLAN)
    assert instances.buffer(BATCH_PLUS) is None, "it is not this policy's"
    assert instances.buffer(KPA) is None
    await instances.apply([SetBufferPlan(2, 0.0)], played.rules)
    assert instances.buffer(BATCH) == BufferStatus("batch", SetBufferPlan(2, 0.0))


async def test_a_plan_of_before_another_policy_is_forgotten() -> None:
    """Whoever comes back to `batch` after a night with `kpa` has other arrivals."""
    played = batching()
    instances = instances_of(played)
    await instances.apply([PLAN], played.rules)
    assert instances.load(played.rules, None, LoadCounters()).plan == PLAN
    assert instances.load(batching("kpa").rules, None, LoadCounters()).plan is None
    assert instances.load(played.rules, None, LoadCounters()).plan is None
    assert instances.buffer(BATCH) is None


async def test_a_plan_is_of_the_policy_that_was_asked_whatever_the_revision_names_by_now() -> None:
    """As `kpa`'s it would be in force for good."""
    played = batching()
    instances = instances_of(played)
    instances.load(played.rules, None, LoadCounters())
    await instances.apply([PLAN], batching("kpa").rules)
    assert instances.buffer(KPA) is None
    assert instances.buffer(BATCH) == BufferStatus("batch", PLAN)


def test_the_reason_is_told_anew_with_each_plan() -> None:
    def said(pa: PaFacts, reason: str, buffer: BufferStatus | None) -> dict[str, Any]:
        return status(pa, None, Outcome(1, 1, 1, "batch", reason, buffer=buffer), EPOCH_S)

    first = pa_facts({**pod_autoscaler(), "status": said(pa_facts(pod_autoscaler()), "no plan", None)})
    second = pa_facts({**pod_autoscaler(), "status": said(first, "B = 4", BufferStatus("batch", PLAN))})
    assert second.condition("ScalingPolicy").message == "B = 4", "the number of pods is the same"
    third = pa_facts({**pod_autoscaler(), "status": said(second, "B = 4, seen again", BufferStatus("batch", PLAN))})
    assert third.condition("ScalingPolicy").message == "B = 4"


def test_the_status_has_the_plan_beside_what_others_have_annotated() -> None:
    before = pa_facts({**pod_autoscaler(), "status": {"annotations": {"theirs": "kept", ANNOTATION: "old"}}})
    found = told(before, BufferStatus("batch", PLAN))
    assert found["annotations"]["theirs"] == "kept"
    assert buffer_of(found) == BufferStatus("batch", PLAN)
    after = pa_facts({**pod_autoscaler(), "status": found})
    assert told(after, BufferStatus("batch", PLAN)) == found, "what is told already is not written again"
    assert told(after, None)["annotations"] == {"theirs": "kept"}


def test_a_revision_without_a_plan_has_no_annotations() -> None:
    assert "annotations" not in told(pa_facts(pod_autoscaler()), None)


def test_the_next_leader_goes_on_with_the_plan_that_the_status_has() -> None:
    played = batching()
    instances = instances_of(played)
    instances.begin(2, buffer_of(told(played.facts, BufferStatus("batch", PLAN))))
    assert instances.buffer(BATCH) == BufferStatus("batch", PLAN)


def test_policies_see_what_gateways_have_learned_up_to_the_largest_batch_and_how_many_there_are() -> None:
    played = batching(**{"gnomon/max-batch": "2"})
    seen = instances_of(played).load(played.rules, None, LoadCounters())
    assert (seen.latency_s, seen.latency_spread, seen.queues) == ((0.1, 0.15), 0.07, 2)


def test_nothing_is_known_of_a_revision_that_no_gateway_has_served() -> None:
    played = batching()
    played.pa["metadata"]["name"] = "other-00001"
    seen = instances_of(played).load(played.rules, None, LoadCounters())
    assert (seen.latency_s, seen.latency_spread) == ((), 0.0)

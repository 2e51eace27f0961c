"""A Revision over virtual time: metrics and buffer plans."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_core.functions import FunctionKey
from gnomon_core.scaling import LoadCounters, SetBufferPlan
from gnomon_core.settings import Settings
from gnomon_platforms.knative.autoscaler.instances import RevisionInstances
from gnomon_platforms.knative.autoscaler.metrics import (
    ObservedLatency,
    PodStat,
    RevisionLoad,
    read_stat,
    uncounted,
    waiting,
    waiting_to_text,
)
from gnomon_platforms.knative.autoscaler.objects import PaFacts, pa_facts
from gnomon_platforms.knative.autoscaler.planning import PROXY, Outcome, status
from gnomon_platforms.knative.buffer_status import ANNOTATION, BufferStatus, buffer_of
from tests.unit.knative_autoscaler.played import EPOCH_S, Played, cluster_of, pod_autoscaler, policies

K = "autoscaling.knative.dev/"

moments = st.lists(
    st.tuples(
        st.integers(0, 6),  # what the policy wishes for
        st.booleans(),  # whether a request is in the system
        st.booleans(),  # whether activators are seen
        st.booleans(),  # whether an activator answers
        st.integers(1, 25),  # seconds until the next
    ),
    max_size=8,
)
annotated = st.fixed_dictionaries(
    {K + "window": st.just("8s")},
    optional={
        K + "min-scale": st.sampled_from(["0", "1", "2"]),
        K + "max-scale": st.sampled_from(["3", "4"]),
        K + "initial-scale": st.sampled_from(["1", "2"]),
        K + "activation-scale": st.sampled_from(["2", "3"]),
        K + "target-burst-capacity": st.sampled_from(["0", "150", "-1"]),
        K + "scale-to-zero-pod-retention-period": st.sampled_from(["0s", "15s"]),
    },
)


def checked_step(played: Played) -> None:
    """A step, and what must hold of it."""
    before, mode = played.facts, "" if played.sks is None else played.sks["spec"]["mode"]
    had, proxied = played.replicas, played.proxied
    planned = played.step()
    rules = played.rules
    if planned.replicas == 0 and had > 0:
        # The last pods go only once that was said, activators are in the way, and one has answered there.
        assert before.condition("Active").status == "False"
        assert mode == PROXY
        assert proxied or rules.burst_capacity == -1.0
        assert played.wakeable
        assert not played.holds
    if planned.replicas is not None:
        assert planned.replicas >= rules.min_scale
        assert not rules.max_scale or planned.replicas <= max(rules.max_scale, rules.min_scale)
    after = played.facts
    # True once and for ever; inactive only after it, or the Revision would have failed.
    assert not before.initialized or after.initialized
    assert after.condition("Active").status != "False" or after.initialized
    ready = after.condition("Ready").status == "True"
    assert ready == all(after.condition(kind).status == "True" for kind in ("Active", "ScaleTargetInitialized", "SKSReady"))


@given(annotated, moments)
@settings(max_examples=25, deadline=None)
def test_nothing_is_lost_on_any_timeline_and_all_of_them_come_to_rest(
    said: dict[str, str], timeline: list[tuple[int, bool, bool, bool, int]]
) -> None:
    played = Played(said, zero_grace_s=5.0)
    for wanted, holds, wakeable, answers, seconds in timeline:
        played.wanted, played.wakeable, played.answers = wanted, wakeable, answers
        played.holds = played.busy = holds
        for _ in range(seconds):
            checked_step(played)
    # When all is well and nothing comes any more, it goes as low as it may, and then nothing is written.
    played.wanted, played.wakeable, played.answers = 0, True, True
    played.holds = played.busy = False
    for _ in range(60):
        checked_step(played)
    assert played.replicas == played.rules.min_scale
    status, sks = played.pa["status"], played.sks
    for _ in range(10):
        planned = played.step()
        assert planned.status == status
        assert planned.route is None
        assert planned.replicas is None
    assert (played.pa["status"], played.sks) == (status, sks)
    # And a request wakes it.
    played.wanted, played.busy = 1, True
    checked_step(played)
    assert played.replicas >= 1


# A line as queue-proxy of Knative 1.23 sent it: a pod's name, 2.5 requests on average of which 1.0 proxied, 40 and 20 a second.
PAGE = """# HELP kn_revision_request_queued Number of requests currently queued in the activator waiting for capacity
# TYPE kn_revision_request_queued gauge
kn_revision_request_queued{k8s_namespace_name="users",kn_revision_name="f-00001",otel_scope_name="knative.dev/serving/pkg/activator",otel_scope_schema_url="",otel_scope_version=""} 3
kn_revision_request_queued{k8s_namespace_name="users",kn_revision_name="idle-00001",otel_scope_name="x"} 0
kn_revision_request_queued{k8s_namespace_name="other",kn_revision_name="f-00001",otel_scope_name="x"} 1
kn_revision_request_active{k8s_namespace_name="users",kn_revision_name="f-00001",otel_scope_name="x"} 9
"""  # noqa: E501 - as it comes


def message(**fields: float) -> bytes:
    """A Stat as protobuf writes it: what is 0 is left out."""
    numbers = {"concurrency": 2, "proxied_concurrency": 3, "rps": 4, "proxied_rps": 5, "uptime": 6}
    name = b"f-00001-deployment-abc"
    data = bytes([1 << 3 | 2, len(name)]) + name
    for key, value in fields.items():
        if value:
            data += bytes([numbers[key] << 3 | 1]) + struct.pack("<d", value)
    return data


amounts = st.floats(min_value=0.0, max_value=1e6)


@given(amounts, amounts, amounts, amounts, amounts)
def test_a_stat_is_read_as_it_was_written(first: float, second: float, third: float, fourth: float, uptime: float) -> None:
    data = message(concurrency=first, proxied_concurrency=second, rps=third, proxied_rps=fourth, uptime=uptime)
    assert read_stat(data) == PodStat(concurrency=first, rps=third)


def test_fields_of_a_later_version_are_stepped_over() -> None:
    later = bytes([7 << 3 | 0, 0x96, 0x01]) + bytes([9 << 3 | 5, 1, 2, 3, 4]) + bytes([10 << 3 | 2, 2, 65, 66])
    assert read_stat(later + message(concurrency=2.0)) == PodStat(2.0)
    assert read_stat(b"") == PodStat()


@given(st.binary(max_size=60))
def test_any_metric_of_a_pod_is_read_or_refused(data: bytes) -> None:
    try:
        found = read_stat(data)
    except ValueError:
        return
    assert all(0.0 <= value < float("inf") for value in (found.concurrency, found.rps))


def test_a_stat_that_breaks_off_is_refused() -> None:
    whole = message(concurrency=2.0, rps=5.0)
    with pytest.raises(ValueError, match="truncated"):
        read_stat(whole[:-3])
    for value in (-1.0, 2e6, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=re.escape(f"is {value}")):
            read_stat(message(concurrency=value))


def test_only_requests_that_wait_are_taken_from_an_activators_page() -> None:
    assert waiting(PAGE) == {FunctionKey("f-00001", "users"): 3.0, FunctionKey("f-00001", "other"): 1.0}
    assert waiting("") == {}


def test_counters_rise_as_pods_tell_and_never_fall() -> None:
    load = RevisionLoad(0.0)
    seen: list[tuple[int, float]] = []
    for second in range(1, 21):
        busy = 1.0 if second <= 10 else 0.0
        load.pods(float(second), PodStat(concurrency=4.0 * busy, rps=60.0 * busy))
        for part in (0.0, 0.5):
            counters = load.counters(second + part)
            seen.append((counters.arrivals, counters.concurrency_s))
    assert seen == sorted(seen)
    # 10 s of 2 pods with 2 requests and 30 a second each; half a second too far is what was foreseen when it ended.
    arrivals, concurrency_s = seen[-1]
    assert 600 <= arrivals <= 630
    assert 40.0 <= concurrency_s <= 42.0


def test_requests_that_wait_are_in_the_system_too() -> None:
    load = RevisionLoad(0.0)
    assert load.waits(1.0, 5.0)
    assert not load.waits(1.2, 6.0)
    counters = load.counters(1.2)
    assert (counters.queued, counters.executing, counters.last_request_s) == (6, 0, 1.2)
    load.waits(1.4, 0.0)
    # 0.2 s with 5 and 0.2 s with 6 of them.
    assert load.counters(1.4).concurrency_s == pytest.approx(2.2)
    assert load.waits(9.0, 1.0)


def test_old_requests_are_no_load() -> None:
    load = RevisionLoad(0.0)
    for second in range(1, 31):
        load.pods(float(second), PodStat(concurrency=4.0, rps=10.0) if second <= 15 else PodStat())
    assert load.recent(15.0, 6.0, by_rps=False) == pytest.approx(0.0, abs=4.0)
    assert load.recent(30.0, 6.0, by_rps=False) == 0.0
    assert not load.busy(30.0, 10.0)
    assert load.busy(30.0, 20.0)


def test_the_load_of_the_last_seconds_is_what_pods_told() -> None:
    load = RevisionLoad(0.0)
    for second in range(1, 20):
        load.pods(float(second), PodStat(concurrency=4.0, rps=10.0))
    assert load.recent(19.0, 6.0, by_rps=False) == pytest.approx(4.0)
    assert load.recent(19.0, 6.0, by_rps=True) == pytest.approx(10.0)


def test_a_pause_of_whoever_asks_is_no_load() -> None:
    load = RevisionLoad(0.0)
    load.pods(1.0, PodStat(rps=10.0))
    load.pods(500.0, PodStat(rps=10.0))
    assert load.counters(500.0).arrivals <= 60


def test_gateway_metrics_are_read_like_an_activator_s() -> None:
    first, second = FunctionKey("f-00001", "users"), FunctionKey("g-00001", "users")
    page = waiting_to_text({first: 7}, {first: 70, second: 3})
    assert waiting(page) == {first: 7.0}
    assert uncounted(page) == {first: 70.0, second: 3.0}
    assert uncounted(PAGE) == {}


def test_requests_that_came_in_batches_have_come() -> None:
    load = RevisionLoad(0.0)
    # Ten batches of eight a second: pods tell of ten.
    for second in range(1, 11):
        load.pods(float(second), PodStat(rps=10.0))
        load.add_uncounted(70.0)
    assert load.counters(10.0).arrivals == 800


PLAN = SetBufferPlan(4, 0.05)
BATCH, BATCH_PLUS, KPA = Settings(autoscaler="batch"), Settings(autoscaler="batch+"), Settings()


class Gateways:
    """Two that know how long batches of one, two and three take."""

    queues = 2

    def observed_latency(self, key: FunctionKey) -> ObservedLatency | None:
        return ObservedLatency((0.1, 0.15, 0.2), 0.07) if key.name == "f-00001" else None


def instances_of(played: Played) -> RevisionInstances:
    return RevisionInstances(played.facts.key, cluster_of(gateways=Gateways()), policies())


def batching(name: str = "batch", **annotations: str) -> Played:
    return Played({"gnomon/autoscaler": name, **annotations})


def written_status(pa: PaFacts, buffer: BufferStatus | None) -> dict[str, Any]:
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


async def test_plan_is_dropped_when_the_policy_changes_and_returns() -> None:
    """A Revision that comes back to `batch` after a night with `kpa` has other arrivals."""
    played = batching()
    instances = instances_of(played)
    await instances.apply([PLAN], played.rules)
    assert instances.load(played.rules, None, LoadCounters()).plan == PLAN
    assert instances.load(batching("kpa").rules, None, LoadCounters()).plan is None
    assert instances.load(played.rules, None, LoadCounters()).plan is None
    assert instances.buffer(BATCH) is None


async def test_plan_is_recorded_under_the_policy_that_made_it() -> None:
    """A plan recorded as `kpa`'s would be in force for good."""
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
    found = written_status(before, BufferStatus("batch", PLAN))
    assert found["annotations"]["theirs"] == "kept"
    assert buffer_of(found) == BufferStatus("batch", PLAN)
    after = pa_facts({**pod_autoscaler(), "status": found})
    assert written_status(after, BufferStatus("batch", PLAN)) == found, "what is told already is not written again"
    assert written_status(after, None)["annotations"] == {"theirs": "kept"}


def test_a_revision_without_a_plan_has_no_annotations() -> None:
    assert "annotations" not in written_status(pa_facts(pod_autoscaler()), None)


def test_the_next_leader_goes_on_with_the_plan_that_the_status_has() -> None:
    played = batching()
    instances = instances_of(played)
    instances.begin(2, buffer_of(written_status(played.facts, BufferStatus("batch", PLAN))))
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

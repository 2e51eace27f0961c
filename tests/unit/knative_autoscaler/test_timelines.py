"""Whatever a policy wishes for, and whenever: what must hold at every moment of any timeline."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gnomon_platforms.knative.autoscaler.planning import PROXY
from tests.unit.knative_autoscaler.played import Played

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

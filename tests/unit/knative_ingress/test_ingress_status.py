"""What Knative reads of an Ingress."""

from __future__ import annotations

from gnomon_core.clock import moment_s
from gnomon_platforms.knative.ingress.status import FALSE, UNKNOWN, Addresses, Verdict, ready, status

ADDRESSES = Addresses("public.ns.svc.cluster.local", "private.ns.svc.cluster.local")
NOON, LATER = (moment_s(f"2026-01-01T{hour}:00:00Z") for hour in (12, 13))
WAITS = Verdict(UNKNOWN, "BackendMissing", "there is no Service a/b")


def test_ready_is_the_worst_of_the_others() -> None:
    no = Verdict(FALSE, "Invalid", "no")
    assert ready((Verdict(), Verdict())) == Verdict()
    assert ready((WAITS, Verdict())) == WAITS
    assert ready((WAITS, no)) == no


def test_a_conditions_time_moves_with_its_status_only() -> None:
    first = status({}, 1, (WAITS, Verdict()), ADDRESSES, NOON)
    assert first is not None
    assert status(first, 1, (WAITS, Verdict()), ADDRESSES, LATER) is None
    foreign = {"type": "Other", "status": "True"}
    second = status({**first, "conditions": [*first["conditions"], foreign]}, 2, (Verdict(), Verdict()), ADDRESSES, LATER)
    assert second is not None
    times = {one["type"]: (one["status"], one.get("lastTransitionTime", "")[11:13]) for one in second["conditions"]}
    assert times == {
        "LoadBalancerReady": ("True", "12"),
        "NetworkConfigured": ("True", "13"),
        "Ready": ("True", "13"),
        "Other": ("True", ""),
    }
    assert second["observedGeneration"] == 2
    assert second["privateLoadBalancer"] == {"ingress": [{"domainInternal": "private.ns.svc.cluster.local"}]}

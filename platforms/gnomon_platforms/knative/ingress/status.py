"""An Ingress's status as Knative reads it: three conditions, the generation they speak of, and two addresses.

`Ready` follows from the others: False if one is, else Unknown unless all are True. A condition's time moves only when its status
does, and a status that says the same already is not written again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gnomon_core.clock import rfc3339

TRUE, FALSE, UNKNOWN = "True", "False", "Unknown"
NETWORK, BALANCER, READY = "NetworkConfigured", "LoadBalancerReady", "Ready"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A condition: True, False or Unknown, and why where it is not True."""

    status: str = TRUE
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The names inside of the cluster of the Services that lead to our proxies."""

    public: str
    private: str


def status(
    seen: dict[str, Any], generation: int, said: tuple[Verdict, Verdict], addresses: Addresses, now_s: float
) -> dict[str, Any] | None:
    """The fields of the status that are ours; None where they are as they should be already.

    `said` are the verdicts on the network and on the load balancer, `now_s` is in seconds since 1970.
    """
    verdicts = {NETWORK: said[0], BALANCER: said[1], READY: ready(said)}
    before = {one.get("type"): one for one in seen.get("conditions") or ()}
    ours = [_condition(kind, verdict, before.get(kind), now_s) for kind, verdict in sorted(verdicts.items())]
    others = [one for one in seen.get("conditions") or () if one.get("type") not in verdicts]
    made = {
        "conditions": others + ours,
        "observedGeneration": generation,
        "publicLoadBalancer": {"ingress": [{"domainInternal": addresses.public}]},
        "privateLoadBalancer": {"ingress": [{"domainInternal": addresses.private}]},
    }
    return None if all(seen.get(name) == value for name, value in made.items()) else made


def ready(verdicts: Iterable[Verdict]) -> Verdict:
    """What follows from the others."""
    worst = sorted((one for one in verdicts if one.status != TRUE), key=lambda one: one.status)
    return worst[0] if worst else Verdict()


def _condition(kind: str, verdict: Verdict, before: dict[str, Any] | None, now_s: float) -> dict[str, Any]:
    same = before is not None and before.get("status") == verdict.status
    moved = before.get("lastTransitionTime") if same and before is not None else None
    made = {
        "type": kind,
        "status": verdict.status,
        "lastTransitionTime": moved or rfc3339(now_s, "seconds"),
        "reason": verdict.reason,
        "message": verdict.message,
    }
    return {name: value for name, value in made.items() if value}

"""Which Ingresses can be served as they are now, and what becomes of those that cannot.

An Ingress that is refused, or waits for something, is served as it was when it last could be: a rollout to a Service that is
not there yet takes nobody's traffic away, and a certificate that has gone bad is shown as it was, though its Ingress says so.
Backends without endpoints are waited for only for a moment, since whether they work is no question to an ingress; the moment is
for news that is on its way, because Services and their endpoints come by different watches.
"""

from __future__ import annotations

from dataclasses import dataclass

from gnomon_platforms.knative.ingress.backends import View, backend
from gnomon_platforms.knative.ingress.model import Ingress, Key, SeenIngress

ENDPOINTS_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why an Ingress is not served as it says, or not with what it has now. What `waits` may come by itself."""

    reason: str
    message: str
    waits: bool = True
    passing: bool = False
    """It is served all the same, after a moment."""


@dataclass(slots=True)
class Case:
    """One Ingress over time: as it was served last, since when it is waited for, and what for."""

    uid: str
    served: Ingress | None = None
    since_s: float | None = None
    trouble: Trouble | None = None


def trouble_of(one: Ingress, view: View) -> Trouble | None:
    """What is missing for it."""
    for tls in one.tls:
        if view.certificate(tls.secret) is None:
            return Trouble("CertificateMissing", view.certificate_fault(tls.secret))
    empty = ""
    for split in (split for rule in one.rules for path in rule.paths for split in path.splits if split.percent):
        found = backend(split, view)
        if isinstance(found, str):
            return Trouble("BackendMissing", found)
        if not found.endpoints:
            empty = f"nobody is ready behind the Service {split.backend.namespace}/{split.backend.name}"
    return Trouble("EndpointsMissing", empty, passing=True) if empty else None


def worn(one: Ingress, view: View) -> Trouble | None:
    """What is wrong with the certificates of one that is served."""
    for tls in one.tls:
        fault = view.certificate_fault(tls.secret)
        if fault and view.certificate(tls.secret) is None:
            return Trouble("CertificateMissing", fault)
        if fault:
            return Trouble("CertificateNotRenewed", f"{fault}; the one before is shown still")
    return None


def judge(case: Case, seen: SeenIngress, view: View, now_s: float) -> None:
    """Decide whether this Ingress is served from now on as it says."""
    if seen.ingress is None:
        case.trouble = Trouble("Invalid", seen.problem, waits=False)
        return
    # What is served goes on, whatever becomes of its backends: they answer 503 while nobody is ready.
    if case.served != seen.ingress:
        case.trouble = trouble_of(seen.ingress, view)
        if case.trouble is not None:
            case.since_s = now_s if case.since_s is None else case.since_s
            if not case.trouble.passing or now_s - case.since_s < ENDPOINTS_GRACE_S:
                return
        case.served = seen.ingress
    case.since_s, case.trouble = None, worn(seen.ingress, view)


Cases = dict[Key, Case]

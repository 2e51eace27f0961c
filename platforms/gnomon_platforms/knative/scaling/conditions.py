"""What a PodAutoscaler's status says: a pure function of what is seen and how many pods are wanted.

`Ready` is `Active`, `ScaleTargetInitialized` and `SKSReady` together, as Knative's own reconcilers compute it: who reads the
status relies on that. `ScalingPolicy` is ours and only informs: which policy wants so many pods, and why. So does `Shadows`, for
policies that make some: whether Bodies may have them, or why they work alone. Beside the conditions gateways find the plan of the
buffer, for policies that plan one (`buffer_status`).

    wanted   ready pods     Active
    0        any            False, NoTraffic; TimedOut where it was still activating
    > 0      too few        Unknown, Queued
    > 0      enough         True
    unknown  too few        as it was, but True becomes Unknown
    unknown  enough         True, unless it is False

Enough is the first scale until that was reached once, then the minimum, at least 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.dates import rfc3339
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of, told_with
from gnomon_platforms.knative.scaling.objects import NOT_OWNED, Condition, PaFacts, SksFacts, conditions

KEEP = -1
"""As many pods as there are: nothing else is known to be better."""
INFORMS = frozenset({"ScalingPolicy", "Shadows"})
AND = ("Active", "ScaleTargetInitialized", "SKSReady")
MAX_MESSAGE = 1000

NO_TRAFFIC = Condition("False", "NoTraffic", "The target is not receiving traffic.")
TIMED_OUT = Condition("False", "TimedOut", "The target could not be activated.")
QUEUED = Condition("Unknown", "Queued", "Requests to the target are being buffered as resources are provisioned.")
TRUE = Condition("True")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What there is to tell. `want` is the number of pods or KEEP, `threshold` how many ready ones are enough.

    `shadows` is whether Bodies may have Shadows, None where the policy makes none; `buffer` the plan of the buffer, likewise.
    """

    want: int
    ready: int
    threshold: int
    policy: str
    reason: str
    shadows: Condition | None = None
    buffer: BufferStatus | None = None


def status(pa: PaFacts, sks: SksFacts | None, outcome: Outcome, now_s: float) -> dict[str, Any]:
    """The whole status. What has not changed keeps its time; the status is equal to the old one where nothing has."""
    service = sks.service if sks is not None else ""
    said = {
        "Active": _active(pa, outcome, service),
        "ScaleTargetInitialized": _initialized(pa, outcome, service),
        "SKSReady": _sks_ready(sks),
        "ScalingPolicy": _policy(pa, outcome),
    }
    if outcome.shadows is not None:
        said["Shadows"] = outcome.shadows
    said["Ready"] = _all(said)
    found: dict[str, Any] = {
        **pa.status,
        "conditions": [_document(kind, one, pa, now_s) for kind, one in sorted(said.items())],
        "observedGeneration": pa.generation,
        "serviceName": service,
        "metricsServiceName": sks.private_service if sks is not None else "",
        "actualScale": outcome.ready,
    }
    if outcome.want != KEEP:
        found["desiredScale"] = outcome.want
    return told_with(found, outcome.buffer)


def not_owned(pa: PaFacts, now_s: float) -> dict[str, Any]:
    """The status where the ServerlessService of that name is somebody else's."""
    message = f'There is an existing ServerlessService "{pa.key.name}" that we do not own.'
    said = {
        "Active": Condition("False", NOT_OWNED, message),
        "ScaleTargetInitialized": pa.condition("ScaleTargetInitialized"),
        "SKSReady": Condition("Unknown", "NotReady", message),
    }
    said["Ready"] = _all(said)
    listed = [_document(kind, one, pa, now_s) for kind, one in sorted(said.items())]
    names = {name: pa.status.get(name) or "" for name in ("serviceName", "metricsServiceName")}
    return {**pa.status, **names, "conditions": listed, "observedGeneration": pa.generation}


def _active(pa: PaFacts, outcome: Outcome, service: str) -> Condition:
    before = pa.active.status
    if outcome.want == 0 or (outcome.threshold == 0 and service):
        return TIMED_OUT if before == "Unknown" and outcome.threshold > 0 else NO_TRAFFIC
    going = outcome.want > 0 or before != "False"
    if not going:
        kept = pa.condition("Active")
        return Condition(kept.status, kept.reason, kept.message)
    return TRUE if outcome.threshold and outcome.ready >= outcome.threshold else QUEUED


def _initialized(pa: PaFacts, outcome: Outcome, service: str) -> Condition:
    """True once and for ever: a Revision that was ready once has not failed."""
    if pa.initialized or (outcome.ready >= outcome.threshold and service):
        return TRUE
    return Condition("Unknown")


def _sks_ready(sks: SksFacts | None) -> Condition:
    if sks is not None and sks.ready and sks.private_service:
        return TRUE
    message = "No Private Service Name" if sks is None or not sks.private_service else sks.message
    return Condition("Unknown", "NotReady", message)


def _policy(pa: PaFacts, outcome: Outcome) -> Condition:
    """Written anew only with the number or the plan that it explains: the numbers in a reason change every second."""
    before = pa.condition("ScalingPolicy")
    same = outcome.want in (KEEP, pa.status.get("desiredScale")) and outcome.buffer == buffer_of(pa.status)
    if before.message and same and before.reason == outcome.policy:
        return Condition(before.status, before.reason, before.message)
    return Condition("True", outcome.policy, outcome.reason[:MAX_MESSAGE])


def _all(said: Mapping[str, Condition]) -> Condition:
    """Ready: the first that is False, else the first that is not True."""
    for status_ in ("False", "Unknown"):
        for kind in AND:
            one = said[kind]
            if one.status == status_:
                return Condition(status_, one.reason, one.message)
    return TRUE


def _document(kind: str, one: Condition, pa: PaFacts, now_s: float) -> dict[str, Any]:
    before = conditions(pa.status).get(kind)
    same = before is not None and (before.status, before.reason, before.message) == (one.status, one.reason, one.message)
    since_s = before.since_s if same and before is not None else now_s
    document: dict[str, Any] = {"type": kind, "status": one.status, "lastTransitionTime": rfc3339(since_s, "seconds")}
    document |= {name: text for name, text in (("reason", one.reason), ("message", one.message)) if text}
    if kind in INFORMS:
        document["severity"] = "Info"
    return document

"""The status of a PodAutoscaler: a pure function of the observed state and the desired number of pods.

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

Why a Revision's Bodies work alone although its policy makes Shadows: the condition `Shadows` of its PodAutoscaler.

It only informs, and is there for policies that make Shadows alone. What is missing is told in the order in which one would mend
it: the feature of Knative's, the volume in the template, what the autoscaler was told, the nodes.

Whether requests to a Revision come to an activator by now: its public Service is asked, and who answers says who it is.

The question goes to the Service's address in the cluster, by the port of the Revision's protocol, with the headers by which
Knative's data plane knows a probe; an activator answers `activator` and wakes nothing by it.

Each question has a connection of its own. Who gets it is decided when it is made, and stays so, wherever the Service leads by
then: one that was made a moment too early, and kept, would bring the answer of the pod for ever.

One question to somebody who is not ours: a user's pod, or whoever stands behind a Service in a user's namespace.

What comes back is not trusted to be short, plain or from there: no more is taken in than an answer may have, nothing is unpacked,
and nobody is followed to another address. A pod that answered with gigabytes, or with a megabyte that unpacks to them, would
otherwise end the autoscaler of everybody.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gnomon_core.addresses import http_url
from gnomon_core.clock import rfc3339
from gnomon_platforms.knative.autoscaler.configuration import CSI_FEATURE
from gnomon_platforms.knative.autoscaler.objects import NOT_OWNED, Condition, PaFacts, SksFacts, conditions
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of, told_with
from gnomon_platforms.kubernetes.objects.pod_template import CSI_DRIVER

if TYPE_CHECKING:
    import aiohttp


KEEP = -1
"""Keep the present number of pods: the desired number is unknown."""
INFORMS = frozenset({"ScalingPolicy", "Shadows"})
AND = ("Active", "ScaleTargetInitialized", "SKSReady")
MAX_MESSAGE = 1000

NO_TRAFFIC = Condition("False", "NoTraffic", "The target is not receiving traffic.")
TIMED_OUT = Condition("False", "TimedOut", "The target could not be activated.")
QUEUED = Condition("Unknown", "Queued", "Requests to the target are being buffered as resources are provisioned.")
TRUE = Condition("True")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The content of a status. `want` is the number of pods or KEEP, `threshold` how many ready ones are enough.

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


VOLUMES_DISABLED, NO_VOLUME, NOT_CONFIGURED, NO_POOL = "VolumesDisabled", "NoVolume", "NotConfigured", "NoPool"
"""What may be missing."""


@dataclass(frozen=True, slots=True)
class Means:
    """The prerequisites of Shadows: the CSI volume is allowed and mounted, coordinators have a token, a pool is ready."""

    allowed: bool
    mounted: bool
    told: bool
    pooled: bool


def shadows(means: Means) -> Condition:
    """Whether Bodies may have Shadows, and why not."""
    if not means.mounted and not means.allowed:
        why = f"{CSI_FEATURE} is not enabled in config-features: pods cannot have the volume of their node's coordinator."
        return _alone(VOLUMES_DISABLED, why)
    if not means.mounted:
        return _alone(NO_VOLUME, f"The template has no volume of driver {CSI_DRIVER}.")
    if not means.told:
        return _alone(NOT_CONFIGURED, "The autoscaler was given no --coordinator-token.")
    if not means.pooled:
        return _alone(NO_POOL, "No node's coordinator can make Shadows now.")
    return Condition("True", "Possible")


def _alone(reason: str, why: str) -> Condition:
    return Condition("False", reason, f"{why} Bodies work alone.")


PLAIN = "identity"
_OK = 200


async def asked(
    session: aiohttp.ClientSession, url: str, *, most_bytes: int, patience_s: float, headers: Mapping[str, str] | None = None
) -> bytes | None:
    """Fetch a page; None for a status other than 200, more than `most_bytes`, or a timeout after `patience_s`."""
    import aiohttp  # noqa: PLC0415 - comes with the session

    with contextlib.suppress(aiohttp.ClientError, OSError, ValueError):
        async with session.get(
            url,
            headers={"Accept-Encoding": PLAIN, **(headers or {})},
            timeout=aiohttp.ClientTimeout(total=patience_s),
            allow_redirects=False,
            auto_decompress=False,
        ) as answer:
            if answer.status == _OK and answer.headers.get("Content-Encoding", PLAIN) == PLAIN:
                return await _read(answer.content, most_bytes)
    return None


async def _read(content: aiohttp.StreamReader, most_bytes: int) -> bytes | None:
    """Read a body; None as soon as it exceeds `most_bytes`: leaving the answer then closes the connection."""
    data = bytearray()
    async for part in content.iter_any():
        data += part
        if len(data) > most_bytes:
            return None
    return bytes(data)


HEADERS = {"K-Network-Probe": "activator", "User-Agent": "Knative-Autoscaling-Probe"}
ANSWERS = (b"activator", b"gnomon-gateway")
"""Who holds requests until a pod is ready: activators, and the gateway in their place."""
PORTS = {"http1": 80, "h2c": 81}
PATIENCE_S = 1.0
PROBE_MOST_BYTES = 1024


async def proxied(address: str, protocol: str) -> bool:
    """Whether an activator or the gateway has answered at a Service's address."""
    import aiohttp  # noqa: PLC0415 - only who runs a cluster's autoscaler needs it

    url = http_url(address, PORTS.get(protocol, 80), "/healthz")
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True), trust_env=False) as session:
        answer = await asked(session, url, most_bytes=PROBE_MOST_BYTES, patience_s=PATIENCE_S, headers=HEADERS)
    return answer is not None and answer.strip() in ANSWERS

"""A Knative Revision read as a function: whether the gateway buffers it, its settings, and the capacity of its pods.

    buffered       requested by `gnomon/max-batch` or `gnomon/scheduler`, the autoscaler class is ours, and it speaks HTTP/1.1
    takes batches  it has a key of the Secret `gnomon-batch-token`, by which a Body authenticates the sender of batches
    places         batches in flight per pod: one; requests in flight if it takes no batches: `gnomon/max-inflight`,
                   `containerConcurrency`, else four
    cores          the desired cores of its pods (`gnomon/cores`), else those of its template

The class must be ours, because only our autoscaler sees the requests that wait in the gateway: a Revision of the stock class
would stay at zero while they wait. The Revision must name the class: the cluster's default is not written on Revisions.

Example: `gnomon/max-batch: "8"` with the secret: one batch of up to 8 requests at a time for each pod. Without the secret, with
`containerConcurrency: 2`: two requests at a time for each pod, each by itself, as it came.

`RevisionStore` is the read-only function store. A Revision is a function from when it requests buffering until it is deleted. If
it no longer requests buffering, the gateway keeps serving it request by request: an ingress may route there for a moment longer,
and no request may be refused meanwhile.

`BufferPlans` caches the buffer plans that the autoscaler class has written into the PodAutoscalers' statuses.

    a PodAutoscaler's status ▶ its buffer plan ▶ bounded by the Revision's own settings ▶ the batches' size and wait

A PodAutoscaler has the name of its Revision. The two change independently, so a plan may be known before its Revision, or remain
after the Revision has changed its policy: `in_force` is evaluated again whenever either changes.

Example: `batch` has written batches of 16 within 0.4 s, and `gnomon/max-batch` is 8 by now: batches of 8 within 0.4 s. With
`gnomon/autoscaler: kpa` by now: no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.applications import refuse_endpoint
from gnomon_core.clock import seconds_of
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_core.interfaces import StoredFunction, StoredNamespace
from gnomon_core.scaling import SetBufferPlan
from gnomon_core.settings import PREFIX, Settings
from gnomon_platforms.knative.autoscaler.objects import buffered, template_of
from gnomon_platforms.knative.autoscaler.rules import DEFAULT_POLICY
from gnomon_platforms.knative.buffer_status import BufferStatus, buffer_of
from gnomon_platforms.knative.resources import POD_AUTOSCALERS, REVISIONS
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.informer import Change, Informer, Source
from gnomon_platforms.kubernetes.objects.names import TOKEN_KEY
from gnomon_platforms.provider.api import DEFAULT_IN_FLIGHT

BATCH_SECRET = TOKEN_KEY
"""The Secret of a namespace that Bodies take batches by, and the key in it of those whose Revision names none."""
TOKEN_VARIABLE = "GNOMON_BATCH_TOKEN"  # noqa: S105 - its name, not its value
AUTOSCALER = f"{PREFIX}autoscaler"

_LOG = logging.getLogger("gnomon.knative")


@dataclass(frozen=True, slots=True)
class RevisionFacts:
    """The facts about a Revision. `created_at` is in seconds since 1970, `token_key` is empty if its pods take no batches."""

    spec: FunctionSpec
    created_at: float
    buffered: bool
    token_key: str
    places: int

    @property
    def key(self) -> FunctionKey:
        return self.spec.key

    @property
    def takes_batches(self) -> bool:
        return bool(self.token_key)


class RevisionReader:
    """Reads Revisions. `check` raises a GnomonError for settings that this gateway cannot serve by.

    Invalid settings are ignored and logged once: Knative has accepted the Revision, so it must be served.
    """

    def __init__(self, check: Callable[[Settings], object]) -> None:
        self._check = check
        self._reported: dict[FunctionKey, str] = {}

    def __call__(self, document: dict[str, Any]) -> RevisionFacts:
        """Read the facts about a Revision."""
        spec = document.get("spec") or {}
        token_key = _token_key(spec)
        function = self._function(document)
        settings = template_of(spec).under(function.settings, function.annotations)
        if not token_key:
            settings = replace(settings, max_batch=1)
        return RevisionFacts(
            replace(function, settings=settings),
            seconds_of(document["metadata"].get("creationTimestamp")),
            buffered(document),
            token_key,
            _places(settings, int(spec.get("containerConcurrency") or 0), takes_batches=bool(token_key)),
        )

    def _function(self, document: dict[str, Any]) -> FunctionSpec:
        deployment = _deployment(document)
        try:
            function = _valid(deployment)
            self._check(function.settings)
        except GnomonError as error:
            self._tell(FunctionKey(deployment["service"], deployment["namespace"]), str(error))
            plain = read_deployment({**deployment, "annotations": {AUTOSCALER: DEFAULT_POLICY}})
            return replace(plain, raw=deployment)
        self.forget(function.key)
        return function

    def forget(self, key: FunctionKey) -> None:
        """Forget a Revision that is valid now, or deleted."""
        self._reported.pop(key, None)

    def _tell(self, key: FunctionKey, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            _LOG.warning("Revision %s: invalid settings are ignored and requests are not batched: %s", key, problem)


def misread(document: Mapping[str, Any]) -> str:
    """The error for which a Revision's settings are ignored; empty if they are valid."""
    try:
        _valid(_deployment(document))
    except GnomonError as error:
        return str(error)
    return ""


def _valid(deployment: Mapping[str, Any]) -> FunctionSpec:
    """The function that a Revision is.

    Raises:
        GnomonError: 400 for settings that no Revision can have.

    """
    function = read_deployment(deployment)
    refuse_endpoint(function.settings)
    return function


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    """The Revision as a FunctionDeployment."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    own = {name: str(text) for name, text in annotations.items() if name.startswith(PREFIX)}
    own.setdefault(AUTOSCALER, DEFAULT_POLICY)
    image = next((container["image"] for container in spec.get("containers") or () if container.get("image")), "none")
    return {"service": metadata["name"], "namespace": metadata["namespace"], "image": image, "annotations": own}


def _places(settings: Settings, concurrency: int, *, takes_batches: bool) -> int:
    usual = 1 if takes_batches else concurrency or DEFAULT_IN_FLIGHT
    places = settings.max_inflight or usual
    return min(places, concurrency) if concurrency else places


def _token_key(spec: Mapping[str, Any]) -> str:
    """The Secret key of the pods' batch token, found in the order in which a Body looks for it; empty if they have none.

    A variable comes first, then a file: `key: classify` of a variable, `items: [{key: classify, path: gnomon-batch-token}]` of a
    volume, alone or projected. A volume with the whole Secret has the key with the file's name. A variable of another name
    belongs to the handler, and determines the key only if neither of these exists.
    """
    variables = [variable for container in spec.get("containers") or () for variable in container.get("env") or ()]
    named = {variable.get("name"): (variable.get("valueFrom") or {}).get("secretKeyRef") or {} for variable in variables}
    keys = {name: str(source.get("key") or "") for name, source in named.items() if source.get("name") == BATCH_SECRET}
    volumes = spec.get("volumes") or ()
    own = [volume.get("secret") or {} for volume in volumes]
    projected = [
        source.get("secret") or {} for volume in volumes for source in (volume.get("projected") or {}).get("sources") or ()
    ]
    given = [secret.get("items") for secret in own if secret.get("secretName") == BATCH_SECRET]
    given += [secret.get("items") for secret in projected if secret.get("name") == BATCH_SECRET]
    files = [_key_of_file(items or ()) for items in given]
    return keys.get(TOKEN_VARIABLE) or next(iter([*files, *keys.values()]), "")


def _key_of_file(items: Sequence[Mapping[str, Any]]) -> str:
    """The Secret's key that a pod mounts as the file `BATCH_SECRET`; the key of that name if `items` is empty."""
    files = {str(item.get("path")).rpartition("/")[2]: str(item.get("key")) for item in items}
    return files.get(BATCH_SECRET) or next(iter(files.values()), BATCH_SECRET)


def in_force(plan: BufferStatus | None, facts: RevisionFacts | None) -> SetBufferPlan | None:
    """The buffer plan in force for a Revision; None if its own settings apply.

    Only the plan of the policy that the Revision names counts, if its class is ours and it requests batches. The plan is bounded
    by the Revision: one sample if its pods take no batches, and no wait beyond its deadline.
    """
    if plan is None or facts is None or not facts.buffered or plan.policy != facts.spec.settings.autoscaler:
        return None
    own = facts.spec.settings
    return SetBufferPlan(min(plan.plan.max_batch, own.max_batch), min(plan.plan.max_wait_s, own.deadline_s))


class BufferPlans:
    """The buffer plans in PodAutoscalers' statuses. `namespace` None means all namespaces."""

    def __init__(self, api: Api, namespace: str | None) -> None:
        self._informer: Informer[BufferStatus | None] = Informer(api, Source(POD_AUTOSCALERS, namespace), _kept)

    async def start(self, changed: Callable[[FunctionKey], None]) -> None:
        """Start the informer; `changed` is called on the event loop whenever a plan changes.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()

        def plan_changed(change: Change[BufferStatus | None]) -> None:
            # Most status updates concern pods, not the plan: callers are only notified of changes of the plan.
            if change.old != change.new:
                namespace, name = change.name
                changed(FunctionKey(name, namespace))

        self._informer.listen(plan_changed)

    async def stop(self) -> None:
        """Stop the informer."""
        await self._informer.stop()

    @property
    def silent_s(self) -> float:
        """Seconds since the API server's last answer or event."""
        return self._informer.silent_s

    def of(self, key: FunctionKey) -> BufferStatus | None:
        """The present plan of a Revision's buffer; None without one."""
        return self._informer.get(key.namespace, key.name)


def _kept(document: dict[str, Any]) -> BufferStatus | None:
    return buffer_of(document.get("status") or {})


VERSION = 1
"""The version of every Revision: only annotations of a Revision can change, and these need no other pods."""


class RevisionStore:
    """The `FunctionStore` of Revisions that the gateway buffers. `namespace` None means all; `check` is `RevisionReader`'s."""

    def __init__(self, api: Api, namespace: str | None, check: Callable[[Settings], object]) -> None:
        self._reader = RevisionReader(check)
        self._informer: Informer[RevisionFacts] = Informer(api, Source(REVISIONS, namespace), self._reader)
        self._held: dict[FunctionKey, RevisionFacts] = {}
        self._watchers: list[Callable[[FunctionKey], None]] = []

    async def start(self) -> None:
        """Start the informer.

        Raises:
            GnomonError: 503 `kubernetes_…`.

        """
        await self._informer.start()
        self._informer.listen(self._changed)

    async def stop(self) -> None:
        """Stop the informer."""
        await self._informer.stop()

    @property
    def silent_s(self) -> float:
        """Seconds since the API server's last answer or event."""
        return self._informer.silent_s

    def of(self, key: FunctionKey) -> RevisionFacts | None:
        """A Revision that is or was buffered; None for any other."""
        return self._held.get(key)

    def functions(self) -> Sequence[StoredFunction]:
        return [StoredFunction(facts.spec, VERSION, facts.created_at) for facts in list(self._held.values())]

    def watch(self, changed: Callable[[FunctionKey], None]) -> Callable[[], None]:
        self._watchers.append(changed)

        def stop() -> None:
            with suppress(ValueError):
                self._watchers.remove(changed)

        return stop

    def watch_namespaces(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Return a no-op: namespaces of Revisions are not watched."""
        del changed
        return lambda: None

    def secret(self, key: FunctionKey) -> bytes | None:
        """None: Knative mounts a Revision's secrets."""
        del key
        return None

    def secrets(self, namespace: str) -> Sequence[str]:
        del namespace
        return ()

    def namespaces(self) -> Sequence[StoredNamespace]:
        return ()

    def put_function(self, stored: StoredFunction) -> None:
        """Refused, as is every other change: Knative keeps its Revisions."""
        raise _knatives(str(stored.spec.key))

    def delete_function(self, key: FunctionKey) -> bool:
        raise _knatives(str(key))

    def put_secret(self, key: FunctionKey, value: bytes) -> None:
        del value
        raise _knatives(str(key))

    def delete_secret(self, key: FunctionKey) -> bool:
        raise _knatives(str(key))

    def put_namespace(self, stored: StoredNamespace) -> None:
        raise _knatives(stored.name)

    def delete_namespace(self, name: str) -> bool:
        raise _knatives(name)

    def _changed(self, change: Change[RevisionFacts]) -> None:
        namespace, name = change.name
        key = FunctionKey(name, namespace)
        before, new = self._held.get(key), change.new
        if new is None:
            self._reader.forget(key)
        if new is not None and (new.buffered or before is not None):
            self._held[key] = new
        else:
            self._held.pop(key, None)
        after = self._held.get(key)
        if (before and before.spec.raw) != (after and after.spec.raw):
            for changed in tuple(self._watchers):
                changed(key)


def _knatives(name: str) -> GnomonError:
    return GnomonError(
        405, "kept_by_knative", f"This gateway cannot change {name}, which Knative stores.", "Change it with kubectl."
    )

"""A Revision as Knative writes it, read as a function: whether the gateway buffers it, by which settings, and what its pods take.

    buffered       it asks for it (`gnomon/max-batch` or `gnomon/scheduler`), its class is ours, and it speaks HTTP/1.1
    takes batches  it was given a key of the Secret `gnomon-batch-token`, by which a Body knows who may send it batches
    places         how many batches a pod gets at once: one; where it takes none, requests: `gnomon/max-inflight`,
                   `containerConcurrency`, else four
    cores          those that its pods are to have (`gnomon/cores`), else those that its template gives them

The class must be ours, because requests that wait in the gateway are seen by our autoscaler and by no other: a Revision of the
stock class would sleep on while they wait. It must say so itself: the cluster's default is not written on Revisions.

Example: `gnomon/max-batch: "8"` with the secret: one batch of up to 8 requests at a time for each pod. Without the secret, with
`containerConcurrency: 2`: two requests at a time for each pod, each by itself, as it came.

`RevisionStore`: the store of functions that is Knative's. A Revision is a function from when it asks to be buffered until it is
deleted. One that asks no longer is served on by the gateway, request by request: an ingress may still lead there for a moment,
and no request is to be refused meanwhile.

`BufferPlans`: the plans of Revisions' buffers, as the autoscaler class has written them into PodAutoscalers, by an informer.

    a PodAutoscaler's status ▶ what it says of the buffer ▶ within what the Revision itself says ▶ how its batches are made

A PodAutoscaler has the name of its Revision. Each is news of its own, so a plan may be known before its Revision is, or be there
still when that has another policy already: `in_force` is asked again whenever either has changed.

Example: `batch` has written batches of 16 within 0.4 s, and `gnomon/max-batch` is 8 by now: batches of 8 within 0.4 s. With
`gnomon/autoscaler: kpa` by now: no plan.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

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
    """Reads Revisions. `check` raises a GnomonError for settings by which nobody can be served here.

    Such settings are left out, and told once: Knative has taken the Revision, and it is served on.
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
            function = read_deployment(deployment)
            self._check(function.settings)
        except GnomonError as error:
            self._tell(FunctionKey(deployment["service"], deployment["namespace"]), str(error))
            plain = read_deployment({**deployment, "annotations": {AUTOSCALER: DEFAULT_POLICY}})
            return replace(plain, raw=deployment)
        self._reported.pop(function.key, None)
        return function

    def _tell(self, key: FunctionKey, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            _LOG.warning("Revision %s: invalid settings are ignored and requests are not batched: %s", key, problem)


def misread(document: Mapping[str, Any]) -> str:
    """Why a Revision's settings cannot be read, and are left out; empty where they can."""
    try:
        read_deployment(_deployment(document))
    except GnomonError as error:
        return str(error)
    return ""


def _deployment(document: Mapping[str, Any]) -> dict[str, Any]:
    """The Revision as a FunctionDeployment."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    own = {name: str(text) for name, text in annotations.items() if name.startswith(PREFIX)}
    own.setdefault(AUTOSCALER, DEFAULT_POLICY)
    image = next((one["image"] for one in spec.get("containers") or () if one.get("image")), "none")
    return {"service": metadata["name"], "namespace": metadata["namespace"], "image": image, "annotations": own}


def _places(settings: Settings, concurrency: int, *, takes_batches: bool) -> int:
    usual = 1 if takes_batches else concurrency or DEFAULT_IN_FLIGHT
    places = settings.max_inflight or usual
    return min(places, concurrency) if concurrency else places


def _token_key(spec: Mapping[str, Any]) -> str:
    """The key of the Secret by which its pods take batches, as a Body looks for it; empty where they have none.

    A variable comes first, then a file: `key: classify` of a variable, `items: [{key: classify, path: gnomon-batch-token}]` of a
    volume, alone or among others. A volume with the whole Secret has the key that is named as the file is. A variable of another
    name is a handler's own, and says which key only where nothing else does.
    """
    variables = [one for container in spec.get("containers") or () for one in container.get("env") or ()]
    named = {one.get("name"): (one.get("valueFrom") or {}).get("secretKeyRef") or {} for one in variables}
    keys = {name: str(source.get("key") or "") for name, source in named.items() if source.get("name") == BATCH_SECRET}
    volumes = spec.get("volumes") or ()
    own = [one.get("secret") or {} for one in volumes]
    projected = [one.get("secret") or {} for volume in volumes for one in (volume.get("projected") or {}).get("sources") or ()]
    given = [one.get("items") for one in own if one.get("secretName") == BATCH_SECRET]
    given += [one.get("items") for one in projected if one.get("name") == BATCH_SECRET]
    files = [_key_of_file(items or ()) for items in given]
    return keys.get(TOKEN_VARIABLE) or next(iter([*files, *keys.values()]), "")


def _key_of_file(items: Sequence[Mapping[str, Any]]) -> str:
    """The Secret's key that a pod mounts as the file `BATCH_SECRET`; the key of that name if `items` is empty."""
    files = {str(one.get("path")).rpartition("/")[2]: str(one.get("key")) for one in items}
    return files.get(BATCH_SECRET) or next(iter(files.values()), BATCH_SECRET)


def in_force(said: BufferStatus | None, facts: RevisionFacts | None) -> SetBufferPlan | None:
    """The plan that a Revision's batches are made by; None for what its own settings say.

    It is that of the policy which the Revision names, where its class is ours and it asks for batches. Bounds beyond its own are
    cut: one sample where its pods take no batches, and no wait beyond its deadline.
    """
    if said is None or facts is None or not facts.buffered or said.policy != facts.spec.settings.autoscaler:
        return None
    own = facts.spec.settings
    return SetBufferPlan(min(said.plan.max_batch, own.max_batch), min(said.plan.max_wait_s, own.deadline_s))


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
            # Most of what is written there is about pods.
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
"""A Revision never changes but in its annotations, which need no other pods."""


class RevisionStore:
    """See `gnomon_core.interfaces.FunctionStore`. `namespace` None looks at all; `check` is `RevisionReader`'s."""

    def __init__(self, api: Api, namespace: str | None, check: Callable[[Settings], object]) -> None:
        self._informer: Informer[RevisionFacts] = Informer(api, Source(REVISIONS, namespace), RevisionReader(check))
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
        """A Revision that is buffered, or was; None for any other."""
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
        """None: what a Revision's pods are given is Knative's to know."""
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
        if new is not None and (new.buffered or before is not None):
            self._held[key] = new
        else:
            self._held.pop(key, None)
        after = self._held.get(key)
        if (before and before.spec.raw) != (after and after.spec.raw):
            for changed in tuple(self._watchers):
                changed(key)


def _knatives(name: str) -> GnomonError:
    return GnomonError(405, "kept_by_knative", f"{name} is Knative's to keep.", "Change it with kubectl.")

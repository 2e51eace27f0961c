"""Revisions that ask for batches and have a route: what each of them lacks so that its pods get some.

    gnomon/max-batch ▶ the autoscaler class is ours ▶ given the Secret with the token ▶ it is there ▶ pods began with it

What is missing costs batches, not requests, but for a Secret that is not there: pods wait for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnomon_cli.doctor.findings import Level
from gnomon_cli.doctor.looking import Cluster
from gnomon_core.settings import PREFIX, Settings
from gnomon_platforms.knative.autoscaler.objects import BATCH_ANNOTATIONS, buffered
from gnomon_platforms.knative.batching.revisions import BATCH_SECRET, RevisionReader, misread
from gnomon_platforms.knative.resources import CLASS, CLASS_ANNOTATION, INGRESSES, QUEUE_CONTAINER, REVISION_LABEL, REVISIONS
from gnomon_platforms.kubernetes.client import Document
from gnomon_platforms.kubernetes.resources import PODS, SECRETS

HOWTO = 'docs/howto/run-on-knative.md, "Batch requests".'

Key = tuple[str, str]
"""Namespace and name."""
Lack = tuple[str, str]
"""What is missing, and what to do."""


def revisions(cluster: Cluster) -> tuple[Level, str, str]:
    """Which Revisions ask for batches and get none, and what the first of them lacks.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    routed, count = _routed(cluster), 0
    found: dict[Key, Lack] = {}
    secrets: dict[str, Document | None] = {}
    for document in cluster.items(REVISIONS.path()):
        key = _key(document)
        if not _asks(document) or key not in routed:
            continue
        count += 1
        if key[0] not in secrets:
            secrets[key[0]] = cluster.one(SECRETS, key[0], BATCH_SECRET)
        lack = _not_buffered(document) or _misread(document) or _without_token(cluster, document, secrets[key[0]])
        if lack is not None:
            found[key] = lack
    if not found:
        return Level.OK, f"None of {count} Revisions that ask for batches lacks anything.", ""
    (namespace, name), (said, hint) = min(found.items())
    more = f" Nor do {len(found) - 1} more." if len(found) > 1 else ""
    return Level.WARN, f"{namespace}/{name} gets no batches: {said}.{more}", hint


def batched(cluster: Cluster) -> set[Key]:
    """The Revisions that have a route, and whose requests go through the gateway.

    Raises:
        Refused, Unreachable: it cannot be looked at.

    """
    routed = _routed(cluster)
    return {key for one in cluster.items(REVISIONS.path()) if buffered(one) and (key := _key(one)) in routed}


def _routed(cluster: Cluster) -> set[Key]:
    """The Revisions that Ingresses of any class lead to."""
    rules = [rule for document in cluster.items(INGRESSES.path()) for rule in (document.get("spec") or {}).get("rules") or ()]
    paths = [path for rule in rules for path in (rule.get("http") or {}).get("paths") or ()]
    splits = [split for path in paths for split in path.get("splits") or () if split.get("percent", 100)]
    return {(str(split.get("serviceNamespace")), str(split.get("serviceName"))) for split in splits}


def _not_buffered(document: Document) -> Lack | None:
    """Why its requests do not come to the gateway."""
    if not buffered(document):
        named = _annotations(document).get(CLASS_ANNOTATION, "not said")
        if named != CLASS:
            return f"its {CLASS_ANNOTATION} is {named}, not {CLASS}", f"Give it to the template of its service. {HOWTO}"
        return "its port is named h2c, and the gateway speaks HTTP/1.1", f"Name it http1 in the template of its service. {HOWTO}"
    return None


def _misread(document: Document) -> Lack | None:
    """What of its settings cannot be read, so that none of them holds."""
    (namespace, name), problem = _key(document), misread(document)
    hint = f"kubectl -n {namespace} annotate revision {name} … --overwrite, and the same in the template of its service."
    return (f"its settings are left out: {problem}", hint) if problem else None


def _without_token(cluster: Cluster, document: Document, secret: Document | None) -> Lack | None:
    """Why its pods cannot know the gateway by its token, or do not. One that wants no batches larger than one needs none."""
    namespace, name = _key(document)
    key = RevisionReader(_any)(document).token_key
    if not key:
        one_by_one = str(_annotations(document).get(f"{PREFIX}max-batch", "1")) == "1"
        return None if one_by_one else (f"it was not given the Secret {BATCH_SECRET}, and gets its requests one by one", HOWTO)
    make = f'kubectl -n {namespace} create secret generic {BATCH_SECRET} --from-literal={key}="$(openssl rand -hex 32)"'
    if secret is None:
        return f"there is no Secret {BATCH_SECRET} in {namespace}, and its pods wait for it", make
    if not (secret.get("data") or {}).get(key):
        # Other services have their keys there.
        value = "'\"$(openssl rand -hex 32)\"'"
        more = f'kubectl -n {namespace} patch secret {BATCH_SECRET} -p \'{{"stringData":{{"{key}":"{value}"}}}}\''
        return f"the Secret {BATCH_SECRET} in {namespace} has no key {key}", more
    pods = cluster.items(PODS.path(namespace), {"labelSelector": f"{REVISION_LABEL}={name}"})
    changed, began = _changed(secret, key), [begun for pod in pods if (begun := _began(pod))]
    if any(begun < changed for begun in began):
        restart = f"kubectl -n {namespace} delete pods -l {REVISION_LABEL}={name}"
        return f"pods of it began before the Secret {BATCH_SECRET} was changed, and may know another token", restart
    return None


def _any(_: Settings) -> None:
    """Whether its settings can be served by is not asked here."""


def _annotations(document: Document) -> dict[str, str]:
    return document["metadata"].get("annotations") or {}


def _changed(secret: Document, key: str) -> str:
    """When this key of it was written last, as far as the API server has kept that: RFC 3339, in UTC, so that texts compare.

    It keeps one time for all that a program has written, so a key may count as written when its neighbour was.
    """
    metadata = secret["metadata"]
    fields = [
        (one.get("time") or "", (one.get("fieldsV1") or {}).get("f:data") or {}) for one in metadata.get("managedFields") or ()
    ]
    return max([metadata.get("creationTimestamp") or "", *(at for at, data in fields if f"f:{key}" in data)])


def _began(pod: Mapping[str, Any]) -> str:
    """When the first of the user's containers that run began; empty where none does."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    running = [(one.get("state") or {}).get("running") or {} for one in statuses if one.get("name") != QUEUE_CONTAINER]
    return min((one["startedAt"] for one in running if one.get("startedAt")), default="")


def _key(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def _asks(document: Document) -> bool:
    return any(name in _annotations(document) for name in BATCH_ANNOTATIONS)

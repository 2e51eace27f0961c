"""KEDA that comes to a cluster after us, and an Event that the cluster has forgotten, on a real API server."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from kubernetes import client

from gnomon_core.functions import FunctionKey
from gnomon_platforms.kubernetes import conflicting_autoscalers
from gnomon_platforms.kubernetes import events as recorded
from gnomon_platforms.kubernetes.client import connect
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscalers
from tests.cluster.client import Cluster
from tests.kubernetes.kinds import SCALED_OBJECTS, conflicting_autoscaler, define
from tests.kubernetes.knative_autoscaler.played_knative import PlayedKnative
from tests.kubernetes.knative_autoscaler.test_reconciler import QUICK, K, running, until

KEDA = ("keda.sh", "v1alpha1")


async def test_kedas_objects_are_seen_that_were_not_known_of_when_we_started(
    own_plane: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.2)
    own_plane.core.create_namespace({"metadata": {"name": "users"}})
    api, figlet = connect(own_plane.kubeconfig), FunctionKey("figlet", "users")
    watched = ConflictingAutoscalers(api, None, lambda _: None)
    await watched.start()
    try:
        await asyncio.to_thread(define, own_plane, SCALED_OBJECTS)
        theirs = {
            "apiVersion": "/".join(KEDA),
            "kind": "ScaledObject",
            "metadata": {"name": "theirs"},
            "spec": {"scaleTargetRef": {"name": "figlet"}},
        }
        await asyncio.to_thread(own_plane.custom.create_namespaced_custom_object, *KEDA, "users", "scaledobjects", theirs)  # type: ignore[call-arg]
        await until(lambda: watched.of(figlet) is not None, "it has been seen")
        extensions: Any = client.ApiextensionsV1Api(own_plane.api)
        await asyncio.to_thread(extensions.delete_custom_resource_definition, "scaledobjects.keda.sh")
        await until(lambda: watched.of(figlet) is None, "it has gone with its kind")
    finally:
        await watched.stop()
        api.close()


async def test_an_event_that_the_cluster_has_forgotten_is_made_again(
    knative_kinds: Cluster, knative: PlayedKnative, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.2)
    monkeypatch.setattr(conflicting_autoscalers, "REMIND_S", 0.5)
    monkeypatch.setattr(recorded, "AGAIN_S", 0.25)
    core = knative_kinds.core

    def events() -> list[str]:
        return [event.metadata.uid for event in core.list_namespaced_event(knative.namespace).items]

    async with running(knative_kinds, knative):
        knative.revision("f-00001", {**QUICK, K + "min-scale": "1"})
        await until(lambda: knative.condition("f-00001", "Ready")["status"] == "True", "Ready")
        create = client.AutoscalingV2Api(knative_kinds.api).create_namespaced_horizontal_pod_autoscaler
        await asyncio.to_thread(create, knative.namespace, cast("Any", conflicting_autoscaler("f-00001-deployment")))
        await until(lambda: len(events()) == 1, "the Event")
        [first] = events()
        await asyncio.to_thread(core.delete_collection_namespaced_event, knative.namespace)
        await until(lambda: len(events()) == 1 and events() != [first], "another")

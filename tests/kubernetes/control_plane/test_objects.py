"""The apiserver is a real one: objects are made, listed, watched and refused as anywhere."""

from __future__ import annotations

from typing import Any

import pytest
from kubernetes import client, watch

from tests.cluster.client import Cluster


def config_map(name: str, **data: str) -> client.V1ConfigMap:
    return client.V1ConfigMap(metadata=client.V1ObjectMeta(name=name), data=data)


def test_objects_are_made_listed_and_watched(control_plane: Cluster) -> None:
    core = control_plane.core
    core.create_namespaced_config_map("default", config_map("first", colour="red"))
    listed = core.list_namespaced_config_map("default")
    assert {item.metadata.name: item.data for item in listed.items if item.metadata.name == "first"} == {
        "first": {"colour": "red"}
    }

    core.create_namespaced_config_map("default", config_map("second"))
    core.patch_namespaced_config_map("second", "default", {"data": {"colour": "blue"}})
    core.delete_namespaced_config_map("first", "default")
    seen = []
    make: Any = watch.Watch
    events = make().stream(
        core.list_namespaced_config_map, "default", resource_version=listed.metadata.resource_version, timeout_seconds=30
    )
    for event in events:
        seen.append((event["type"], event["object"].metadata.name))
        if len(seen) == 3:
            break
    assert seen == [("ADDED", "second"), ("MODIFIED", "second"), ("DELETED", "first")]


def test_a_write_from_an_old_version_is_refused(control_plane: Cluster) -> None:
    core = control_plane.core
    old = core.create_namespaced_config_map("default", config_map("versioned", step="1"))
    core.patch_namespaced_config_map("versioned", "default", {"data": {"step": "2"}})
    old.data = {"step": "3"}
    with pytest.raises(client.ApiException) as refused:
        core.replace_namespaced_config_map("versioned", "default", old)
    assert refused.value.status == 409
    assert core.read_namespaced_config_map("versioned", "default").data == {"step": "2"}


def test_the_scale_subresource_is_there_without_controllers(control_plane: Cluster) -> None:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "dev.local/answer:v1"}]}}
    body = {"selector": {"matchLabels": {"app": "a"}}, "replicas": 1, "template": template}
    control_plane.apps.create_namespaced_deployment("default", {"metadata": {"name": "still"}, "spec": body})
    control_plane.apps.patch_namespaced_deployment_scale("still", "default", {"spec": {"replicas": 3}})
    assert control_plane.apps.read_namespaced_deployment("still", "default").spec.replicas == 3


def test_account_without_rights_is_refused(control_plane: Cluster) -> None:
    """Roles are in force, so that tests can show what a role lacks."""
    body = {"spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "secrets"}, "user": "nobody"}}
    authorization: Any = client.AuthorizationV1Api(control_plane.api)
    review = authorization.create_subject_access_review(body)
    assert not review.status.allowed

"""Functions that were removed, deployments of several hands, and who else counts pods: values in, values out."""

from __future__ import annotations

import json
from typing import Any

from gnomon_core.functions import FunctionKey, read_deployment
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscaler, ConflictingAutoscalers, conflict_reader
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.objects.functions import deployed_function
from gnomon_platforms.kubernetes.objects.manifests import changed_metadata, deployment, with_creation
from gnomon_platforms.kubernetes.objects.names import REMOVED_ANNOTATION
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions

SPEC = read_deployment({"service": "figlet", "image": "figlet:1", "labels": {"team": "vision"}, "annotations": {"topic": "a"}})
HPA = {
    "metadata": {"name": "theirs", "namespace": "openfaas-fn", "uid": "u1"},
    "spec": {"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "figlet"}},
}


def test_dropped_fields_are_removed_and_foreign_ones_stay() -> None:
    first = with_creation(deployment(SPEC, 1, PodOptions())["metadata"], 1.25)
    first["annotations"] |= {"theirs": "1", REMOVED_ANNOTATION: "true"}
    later = read_deployment({"service": "figlet", "image": "figlet:1", "labels": {"stage": "two"}})
    changed = changed_metadata(first, with_creation(deployment(later, 2, PodOptions())["metadata"], 1.25))
    assert {"team", "stage"} & changed["labels"].keys() == {"stage"}
    assert changed["annotations"]["theirs"] == "1"
    assert not {"topic", REMOVED_ANNOTATION} & changed["annotations"].keys()


def test_a_deployment_comes_back_as_the_function_that_it_is() -> None:
    document: dict[str, Any] = deployment(SPEC, 3, PodOptions())
    document["metadata"] = with_creation(document["metadata"], 1700000000.25) | {"uid": "u", "resourceVersion": "9"}
    found = deployed_function(json.loads(json.dumps(document)))
    assert found is not None
    assert (found.spec.raw, found.version, found.created_at, found.removed) == (SPEC.raw, 3, 1700000000.25, False)
    document["metadata"]["annotations"][REMOVED_ANNOTATION] = "true"
    again = deployed_function(document)
    assert again is not None
    assert again.removed


def test_conflicting_autoscalers_are_found() -> None:
    found = conflict_reader("HorizontalPodAutoscaler")(HPA)
    assert found == ConflictingAutoscaler("HorizontalPodAutoscaler", "openfaas-fn", "theirs", "u1", "figlet")
    # KEDA takes a Deployment where no kind is named.
    assert conflict_reader("ScaledObject")({**HPA, "spec": {"scaleTargetRef": {"name": "figlet"}}}) is not None
    assert conflict_reader("ScaledObject")({**HPA, "spec": {"scaleTargetRef": {"kind": "StatefulSet", "name": "figlet"}}}) is None


def test_a_function_is_hindered_as_long_as_one_of_them_targets_it() -> None:
    changes: list[FunctionKey] = []
    conflicts = ConflictingAutoscalers(None, None, changes.append)  # type: ignore[arg-type]  # nothing is asked of the API server here
    key, first, second = (
        FunctionKey("figlet"),
        *(ConflictingAutoscaler("HPA", "openfaas-fn", name, name, "figlet") for name in ("a", "b")),
    )
    moved = ConflictingAutoscaler("HPA", "openfaas-fn", "a", "a", "other")

    def seen(old: ConflictingAutoscaler | None, new: ConflictingAutoscaler | None) -> None:
        conflicts._seen(Change(("openfaas-fn", "x"), old, new))

    seen(None, first)
    seen(None, second)
    refusal = conflicts.scaling_conflict(key)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (409, "foreign_autoscaler")
    seen(second, None)
    assert conflicts.of(key) == first
    seen(first, moved)
    assert conflicts.scaling_conflict(key) is None
    assert conflicts.of(FunctionKey("other")) == moved
    assert set(changes[-2:]) == {key, FunctionKey("other")}

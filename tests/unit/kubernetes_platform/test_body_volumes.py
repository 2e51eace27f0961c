"""Volumes of a Body's pod for its Shadows: the volume of its node's coordinator, and the models that both map."""

from typing import Any

from gnomon_core.functions import read_deployment
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions, pod_template

COORDINATED = PodOptions(coordinated=True, models_claim="models")
BODY: dict[str, Any] = {"service": "resnet", "image": "gnomon/body", "annotations": {"gnomon/model": "resnet50@1"}}


def spec(deployment: dict[str, Any], options: PodOptions) -> dict[str, Any]:
    pod: dict[str, Any] = pod_template(read_deployment(deployment), 1, options)["spec"]
    return pod


def mounts(pod: dict[str, Any]) -> dict[str, str]:
    return {volume_mount["name"]: volume_mount["mountPath"] for volume_mount in pod["containers"][0]["volumeMounts"]}


def test_a_body_has_its_coordinators_volume_and_the_models() -> None:
    pod = spec(BODY, COORDINATED)
    volumes = {volume["name"]: volume for volume in pod["volumes"]}

    assert volumes["coordinator"]["csi"] == {
        "driver": "node.gnomon",
        "readOnly": True,
        "volumeAttributes": {"gnomon/function": "resnet"},
    }
    assert volumes["models"]["persistentVolumeClaim"] == {"claimName": "models", "readOnly": True}
    assert (mounts(pod)["coordinator"], mounts(pod)["models"]) == ("/run/gnomon", "/models")
    # As strict as any other: no host path, no token, nobody's rights.
    assert not any("hostPath" in volume for volume in pod["volumes"])
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"]


def test_pod_without_a_model_has_no_volume() -> None:
    for pod in (spec({"service": "echo", "image": "echo"}, COORDINATED), spec(BODY, PodOptions())):
        assert {volume["name"] for volume in pod["volumes"]} == {"tmp", "secrets"}
        assert set(mounts(pod)) == {"tmp", "secrets"}

"""A function as it is sent to be deployed, and the pod that it gets."""

from __future__ import annotations

from typing import Any

from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions

OPTIONS = PodOptions()


def spec_of(**fields: Any) -> FunctionSpec:
    return read_deployment({"service": "figlet", "image": "ghcr.io/openfaas/figlet:1", **fields})


def pod_of(**fields: Any) -> dict[str, Any]:
    manifest = deployment(spec_of(**fields), 3, OPTIONS)
    pod: dict[str, Any] = manifest["spec"]["template"]["spec"]
    return pod

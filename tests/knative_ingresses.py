"""Ingresses as Knative writes them, for tests."""

from __future__ import annotations

from typing import Any

from gnomon_platforms.knative.ingress.model import Ingress, ingress


def split(name: str, percent: int = 100, **headers: str) -> dict[str, Any]:
    """A split to port 80 of a Service; `headers` with `_` for `-`."""
    made: dict[str, Any] = {"serviceNamespace": "default", "serviceName": name, "servicePort": 80, "percent": percent}
    if headers:
        made["appendHeaders"] = {key.replace("_", "-"): value for key, value in headers.items()}
    return made


def path(*splits: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """A path of a rule: `path`, `headers`, `appendHeaders`, `rewriteHost`."""
    return {"splits": list(splits), **fields}


def rule(host: str, *paths: dict[str, Any], visibility: str = "ExternalIP") -> dict[str, Any]:
    """A rule for one host."""
    return {"hosts": [host], "visibility": visibility, "http": {"paths": list(paths)}}


def document(name: str, *rules: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An Ingress of our class; `fields` of its specification."""
    metadata = {
        "namespace": "default",
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "1",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "annotations": {"networking.knative.dev/ingress.class": "gnomon"},
    }
    return {"metadata": metadata, "spec": {"rules": list(rules), "httpOption": "Enabled", **fields}}


def made(name: str, *rules: dict[str, Any], **fields: Any) -> Ingress:
    """The same, read."""
    return ingress(document(name, *rules, **fields))

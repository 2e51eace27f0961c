"""Probes of a function's container: those of OpenFaaS's workload contract, with overrides by annotations.

    com.openfaas.health.http.path              path of the liveness and startup probes: /_/health
    com.openfaas.ready.http.path               path of the readiness probe: /_/ready
    com.openfaas.(health|ready).http.NAME      initialDelay, periodSeconds, timeoutSeconds: 2, 2s, 1m30s
                                               successThreshold, failureThreshold: 3

The startup probe runs every second for up to five minutes; the other two begin after its success. The annotations of health also
apply to the startup probe, except its period and thresholds.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any, Final

from gnomon_core.errors import GnomonError, bad_request
from gnomon_core.functions import FunctionSpec
from gnomon_core.units import parse_duration_s
from gnomon_platforms.kubernetes.objects.names import PORT_NAME

HEALTH_PATH, READY_PATH = "/_/health", "/_/ready"
START_TIMEOUT_S = 300
LONGEST_S = 86_400

_SECONDS: Final = {
    "initialDelay": "initialDelaySeconds",
    "initialDelaySeconds": "initialDelaySeconds",
    "periodSeconds": "periodSeconds",
    "timeoutSeconds": "timeoutSeconds",
}
_COUNTS = ("successThreshold", "failureThreshold")


def probes(spec: FunctionSpec) -> dict[str, Any]:
    """The three probes of a container.

    Raises:
        GnomonError: 400 `invalid_annotation`, with the valid values.

    """
    health, ready = _overrides(spec.annotations, "health"), _overrides(spec.annotations, "ready")
    if health.get("successThreshold", 1) != 1:
        raise _invalid("com.openfaas.health.http.successThreshold", "1", "Kubernetes takes no other of a health check.")
    at_start = {name: value for name, value in health.items() if name in ("initialDelaySeconds", "timeoutSeconds")}
    # A short period notices a fast start; the large threshold allows for a slow one that loads a model.
    start = _probe(spec, "health", HEALTH_PATH, {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": START_TIMEOUT_S})
    often = {"periodSeconds": 2, "timeoutSeconds": 1, "failureThreshold": 3}
    usual = {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3}
    return {
        "startupProbe": start | at_start,
        "readinessProbe": _probe(spec, "ready", READY_PATH, often | ready),
        "livenessProbe": _probe(spec, "health", HEALTH_PATH, usual | health),
    }


def _probe(spec: FunctionSpec, kind: str, default: str, numbers: Mapping[str, int]) -> dict[str, Any]:
    name = f"com.openfaas.{kind}.http.path"
    path = spec.annotations.get(name, default)
    if not path.startswith("/"):
        raise _invalid(name, path, f"It begins with '/', such as {default}.")
    return {"httpGet": {"path": path, "port": PORT_NAME, "scheme": "HTTP"}, "successThreshold": 1, **numbers}


def _overrides(annotations: Mapping[str, str], kind: str) -> dict[str, int]:
    """The numbers of one probe that annotations set, by Kubernetes' names."""
    prefix = f"com.openfaas.{kind}.http."
    overrides: dict[str, int] = {}
    for key in [key for key in annotations if key.startswith(prefix)]:
        name = key.removeprefix(prefix)
        if name in _SECONDS:
            overrides[_SECONDS[name]] = _seconds(key, annotations[key], least=0 if name.startswith("initial") else 1)
        elif name in _COUNTS:
            overrides[name] = _count(key, annotations[key])
        elif name != "path":
            known = ", ".join(("path", *_SECONDS, *_COUNTS))
            raise bad_request(
                "invalid_annotation", f"{key[:100]} is no known probe setting.", f"After {prefix} comes one of {known}."
            )
    return overrides


def _seconds(key: str, text: str, *, least: int) -> int:
    """A duration in whole seconds, rounded up."""
    try:
        seconds = math.ceil(parse_duration_s(text))
    except ValueError:
        seconds = -1
    if not least <= seconds <= LONGEST_S:
        raise _invalid(key, text, f"Write seconds from {least} to {LONGEST_S}, such as 2, 2s or 1m30s.")
    return seconds


def _count(key: str, text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text):
        raise _invalid(key, text, "Write a whole number from 1 on.")
    return int(text)


def _invalid(key: str, text: str, hint: str) -> GnomonError:
    return bad_request("invalid_annotation", f"{key} is {text[:100]!r}.", hint)

"""A provider's documents of functions, read as ours.

What somebody else has deployed may carry settings that we would refuse. It was served before us and is served on: what cannot be
read is left out, and told.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gnomon_core.dates import seconds_of
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionSpec, read_deployment
from gnomon_core.settings import PREFIX

SCALING = "openfaas"
"""The one policy that leaves the number of replicas to OpenFaaS."""
IN_FLIGHT_VARIABLE = "max_inflight"
"""By which of-watchdog is told how many requests a replica takes at once; 0 is no limit."""
_SCALE_LABELS = "com.openfaas.scale."
_OF_STATUS = ("name", "invocationCount", "replicas", "availableReplicas", "createdAt", "usage")

_LOG = logging.getLogger("gnomon.provider")


@dataclass(frozen=True, slots=True)
class Listed:
    """A function as the provider lists it. `spec` is the same object as long as nothing of it changes."""

    spec: FunctionSpec
    created_at: float
    replicas: int
    available: int


def read_listed(document: object, namespace: str, before: Listed | None) -> Listed | None:
    """A function of a provider's list; None for what is none. `before` is how it was read last."""
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        return None
    deployment = {name: value for name, value in document.items() if value is not None and name not in _OF_STATUS}
    deployment = {"service": document["name"], **deployment}
    deployment["namespace"] = document.get("namespace") or namespace
    spec = before.spec if before is not None and before.spec.raw == deployment else _read(deployment)
    if spec is None:
        return None
    created_at = seconds_of(document.get("createdAt"))
    return Listed(spec, created_at, _count(document, "replicas"), _count(document, "availableReplicas"))


def in_flight(spec: FunctionSpec, default: int) -> int:
    """How many requests a replica of the function gets at once."""
    if spec.settings.max_inflight is not None:
        return spec.settings.max_inflight
    said = spec.environment.get(IN_FLIGHT_VARIABLE, "")
    return int(said) if said.isascii() and said.isdigit() and int(said) > 0 else default


def _read(deployment: dict[str, Any]) -> FunctionSpec | None:
    name = f"{deployment['service']}.{deployment['namespace']}"
    try:
        spec = read_deployment(deployment)
    except GnomonError as error:
        _LOG.warning("%s: its settings are left out: %s", name, error)
        try:
            plain = read_deployment({**deployment, "labels": _without(deployment, "labels", _SCALE_LABELS),
                                     "annotations": _without(deployment, "annotations", PREFIX)})  # fmt: skip
        except GnomonError as worse:
            _LOG.warning("%s is not served: %s", name, worse)
            return None
        return replace(plain, raw=deployment)
    if spec.settings.autoscaler != SCALING:
        if spec.settings.autoscaler_named:
            _LOG.warning("%s: gnomon/autoscaler %s is left aside: the provider scales", name, spec.settings.autoscaler)
        spec = replace(spec, settings=replace(spec.settings, autoscaler=SCALING))
    return spec


def _without(deployment: Mapping[str, Any], field: str, prefix: str) -> object:
    texts = deployment.get(field)
    return {key: text for key, text in texts.items() if not key.startswith(prefix)} if isinstance(texts, dict) else texts


def _count(document: Mapping[str, Any], field: str) -> int:
    value = document.get(field)
    return max(0, int(value)) if isinstance(value, int | float) else 0

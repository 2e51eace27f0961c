"""A deployed function: the document as its user sent it, and the parsed values.

The deployment is OpenFaaS's `FunctionDeployment`. What was not sent stays absent: the certifier compares the answer with the
request field by field, and an empty object where nothing was sent fails it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gnomon_core.errors import bad_request
from gnomon_core.json_types import JsonObject
from gnomon_core.settings import Settings, read_settings, watchdog_deadline_s
from gnomon_core.units import parse_cores, parse_memory_bytes

DEFAULT_NAMESPACE = "openfaas-fn"
PROBLEM = "status.gnomon/problem"
"""The annotation in a function's description that says why instances are missing. It is not part of the deployment."""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
MAX_SECRET_NAME = 253
# A DNS subdomain, as Kubernetes and faas-cli want it; it also makes a safe file name, without '/' and not beginning with '.'.
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

WATCHDOG_ANSWERS_S = 1.0


@dataclass(frozen=True, slots=True, order=True)
class FunctionKey:
    """A function's identity: name and namespace."""

    name: str
    namespace: str = DEFAULT_NAMESPACE

    def __str__(self) -> str:
        return f"{self.name}.{self.namespace}"


def parse_key(text: str, default_namespace: str = DEFAULT_NAMESPACE) -> FunctionKey:
    """`fn` or `fn.namespace`, split at the last dot as OpenFaaS does."""
    name, dot, namespace = text.rpartition(".")
    return FunctionKey(name, namespace) if dot else FunctionKey(text, default_namespace)


@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """A function as deployed: the fields of `FunctionDeployment`, and its parsed settings.

    `raw` is the document as sent, less nulls; `settings` is read from its labels and annotations once.
    `memory_bytes` and `cpu_cores` are the limits, None where not limited.
    """

    key: FunctionKey
    image: str
    env_process: str
    environment: Mapping[str, str]
    secrets: tuple[str, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    constraints: tuple[str, ...]
    read_only_root_filesystem: bool
    memory_bytes: int | None
    cpu_cores: float | None
    settings: Settings
    raw: JsonObject = field(compare=False)

    @property
    def may_idle_to_zero(self) -> bool:
        """Return whether it may scale to zero by default where models start quickly: a model without a label for that."""
        configured = {"com.openfaas.scale.min", "com.openfaas.scale.zero"} & set(self.labels)
        return self.settings.model is not None and self.settings.autoscaler != "fixed" and not configured

    def idling_to_zero(self) -> FunctionSpec:
        """The function with `scale.zero`. What was sent (`raw`) is unchanged."""
        return replace(self, settings=replace(self.settings, scale=replace(self.settings.scale, zero=True)))

    def same_instances(self, other: FunctionSpec) -> bool:
        """Return whether instances of `other` can serve this one, so that an update need not replace them.

        Annotations and labels steer the gateway and the autoscaler; only the model, cores and concurrency reach into an instance.
        """
        return (
            self.image,
            self.env_process,
            self.environment,
            self.secrets,
            self.memory_bytes,
            self.cpu_cores,
            self.read_only_root_filesystem,
            self.settings.model,
            self.settings.cores,
            self.settings.concurrency,
        ) == (
            other.image,
            other.env_process,
            other.environment,
            other.secrets,
            other.memory_bytes,
            other.cpu_cores,
            other.read_only_root_filesystem,
            other.settings.model,
            other.settings.cores,
            other.settings.concurrency,
        )


def check_secret_name(name: str) -> None:
    """Refuse a name that no secret can have.

    Raises:
        GnomonError: 400 `invalid_name`.

    """
    if len(name) > MAX_SECRET_NAME or not _SECRET_NAME.fullmatch(name):
        raise bad_request(
            "invalid_name",
            f"{name[:100]!r} is not a name for a secret.",
            f"Use up to {MAX_SECRET_NAME} lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit.",
        )


def read_deployment(document: object, default_namespace: str = DEFAULT_NAMESPACE) -> FunctionSpec:
    """The function that a `FunctionDeployment` document describes.

    Raises:
        GnomonError: 400 with the field that is wrong and what it must be.

    """
    if not isinstance(document, dict):
        raise bad_request("invalid_deployment", "The body is not a JSON object.", "Send a FunctionDeployment.")
    raw = {name: value for name, value in document.items() if value is not None}
    name = _text(raw, "service", required=True)
    if not NAME.fullmatch(name):
        raise bad_request(
            "invalid_name",
            f"service {name[:100]!r} is not a function name.",
            "Use 1 to 63 lower-case letters, digits and '-', beginning and ending with a letter or digit.",
        )
    labels, annotations = _texts(raw, "labels"), _texts(raw, "annotations")
    environment, env_process = _environment(raw), _text(raw, "envProcess")
    watchdog_s = watchdog_deadline_s(environment)
    if watchdog_s is not None and env_process:
        # The watchdog ends a process per request; its error response must come before our timeout.
        watchdog_s += WATCHDOG_ANSWERS_S
    limits = _texts(raw, "limits")
    _read_requests(_texts(raw, "requests"))
    return FunctionSpec(
        key=FunctionKey(name, _text(raw, "namespace") or default_namespace),
        image=_text(raw, "image", required=True),
        env_process=env_process,
        environment=environment,
        secrets=_list(raw, "secrets"),
        labels=labels,
        annotations=annotations,
        constraints=_list(raw, "constraints"),
        read_only_root_filesystem=_flag(raw, "readOnlyRootFilesystem"),
        memory_bytes=_limit(limits, "memory", parse_memory_bytes),
        cpu_cores=_limit(limits, "cpu", parse_cores),
        settings=read_settings(labels, annotations, watchdog_s),
        raw=raw,
    )


def _text(raw: Mapping[str, Any], name: str, *, required: bool = False) -> str:
    value = raw.get(name, "")
    if not isinstance(value, str) or (required and not value) or "\0" in value:
        raise bad_request("invalid_deployment", f"{name} is missing or not a text.", "Send a FunctionDeployment.")
    return value


def _texts(raw: Mapping[str, Any], name: str) -> dict[str, str]:
    value = raw.get(name, {})
    if not isinstance(value, dict) or not all(isinstance(item, str) and "\0" not in item for item in value.values()):
        raise bad_request("invalid_deployment", f"{name} is not an object of texts.", 'Send it as {"key": "value"}.')
    return value


def _environment(raw: Mapping[str, Any]) -> dict[str, str]:
    variables = _texts(raw, "envVars")
    for name in variables:
        if not name or "=" in name or "\0" in name:
            raise bad_request(
                "invalid_deployment", f"envVars has the name {name[:100]!r}.", "A name is not empty and has no '='."
            )
    return variables


def _list(raw: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = raw.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise bad_request("invalid_deployment", f"{name} is not a list of texts.", 'Send it as ["value"].')
    return tuple(value)


def _flag(raw: Mapping[str, Any], name: str) -> bool:
    value = raw.get(name, False)
    if not isinstance(value, bool):
        raise bad_request("invalid_deployment", f"{name} is neither true nor false.", "Send it without quotes.")
    return value


def _limit(limits: Mapping[str, str], name: str, read: Any) -> Any:
    text = limits.get(name)
    if not text:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise bad_request("invalid_deployment", f"limits or requests: {name}: {error}.") from None


def _read_requests(requests: Mapping[str, str]) -> None:
    _limit(requests, "memory", parse_memory_bytes)
    _limit(requests, "cpu", parse_cores)

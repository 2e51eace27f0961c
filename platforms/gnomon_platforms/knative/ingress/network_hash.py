"""Knative's hash of an Ingress: SHA-256 of the specification as Go writes it in JSON, the namespace and the name.

Whoever probes an ingress computes it for himself (`ComputeHash` in knative.dev/networking/pkg/ingress) and compares, so each
byte counts: fields in the order in which Go declares them, empty ones left out or not as Go's tags say, keys of maps sorted, and
`<`, `>` and `&` escaped as they are for HTML.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_ESCAPED = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&\u2028\u2029"}


def network_hash(spec: Mapping[str, Any], namespace: str, name: str) -> str:
    """64 hexadecimal digits."""
    text = json.dumps(_spec(spec), ensure_ascii=False, separators=(",", ":")).translate(_ESCAPED)
    return hashlib.sha256(f"{text}{namespace}{name}".encode("utf-8", "surrogatepass")).hexdigest()


def _spec(spec: Mapping[str, Any]) -> dict[str, Any]:
    tls = [_present(one, "hosts", "secretName", "secretNamespace") for one in spec.get("tls") or ()]
    rules = [_rule(rule) for rule in spec.get("rules") or ()]
    return _without_empty({"tls": tls, "rules": rules}) | {"httpOption": spec.get("httpOption") or ""}


def _rule(rule: Mapping[str, Any]) -> dict[str, Any]:
    made = _present(rule, "hosts", "visibility")
    http = rule.get("http")
    if http is not None:
        paths = http.get("paths")
        made["http"] = {"paths": None if paths is None else [_path(path) for path in paths]}
    return made


def _path(path: Mapping[str, Any]) -> dict[str, Any]:
    made = _present(path, "path", "rewriteHost")
    matches = {name: {"exact": (match or {}).get("exact", "")} for name, match in sorted((path.get("headers") or {}).items())}
    splits = path.get("splits")
    made |= _without_empty({"headers": matches})
    made["splits"] = None if splits is None else [_split(split) for split in splits]
    return made | _sorted_headers(path)


def _split(split: Mapping[str, Any]) -> dict[str, Any]:
    made = {
        "serviceNamespace": split.get("serviceNamespace", ""),
        "serviceName": split.get("serviceName", ""),
        "servicePort": split.get("servicePort", 0),
    }
    return made | _present(split, "percent") | _sorted_headers(split)


def _sorted_headers(of: Mapping[str, Any]) -> dict[str, Any]:
    return _without_empty({"appendHeaders": dict(sorted((of.get("appendHeaders") or {}).items()))})


def _present(of: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return _without_empty({name: of.get(name) for name in names})


def _without_empty(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}

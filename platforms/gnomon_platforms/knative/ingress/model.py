"""An Ingress as values that are known to be harmless.

Whatever an Ingress says reaches HAProxy only through here. Hosts are DNS names, or `*.` before one; names of headers are tokens
that frame no message; values of headers have no control characters. What is none of that is refused with the field's name,
and its Ingress says so in a condition. Paths may be anything: they are looked up, never written out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gnomon_core.errors import GnomonError, bad_request
from gnomon_platforms.knative.ingress.names import CLASS_ANNOTATIONS, EXTERNAL, REDIRECTED
from gnomon_platforms.knative.ingress.network_hash import network_hash

MAX_PATH = 2048
MAX_VALUE = 4096
ALL_PERCENT = 100

_LABEL = "[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?({_LABEL}\.)*{_LABEL}")
_HEADER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,126}")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_PORT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
_FRAMING = frozenset(
    {
        "host",
        "connection",
        "content-length",
        "transfer-encoding",
        "upgrade",
        "te",
        "trailer",
        "keep-alive",
        "proxy-connection",
        "expect",
    }
)
"""They say where a message ends or which connection it is on: one more of them is how requests are smuggled."""

Headers = tuple[tuple[str, str], ...]
Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True, slots=True)
class BackendRef:
    """A port of a Service, by number or name."""

    namespace: str
    name: str
    port: int | str


@dataclass(frozen=True, slots=True)
class Split:
    """A share of a path's requests, in percent, and the headers they get."""

    backend: BackendRef
    percent: int
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class Path:
    """Requests whose path begins so and whose headers are exactly these. The first that fits is taken."""

    prefix: str
    matches: Headers
    splits: tuple[Split, ...]
    headers: Headers = ()
    rewrite_host: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """What becomes of requests to some hosts. Those that are not external are known inside of the cluster only."""

    hosts: tuple[str, ...]
    external: bool
    paths: tuple[Path, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate by its Secret, and the names it is shown for; without names, those that it has itself."""

    hosts: tuple[str, ...]
    secret: Key


@dataclass(frozen=True, slots=True)
class Ingress:
    """What is to be served. `hash` is Knative's of the specification, which probes ask for."""

    key: Key
    uid: str
    created: str
    generation: int
    hash: str
    rules: tuple[Rule, ...]
    tls: tuple[Tls, ...] = ()
    redirect: bool = False


@dataclass(frozen=True, slots=True)
class SeenIngress:
    """An Ingress of whatever class, or what is wrong with it."""

    key: Key
    uid: str
    generation: int
    ingress_class: str
    ingress: Ingress | None
    problem: str = ""


def seen_ingress(document: dict[str, Any]) -> SeenIngress:
    """Read an Ingress; one that cannot be served says why in `problem`."""
    metadata = document["metadata"]
    key = metadata.get("namespace", ""), metadata["name"]
    annotations = metadata.get("annotations") or {}
    named = next((annotations[name] for name in CLASS_ANNOTATIONS if name in annotations), "")
    generation = int(metadata.get("generation", 0))
    try:
        return SeenIngress(key, metadata["uid"], generation, named, ingress(document))
    except GnomonError as error:
        return SeenIngress(key, metadata["uid"], generation, named, None, error.message)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"its specification cannot be read: {type(error).__name__}: {error}"
        return SeenIngress(key, metadata["uid"], generation, named, None, problem)


def ingress(document: dict[str, Any]) -> Ingress:
    """Read an Ingress.

    Raises:
        GnomonError: 400 `ingress_invalid`, with the field.

    """
    metadata = document["metadata"]
    key: Key = (metadata["namespace"], metadata["name"])
    spec = document.get("spec") or {}
    rules = tuple(_rule(rule, f"rules[{number}]") for number, rule in enumerate(spec.get("rules") or ()))
    if not rules:
        raise _invalid("rules", "there is none")
    return Ingress(
        key,
        metadata["uid"],
        str(metadata.get("creationTimestamp", "")),
        int(metadata.get("generation", 0)),
        network_hash(spec, *key),
        rules,
        tuple(_tls(one, f"tls[{number}]", key[0]) for number, one in enumerate(spec.get("tls") or ())),
        spec.get("httpOption") == REDIRECTED,
    )


def _rule(rule: Mapping[str, Any], field: str) -> Rule:
    hosts = _hosts(rule.get("hosts") or (), f"{field}.hosts")
    if not hosts:
        raise _invalid(f"{field}.hosts", "a rule without a host would take everybody's requests")
    given = (rule.get("http") or {}).get("paths") or ()
    paths = tuple(_path(path, f"{field}.http.paths[{number}]") for number, path in enumerate(given))
    if not paths:
        raise _invalid(f"{field}.http.paths", "there is none")
    return Rule(hosts, rule.get("visibility", EXTERNAL) in ("", EXTERNAL), paths)


def _path(path: Mapping[str, Any], field: str) -> Path:
    prefix = str(path.get("path") or "/")
    if not prefix.startswith("/") or len(prefix.encode()) > MAX_PATH:
        raise _invalid(f"{field}.path", f"it must begin with / and have at most {MAX_PATH} bytes")
    matches = {name: (match or {}).get("exact", "") for name, match in (path.get("headers") or {}).items()}
    if not all(matches.values()):
        raise _invalid(f"{field}.headers", "a header that is matched must have a value")
    rewrite = str(path.get("rewriteHost") or "")
    if rewrite:
        _hosts((rewrite,), f"{field}.rewriteHost", wildcard=False)
    given = path.get("splits") or ()
    splits = tuple(_split(split, len(given), f"{field}.splits[{number}]") for number, split in enumerate(given))
    if sum(split.percent for split in splits) != ALL_PERCENT:
        raise _invalid(f"{field}.splits", f"the percents sum to {sum(split.percent for split in splits)}, not to 100")
    return Path(
        prefix,
        _headers(matches, f"{field}.headers"),
        splits,
        _headers(path.get("appendHeaders") or {}, f"{field}.appendHeaders"),
        rewrite.lower(),
    )


def _split(split: Mapping[str, Any], count: int, field: str) -> Split:
    percent = int(split.get("percent") or 0)
    if count == 1 and percent == 0:
        percent = ALL_PERCENT
    if not 0 <= percent <= ALL_PERCENT:
        raise _invalid(f"{field}.percent", "it is not between 0 and 100")
    port: Any = split.get("servicePort")
    by_number = isinstance(port, int) and 0 < port <= 2**16 - 1
    if not by_number and not (isinstance(port, str) and _PORT_NAME.fullmatch(port)):
        raise _invalid(f"{field}.servicePort", "it is neither a port nor the name of one")
    for name in ("serviceNamespace", "serviceName"):
        if not _NAME.fullmatch(str(split.get(name) or "")):
            raise _invalid(f"{field}.{name}", "it is not a name")
    backend = BackendRef(split["serviceNamespace"], split["serviceName"], port)
    return Split(backend, percent, _headers(split.get("appendHeaders") or {}, f"{field}.appendHeaders"))


def _tls(tls: Mapping[str, Any], field: str, namespace: str) -> Tls:
    secret = str(tls.get("secretNamespace") or namespace), str(tls.get("secretName") or "")
    if not all(_NAME.fullmatch(part) for part in secret):
        raise _invalid(f"{field}.secretName", "it is not a name")
    return Tls(_hosts(tls.get("hosts") or (), f"{field}.hosts"), secret)


def _hosts(hosts: Iterable[Any], field: str, *, wildcard: bool = True) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(str(host).lower() for host in hosts))
    for host in found:
        if not _HOST.fullmatch(host) or len(host) > 253 or (host.startswith("*") and not wildcard):  # noqa: PLR2004 - of DNS
            raise _invalid(field, f"{host[:80]!r} is not a DNS name")
    return found


def _headers(headers: Mapping[str, Any], field: str) -> Headers:
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or name.lower() in _FRAMING:
            raise _invalid(field, f"{name[:80]!r} is not a header that may be set or matched")
        if not isinstance(value, str) or _CONTROL.search(value) or len(value.encode()) > MAX_VALUE:
            raise _invalid(field, f"the value of {name} has control characters or more than {MAX_VALUE} bytes")
    lower = [name.lower() for name in headers]
    if len(set(lower)) != len(lower):
        raise _invalid(field, "a header is named twice")
    return tuple(sorted(headers.items()))


def _invalid(field: str, reason: str) -> GnomonError:
    return bad_request("ingress_invalid", f"spec.{field}: {reason}.", "Correct it.")

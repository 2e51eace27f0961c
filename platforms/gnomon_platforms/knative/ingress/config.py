"""HAProxy's configuration.

It knows no host, no path and no service: those are in maps, and servers come and go by the runtime API. What it has to know are
the names of headers that are matched or set, and how many backends there are. It changes when a name comes that was in no
Ingress before, or when the backends are used up, and only then is HAProxy reloaded.

Every request is looked up in the same steps, in each frontend with its own map of hosts:

    host ▶ table ▶ list, by the longest prefix of the path ▶ entry, the smallest that any group of headers leads to ▶ share, drawn
      └── 404                                            └── 404                      headers are set, its backend is used ◀──┘

A share is drawn anew for each request. A connection that cannot be made is tried at another endpoint; a request that was sent
is never sent again. Nobody but function and activator decide how long an answer may take.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gnomon_core.errors import bad_request
from gnomon_platforms.knative.ingress.backends import Backend, Endpoint
from gnomon_platforms.knative.ingress.maps import NOBODY, PARTS, Group, Names, group_id, hexed
from gnomon_platforms.knative.ingress.names import HASH_HEADER, HASH_OVERRIDE

GENERATION_HEADER = "Gnomon-Generation"
PROBE_SOCKET_ID = 99
CERTIFICATE_LIST = "certificates.list"
FEWEST_DESCRIPTORS = 1000

_BIND = re.compile(r"(unix@[A-Za-z0-9/._-]+|abns@[A-Za-z0-9._-]+|[0-9a-fA-F.:*\[\]]*:[0-9]{1,5})")
_FOLDER = re.compile(r"/[A-Za-z0-9/._-]+")


@dataclass(frozen=True, slots=True)
class Binds:
    """Where HAProxy listens, as `ADDRESS:PORT` or `unix@PATH`. Probes are answered at sockets of their own."""

    http: str = "*:8080"
    https: str = "*:8443"
    local: str = "*:8081"
    probe_http: str = "127.0.0.1:8090"
    probe_local: str = "127.0.0.1:8091"

    def __post_init__(self) -> None:
        for bind in (self.http, self.https, self.local, self.probe_http, self.probe_local):
            if not _BIND.fullmatch(bind):
                raise bad_request("ingress_bind", f"{bind!r} is no address to listen at.", "Write ADDRESS:PORT or unix@PATH.")


@dataclass(frozen=True, slots=True)
class Limits:
    """How long connections may be silent, and how many there may be. No answer takes as long as `answer_s` on Knative.

    A connection takes two descriptors, so 10,000 of them are 4,980 connections. One by TLS whose client does not read its answer
    was found to hold 87 kB, which makes 433 MB; twice that beside a worker that was replaced, and 100 MB for the process that
    programs it, are within the 1 GiB that deploy/knative allows a pod. Whoever allows more may have more, in proportion.
    """

    connect_s: float = 2.0
    headers_s: float = 10.0
    keep_alive_s: float = 60.0
    answer_s: float = 3600.0
    tunnel_s: float = 86400.0
    old_worker_s: float = 3600.0
    descriptors: int = 10_000

    def __post_init__(self) -> None:
        if self.descriptors < FEWEST_DESCRIPTORS:
            raise bad_request(
                "ingress_descriptors", f"{self.descriptors} descriptors are too few.", f"Give it {FEWEST_DESCRIPTORS}."
            )


@dataclass(frozen=True, slots=True)
class Shape:
    """What the configuration has to know."""

    folder: Path
    names: Names
    backends: int
    binds: Binds = Binds()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        if not _FOLDER.fullmatch(str(self.folder)):
            raise bad_request("ingress_folder", f"{self.folder} has characters that HAProxy would read otherwise.")


def place(number: int) -> str:
    """The name of a backend."""
    return f"b{number}"


def named_servers(backend: Backend) -> dict[str, Endpoint]:
    """A backend's servers by name, in the configuration and at runtime: the address, in characters that a name may have.

    The protocol is part of it: a server cannot change it.
    """
    suffix = "-h2" if backend.h2c else ""
    return {f"{each}{suffix}".replace("[", "").replace("]", ""): each for each in backend.endpoints}


def map_file(shape: Shape, name: str) -> Path:
    """The file of a map, which is also its name at runtime."""
    return shape.folder / f"{name}.map"


def configuration(shape: Shape, servers: Mapping[str, Backend], generation: str) -> str:
    """The text. `servers` are the backends by their names, `generation` is what probes are told."""
    lines = [*_global(shape), *_defaults(shape.limits)]
    external = ("hosts-external", generation)
    lines += ["frontend external", f"  bind {shape.binds.http}", f"  bind {shape.binds.probe_http} id {PROBE_SOCKET_ID}"]
    lines += _rules(shape, *external, redirects=True)
    lines += ["frontend secure", f"  bind {shape.binds.https} ssl crt-list {shape.folder / CERTIFICATE_LIST} strict-sni"]
    lines[-1] += " ssl-min-ver TLSv1.2 alpn h2,http/1.1"
    lines += _rules(shape, *external, scheme="https")
    lines += ["frontend local", f"  bind {shape.binds.local}", f"  bind {shape.binds.probe_local} id {PROBE_SOCKET_ID}"]
    lines += _rules(shape, "hosts-local", generation)
    lines += ["backend nobody", "  http-request return status 503"]
    for number in range(shape.backends):
        name = place(number)
        lines += [f"backend {name}", "  balance random(2)", *_servers(servers.get(name))]
    return "\n".join(lines) + "\n"


def _servers(backend: Backend | None) -> Iterable[str]:
    if backend is None:
        return []
    return [f"  server {name} {each}{options(backend)}" for name, each in named_servers(backend).items()]


def options(backend: Backend) -> str:
    """How a backend's servers are spoken to."""
    return " proto h2" if backend.h2c else ""


def _global(shape: Shape) -> list[str]:
    return [
        "global",
        "  log stderr format raw daemon notice",
        f"  stats socket unix@{shape.folder}/runtime.sock mode 600 level admin expose-fd listeners",
        f"  hard-stop-after {shape.limits.old_worker_s:.0f}s",
        # Else it makes its tables for as many as the node allows, which may be a thousand million of 64 bytes each.
        f"  fd-hard-limit {shape.limits.descriptors}",
    ]


def _defaults(limits: Limits) -> list[str]:
    return [
        "defaults",
        "  mode http",
        "  option forwardfor",
        # A worker that is replaced answers what comes on its old connections once more, and then closes them.
        "  option idle-close-on-response",
        "  option redispatch 1",
        "  retries 3",
        "  retry-on conn-failure",
        "  default_backend nobody",
        f"  timeout connect {limits.connect_s * 1000:.0f}ms",
        f"  timeout http-request {limits.headers_s * 1000:.0f}ms",
        f"  timeout http-keep-alive {limits.keep_alive_s * 1000:.0f}ms",
        f"  timeout client {limits.answer_s:.0f}s",
        f"  timeout server {limits.answer_s:.0f}s",
        f"  timeout tunnel {limits.tunnel_s:.0f}s",
    ]


def _rules(shape: Shape, hosts: str, generation: str, *, scheme: str = "http", redirects: bool = False) -> list[str]:
    rules = [
        *_table(shape, hosts, generation),
        *([f"redirect scheme https code 301 if {{ var(txn.table),{_map(shape, 'redirects')} -m found }}"] if redirects else []),
        *_entry(shape),
        *_share(shape),
        f"set-header X-Forwarded-Proto {scheme}",
        *(_set_header(shape, name, hexed(name)) for name in shape.names.headers),
        *_set_hash(shape),
        _set_header(shape, "Host", "host"),
    ]
    return [*(f"  http-request {rule}" for rule in rules), f"  use_backend %[var(txn.share),{_map(shape, 'backends')}]"]


def _map(shape: Shape, name: str, kind: str = "map_str", otherwise: str = "") -> str:
    return f"{kind}({map_file(shape, name)}{otherwise})"


def _table(shape: Shape, hosts: str, generation: str) -> list[str]:
    """From the host to the table; a wildcard stands for one label."""
    found, probe = "{ var(txn.table) -m found }", f"{{ so_id {PROBE_SOCKET_ID} }}"
    told = f'hdr {GENERATION_HEADER} "{generation}"'
    lookup = f"hex,{_map(shape, hosts)}"
    wildcard = f"req.hdr(host),host_only,regsub(^[^.]+,*),{lookup}"
    return [
        f"use-service prometheus-exporter if {probe} {{ path /metrics }}",
        f"set-var(txn.table) req.hdr(host),host_only,{lookup}",
        f"set-var(txn.table) {wildcard} if !{found}",
        f"return status 404 {told} if {probe} !{found}",
        f'return status 200 {told} hdr {HASH_HEADER} "%[var(txn.table),{_map(shape, "hashes")}]" if {probe}',
        f'return status 404 content-type text/plain string "no function has this host\\n" if !{found}',
    ]


def _entry(shape: Shape) -> list[str]:
    """From path and headers to the entry: the smallest number of all groups."""
    first = _map(shape, "firsts", "map_str_int", f",{NOBODY}")
    nobody = 'return status 404 content-type text/plain string "no function has this path\\n"'
    rules = [
        "set-var(txn.path) path,hex",
        f"set-var(txn.list) var(txn.table),concat(/,txn.path),{_map(shape, 'paths', 'map_beg')}",
        f"{nobody} if !{{ var(txn.list) -m found }}",
        f"set-var(txn.entry) var(txn.list),{first}",
    ]
    for group in shape.names.groups:
        rules += _candidate(shape, group)
    rules.append(f"{nobody} if {{ var(txn.entry) -m int {NOBODY} }}")
    rules.append("set-var(txn.entry) var(txn.table),concat(.,txn.entry)")
    return rules


def _candidate(shape: Shape, group: Group) -> list[str]:
    lookup = _map(shape, "matches", "map_str_int", f",{NOBODY}")
    values = [f"set-var(txn.value{number}) req.fhdr({name}),hex" for number, name in enumerate(group)]
    present = " ".join(f"{{ req.fhdr_cnt({name}) 1 }}" for name in group)
    words = "".join(f",concat(/,txn.value{number})" for number in range(len(group)))
    return [
        *values,
        f"set-var(txn.candidate) int({NOBODY})",
        f"set-var(txn.candidate) var(txn.list),concat(/{group_id(group)}){words},{lookup} if {present}",
        "set-var(txn.entry) var(txn.candidate) if { var(txn.candidate),sub(txn.entry) -m int lt 0 }",
    ]


def _share(shape: Shape) -> list[str]:
    lookup = _map(shape, "shares")
    return [
        f"set-var(txn.drawn) rand({PARTS})",
        f"set-var(txn.share) var(txn.entry),{lookup}",
        f"set-var(txn.share) var(txn.entry),concat(/,txn.drawn),{lookup} if !{{ var(txn.share) -m found }}",
    ]


def _set_header(shape: Shape, header: str, word: str) -> str:
    value = f"var(txn.share),concat(/{word}),{_map(shape, 'headers')}"
    return f"set-header {header} %[{value},b64dec] if {{ {value} -m found }}"


def _set_hash(shape: Shape) -> list[str]:
    value = f"%[var(txn.table),{_map(shape, 'hashes')}]"
    return [f"set-header {HASH_HEADER} {value} if {{ req.hdr({HASH_HEADER}) -m str {HASH_OVERRIDE} }}"]

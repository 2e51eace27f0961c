"""Tables: what becomes of a request, by host, path, headers and share.

    host ▶ table ▶ the longest of its prefixes that the path begins with ▶ the first of its entries whose headers match ▶ share

An Ingress's rule is one table. Its paths are tried in order, and the first that fits is taken. That is the same as looking up
the longest prefix, and trying in order the paths that may fit there: for a request whose longest prefix is P, those are the
paths whose own prefix P begins with. What comes after a path that asks for no headers is never reached.

    "/v1/models" tag=blue ▶ A     lists:  "/"           3
    "/v1" ▶ B                             "/v1"         1, 3 ▶ 1 (3 is never reached)
    "/" ▶ C                               "/v1/models"  0 if tag=blue, 1

A table's name is a digest of all that is in it, so two tables of one name are the same, and what belongs to a name never
changes: a host is led to another table by changing one value. Where two Ingresses claim a host, the older one has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gnomon_platforms.knative.ingress.backends import Backend, View, backend, key_of
from gnomon_platforms.knative.ingress.model import Headers, Ingress, Key, Path, Rule

DIGEST = 20


@dataclass(frozen=True, slots=True)
class Share:
    """A split as it is served: percent, the backend's key, and all headers it gets."""

    percent: int
    backend: str
    headers: Headers


@dataclass(frozen=True, slots=True)
class Entry:
    """One path of a rule: the headers it asks for, and its shares."""

    matches: Headers
    shares: tuple[Share, ...]
    rewrite_host: str


@dataclass(frozen=True, slots=True)
class Table:
    """A rule as it is looked up: entries, and for each prefix the entries to try in order."""

    id: str
    hash: str
    redirect: bool
    entries: tuple[Entry, ...]
    lists: tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Shown:
    """A certificate with its key, and the names it is shown for."""

    hosts: tuple[str, ...]
    pem: str


@dataclass(frozen=True, slots=True)
class Routing:
    """All that is served. `external` and `local` lead from hosts to tables; `losers` are Ingresses without their host."""

    external: dict[str, Table]
    local: dict[str, Table]
    backends: dict[str, Backend]
    certificates: tuple[Shown, ...]
    losers: dict[Key, str]


def table(rule: Rule, network_hash: str, *, redirect: bool, key: Callable[[Path, int], str]) -> Table:
    """A rule's table. `key` names the backend of a path's split."""
    entries = tuple(
        Entry(
            path.matches,
            tuple(
                Share(split.percent, key(path, number), _merged(path.headers, split.headers))
                for number, split in enumerate(path.splits)
                if split.percent
            ),
            path.rewrite_host,
        )
        for path in rule.paths
    )
    lists = tuple((prefix, _reached(rule, prefix)) for prefix in sorted({path.prefix for path in rule.paths}))
    redirected = redirect and rule.external
    content = repr((network_hash, redirected, entries, lists)).encode("utf-8", "surrogatepass")
    return Table(hashlib.sha256(content).hexdigest()[:DIGEST], network_hash, redirected, entries, lists)


def routing(ingresses: Iterable[Ingress], view: View) -> Routing:
    """What is served for these Ingresses. Splits whose backend is missing lead to one that answers 503."""
    external: dict[str, Table] = {}
    local: dict[str, Table] = {}
    backends: dict[str, Backend] = {}
    shown: dict[str, Shown] = {}
    losers: dict[Key, str] = {}
    for one in sorted(ingresses, key=lambda each: (each.created, each.key)):
        for rule in one.rules:
            made = table(rule, one.hash, redirect=one.redirect, key=lambda path, number: key_of(path.splits[number], view))
            for host in rule.hosts:
                # Whoever is inside reaches what is external as well, and by the same name.
                places = (local, external) if rule.external else (local,)
                if any(host in place for place in places):
                    losers[one.key] = host
                else:
                    for place in places:
                        place[host] = made
        _add_backends(one, view, backends)
        for tls in one.tls:
            pem = view.certificate(tls.secret)
            names = tuple(name for name in tls.hosts if name not in shown)
            if pem and (names or not tls.hosts):
                shown |= {name: Shown(names, pem) for name in names or ("/".join(tls.secret),)}
    certificates = tuple(sorted(set(shown.values()), key=lambda each: (each.hosts, each.pem)))
    return Routing(external, local, backends, certificates, losers)


def _add_backends(one: Ingress, view: View, backends: dict[str, Backend]) -> None:
    for rule in one.rules:
        for path in rule.paths:
            for split in path.splits:
                if split.percent:
                    found = backend(split, view)
                    key = key_of(split, view)
                    backends[key] = found if isinstance(found, Backend) else Backend(key, h2c=False, endpoints=())


def _reached(rule: Rule, prefix: str) -> tuple[int, ...]:
    """The paths that a request may be for whose longest prefix is this one, in order."""
    reached: list[int] = []
    asked: list[Headers] = []
    for number, path in enumerate(rule.paths):
        if not prefix.startswith(path.prefix) or any(_covers(earlier, path.matches) for earlier in asked):
            continue
        reached.append(number)
        asked.append(path.matches)
    return tuple(reached)


def _covers(earlier: Headers, later: Headers) -> bool:
    """Whether a request that has the later headers has the earlier ones."""
    have = {name.lower(): value for name, value in later}
    return all(have.get(name.lower()) == value for name, value in earlier)


def _merged(path: Headers, split: Headers) -> Headers:
    """A path's headers and a split's, which win."""
    ours = {name.lower(): (name, value) for name, value in path}
    ours |= {name.lower(): (name, value) for name, value in split}
    return tuple(sorted(ours.values()))

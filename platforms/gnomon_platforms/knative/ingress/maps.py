"""What HAProxy looks up: tables as maps of words to words.

    hosts-external, hosts-local   hex(host) ▶ T
    hashes                        T ▶ Knative's hash                 redirects   T ▶ 1
    paths       (longest prefix)  T/hex(path) ▶ L                    with L = T.<number of the list>
    firsts                        L ▶ number of the entry for whoever has no headers
    matches                       L/<group>/hex(value)/… ▶ number of an entry
    shares                        E ▶ S, or E/0 … E/99 ▶ S           with E = T.<number of the entry>, S = E.<number of the share>
    backends                      S ▶ name of a backend
    headers                       S/hex(name) ▶ base64(value); S/host ▶ base64(host)

A group is a set of header names that some entry asks for; its values are compared together, each as hexadecimal digits, so that
no value can look like two. The smallest number of all groups wins, which is the first entry. All words consist of letters,
digits and `/.+=-`, whatever users write.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gnomon_platforms.knative.ingress.routing import Entry, Routing, Table

HOSTS = ("hosts-external", "hosts-local")
LOWER = ("hashes", "redirects", "paths", "firsts", "matches", "shares", "backends", "headers")
"""Their words belong to a table, and mean what they mean as long as it exists."""
NAMES = HOSTS + LOWER
NOBODY = 99999
"""No entry."""
PARTS = 100

WORD = re.compile(r"[A-Za-z0-9/.+=-]+")

Group = tuple[str, ...]
Maps = dict[str, dict[str, str]]


@dataclass(frozen=True, slots=True)
class Names:
    """The names of headers that HAProxy's configuration has to know: what is matched, in groups, and what is set."""

    groups: tuple[Group, ...] = ()
    headers: tuple[str, ...] = ()

    def __or__(self, other: Names) -> Names:
        return Names(
            tuple(sorted(set(self.groups) | set(other.groups))),
            tuple(sorted(set(self.headers) | set(other.headers))),
        )


def names(routing: Routing) -> Names:
    """The names that these tables need."""
    entries = [entry for table in _tables(routing) for entry in table.entries]
    groups = {_group(entry) for entry in entries if entry.matches}
    headers = {name.lower() for entry in entries for share in entry.shares for name, _ in share.headers}
    return Names(tuple(sorted(groups)), tuple(sorted(headers)))


def maps(routing: Routing, places: Mapping[str, str]) -> Maps:
    """The maps. `places` leads from backends' keys to HAProxy's names for them."""
    made: Maps = {name: {} for name in NAMES}
    for name, hosts in zip(HOSTS, (routing.external, routing.local), strict=True):
        made[name] = {hexed(host): table.id for host, table in hosts.items()}
    for table in _tables(routing):
        _add_table(made, table, places)
    return made


def group_id(group: Group) -> str:
    """Its name in words; the same wherever there are other groups, too."""
    return hashlib.sha256(",".join(group).encode()).hexdigest()[:8]


def hexed(text: str) -> str:
    """As HAProxy's `hex` writes it."""
    return text.encode("utf-8", "surrogatepass").hex().upper()


def _tables(routing: Routing) -> Iterable[Table]:
    return {table.id: table for hosts in (routing.external, routing.local) for table in hosts.values()}.values()


def _group(entry: Entry) -> Group:
    return tuple(sorted(name.lower() for name, _ in entry.matches))


def _add_table(made: Maps, table: Table, places: Mapping[str, str]) -> None:
    made["hashes"][table.id] = table.hash
    if table.redirect:
        made["redirects"][table.id] = "1"
    for number, (prefix, reached) in enumerate(table.lists):
        each = f"{table.id}.{number}"
        made["paths"][f"{table.id}/{hexed(prefix)}"] = each
        for entry_number in reached:
            entry = table.entries[entry_number]
            if not entry.matches:
                made["firsts"][each] = str(entry_number)
                continue
            values = {name.lower(): value for name, value in entry.matches}
            group = _group(entry)
            words = "/".join(hexed(values[name]) for name in group)
            made["matches"].setdefault(f"{each}/{group_id(group)}/{words}", str(entry_number))
    for number, entry in enumerate(table.entries):
        _add_entry(made, f"{table.id}.{number}", entry, places)


def _add_entry(made: Maps, name: str, entry: Entry, places: Mapping[str, str]) -> None:
    part = 0
    for number, share in enumerate(entry.shares):
        each = f"{name}.{number}"
        made["backends"][each] = places[share.backend]
        for header, value in share.headers:
            made["headers"][f"{each}/{hexed(header.lower())}"] = _based(value)
        if entry.rewrite_host:
            made["headers"][f"{each}/host"] = _based(entry.rewrite_host)
        if share.percent == PARTS:
            made["shares"][name] = each
        else:
            made["shares"] |= {f"{name}/{drawn}": each for drawn in range(part, part + share.percent)}
            part += share.percent


def _based(text: str) -> str:
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode() or "="

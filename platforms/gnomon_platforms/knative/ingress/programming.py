"""From what HAProxy has to what it is to have, by commands of its runtime API, in an order in which no request falls in between.

    1  servers that are new          nobody is led to them yet
    2  words of new tables           nobody is led there either: what belongs to a table's name never changes
    3  certificates
    4  hosts                         one value each: now requests go by the new table
    5  servers that are gone         get no new requests; those that they hold go on
    …  a while later
    6  words of tables, certificates and servers that nobody needs any more

Names of headers, and the number of backends, are not among it: those are in the configuration, and need a reload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gnomon_platforms.knative.ingress.backends import Backend
from gnomon_platforms.knative.ingress.config import CERTIFICATE_LIST, Shape, map_file, named_servers, options, place
from gnomon_platforms.knative.ingress.maps import HOSTS, LOWER, WORD, Maps, Names, maps, names
from gnomon_platforms.knative.ingress.routing import Routing, Shown

MAX_COMMAND_BYTES = 8000
"""Half of what HAProxy reads at once."""
FIRST_BACKENDS = 64

Servers = dict[str, dict[str, bool]]
"""By backend: the servers it has, and whether they get requests."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command. Lines of `payload` follow it. `answers` are the beginnings of what it says when it has done it."""

    text: str
    payload: str = ""
    answers: tuple[str, ...] = ("",)


@dataclass(frozen=True, slots=True)
class State:
    """What HAProxy is to have."""

    names: Names
    maps: Maps
    servers: dict[str, Backend]
    certificates: dict[str, Shown]


@dataclass(slots=True)
class Held:
    """What HAProxy has: what it is to have, and what it had."""

    maps: Maps
    servers: Servers
    certificates: dict[str, Shown]


@dataclass(slots=True)
class Places:
    """Which backend of HAProxy's a key has. It keeps it as long as somebody may be led there."""

    count: int = FIRST_BACKENDS
    taken: dict[str, str] = field(default_factory=dict)

    def assign(self, keys: Iterable[str]) -> bool:
        """Give each of these keys one. Whether there have to be more of them for it."""
        free = sorted(set(range(self.count)) - {int(name[1:]) for name in self.taken.values()}, reverse=True)
        grown = False
        for key in sorted(set(keys) - self.taken.keys()):
            if not free:
                free = list(range(2 * self.count - 1, self.count - 1, -1))
                self.count *= 2
                grown = True
            self.taken[key] = place(free.pop())
        return grown

    def keep(self, keys: Iterable[str], busy: Iterable[str]) -> None:
        """Only these keys, and those whose backend is busy, need theirs any longer."""
        kept, still = set(keys), set(busy)
        self.taken = {key: name for key, name in self.taken.items() if key in kept or name in still}


def state(routing: Routing, places: Mapping[str, str], known: Names) -> State:
    """What HAProxy is to have for this. `known` are the names of headers it is told besides those that are needed."""
    made = maps(routing, places)
    for words in made.values():
        for key, value in words.items():
            assert WORD.fullmatch(key), key
            assert WORD.fullmatch(value), value
    servers = {places[key]: backend for key, backend in routing.backends.items()}
    return State(names(routing) | known, made, servers, {certificate_id(shown): shown for shown in routing.certificates})


def certificate_id(shown: Shown) -> str:
    """A name by what it is shown for, so that a renewed certificate takes its predecessor's place."""
    of = " ".join(shown.hosts) or shown.pem
    return hashlib.sha256(of.encode()).hexdigest()[:20]


def certificate_file(shape: Shape, name: str) -> Path:
    """Where a certificate lies, which is also its name at runtime."""
    return shape.folder / f"{name}.pem"


def certificate_line(shape: Shape, name: str, shown: Shown) -> str:
    """Its line in the list of certificates."""
    return " ".join([str(certificate_file(shape, name)), *shown.hosts])


def loaded(wanted: State) -> Held:
    """What a worker has that was started with this."""
    servers = {where: dict.fromkeys(named_servers(backend), True) for where, backend in wanted.servers.items()}
    return Held({name: dict(words) for name, words in wanted.maps.items()}, servers, dict(wanted.certificates))


def switch(shape: Shape, held: Held, wanted: State) -> list[Command]:
    """Commands 1 to 5; `held` is what HAProxy has after them."""
    commands = list(_begin_servers(held, wanted))
    for name in LOWER:
        have = held.maps[name]
        added = {key: value for key, value in wanted.maps[name].items() if key not in have}
        commands += _additions(shape, name, added)
        # A table's words never change, but the backend of a key may, after nobody was led there for a while.
        commands += [
            Command(f"set map {map_file(shape, name)} {key} {value}")
            for key, value in wanted.maps[name].items()
            if have.get(key, value) != value
        ]
        have |= wanted.maps[name]
    commands += _certificates(shape, held, wanted)
    for name in HOSTS:
        commands += _hosts(shape, name, held.maps[name], wanted.maps[name])
        held.maps[name] = dict(wanted.maps[name])
    return commands + list(_end_servers(held, wanted))


def sweep(shape: Shape, held: Held, needed: Iterable[State]) -> list[Command]:
    """Command 6, but for servers. `needed` are the states of the last while; `held` is what HAProxy has afterwards."""
    states = list(needed)
    commands: list[Command] = []
    for name in LOWER:
        wanted = set[str]().union(*(one.maps[name].keys() for one in states))
        for key in [key for key in held.maps[name] if key not in wanted]:
            del held.maps[name][key]
            commands.append(Command(f"del map {map_file(shape, name)} {key}"))
    shown = set[str]().union(*(one.certificates.keys() for one in states))
    for name in [name for name in held.certificates if name not in shown]:
        del held.certificates[name]
        file = certificate_file(shape, name)
        commands += [
            Command(f"del ssl crt-list {shape.folder / CERTIFICATE_LIST} {file}", answers=("deleted",)),
            Command(f"del ssl cert {file}", answers=("deleted",)),
        ]
    return commands


def ended(held: Held) -> list[tuple[str, str]]:
    """Servers that get no requests any more, by backend: each can be deleted once it holds none."""
    return [(where, name) for where, servers in held.servers.items() for name, up in servers.items() if not up]


def deletion(where: str, name: str) -> Command:
    """Delete a server; HAProxy refuses while it holds something."""
    return Command(f"del server {where}/{name}", answers=("Server deleted",))


def _begin_servers(held: Held, wanted: State) -> Iterator[Command]:
    for where, backend in wanted.servers.items():
        have = held.servers.setdefault(where, {})
        for name, endpoint in named_servers(backend).items():
            if name not in have:
                yield Command(f"add server {where}/{name} {endpoint}{options(backend)}", answers=("New server registered",))
                yield Command(f"enable server {where}/{name}")
            elif not have[name]:
                yield Command(f"set server {where}/{name} state ready")
            have[name] = True


def _end_servers(held: Held, wanted: State) -> Iterator[Command]:
    for where, have in held.servers.items():
        backend = wanted.servers.get(where)
        kept = named_servers(backend) if backend is not None else {}
        for name, up in have.items():
            if up and name not in kept:
                yield Command(f"set server {where}/{name} state maint")
                have[name] = False


def _additions(shape: Shape, name: str, added: Mapping[str, str]) -> Iterator[Command]:
    """Words, as many at once as fit."""
    lines: list[str] = []
    size = 0
    for key, value in added.items():
        line = f"{key} {value}"
        if lines and size + len(line) > MAX_COMMAND_BYTES:
            yield Command(f"add map {map_file(shape, name)} <<", "\n".join(lines))
            lines, size = [], 0
        lines.append(line)
        size += len(line) + 1
    if lines:
        yield Command(f"add map {map_file(shape, name)} <<", "\n".join(lines))


def _hosts(shape: Shape, name: str, have: Mapping[str, str], wanted: Mapping[str, str]) -> Iterator[Command]:
    yield from _additions(shape, name, {key: value for key, value in wanted.items() if key not in have})
    for key, value in wanted.items():
        if have.get(key, value) != value:
            yield Command(f"set map {map_file(shape, name)} {key} {value}")
    for key in have:
        if key not in wanted:
            yield Command(f"del map {map_file(shape, name)} {key}")


def _certificates(shape: Shape, held: Held, wanted: State) -> Iterator[Command]:
    for name, shown in wanted.certificates.items():
        before = held.certificates.get(name)
        if before == shown:
            continue
        file = certificate_file(shape, name)
        if before is None:
            yield Command(f"new ssl cert {file}", answers=("New empty",))
        yield Command(f"set ssl cert {file} <<", shown.pem.strip(), answers=("Transaction",))
        yield Command(f"commit ssl cert {file}", answers=("Committing",))
        if before is None:
            line = certificate_line(shape, name, shown)
            yield Command(f"add ssl crt-list {shape.folder / CERTIFICATE_LIST} <<", line, answers=("Inserting",))
        held.certificates[name] = shown

"""Whatever an Ingress says: requests go where the first path that fits says, and no word of it gets into HAProxy's language."""

from __future__ import annotations

import base64
from pathlib import Path as File
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gnomon_platforms.knative.ingress.backends import Endpoint, ServiceFacts, ServicePort, SliceFacts, StillView
from gnomon_platforms.knative.ingress.config import Shape, configuration
from gnomon_platforms.knative.ingress.maps import HOSTS, LOWER, NOBODY, WORD, Maps, Names, group_id, hexed
from gnomon_platforms.knative.ingress.model import Ingress, ingress, seen_ingress
from gnomon_platforms.knative.ingress.names import CLASS_ANNOTATIONS
from gnomon_platforms.knative.ingress.programming import Places, State, loaded, state, sweep, switch
from gnomon_platforms.knative.ingress.routing import routing
from tests.knative_ingresses import document, path, rule, split

NASTY = st.text(alphabet=st.sampled_from("ab/*.\"'\\ \n\r\t\0%[]{}()#$;,`<>&|é\u2028"), max_size=12)
SERVICES = ("s0", "s1", "s2")
PREFIXES = st.sampled_from(["", "/", "/a", "/a/", "/a/b", "/ab", "/b", "/a b", '/"%[src]"'])
NAMES_OF_HEADERS = ("Knative-Serving-Tag", "X-Kind")
MATCHES = st.dictionaries(st.sampled_from(NAMES_OF_HEADERS), st.sampled_from(["x", "y", 'x"y', "x,y", "x/y"]), max_size=2)


def view() -> StillView:
    keys = [("default", name) for name in SERVICES]
    services = {key: ServiceFacts(key, (ServicePort("http", 80, h2c=key[1] == "s1"),)) for key in keys}
    slices = tuple(SliceFacts(key, (("http", 8012),), (f"10.0.0.{number}",)) for number, key in enumerate(keys))
    return StillView(services, slices)


def served(*ingresses: Ingress, places: Places | None = None) -> State:
    made = routing(ingresses, view())
    taken = places or Places()
    taken.assign(made.backends)
    return state(made, taken.taken, Names())


def looked_up(maps: Maps, host: str, url_path: str, headers: dict[str, str], drawn: int) -> str | None:
    """The share that the maps lead to, by the steps of the configuration."""
    table = maps["hosts-external"].get(hexed(host))
    if table is None:
        return None
    asked = f"{table}/{hexed(url_path)}"
    longest = max((key for key in maps["paths"] if asked.startswith(key)), key=len, default=None)
    if longest is None:
        return None
    each = maps["paths"][longest]
    entry = int(maps["firsts"].get(each, NOBODY))
    lower = {name.lower(): value for name, value in headers.items()}
    for group in {(), ("knative-serving-tag",), ("x-kind",), ("knative-serving-tag", "x-kind")} - {()}:
        if all(name in lower for name in group):
            words = "/".join(hexed(lower[name]) for name in group)
            entry = min(entry, int(maps["matches"].get(f"{each}/{group_id(group)}/{words}", NOBODY)))
    if entry == NOBODY:
        return None
    name = f"{table}.{entry}"
    return maps["shares"].get(name) or maps["shares"][f"{name}/{drawn}"]


def first_that_fits(one: Ingress, url_path: str, headers: dict[str, str], drawn: int) -> tuple[int, int] | None:
    """The same by reading the rule from top to bottom."""
    lower = {name.lower(): value for name, value in headers.items()}
    for number, each in enumerate(one.rules[0].paths):
        if url_path.startswith(each.prefix) and all(lower.get(name.lower()) == value for name, value in each.matches):
            reached = 0
            for share, part in enumerate([part for part in each.splits if part.percent]):
                reached += part.percent
                if drawn < reached:
                    return number, share
    return None


@st.composite
def paths(draw: st.DrawFn) -> dict[str, Any]:
    percent = draw(st.integers(0, 100))
    names = draw(st.permutations(SERVICES))
    splits = [split(names[0], percent), split(names[1], 100 - percent)] if draw(st.booleans()) else [split(names[0])]
    matches = {name: {"exact": value} for name, value in draw(MATCHES).items()}
    return path(*splits, path=draw(PREFIXES), headers=matches)


@given(
    st.lists(paths(), min_size=1, max_size=6),
    st.sampled_from(["/", "/a", "/a/b", "/ab/c", "/c", "/a b", '/"%[src]"x']),
    MATCHES,
    st.integers(0, 99),
)
def test_a_request_goes_where_the_first_path_that_fits_says(
    given_paths: list[dict[str, Any]], url_path: str, headers: dict[str, str], drawn: int
) -> None:
    one = ingress(document("one", rule("a.example.com", *given_paths)))
    maps = served(one).maps
    expected = first_that_fits(one, url_path, headers, drawn)
    found = looked_up(maps, "a.example.com", url_path, headers, drawn)
    assert (None if found is None else tuple(int(part) for part in found.split(".")[1:])) == expected


@given(
    host=st.one_of(NASTY, st.just("a.example.com")),
    prefix=NASTY.map(lambda text: f"/{text}"),
    names=st.tuples(st.one_of(NASTY, st.just("X-A")), st.one_of(NASTY, st.just("X-B"))),
    values=st.tuples(NASTY, NASTY),
    rewrite=st.one_of(NASTY, st.just("")),
)
def test_what_a_user_writes_is_refused_or_digits(
    host: str, prefix: str, names: tuple[str, str], values: tuple[str, str], rewrite: str
) -> None:
    made = path(
        split("s0"),
        path=prefix,
        headers={names[0]: {"exact": values[0]}},
        appendHeaders={names[1]: values[1]},
        rewriteHost=rewrite,
    )
    seen = seen_ingress(document("one", rule(host, made)))
    if seen.ingress is None:
        assert seen.problem
        return
    wanted = served(seen.ingress)
    for name in (*HOSTS, *LOWER):
        assert all(WORD.fullmatch(key) and WORD.fullmatch(value) for key, value in wanted.maps[name].items())
    based = base64.b64encode(values[1].encode()).decode() or "="
    assert based in wanted.maps["headers"].values()
    shape = Shape(File("/run/x"), wanted.names, 2)
    text = configuration(shape, wanted.servers, "1-0")
    plain = configuration(Shape(File("/run/x"), Names(), 2), wanted.servers, "1-0")
    # Only names of headers get into the configuration, and those are letters, digits and - and _.
    for line in set(text.splitlines()) - set(plain.splitlines()):
        assert line.startswith("  http-request set-")
        assert not set(line) & set("\"'\\#$`;")


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | NASTY, lambda inner: st.lists(inner) | st.dictionaries(NASTY, inner))
)
def test_no_document_makes_reading_fail(spec: Any) -> None:
    whole = document("one")
    for broken in (
        spec,
        {"rules": spec},
        {"rules": [{"hosts": ["a.b"], "http": spec}]},
        {"rules": [{"http": {"paths": [spec]}}]},
    ):
        assert seen_ingress({**whole, "spec": broken}).problem
    annotated = {**whole["metadata"], "annotations": {CLASS_ANNOTATIONS[0]: "x"}}
    assert seen_ingress({**whole, "metadata": annotated}).ingress_class == "x"


@given(st.lists(st.lists(paths(), min_size=1, max_size=3), min_size=2, max_size=5))
def test_after_each_change_haproxy_has_what_it_is_to_have_and_nothing_that_is_used_was_changed(
    rules: list[list[dict[str, Any]]],
) -> None:
    """The commands of each change are carried out on dictionaries, as HAProxy does on its maps and servers."""
    places = Places()
    first, *later = [ingress(document("one", rule("a.example.com", *given_paths))) for given_paths in rules]
    before = served(first, places=places)
    shape = Shape(File("/run/x"), Names(), places.count)
    held, real = loaded(before), Played(shape, before)
    for one in later:
        wanted = served(one, places=places)
        for command in switch(shape, held, wanted):
            real.carry_out(command.text, command.payload)
        real.has(wanted)
        real.has_words(before)
        for command in sweep(shape, held, [wanted]):
            real.carry_out(command.text, command.payload)
        assert real.maps == wanted.maps
        before = wanted


class Played:
    """HAProxy's side of the runtime API. It has begun with a configuration; a server is one by its name and its address."""

    def __init__(self, shape: Shape, started: State) -> None:
        self.maps = {name: dict(words) for name, words in started.maps.items()}
        self.servers: dict[str, tuple[str, bool]] = {}
        where = ""
        for line in configuration(shape, started.servers, "1-0").splitlines():
            words = line.split()
            if words[0] == "backend":
                where = words[1]
            elif words[0] == "server":
                self.servers[f"{where}/{words[1]}"] = words[2], True

    def carry_out(self, text: str, payload: str) -> None:
        words = text.split()
        what = " ".join(words[:2])
        if what.endswith(" map"):
            of = self.maps[File(words[2]).stem]
            if what == "add map":
                for line in payload.splitlines():
                    key, value = line.split(" ")
                    assert key not in of
                    of[key] = value
            elif what == "set map":
                assert words[3] in of
                of[words[3]] = words[4]
            else:
                del of[words[3]]
        elif what == "add server":
            assert words[2] not in self.servers
            assert words[3] == str(Endpoint(*_address(words[3])))
            self.servers[words[2]] = words[3], False
        else:
            self.servers[words[2]] = self.servers[words[2]][0], what == "enable server" or words[-1] == "ready"

    def has(self, wanted: State) -> None:
        for name in HOSTS:
            assert self.maps[name] == wanted.maps[name]
        self.has_words(wanted)
        up = {(where, str(each)) for where, backend in wanted.servers.items() for each in backend.endpoints}
        assert {(name.partition("/")[0], address) for name, (address, ready) in self.servers.items() if ready} == up

    def has_words(self, wanted: State) -> None:
        for name in LOWER:
            assert wanted.maps[name].items() <= self.maps[name].items()


def _address(text: str) -> tuple[str, int]:
    ip, _, port = text.rpartition(":")
    return ip, int(port)

"""Asynchronous calls: order, retries, targets, and the size of their file."""

from __future__ import annotations

import asyncio
import sqlite3
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_gateway.asynchronous import calls
from gnomon_gateway.asynchronous.callbacks import CallbackHosts, Target
from gnomon_gateway.asynchronous.calls import KEPT_FREE_PAGES, Call, CallStore, FunctionAnswer, answer_of
from gnomon_gateway.asynchronous.queue import DEFAULT_RULE, Lanes, RetryRule, read_retry_rule
from tests.waiting import until


def ours(status: int, retry_after_s: float | None = None) -> FunctionAnswer:
    return answer_of(GnomonError(status, "code", "message", retry_after_s=retry_after_s))


def theirs(status: int, *headers: tuple[str, str]) -> FunctionAnswer:
    return FunctionAnswer(status, headers, b"")


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_our_own_not_now_is_retried_and_the_functions_is_final(status: int) -> None:
    assert DEFAULT_RULE.wait_s(ours(status), 1, Random(1)) is not None
    assert DEFAULT_RULE.wait_s(theirs(status), 1, Random(1)) is None


@pytest.mark.parametrize("status", [200, 202, 400, 404, 413, 500])
def test_nothing_else_is_retried_by_default(status: int) -> None:
    assert DEFAULT_RULE.wait_s(ours(status), 1, Random(1)) is None


def test_listed_statuses_are_retried_whoever_answered_and_others_not() -> None:
    rule = read_retry_rule({"com.openfaas.retry.codes": "408, 500"})
    assert rule.wait_s(theirs(500), 1, Random(1)) is not None
    assert rule.wait_s(ours(500), 1, Random(1)) is not None
    assert rule.wait_s(ours(503), 1, Random(1)) is None


def test_attempts_are_tries_after_the_first() -> None:
    rule = RetryRule(attempts=2)
    waits = [rule.wait_s(ours(503), tried, Random(1)) for tried in (1, 2, 3)]
    assert [wait is not None for wait in waits] == [True, True, False]
    assert RetryRule(attempts=0).wait_s(ours(503), 1, Random(1)) is None


@given(tried=st.integers(1, 10**6), seed=st.integers())
def test_the_wait_doubles_within_its_bounds(tried: int, seed: int) -> None:
    rule = RetryRule(attempts=10**7, min_wait_s=0.5, max_wait_s=8.0)
    wait_s = rule.wait_s(ours(503), tried, Random(seed))
    whole_s = min(8.0, 0.5 * 2 ** min(tried - 1, 64))
    assert wait_s is not None
    assert whole_s / 2 <= wait_s <= whole_s


def test_retry_after_is_a_lower_bound_up_to_the_longest_wait() -> None:
    rule = RetryRule(min_wait_s=0.1, max_wait_s=20.0)
    assert rule.wait_s(ours(429, 7.0), 1, Random(1)) == 7.0
    assert rule.wait_s(ours(429, 600.0), 1, Random(1)) == 20.0


def test_annotations_are_read() -> None:
    assert read_retry_rule({}) == DEFAULT_RULE
    assert read_retry_rule(
        {
            "com.openfaas.retry.attempts": "3",
            "com.openfaas.retry.codes": "429,503",
            "com.openfaas.retry.min_wait": "500ms",
            "com.openfaas.retry.max_wait": "1m",
        }
    ) == RetryRule(3, frozenset({429, 503}), 0.5, 60.0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", "-1"),
        ("attempts", "many"),
        ("attempts", "9999"),
        ("attempts", ""),
        ("codes", "5xx"),
        ("codes", ""),
        ("codes", "429,"),
        ("codes", "100"),
        ("min_wait", "soon"),
        ("max_wait", "-1s"),
        ("max_wait", "10000h"),
        ("max_wait", "1ms"),
    ],
)
def test_a_bad_annotation_says_what_is_allowed(name: str, value: str) -> None:
    with pytest.raises(GnomonError) as refused:
        read_retry_rule({f"com.openfaas.retry.{name}": value})
    assert refused.value.status == 400
    assert f"com.openfaas.retry.{name}" in refused.value.message
    assert refused.value.hint.startswith("It must be ")


class Work:
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.release = asyncio.Event()
        self.running = 0
        self.most = 0

    async def job(self, name: str) -> None:
        self.begun.append(name)
        self.running += 1
        self.most = max(self.most, self.running)
        await self.release.wait()
        self.running -= 1


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lane_runs_so_many_at_a_time_in_order() -> None:
    work, lanes = Work(), Lanes(2)
    for number in range(5):
        lanes.add("a", partial(work.job, str(number)))
    await settle()
    assert work.begun == ["0", "1"]
    work.release.set()
    await settle()
    assert work.begun == ["0", "1", "2", "3", "4"]
    assert work.most == 2


async def test_a_full_lane_does_not_hold_up_another() -> None:
    work, lanes = Work(), Lanes(1)
    for key in ("slow", "slow", "other"):
        lanes.add(key, partial(work.job, key))
    await settle()
    assert work.begun == ["slow", "other"]
    work.release.set()
    await lanes.stop(1.0)


async def test_stopping_lets_what_runs_end_and_begins_nothing() -> None:
    work, lanes = Work(), Lanes(1)
    lanes.add("a", partial(work.job, "runs"))
    lanes.add("a", partial(work.job, "waits"))
    lanes.add("a", partial(work.job, "later"), delay_s=0.001)
    await settle()
    asyncio.get_running_loop().call_later(0.01, work.release.set)
    await lanes.stop(5.0)
    assert work.running == 0
    assert work.begun == ["runs"]


async def test_stopping_cancels_what_takes_too_long() -> None:
    work, lanes = Work(), Lanes(1)
    lanes.add("a", partial(work.job, "runs"))
    await settle()
    await lanes.stop(0.0)
    assert work.begun == ["runs"]
    assert work.running == 1, "it was cut off, not finished"


HOSTS = CallbackHosts(["hooks.example.org", "hooks.example.org:8443", "203.0.113.9", "127.0.0.1:9000", "[::1]:9000"])


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://hooks.example.org", Target("http", "hooks.example.org", 80, "/")),
        ("https://hooks.example.org/done?x=1&y=%20", Target("https", "hooks.example.org", 443, "/done?x=1&y=%20")),
        ("https://HOOKS.example.org:8443/a", Target("https", "hooks.example.org", 8443, "/a")),
        ("http://203.0.113.9/", Target("http", "203.0.113.9", 80, "/")),
        ("http://127.0.0.1:9000/done", Target("http", "127.0.0.1", 9000, "/done")),
        ("http://[::1]:9000/done", Target("http", "::1", 9000, "/done")),
    ],
)
def test_listed_hosts_are_allowed_at_their_ports(url: str, target: Target) -> None:
    assert HOSTS.target(url) == target


REFUSED = {
    "a host that is not listed": "http://evil.example/",
    "another port of a listed host": "http://hooks.example.org:22/",
    "another port of a listed address": "http://127.0.0.1:9001/",
    "a listed name as a prefix": "http://hooks.example.org.evil.example/",
    "a listed name as a suffix": "http://evilhooks.example.org/",
    "a listed name as the user": "http://hooks.example.org@evil.example/",
    "a listed name with a password": "http://a:b@hooks.example.org/",
    "a listed name behind a fragment": "http://evil.example#@hooks.example.org/",
    "a backslash": "http://hooks.example.org\\@evil.example/",
    "the metadata service": "http://169.254.169.254/latest/meta-data/",
    "loopback": "http://127.0.0.1/",
    "loopback in decimal": "http://2130706433:9000/",
    "loopback in hexadecimal": "http://0x7f000001:9000/",
    "loopback in octal": "http://0177.0.0.1:9000/",
    "loopback abbreviated": "http://127.1:9000/",
    "loopback with leading zeros": "http://127.000.000.001:9000/",
    "loopback as an IPv6-mapped address": "http://[::ffff:127.0.0.1]:9000/",
    "loopback as an IPv6-mapped address in hexadecimal": "http://[::ffff:7f00:1]:9000/",
    "loopback in long IPv6": "http://[0:0:0:0:0:0:0:1]:9000/",
    "an IPv6 address with a zone": "http://[fe80::1%25eth0]:9000/",
    "all interfaces": "http://0.0.0.0:9000/",
    "localhost": "http://localhost:9000/",
    "a trailing dot": "http://hooks.example.org./",
    "full-width letters": "http://hooks。example。org/",
    "file": "file:///etc/passwd",
    "gopher": "gopher://hooks.example.org/",
    "ftp": "ftp://hooks.example.org/",
    "a Unix socket": "http+unix://%2Fvar%2Frun%2Fdocker.sock/",
    "no scheme": "hooks.example.org/",
    "no host": "http:///x",
    "a line break": "http://hooks.example.org/\r\nX: y",
    "a space": "http://hooks.example.org/ x",
    "a port that is none": "http://hooks.example.org:http/",
    "a port that is too large": "http://hooks.example.org:65536/",
    "an escaped host": "http://hooks%2eexample.org/",
    "a very long URL": "http://hooks.example.org/" + "a" * 4096,
    "nothing": "",
}


@pytest.mark.parametrize("url", REFUSED.values(), ids=REFUSED.keys())
def test_everything_else_is_refused_with_the_settings_name(url: str) -> None:
    with pytest.raises(GnomonError) as refused:
        HOSTS.target(url)
    assert (refused.value.status, refused.value.code) == (400, "callback_not_allowed")
    assert "--callback-host" in refused.value.hint


def test_by_default_nothing_is_allowed() -> None:
    with pytest.raises(GnomonError):
        CallbackHosts([]).target("http://hooks.example.org/")


@given(st.text(max_size=80))
def test_no_text_makes_it_fail_otherwise(text: str) -> None:
    for url in (text, f"http://{text}", f"http://hooks.example.org{text}"):
        try:
            target = HOSTS.target(url)
        except GnomonError:
            continue
        assert target.host in {"hooks.example.org", "203.0.113.9", "127.0.0.1", "::1"}


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "224.0.0.1",
    "192.0.0.170",
    "::",
    "::1",
    "fe80::1",
    "fc00::1",
    "ff02::1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "2002:7f00:1::",
    "2002:a00:1::",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_a_listed_name_that_leads_inside_is_refused(address: str) -> None:
    target = HOSTS.target("http://hooks.example.org/")
    with pytest.raises(GnomonError) as refused:
        HOSTS.check_address(target, address)
    assert refused.value.code == "callback_not_allowed"


@pytest.mark.parametrize("address", ["93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "64:ff9b::5db8:d822"])
def test_a_public_address_is_not(address: str) -> None:
    HOSTS.check_address(HOSTS.target("http://hooks.example.org/"), address)


def test_an_inside_address_is_allowed_where_the_list_names_it_with_its_port() -> None:
    HOSTS.check_address(HOSTS.target("http://127.0.0.1:9000/"), "127.0.0.1")
    named = CallbackHosts(["worker.internal:9000", "10.0.0.7:9000"])
    named.check_address(named.target("http://worker.internal:9000/"), "10.0.0.7")
    with pytest.raises(GnomonError):
        named.check_address(named.target("http://worker.internal:9000/"), "10.0.0.8")


@pytest.mark.parametrize(
    "entry", ["*.example.org", "http://x.org", "x.org/path", "x.org:port", "a b", "user@x.org", "0x7f.1", "127.1", "é.org"]
)
def test_an_entry_that_is_no_host_is_refused_when_the_gateway_starts(entry: str) -> None:
    with pytest.raises(GnomonError) as refused:
        CallbackHosts([entry])
    assert "--callback-host" in refused.value.message


BODY = b"x" * (1 << 20)
BURST = 12
KEPT_BYTES = KEPT_FREE_PAGES * 4096
SPARE_BYTES = 1 << 20


async def burst(store: CallStore) -> list[Call]:
    new = [Call(str(number), FunctionKey("fn"), "/", "", (), len(BODY), "", 0.0) for number in range(BURST)]
    return list(await asyncio.gather(*(store.add(call, BODY) for call in new)))


def used_bytes(path: Path) -> int:
    """The size of the database. The file may be larger until the write-ahead log is copied into it."""
    with sqlite3.connect(path) as connection:
        (pages,), (page_bytes,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    connection.close()
    return int(pages * page_bytes)


def earlier_version(path: Path) -> None:
    """Make a file whose deleted calls left free pages that cannot be given back."""
    with sqlite3.connect(path, isolation_level=None) as connection:
        connection.executescript("PRAGMA auto_vacuum = NONE; PRAGMA journal_mode = WAL;" + calls._SCHEMA)
        connection.execute(f"PRAGMA user_version = {calls.SCHEMA_VERSION}")
        connection.execute(
            "INSERT INTO call (call_id, name, namespace, path, query, headers, body, body_bytes, callback_url, accepted_at)"
            " VALUES ('kept', 'fn', 'openfaas-fn', '/', '', '[]', x'00', 1, '', 0.0), "
            "('gone', 'fn', 'openfaas-fn', '/', '', '[]', zeroblob(20000000), 1, '', 0.0)"
        )
        connection.execute("DELETE FROM call WHERE call_id = 'gone'")
    connection.close()


async def test_file_shrinks_once_the_calls_of_a_burst_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    store = CallStore(path)
    stored = await burst(store)
    assert used_bytes(path) > BURST * len(BODY)
    await asyncio.gather(*(store.finish(call) for call in stored[1:]))
    await until(lambda: used_bytes(path) <= KEPT_BYTES + len(BODY) + SPARE_BYTES)
    assert await store.body(stored[0]) == BODY
    await store.close()
    assert path.stat().st_size <= KEPT_BYTES + len(BODY) + SPARE_BYTES


async def test_closing_does_not_wait_until_the_file_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "GIVEN_BACK_PAGES", 1)
    path = tmp_path / "calls.db"
    store = CallStore(path)
    stored = await burst(store)
    await asyncio.gather(*(store.finish(call) for call in stored))
    await store.close()
    assert used_bytes(path) > KEPT_BYTES + SPARE_BYTES


async def test_file_of_an_earlier_version_shrinks_when_it_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "calls.db"
    earlier_version(path)
    store = CallStore(path)
    assert [call.call_id for call in await store.unfinished()] == ["kept"]
    await store.close()
    assert path.stat().st_size < SPARE_BYTES


async def test_large_file_of_an_earlier_version_is_opened_without_delay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "QUICK_REBUILD_BYTES", 0)
    path = tmp_path / "calls.db"
    earlier_version(path)
    store = CallStore(path)
    stored = await burst(store)
    await asyncio.gather(*(store.finish(call) for call in stored))
    assert [call.call_id for call in await store.unfinished()] == ["kept"]
    await store.close()
    assert path.stat().st_size > 10 * SPARE_BYTES

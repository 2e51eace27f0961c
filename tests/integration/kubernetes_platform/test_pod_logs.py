"""Lines of pods, as a server gives them on good days and on bad ones."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_platforms.kubernetes.client import Unreachable
from gnomon_platforms.kubernetes.informer import Change
from gnomon_platforms.kubernetes.objects.pods import PodFacts, pod_facts
from gnomon_platforms.openfaas.pod_logs import MAX_BYTES, PodLogs
from tests.integration.kubernetes_platform.scripted import CLOSE, Answer, Script, refusal, serving
from tests.waiting import until

KEY = FunctionKey("fn", "fn")
POD = replace(pod_facts({"metadata": {"name": "fn-1", "namespace": "fn", "uid": "u1"}}), function="fn", phase="Running")


class Pods:
    """The listener interface of an informer of pods."""

    def __init__(self, *pods: PodFacts) -> None:
        self.pods = pods
        self.listeners: list[Callable[[Change[PodFacts]], None]] = []

    def listen(self, changed: Callable[[Change[PodFacts]], None]) -> Callable[[], None]:
        for pod in self.pods:
            changed(Change((pod.namespace, pod.name), None, pod))
        self.listeners.append(changed)
        return lambda: self.listeners.remove(changed)

    def come(self, pod: PodFacts) -> None:
        for listener in self.listeners:
            listener(Change((pod.namespace, pod.name), None, pod))

    def go(self, pod: PodFacts) -> None:
        for listener in self.listeners:
            listener(Change((pod.namespace, pod.name), pod, None))


def line(second: int, text: str) -> bytes:
    return f"2026-11-22T00:00:{second:02d}.5Z {text}\n".encode()


def logs(api: Any, pods: Pods) -> PodLogs:
    return PodLogs(api, cast("Any", pods), lambda key: [pod for pod in pods.pods if pod.key == key])


async def texts(follower: Any, count: int) -> list[str]:
    async with asyncio.timeout(30.0):
        return [(await follower.next_line()).text for _ in range(count)]


async def test_lines_of_all_pods_come_in_the_order_in_which_they_were_written() -> None:
    other = replace(POD, name="fn-2", uid="u2")
    script = Script([Answer(line(1, "one") + line(3, "thrée")), Answer(line(2, "two"))])
    with serving(script) as api:
        found = await logs(api, Pods(POD, other)).lines(LogQuery(KEY, tail=5, since=1795305600.0))
    assert [line.text for line in found] == ["one", "two", "thrée"]
    assert found[0] == LogLine(KEY, found[0].instance, found[0].at, "one")
    assert {asked.path for asked in script.asked} == {f"/api/v1/namespaces/fn/pods/{name}/log" for name in ("fn-1", "fn-2")}
    assert script.asked[0].query["tailLines"] == "5"
    assert script.asked[0].query["container"] == "fn"


@pytest.mark.parametrize(
    ("since_s", "asked"),
    [
        (1795305600.75, "2026-11-22T00:00:00Z"),
        # Go's zero time, which a client may send that means no time at all; and the same of a zone to the east of London.
        (-62135596800.0, "0001-01-01T00:00:00Z"),
        (-62135647200.0, "0001-01-01T00:00:00Z"),
    ],
)
async def test_the_beginning_is_asked_for_as_the_api_server_reads_it(since_s: float, asked: str) -> None:
    script = Script([Answer(line(1, "one"))])
    with serving(script) as api:
        assert [line.text for line in await logs(api, Pods(POD)).lines(LogQuery(KEY, since=since_s))] == ["one"]
    assert script.asked[0].query["sinceTime"] == asked


async def test_of_a_long_log_the_newest_lines_are_told() -> None:
    long = b"".join(line(number % 60, f"{number} " + "x" * 1000) for number in range(12_000))
    with serving(Script([Answer(long)])) as api:
        found = await logs(api, Pods(POD)).lines(LogQuery(KEY))
    numbers = sorted(int(line.text.split()[0]) for line in found)
    assert numbers[-1] == 11_999
    assert numbers == list(range(numbers[0], 12_000)), "whole lines only, and none of them is missing"
    assert MAX_BYTES < sum(len(line.text) for line in found) < 2 * MAX_BYTES


async def test_many_pods_share_what_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of a function's pods may have megabytes of log, and a gateway's memory has room for some of them."""
    monkeypatch.setattr("gnomon_platforms.openfaas.pod_logs.ALL_BYTES", 200_000)
    long = b"".join(line(number % 60, f"{number} " + "x" * 1000) for number in range(300))
    with serving(Script([Answer(long)])) as api:
        pods = [replace(POD, name=f"fn-{number}", uid=f"u{number}") for number in range(4)]
        found = await logs(api, Pods(*pods)).lines(LogQuery(KEY))
    for pod in pods:
        numbers = sorted(int(record.text.split()[0]) for record in found if record.instance == pod.name)
        assert numbers == list(range(numbers[0], 300)), "each pod's newest lines"
        assert len(numbers) <= 100


class Away:
    """An API server that cannot reach the pods' node, and has not given up yet."""

    def __init__(self) -> None:
        self.given_up = threading.Event()

    @contextmanager
    def stream(self, *_: object, **__: object) -> Iterator[Away]:
        yield self

    def read(self) -> bytes:
        self.given_up.wait(60)
        raise Unreachable("the node is away")


async def test_logs_of_a_dead_node_hold_up_nothing_else() -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    api = Away()
    pods = [replace(POD, name=f"fn-{number}", uid=f"u{number}") for number in range(40)]
    reading = asyncio.ensure_future(logs(api, Pods(*pods)).lines(LogQuery(KEY)))
    await asyncio.sleep(0)
    try:
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: "deployed") == "deployed"
    finally:
        api.given_up.set()
    with pytest.raises(GnomonError, match="the node is away"):
        await reading


async def test_only_the_named_pod_is_read_and_one_that_waits_has_no_lines() -> None:
    waiting = replace(POD, name="fn-2", uid="u2", phase="Pending")
    script = Script([Answer(line(1, "one"))])
    with serving(script) as api:
        found = logs(api, Pods(POD, waiting))
        assert [line.instance for line in await found.lines(LogQuery(KEY))] == ["fn-1"]
        assert await found.lines(LogQuery(KEY, instance="fn-9")) == []


async def test_a_container_that_has_not_begun_or_a_pod_that_is_gone_has_no_lines_and_a_refusal_is_told() -> None:
    for answer in (refusal(400, "BadRequest"), refusal(404, "NotFound")):
        with serving(Script([answer])) as api:
            assert await logs(api, Pods(POD)).lines(LogQuery(KEY)) == []
    with serving(Script([refusal(403, "Forbidden")])) as api:
        with pytest.raises(GnomonError) as refused:
            await logs(api, Pods(POD)).lines(LogQuery(KEY))
        assert refused.value.code == "kubernetes_denied"


async def test_followed_log_survives_a_broken_stream_without_loss_or_repeats() -> None:
    script = Script(
        cast(
            "Any", [[line(1, "one"), line(2, "two"), CLOSE], [line(2, "two"), line(3, "three"), line(4, "half")[:-3], CLOSE], []]
        )
    )
    with serving(script) as api:
        pods = Pods(POD)
        follower = logs(api, pods).follow(LogQuery(KEY))
        assert (await texts(follower, 3))[:3] == ["one", "two", "three"]
        follower.close()
        assert await follower.next_line() is None
        assert pods.listeners == []
    assert script.asked[0].query["follow"] == "true"
    assert script.asked[1].query["sinceTime"] == "2026-11-22T00:00:02Z"


async def test_a_pod_that_comes_later_is_followed_too() -> None:
    script = Script(cast("Any", [[line(1, "first")], [line(2, "second")]]))
    with serving(script) as api:
        pods = Pods()
        follower = logs(api, pods).follow(LogQuery(KEY))
        pods.come(POD)
        assert await texts(follower, 1) == ["first"]
        pods.come(replace(POD, name="fn-2", uid="u2"))
        pods.come(replace(POD, name="other-1", uid="u3", function="other"))
        assert await texts(follower, 1) == ["second"]
        assert follower.streams == 2
        follower.close()


async def test_log_of_a_pod_that_is_gone_is_read_to_its_end_and_the_pod_forgotten() -> None:
    script = Script(cast("Any", [[line(1, "first"), CLOSE], [line(2, "last"), CLOSE], []]))
    with serving(script) as api:
        pods = Pods(POD)
        follower = logs(api, pods).follow(LogQuery(KEY))
        assert await texts(follower, 1) == ["first"]
        pods.go(POD)
        assert follower._tails == {}
        assert await texts(follower, 1) == ["last"]
        follower.close()


async def test_a_slow_reader_holds_the_stream_up_and_loses_nothing() -> None:
    many = b"".join(f"2026-11-22T00:00:00.{number:09d}Z {number}\n".encode() for number in range(1, 3001))
    script = Script(cast("Any", [[many], []]))
    with serving(script) as api:
        follower = logs(api, Pods(POD)).follow(LogQuery(KEY))
        await until(lambda: follower._lines.qsize() >= 500)
        assert follower._lines.qsize() == 500
        assert await texts(follower, 3000) == [str(number) for number in range(1, 3001)]
        follower.close()

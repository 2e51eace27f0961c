"""Informers, and what they see later."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey, FunctionSpec, read_deployment
from gnomon_platforms.kubernetes import conflicting_autoscalers
from gnomon_platforms.kubernetes.client import Api
from gnomon_platforms.kubernetes.conflicting_autoscalers import ConflictingAutoscalers
from gnomon_platforms.kubernetes.informer import MAX_UNDER_WAY, Change, Informer, Source, Timing
from gnomon_platforms.kubernetes.objects.manifests import deployment
from gnomon_platforms.kubernetes.objects.pod_template import PodOptions
from gnomon_platforms.kubernetes.resources import PODS
from gnomon_platforms.kubernetes.writes import Writer
from gnomon_platforms.nodes.coordinators import NodeCoordinators, NodeOptions
from gnomon_platforms.openfaas.store import KubernetesStore
from tests.integration.kubernetes_platform.scripted import (
    CLOSE,
    Answer,
    Asked,
    Script,
    bookmark,
    event,
    listed,
    pod,
    refusal,
    serving,
)

QUICK = Timing(watch_s=30, silence_s=5.0, first_pause_s=0.01, longest_pause_s=0.05)
SILENT = Timing(watch_s=0, silence_s=0.3, first_pause_s=0.01, longest_pause_s=0.05)


def version_of(document: dict[str, Any]) -> str:
    return str(document["metadata"]["resourceVersion"])


class Seen:
    """An informer, and what it has told in a few letters: +a, ~a, -a."""

    def __init__(self, informer: Informer[str]) -> None:
        self.informer = informer
        self.changes: list[str] = []
        informer.listen(self._changed)

    def _changed(self, change: Change[str]) -> None:
        sign = "+" if change.old is None else "-" if change.new is None else "~"
        self.changes.append(f"{sign}{change.name[1]}")

    @property
    def held(self) -> dict[str, str]:
        return {name: version for name in "abcd" if (version := self.informer.get("fn", name)) is not None}

    async def until(self, condition: Callable[[], bool]) -> None:
        await self.informer.until(condition, 30.0)


@asynccontextmanager
async def watching(api: AbstractContextManager[Api], timing: Timing = QUICK, **options: Any) -> AsyncIterator[Seen]:
    with api as opened:
        source = Source(PODS, "fn", labels="gnomon/managed")
        informer: Informer[str] = Informer(
            opened, source, version_of, index=("team",), rng=random.Random(1), timing=timing, **options
        )
        seen = Seen(informer)
        try:
            await informer.start()
            yield seen
        finally:
            await informer.stop()


async def test_a_list_is_followed_by_what_changes() -> None:
    changes = [event("ADDED", pod("b", "6")), event("MODIFIED", pod("a", "7")), event("DELETED", pod("b", "8"))]
    script = Script([listed("5", pod("a", "3"))], [changes])
    async with watching(serving(script)) as seen:
        await seen.until(lambda: len(seen.changes) == 4)
        assert seen.changes == ["+a", "+b", "~a", "-b"]
        assert seen.held == {"a": "7"}
    [watch] = script.watches()
    assert watch.path == "/api/v1/namespaces/fn/pods"
    assert (watch.query["resourceVersion"], watch.query["allowWatchBookmarks"]) == ("5", "true")
    assert watch.query["labelSelector"] == script.lists()[0].query["labelSelector"] == "gnomon/managed"
    # Whatever a server happens to remember may be older than what another has told already.
    assert "resourceVersion" not in script.lists()[0].query


async def test_pages_are_put_together_and_begun_again_when_their_state_is_forgotten() -> None:
    script = Script(
        [listed("5", pod("a", "3"), following="next"), refusal(410, "Expired"), listed("6", pod("a", "3"), following="next"),
         listed("6", pod("b", "4"))]
    )  # fmt: skip
    async with watching(serving(script)) as seen:
        assert seen.held == {"a": "3", "b": "4"}
        assert [asked.query.get("continue") for asked in script.lists()] == [None, "next", None, "next"]
        assert seen.changes == ["+a", "+b"]


async def test_objects_are_found_by_label_as_it_changes() -> None:
    script = Script(
        [listed("5", pod("a", "1", team="x"), pod("b", "2", team="x"))], [[event("MODIFIED", pod("b", "6", team="y"))]]
    )
    async with watching(serving(script)) as seen:
        await seen.until(lambda: len(seen.changes) == 3)
        assert seen.informer.labelled("team", "x") == ("1",)
        assert seen.informer.labelled("team", "y") == ("6",)
        assert seen.informer.labelled("team", "z") == ()


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark_without_a_list() -> None:
    script = Script([listed("5", pod("a", "3"))], [[bookmark("90"), CLOSE], [event("ADDED", pod("b", "91"))]])
    async with watching(serving(script)) as seen:
        await seen.until(lambda: "+b" in seen.changes)
    assert [watch.query["resourceVersion"] for watch in script.watches()] == ["5", "90"]
    assert len(script.lists()) == 1


@pytest.mark.parametrize(
    "gone",
    [
        pytest.param(
            [event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old"})], id="as an event"
        ),
        pytest.param(refusal(410, "Expired"), id="as an answer"),
    ],
)
async def test_410_leads_to_a_new_list_whose_differences_are_told(gone: Answer | list[bytes]) -> None:
    lists = [
        listed("5", pod("a", "1"), pod("b", "2"), pod("c", "3")),
        listed("50", pod("b", "2"), pod("c", "40"), pod("d", "41")),
    ]
    script = Script(lists, [gone, []])
    async with watching(serving(script)) as seen:
        await seen.until(lambda: "+d" in seen.changes)
        assert seen.changes[:3] == ["+a", "+b", "+c"]
        assert sorted(seen.changes[3:]) == ["+d", "-a", "~c"]
        assert seen.held == {"b": "2", "c": "40", "d": "41"}
    assert script.watches()[-1].query["resourceVersion"] == "50"


async def test_a_line_that_breaks_off_is_read_again_from_the_version_before_it() -> None:
    cut = event("MODIFIED", pod("a", "8"))
    script = Script(
        [listed("5", pod("a", "3"))], [[event("MODIFIED", pod("a", "7")), cut[:40], CLOSE], [event("MODIFIED", pod("a", "8"))]]
    )
    async with watching(serving(script)) as seen:
        await seen.until(lambda: seen.held == {"a": "8"})
        assert seen.changes == ["+a", "~a", "~a"]
    assert [watch.query["resourceVersion"] for watch in script.watches()] == ["5", "7"]


async def test_a_line_in_several_parts_is_one_event() -> None:
    whole = event("MODIFIED", pod("a", "7"))
    script = Script([listed("5", pod("a", "3"))], [[whole[:10], whole[10:50], whole[50:]]])
    async with watching(serving(script)) as seen:
        await seen.until(lambda: seen.held == {"a": "7"})


async def test_nonsense_in_a_watch_costs_nothing_that_came_before_it() -> None:
    script = Script([listed("5", pod("a", "3"))], [[event("ADDED", pod("b", "6")) + b"{]\n"], [event("ADDED", pod("c", "7"))]])
    async with watching(serving(script)) as seen:
        await seen.until(lambda: seen.held == {"a": "3", "b": "6", "c": "7"})
    assert [watch.query["resourceVersion"] for watch in script.watches()] == ["5", "6"]


def first_team(document: dict[str, Any]) -> str:
    return str(document["metadata"]["labels"]["team"].split()[0])


async def test_an_object_that_cannot_be_read_is_left_out_and_costs_nobody_else() -> None:
    script = Script(
        [listed("5", pod("a", "1", team=" "), pod("b", "2", team="x"), pod("c", "3", team="x"))],
        [[event("MODIFIED", pod("b", "6", team=" ")), event("MODIFIED", pod("a", "7", team="y"))]],
    )
    with serving(script) as api:
        informer: Informer[str] = Informer(api, Source(PODS, "fn"), first_team, timing=QUICK)
        try:
            await informer.start()
            assert (informer.get("fn", "a"), informer.get("fn", "c")) == (None, "x")
            await informer.until(lambda: informer.get("fn", "a") == "y", 30.0)
            assert informer.get("fn", "b") is None, "what it said before may be true no more"
        finally:
            await informer.stop()
    assert len(script.watches()) == 1


async def test_silence_ends_a_watch_and_the_next_one_goes_on() -> None:
    # The first watch is held open without a word, as a connection is whose other end has vanished.
    script = Script([listed("5", pod("a", "3"))], [[event("MODIFIED", pod("a", "6"))], [event("MODIFIED", pod("a", "7"))]])
    async with watching(serving(script), SILENT) as seen:
        await seen.until(lambda: seen.held == {"a": "7"})
    assert [watch.query["resourceVersion"] for watch in script.watches()[:2]] == ["5", "6"]
    assert len(script.lists()) == 1


async def test_a_server_that_asks_for_time_gets_it() -> None:
    script = Script(
        [listed("5", pod("a", "3"))], [refusal(429, "TooManyRequests", {"Retry-After": "1"}), [event("ADDED", pod("b", "6"))]]
    )
    async with watching(serving(script)) as seen:
        began_s = asyncio.get_running_loop().time()
        await seen.until(lambda: "+b" in seen.changes)
        # QUICK alone would have waited for 10 ms.
        assert asyncio.get_running_loop().time() - began_s > 0.5
    assert len(script.lists()) == 1


async def test_a_server_that_closes_at_once_is_not_asked_without_a_pause() -> None:
    script = Script([listed("5", pod("a", "3"))], [[CLOSE]])
    patient = Timing(watch_s=30, silence_s=5.0, first_pause_s=0.2, longest_pause_s=30.0)
    async with watching(serving(script), patient) as seen:
        began_s = asyncio.get_running_loop().time()
        while len(script.watches()) < 4:  # noqa: ASYNC110 - the server has no event of ours
            await asyncio.sleep(0.01)
        # Between the second and the fourth lie pauses of at least 0.2 and 0.4 s, and the first may be over.
        assert asyncio.get_running_loop().time() - began_s > 0.5
        assert seen.informer.trouble is not None


async def test_repeated_event_changes_nothing() -> None:
    twice = event("MODIFIED", pod("a", "7"))
    script = Script(
        [listed("5", pod("a", "3"))], [[twice, twice, event("DELETED", pod("a", "8")), event("DELETED", pod("a", "8"))]]
    )
    async with watching(serving(script)) as seen:
        await seen.until(lambda: "-a" in seen.changes)
        assert seen.changes == ["+a", "~a", "-a"]


async def test_a_successor_under_the_same_name_is_another_object() -> None:
    script = Script(
        [listed("5", pod("a", "3", uid="old"))],
        [[event("ADDED", pod("a", "7", uid="new")), event("DELETED", pod("a", "8", uid="old"))]],
    )
    async with watching(serving(script)) as seen:
        await seen.until(lambda: seen.changes == ["+a", "-a", "+a"])
        assert seen.held == {"a": "7"}


async def test_resync_waits_for_what_is_true_now() -> None:
    script = Script([listed("5", pod("a", "3")), listed("9", pod("b", "8"))], [[]])
    async with watching(serving(script)) as seen:
        # The watch is silent: only a new list can tell.
        await seen.informer.resync()
        assert seen.held == {"b": "8"}
        assert len(script.lists()) == 2


async def test_a_start_that_cannot_succeed_says_why() -> None:
    with serving(Script([refusal(403, "Forbidden")])) as api:
        informer = Informer(api, Source(PODS), version_of, timing=QUICK)
        with pytest.raises(GnomonError) as refused:
            await informer.start(0.5)
    assert refused.value.code == "kubernetes_denied"
    assert "deploy/openfaas" in refused.value.hint


async def test_a_listener_that_fails_keeps_nobody_from_hearing() -> None:
    script = Script([listed("5", pod("a", "3"))], [[event("ADDED", pod("b", "6"))]])
    async with watching(serving(script)) as seen:
        failed: list[str] = []

        def fail(change: Change[str]) -> None:
            failed.append(change.name[1])
            raise ValueError(change.name)

        with pytest.raises(ValueError, match="a"):
            seen.informer.listen(fail)
        seen.informer._listeners.insert(0, fail)
        await seen.until(lambda: seen.held == {"a": "3", "b": "6"})


async def test_an_event_loop_that_is_busy_holds_the_watch_back() -> None:
    many = [event("MODIFIED", pod("a", str(version))) for version in range(6, 2006)]
    script = Script([listed("5", pod("a", "3"))], [many])
    async with watching(serving(script)) as seen:
        places = seen.informer._watcher._places
        began_s = time.monotonic()
        while places._value and time.monotonic() < began_s + 30.0:
            time.sleep(0.01)  # noqa: ASYNC251 - the event loop is busy
        # The thread waits with 2,000 events before it: what it has handed over is what we hold back.
        assert places._value == 0
        assert len(seen.changes) <= 1 + MAX_UNDER_WAY
        await seen.until(lambda: seen.held == {"a": "2005"})


async def test_stopping_does_not_wait_for_a_silent_watch() -> None:
    script = Script([listed("5", pod("a", "3"))], [[event("ADDED", pod("b", "6"))]])
    async with watching(serving(script), Timing(watch_s=3600)) as seen:
        await seen.until(lambda: "+b" in seen.changes)
        began_s = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - began_s < 30.0


async def test_the_next_attempt_sees_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Informer.start, "__defaults__", (0.1,))
    script, context = Script([refusal(403, "Forbidden")]), SimpleNamespace(epoch=lambda: 1)
    with serving(script) as api:
        writer = Writer(api, WallClock(), random.Random(1))
        nodes = NodeCoordinators(api, writer, NodeOptions("t0ken"))
        async with aiohttp.ClientSession() as session:
            for _ in range(2):
                with pytest.raises(GnomonError):
                    await nodes.start(cast("Any", context), session)
            script.steps["list"] = [listed("1")]
            monkeypatch.undo()
            await nodes.start(cast("Any", context), session)
            assert nodes.shadows is not None
            await nodes.stop()
        writer.close()


FIGLET = FunctionKey("figlet", "fn")
THEIRS = {
    "metadata": {"name": "theirs", "namespace": "fn", "uid": "u1", "resourceVersion": "7"},
    "spec": {"scaleTargetRef": {"name": "figlet"}},
}


@pytest.mark.parametrize("answer", [refusal(403, "Forbidden"), refusal(404, "NotFound"), refusal(503, "ServiceUnavailable")])
async def test_a_kind_that_could_not_be_seen_is_asked_for_again(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.05)
    changes: asyncio.Queue[FunctionKey] = asyncio.Queue()
    # Those of the first kind are seen at once; the second is refused twice, as it was before a role was mended.
    script = Script([listed("1"), listed("1"), answer, answer, listed("7"), listed("7", THEIRS)])
    with serving(script) as api:
        watched = ConflictingAutoscalers(api, "fn", changes.put_nowait)
        await watched.start()
        assert watched.of(FIGLET) is None
        async with asyncio.timeout(30):
            assert await changes.get() == FIGLET
        assert watched.scaling_conflict(FIGLET) is not None
        await watched.stop()


async def test_of_one_that_is_still_there_it_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster keeps Events for an hour."""
    monkeypatch.setattr(conflicting_autoscalers, "ASK_AGAIN_S", 0.05)
    monkeypatch.setattr(conflicting_autoscalers, "REMIND_S", 0.1)
    changes: asyncio.Queue[FunctionKey] = asyncio.Queue()
    with serving(Script([listed("1"), listed("1", THEIRS), refusal(404, "NotFound")])) as api:
        watched = ConflictingAutoscalers(api, "fn", changes.put_nowait)
        await watched.start()
        async with asyncio.timeout(30):
            assert [await changes.get() for _ in range(3)] == [FIGLET] * 3
        await watched.stop()


NAMESPACE = {
    "metadata": {"name": "team-a", "uid": "n1", "resourceVersion": "3", "annotations": {"openfaas": "1"}},
}


def stored(version: str, **annotations: str) -> dict[str, Any]:
    """A function's Deployment, as the API server has it."""
    made: dict[str, Any] = deployment(spec_of(**annotations), 1, PodOptions())
    made["metadata"] |= {"uid": "u1", "resourceVersion": version, "creationTimestamp": "2026-01-01T00:00:00Z"}
    return made


def spec_of(**annotations: str) -> FunctionSpec:
    given = {f"gnomon/{name}": value for name, value in annotations.items()}
    return read_deployment({"service": "figlet", "namespace": "openfaas-fn", "image": "i", "annotations": given})


class Silent(Script):
    """Watches are silent, and lists differ each time: `lists` of Deployments, `namespaces` of those."""

    def __init__(self, lists: list[Any], namespaces: list[Any]) -> None:
        super().__init__(lists)
        self._namespaces = namespaces

    def next(self, request: Asked) -> Any:
        if request.path.endswith("/namespaces") and "watch" not in request.query:
            return self._namespaces.pop(0)
        return super().next(request)


async def test_store_catches_up_on_missed_writes() -> None:
    """The version is the same: only the settings have changed."""
    script = Silent([listed("5", stored("3")), listed("9", stored("8", gamma="0.5"))], [listed("5"), listed("9", NAMESPACE)])
    with serving(script) as api:
        store = await asyncio.to_thread(KubernetesStore, api)
        try:
            assert [function.spec.raw for function in store.functions()] == [spec_of().raw]
            await asyncio.to_thread(store.catch_up)
            assert [function.spec.raw for function in store.functions()] == [spec_of(gamma="0.5").raw]
            assert [namespace.name for namespace in store.namespaces()] == ["team-a"]
        finally:
            await asyncio.to_thread(store.close)


async def test_catch_up_reads_one_namespace_only() -> None:
    script = Silent([listed("5"), listed("9", stored("8"))], [])
    with serving(script) as api:
        store = await asyncio.to_thread(lambda: KubernetesStore(api, namespace="openfaas-fn"))
        try:
            await asyncio.to_thread(store.catch_up)
            assert [str(function.spec.key) for function in store.functions()] == ["figlet.openfaas-fn"]
        finally:
            await asyncio.to_thread(store.close)


async def test_unreachable_api_server_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnomon_platforms.kubernetes.informer.Informer.resync.__defaults__", (0.5,))
    with serving(Silent([listed("5"), refusal(403, "Forbidden")], [listed("5")])) as api:
        store = await asyncio.to_thread(lambda: KubernetesStore(api, namespace="openfaas-fn"))
        try:
            with pytest.raises(GnomonError, match="list deployments"):
                await asyncio.to_thread(store.catch_up)
        finally:
            await asyncio.to_thread(store.close)

"""Scrapes of pods and activators: how often, how many bytes, and that no scrape delays another."""

from __future__ import annotations

import asyncio
import gzip
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from types import MappingProxyType

import pytest
from aiohttp import web

from gnomon_core.functions import FunctionKey
from gnomon_platforms.common import open_session
from gnomon_platforms.knative.autoscaler import metrics as scraping
from gnomon_platforms.knative.autoscaler.metrics import (
    ASLEEP_PERIOD_S,
    AWAKE_PERIOD_S,
    LAST_VALUES_S,
    POD_PERIOD_S,
    PodStat,
    Scraper,
    sample_size,
    waiting_to_text,
)
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from tests.waiting import until

ADDRESS, OTHER, THIRD, PORT = "127.93.0.1", "127.93.0.2", "127.93.0.3", 9090
ACTIVATOR = RevisionPod("knative-serving", "activator-1", "", ADDRESS, running=True, ready=True, ending=False)
KEY = FunctionKey("f-00001", "users")
POD = RevisionPod("users", "f-00001-1", "f-00001", THIRD, running=True, ready=True, ending=False)
FIGURE = "kn_revision_request_queued"
ROUNDING_S = 1e-6
FOREVER_S = 3600.0
SEED = 21
# Field 2 of a Stat: 2.5 requests on average.
STAT = bytes([2 << 3 | 1]) + struct.pack("<d", 2.5)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Paced:
    """A clock that moves by what its sleepers ask for, and remembers it.

    A sleeper wakes when the scraper has handed on a reading.
    """

    at_s: float = 0.0
    slept_s: list[float] = field(default_factory=list)
    readings: list[tuple[float, Mapping[FunctionKey, float]]] = field(default_factory=list)
    seen: int = 0

    def now_s(self) -> float:
        return self.at_s

    def take(self, waiting: Mapping[FunctionKey, float]) -> None:
        self.readings.append((self.at_s, waiting))

    async def sleep(self, duration_s: float) -> None:
        if duration_s > AWAKE_PERIOD_S + ROUNDING_S:
            await asyncio.Event().wait()  # the other loop, which asks pods
        if duration_s > ROUNDING_S:
            self.slept_s.append(round(duration_s, 3))
        self.at_s += max(duration_s, ROUNDING_S)
        await asyncio.sleep(0)
        await until(lambda: len(self.readings) > self.seen)
        # The request that made the reading has not ended yet: the next round would skip its activator and wait for it.
        await asyncio.sleep(0)
        self.seen = len(self.readings)


class Still(Paced):
    """A clock whose sleepers do not wake: everything is looked at once."""

    async def sleep(self, duration_s: float) -> None:  # noqa: ARG002 - as a clock is asked
        await asyncio.Event().wait()


class Activator:
    """Prometheus' own handler in small: `name[]` says which figures are wanted, nothing means all of them."""

    def __init__(self, waiting: int = 2) -> None:
        self.figures = {FIGURE: waiting, "kn_other_figure": 7}
        self.sent: list[str] = []

    async def page(self, request: web.Request) -> web.Response:
        wanted = request.query.getall("name[]", list(self.figures))
        lines = [
            f'{name}{{k8s_namespace_name="users",kn_revision_name="f-00001"}} {value}'
            for name, value in self.figures.items()
            if name in wanted
        ]
        self.sent.append("\n".join(lines))
        return web.Response(text=self.sent[-1])


class Silent:
    """Takes requests and answers none any more, once it has answered so many, until the test is over."""

    def __init__(self, after: int = 0, of: Activator | None = None) -> None:
        self.left, self.of = after, of
        self.asked = 0
        self.over = asyncio.Event()

    async def page(self, request: web.Request) -> web.Response:
        self.asked += 1
        if self.left and self.of is not None:
            self.left -= 1
            return await self.of.page(request)
        await self.over.wait()
        return web.Response()


@asynccontextmanager
async def at(address: str, page: Handler) -> AsyncIterator[None]:
    app = web.Application()
    app.router.add_get("/{path:.*}", page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, address, PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


@pytest.fixture
async def activator() -> AsyncIterator[Activator]:
    found = Activator()
    async with at(ADDRESS, found.page):
        yield found


@pytest.fixture
async def silent(request: pytest.FixtureRequest) -> AsyncIterator[Silent]:
    """At the other address; with a parameter it tells that many waiting, once, before it falls silent."""
    said = getattr(request, "param", None)
    found = Silent() if said is None else Silent(1, Activator(said))
    async with at(OTHER, found.page):
        yield found
        found.over.set()


@asynccontextmanager
async def scraper(
    clock: Paced,
    *activators: RevisionPod,
    pods: Iterable[RevisionPod] = (),
    foreign: Mapping[FunctionKey, Iterable[RevisionPod]] = MappingProxyType({}),
    asleep: Callable[[], bool] = lambda: False,
    on_stats: Callable[[FunctionKey, PodStat], None] = lambda *_: None,
    gateways: Iterable[RevisionPod] = (),
    on_uncounted: Callable[[Mapping[FunctionKey, float]], None] = lambda _: None,
) -> AsyncIterator[Scraper]:
    revisions = {**foreign, KEY: pods}
    async with open_session() as session:
        made = Scraper(
            session,
            clock,
            Random(SEED),
            pods=revisions.__getitem__,
            activators=lambda: activators,
            asleep=asleep,
            on_stats=on_stats,
            on_waiting=clock.take,
            gateways=lambda: gateways,
            on_uncounted=on_uncounted,
        )
        made.start()
        for key in revisions:
            made.follow(key)
        try:
            yield made
        finally:
            await made.stop()


async def test_activators_are_asked_for_one_figure_and_more_often_while_a_revision_sleeps(activator: Activator) -> None:
    clock, asleep = Paced(), False

    async def looks(number: int) -> None:
        end = len(clock.readings) + number
        await until(lambda: len(clock.readings) >= end)

    async with scraper(clock, ACTIVATOR, asleep=lambda: asleep) as made:
        await looks(5)
        awake = len(clock.slept_s)
        asleep = True
        await looks(10)
        # By then whatever was asked for before it slept has been.
        later = len(clock.slept_s)
        await looks(5)
        assert made.observing
    assert POD_PERIOD_S > AWAKE_PERIOD_S > ASLEEP_PERIOD_S
    assert set(clock.slept_s[: awake - 1]) == {AWAKE_PERIOD_S}
    assert set(clock.slept_s[later:]) == {ASLEEP_PERIOD_S}
    assert clock.readings[-1][1] == {KEY: 2.0}
    assert all(FIGURE in page and "kn_other_figure" not in page for page in activator.sent)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait without end for a pod that does not answer, so that a scrape which waits for it too is found out."""
    monkeypatch.setattr(scraping, "ACTIVATOR_TIMEOUT_S", FOREVER_S)
    monkeypatch.setattr(scraping, "POD_TIMEOUT_S", FOREVER_S)


def _noted(came: list[float], counts: Mapping[FunctionKey, float]) -> None:
    came.append(counts.get(KEY, 0.0))


@pytest.mark.usefixtures("activator")
async def test_a_gateway_is_asked_as_activators_are_and_counts_what_pods_do_not() -> None:
    clock, counted, came = Paced(), iter((70, 70, 84, 7)), list[float]()
    last = 7

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=waiting_to_text({KEY: 5}, {KEY: next(counted, last)}))

    gateway = replace(ACTIVATOR, name="gateway-1", ip=OTHER)
    came_uncounted = partial(_noted, came)
    async with at(OTHER, page), scraper(clock, ACTIVATOR, gateways=[gateway], on_uncounted=came_uncounted) as made:
        await until(lambda: sum(came) == 21.0)
        assert made.observing
        assert clock.readings[-1][1] == {KEY: 7.0}
    # What was counted before it was heard first is not known to be new; 84 − 70; 7 of one that began again.
    assert [signal for signal in came if signal] == [14.0, 7.0]


@pytest.mark.usefixtures("activator")
async def test_a_gateway_that_is_not_heard_may_hold_requests_and_one_alone_wakes_nobody(silent: Silent) -> None:
    clock = Paced()
    gateway = replace(ACTIVATOR, name="gateway-1", ip=OTHER)
    async with scraper(clock, ACTIVATOR, gateways=[gateway]) as made:
        await until(lambda: clock.readings and silent.asked)
        assert not made.observing
    async with scraper(clock, gateways=[replace(gateway, ip=ADDRESS)]) as made:
        await until(lambda: len(clock.readings) > 3)
        assert not made.observing


@pytest.mark.usefixtures("patient", "activator")
async def test_report_of_one_activator_waits_for_no_other(silent: Silent) -> None:
    clock = Paced()
    lost = replace(ACTIVATOR, name="activator-2", ip=OTHER)
    async with scraper(clock, lost, ACTIVATOR) as made:
        await until(lambda: clock.readings and silent.asked)
        assert clock.readings[0][1] == {KEY: 2.0}
        # Requests may wait at the one that says nothing, so nobody may take them for none.
        assert not made.observing


@pytest.mark.usefixtures("patient", "activator")
@pytest.mark.parametrize("silent", [1], indirect=True)
async def test_last_report_of_an_activator_holds_for_a_while(silent: Silent) -> None:
    clock = Paced()
    lost = replace(ACTIVATOR, name="activator-2", ip=OTHER)

    def sums() -> list[float]:
        return [waiting.get(KEY, 0.0) for _, waiting in clock.readings]

    async with scraper(clock, ACTIVATOR, lost):
        await until(lambda: 3.0 in sums() and sums()[-1] == 2.0)
    both = [at_s for (at_s, _), requests in zip(clock.readings, sums(), strict=True) if requests == 3.0]
    assert sums()[sums().index(3.0) :] == [3.0] * len(both) + [2.0] * (len(sums()) - sums().index(3.0) - len(both))
    # Fifteen looks of 0.2 s, less what it was before both had been asked for the first time.
    assert LAST_VALUES_S - 3 * AWAKE_PERIOD_S <= both[-1] - both[0] <= LAST_VALUES_S + ROUNDING_S


@pytest.mark.usefixtures("patient", "activator")
async def test_idle_activator_hides_no_load(silent: Silent) -> None:
    clock = Paced()
    ending = replace(ACTIVATOR, name="activator-2", ip=OTHER, ending=True)
    unwell = replace(ACTIVATOR, name="activator-3", ip=OTHER, ready=False)
    async with scraper(clock, ending, unwell, ACTIVATOR) as made:
        await until(lambda: clock.readings and silent.asked == 2)
        assert made.observing
        assert clock.readings[-1][1] == {KEY: 2.0}


async def test_requests_that_wait_at_an_activator_that_ends_are_seen(activator: Activator) -> None:
    clock = Paced()
    async with scraper(clock, replace(ACTIVATOR, ready=False, ending=True)):
        await until(lambda: clock.readings)
        assert clock.readings[0][1] == {KEY: 2.0}


@pytest.mark.usefixtures("patient", "activator")
async def test_pods_that_do_not_answer_hold_up_no_activator(silent: Silent) -> None:
    clock = Paced()
    stuck = [replace(POD, name=f"f-00001-{number}", ip=OTHER) for number in range(100)]
    async with scraper(clock, ACTIVATOR, pods=stuck):
        await until(lambda: silent.asked == sample_size(100))
        end = len(clock.readings) + 3
        await until(lambda: len(clock.readings) >= end)


async def answer(_: web.Request) -> web.Response:
    return web.Response(body=STAT)


class Seconds(Paced):
    """A clock whose sleepers wake at once, a moment at a time."""

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(0.001)
        self.at_s += max(duration_s, ROUNDING_S)


@pytest.mark.usefixtures("patient")
async def test_hung_pods_of_others_delay_no_revision(silent: Silent) -> None:
    """400 foreign Revisions with a pod each that never answers: one whose pod does is delivered again and again."""
    stats: list[PodStat] = []
    foreign = {
        FunctionKey(f"hung-{number}", "others"): [replace(POD, namespace="others", name=f"hung-{number}", ip=OTHER)]
        for number in range(400)
    }

    def took(key: FunctionKey, stat: PodStat) -> None:
        assert key == KEY
        stats.append(stat)

    async with at(THIRD, answer), scraper(Seconds(), pods=[POD], foreign=foreign, on_stats=took):
        await until(lambda: silent.asked == len(foreign) and len(stats) >= 5)
    assert set(stats) == {PodStat(2.5)}


async def test_of_many_pods_a_sample_is_asked_and_stands_for_all() -> None:
    """Knative's own autoscaler does so: 16 of 1,000 are asked, and their mean holds for all."""
    sampled: list[PodStat] = []
    names = 0

    async def count(request: web.Request) -> web.Response:
        nonlocal names
        names += 1
        return await answer(request)

    pods = [replace(POD, name=f"f-00001-{number}") for number in range(1000)]
    async with at(THIRD, count), scraper(Still(), pods=pods, on_stats=lambda _, stat: sampled.append(stat)):
        await until(lambda: sampled)
    assert names == sample_size(1000) == 16
    assert sampled[0].concurrency == pytest.approx(2500.0)


@pytest.mark.parametrize(("pods", "asked"), [(0, 0), (1, 1), (3, 3), (4, 4), (10, 7), (100, 14), (1000, 16), (100_000, 16)])
def test_samples_are_as_large_as_knatives(pods: int, asked: int) -> None:
    assert sample_size(pods) == asked


async def test_pods_that_are_still_starting_count_for_nothing(silent: Silent) -> None:
    """While one pod works and three start, the load is that of one: a guess that all are as busy would make more and more."""
    stats: list[PodStat] = []
    starting = [replace(POD, name=f"f-00001-{number}", ip=OTHER, ready=False) for number in (2, 3, 4)]
    clock = Still()
    async with at(THIRD, answer), scraper(clock, pods=[POD, *starting], on_stats=lambda _, stat: stats.append(stat)):
        await until(lambda: stats)
    assert silent.asked == len(starting)
    assert stats[0] == PodStat(2.5)


async def test_a_ready_pod_that_does_not_answer_is_taken_to_be_as_the_others(silent: Silent) -> None:
    stats: list[PodStat] = []
    hung = replace(POD, name="f-00001-2", ip=OTHER)
    async with at(THIRD, answer), scraper(Still(), pods=[POD, hung], on_stats=lambda _, stat: stats.append(stat)):
        await until(lambda: stats)
    assert silent.asked == 1
    assert stats[0] == PodStat(5.0)


async def test_deleted_revision_is_not_scraped() -> None:
    stats: list[PodStat] = []
    async with at(THIRD, answer), scraper(Seconds(), pods=[POD], on_stats=lambda _, stat: stats.append(stat)) as made:
        await until(lambda: stats)
        made.leave(KEY)
        seen = len(stats)
        await asyncio.sleep(0.05)
        assert len(stats) == seen


async def stats(page: Handler) -> PodStat:
    """The parsed metrics of a pod that answers so."""
    took: list[PodStat] = []
    async with at(THIRD, page), scraper(Still(), pods=[POD], on_stats=lambda _, waiting: took.append(waiting)):
        await until(lambda: took)
    return took[0]


@pytest.mark.usefixtures("patient")
async def test_no_more_of_a_pods_answer_is_read_than_a_stat_has() -> None:
    part, parts, sent, ended = bytes(1 << 16), 1024, 0, asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        try:
            await answer.prepare(request)
            for _ in range(parts):
                await answer.write(part)
                sent += len(part)
        except ConnectionError:
            pass
        finally:
            ended.set()
        return answer

    assert await stats(endless) == PodStat()
    await ended.wait()
    # What the sockets in between hold.
    assert sent < parts * len(part) / 2


async def test_a_pods_answer_is_not_unpacked_and_leads_nowhere(activator: Activator) -> None:
    async def packed(_: web.Request) -> web.Response:
        return web.Response(body=gzip.compress(STAT), headers={"Content-Encoding": "gzip"})

    async def elsewhere(_: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": f"http://{ADDRESS}:{PORT}/metrics"})

    assert await stats(answer) == PodStat(2.5)
    assert await stats(packed) == PodStat()
    assert await stats(elsewhere) == PodStat()
    assert not activator.sent

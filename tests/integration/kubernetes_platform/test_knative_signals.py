"""Who asks activators what waits at them: how often, and for how much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest
from aiohttp import web

from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.scaling.objects import RevisionPod
from gnomon_platforms.knative.scaling.signals.scraper import ASLEEP_PERIOD_S, AWAKE_PERIOD_S, POD_PERIOD_S, Scraper

ADDRESS, PORT = "127.93.0.1", 9090
ACTIVATOR = RevisionPod("knative-serving", "activator-1", "", ADDRESS, running=True, ready=True, ending=False)
FIGURE = "kn_revision_request_queued"
ROUNDING_S = 1e-6


class Paced:
    """A clock whose sleepers wake at once: it moves by what they asked for, and remembers it."""

    def __init__(self) -> None:
        self.at_s = 0.0
        self.slept_s: list[float] = []

    def now_s(self) -> float:
        return self.at_s

    async def sleep(self, duration_s: float) -> None:
        if duration_s > AWAKE_PERIOD_S + ROUNDING_S:
            await asyncio.Event().wait()  # the other loop, which asks pods
        if duration_s > ROUNDING_S:
            self.slept_s.append(round(duration_s, 3))
        self.at_s += max(duration_s, ROUNDING_S)
        await asyncio.sleep(0)


class Activator:
    """Prometheus' own handler in small: `name[]` says which figures are wanted, nothing means all of them."""

    def __init__(self) -> None:
        self.figures = {FIGURE: 2, "kn_other_figure": 7}
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


@pytest.fixture
async def activator() -> AsyncIterator[Activator]:
    found = Activator()
    app = web.Application()
    app.router.add_get("/metrics", found.page)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, ADDRESS, PORT).start()
    yield found
    await runner.cleanup()


async def test_activators_are_asked_for_one_figure_and_more_often_while_a_revision_sleeps(activator: Activator) -> None:
    clock, took, asleep = Paced(), list[Mapping[FunctionKey, float]](), False

    async def looks(number: int) -> None:
        end = len(took) + number
        async with asyncio.timeout(60):
            while len(took) < end:  # noqa: ASYNC110 - what is waited for is told to a list
                await asyncio.sleep(0.001)

    async with aiohttp.ClientSession(trust_env=False) as session:
        scraper = Scraper(
            session,
            clock,
            pods=dict,
            activators=lambda: [ACTIVATOR],
            asleep=lambda: asleep,
            took_stats=lambda *_: None,
            took_waiting=took.append,
        )
        scraper.start()
        try:
            await looks(5)
            awake = len(clock.slept_s)
            asleep = True
            await looks(10)
            # By then whatever was asked for before it slept has been.
            later = len(clock.slept_s)
            await looks(5)
            seeing = scraper.seeing
        finally:
            await scraper.stop()
    assert seeing
    assert POD_PERIOD_S > AWAKE_PERIOD_S > ASLEEP_PERIOD_S
    assert set(clock.slept_s[: awake - 1]) == {AWAKE_PERIOD_S}
    assert set(clock.slept_s[later:]) == {ASLEEP_PERIOD_S}
    assert took[-1] == {FunctionKey("f-00001", "users"): 2.0}
    assert all(FIGURE in page and "kn_other_figure" not in page for page in activator.sent)

"""The autoscaler class joins the batch measurements of several gateways from their pages."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from gnomon_core.clock import WallClock
from gnomon_core.functions import FunctionKey
from gnomon_platforms.knative.autoscaler import metrics as gateways
from gnomon_platforms.knative.autoscaler.metrics import FEWER_AFTER_S, SECONDS, Gateways, ObservedLatency, latency_to_text
from gnomon_platforms.knative.autoscaler.objects import RevisionPod
from gnomon_platforms.knative.resources import ACTIVATOR_METRICS_PORT
from tests.waiting import until

F, G = FunctionKey("f-00001", "users"), FunctionKey("g-00001", "users")
FIRST, SECOND, ENDING = "127.0.83.1", "127.0.83.2", "127.0.83.3"


def pod(ip: str, *, ready: bool = True, ending: bool = False) -> RevisionPod:
    return RevisionPod("knative-serving", ip, "", ip, running=True, ready=ready, ending=ending)


@contextlib.asynccontextmanager
async def page(ip: str, text: str) -> AsyncIterator[None]:
    """A gateway that says this where it is asked for what it has learned."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=text if request.query.getall("name[]") == [SECONDS] else "")

    application = web.Application()
    application.router.add_get("/metrics", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.TCPSite(runner, ip, ACTIVATOR_METRICS_PORT).start()
    try:
        yield
    finally:
        await runner.cleanup()


@contextlib.asynccontextmanager
async def asking(pods: list[RevisionPod]) -> AsyncIterator[Gateways]:
    made = Gateways(lambda: pods, WallClock())
    async with aiohttp.ClientSession() as session:
        made.start(session)
        try:
            yield made
        finally:
            await made.stop()


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateways, "PERIOD_S", 0.02)


async def test_a_curve_is_the_mean_of_those_that_know_it() -> None:
    pods = [pod(FIRST), pod(SECOND)]
    first = latency_to_text({F: ObservedLatency((0.1, 0.2, 0.3), 0.02), G: ObservedLatency((1.0,))})
    second = latency_to_text({F: ObservedLatency((0.2, 0.2), 0.06)})
    async with page(FIRST, first), page(SECOND, second), asking(pods) as made:
        await until(lambda: made.observed_latency(F) == ObservedLatency((pytest.approx(0.15), 0.2), 0.06))
        assert made.observed_latency(G) == ObservedLatency((1.0,))
        assert made.observed_latency(FunctionKey("h-00001", "users")) is None
        assert made.queues == 2

        # One goes, and what it knew with it. One that ends takes no requests any more.
        pods[:] = [pod(SECOND), pod(ENDING, ending=True)]
        await until(lambda: made.observed_latency(F) == ObservedLatency((0.2, 0.2), 0.06))
        await until(lambda: made.observed_latency(G) is None)


async def test_silent_gateway_keeps_its_last_report() -> None:
    pods = [pod(FIRST)]
    async with asking(pods) as made:
        async with page(FIRST, latency_to_text({F: ObservedLatency((0.1,))})):
            await until(lambda: made.observed_latency(F) is not None)
        await asyncio.sleep(0.1)  # several questions that nobody answers
        assert made.observed_latency(F) == ObservedLatency((0.1,))


async def test_a_page_of_something_else_teaches_nothing_and_hinders_nothing() -> None:
    pods = [pod(FIRST), pod(SECOND)]
    hostile = f'{SECONDS}{{kn_revision_name="f-00001"}} 1\n{SECONDS}{{batch_size="x"}} nan\n' + "\x00" * 99
    async with page(FIRST, hostile), page(SECOND, latency_to_text({F: ObservedLatency((0.1,))})), asking(pods) as made:
        await until(lambda: made.observed_latency(F) == ObservedLatency((0.1,)))


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


def test_new_gateway_counts_at_once_and_a_missing_one_later() -> None:
    """Plans for all of them would be made anew at each step of a rollout, and pods made and ended by them."""
    pods, clock = [pod(FIRST), pod(SECOND)], Clock()
    made = Gateways(lambda: pods, clock)
    seen = []
    for count in (2, 3, 2, 3, 2):
        pods[:] = [pod(f"127.0.83.{number}") for number in range(count)]
        clock.time_s += 5.0
        seen.append(made.queues)
    assert seen == [2, 3, 3, 3, 3]
    clock.time_s += FEWER_AFTER_S - 6.0
    assert made.queues == 3
    clock.time_s += 1.0
    assert made.queues == 2
    pods.append(pod(ENDING, ending=True))
    assert made.queues == 2, "one that ends takes no requests any more"


async def test_without_a_gateway_there_is_one_queue() -> None:
    async with asking([]) as made:
        assert made.queues == 1

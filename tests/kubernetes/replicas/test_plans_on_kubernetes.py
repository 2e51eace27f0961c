"""A function with `batch` on a cluster with two gateways: one plans its buffer, the other makes batches by that plan.

A batch takes as long as one request, so that plans wait for some; none waits for as many as were deployed, which would take more
than the objective. What comes at once leaves in batches as large as may be.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from tests.kubernetes.replicas.conftest import Gateways

pytestmark = pytest.mark.timeout(300)
FUNCTION = "buffered"
HANDLER = """
import os, time
LEDGER = os.open({ledger!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def handle(event, context):
    return handle_batch([event], context)[0]


def handle_batch(events, context):
    os.write(LEDGER, b"%d\\n" % len(events))
    time.sleep(0.03)
    return [event.body for event in events]
"""
RATE_RPS = 80.0
MOST = 32
DOCUMENT = {
    "service": FUNCTION,
    "image": "buffered:1",
    "labels": {"com.openfaas.scale.min": "1", "com.openfaas.scale.max": "6"},
    "annotations": {"gnomon/autoscaler": "batch", "gnomon/max-batch": str(MOST), "gnomon/slo-ms": "200"},
}


@pytest.fixture
def echo_handler(tmp_path: Path, ledger: Path) -> Path:
    """What the node's pods run: it writes down how many requests it executes together."""
    folder = tmp_path / "function"
    folder.mkdir()
    (folder / "handler.py").write_text(HANDLER.format(ledger=str(ledger)))
    return folder


class Arrivals:
    """Requests at random moments, to gateways at random."""

    def __init__(self, gateways: Gateways, session: aiohttp.ClientSession) -> None:
        self._gateways, self._session, self._chance = gateways, session, random.Random(5)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._chance.expovariate(RATE_RPS))
                group.create_task(self.ask())

    async def ask(self) -> None:
        port = self._chance.choice(list(self._gateways.sent_to.values()))
        async with self._session.post(f"http://127.0.0.1:{port}/function/{FUNCTION}", data=b"x") as answer:
            assert (answer.status, await answer.read()) == (200, b"x")

    async def at_once(self, count: int) -> None:
        await asyncio.gather(*(self.ask() for _ in range(count)))


@contextlib.asynccontextmanager
async def arriving(gateways: Gateways) -> AsyncIterator[Arrivals]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        arrivals = Arrivals(gateways, session)
        coming = asyncio.create_task(arrivals.run())
        try:
            yield arrivals
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await coming


def planned(gateways: Gateways) -> int:
    """The largest batch of the newest plan that the leader has decided; as deployed without one."""
    decisions = gateways.processes["a"].call("GET", f"/gnomon/functions/{FUNCTION}/decisions").json()
    plans = (action["max_batch"] for one in decisions for action in one["actions"] if action["action"] == "SetBufferPlan")
    return int(next(plans, MOST))


def executed(ledger: Path) -> list[int]:
    """The sizes of all batches until now."""
    return [int(size) for size in ledger.read_text().split()]


async def test_the_owner_makes_batches_by_the_leaders_plan(gateways: Gateways, ledger: Path) -> None:
    a = gateways.processes["a"]
    assert (await asyncio.to_thread(a.call, "POST", "/system/functions", DOCUMENT)).status == 202
    await gateways.eventually(lambda: a.status(FUNCTION)["availableReplicas"] >= 1, "it never served")
    assert (gateways.leader(), gateways.owners()) == ("a", {"b"})
    async with arriving(gateways) as arrivals, asyncio.timeout(180):
        await gateways.eventually(lambda: planned(gateways) < MOST, "there is no plan")
        bounded = 0
        while bounded < 3:
            # A plan may be a moment on its way, and another one may come meanwhile.
            most, before = await asyncio.to_thread(planned, gateways), len(executed(ledger))
            await arrivals.at_once(3 * MOST)
            largest = max(executed(ledger)[before:])
            bounded = bounded + 1 if 1 < largest <= most < MOST else 0
            await asyncio.sleep(1.0)

"""The plan of a function's buffer on a cluster with two gateways: the one that leads decides it, the other one batches by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
import pytest

from tests.kubernetes import planned
from tests.kubernetes.replicas.conftest import Gateways

pytestmark = pytest.mark.timeout(300)
FUNCTION = "buffered"
HANDLER = """
import os
LEDGER = os.open({ledger!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def handle(event, context):
    return handle_batch([event], context)[0]


def handle_batch(events, context):
    os.write(LEDGER, b"%d\\n" % len(events))
    return [event.body for event in events]
"""
AT_ONCE = 8
DOCUMENT = {
    "service": FUNCTION,
    "image": "buffered:1",
    "labels": {"com.openfaas.scale.min": "1"},
    "annotations": {
        "gnomon/autoscaler": planned.NAME,
        "gnomon/max-batch": str(AT_ONCE),
        "gnomon/scheduler": "fixed",
        "gnomon/max-wait-ms": "500",
    },
}


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The policy is installed for gateways' processes."""
    monkeypatch.setenv("PYTHONPATH", str(planned.install(tmp_path / "site")))
    return [f"--policy={planned.NAME}"]


@pytest.fixture
def source() -> str:
    """A handler that records the size of each batch."""
    return HANDLER


def executed(ledger: Path) -> list[int]:
    """The sizes of all batches until now."""
    return [int(size) for size in ledger.read_text().split()] if ledger.exists() else []


async def largest(gateways: Gateways, ledger: Path) -> int:
    """The largest batch of requests that come at once to the one that leads, which passes them on."""
    url = f"http://127.0.0.1:{gateways.sent_to['a']}/function/{FUNCTION}"
    before = len(executed(ledger))
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> tuple[int, bytes]:
            async with session.post(url, data=b"x") as answer:
                return answer.status, await answer.read()

        assert await asyncio.gather(*(ask() for _ in range(AT_ONCE))) == [(200, b"x")] * AT_ONCE
    return max(executed(ledger)[before:])


async def test_the_owner_makes_batches_by_the_leaders_plan(gateways: Gateways, ledger: Path) -> None:
    a = gateways.processes["a"]
    assert (await asyncio.to_thread(a.call, "POST", "/system/functions", DOCUMENT)).status == 202
    await gateways.eventually(lambda: a.status(FUNCTION)["availableReplicas"] >= 1, "it never served")
    assert (gateways.leader(), gateways.owners()) == ("a", {"b"})
    async with asyncio.timeout(120):
        # Told with the next question; until then batches are as large as was deployed.
        while await largest(gateways, ledger) > planned.MOST:  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.2)
    for _ in range(5):
        assert 1 < await largest(gateways, ledger) <= planned.MOST

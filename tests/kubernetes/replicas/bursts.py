"""Bursts of requests for a model's Bodies, and what gateways and nodes tell of the pairs that they bring about.

On a machine that is busy with other things a Shadow may miss three hand-overs in a row at any moment: then its pair is over, and
the next one comes. So a test that states what a pair does waits for one reading in which there is one (`pair_of`), and asks why
one has gone that is to be there still (`gave_up`).
"""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.integration.coordinator_node.node import Node
from tests.kubernetes.measured import in_a_hurry
from tests.kubernetes.replicas.bodies import LABELS, MODEL, photograph

if TYPE_CHECKING:
    from tests.kubernetes.replicas.conftest import Gateways

CALLERS = 16
FUNCTION = "shot"
HAND_OVERS = re.compile(r'^gnomon_hand_overs_total\{[^}]*outcome="answered"[^}]*\} ([0-9.e+]+)$', re.MULTILINE)


def hurried(sample_s: float) -> dict[str, str]:
    """Annotations of a function that cannot carry all of the callers by itself."""
    return in_a_hurry(MODEL, sample_s)


class Callers:
    """Clients who ask for the same photograph again and again, each time where `where` says. `answers` counts what they get."""

    def __init__(self, where: Callable[[], str], headers: Mapping[str, str] | None = None) -> None:
        self._where, self._headers = where, headers
        self._ended = False
        self.answers: Counter[str] = Counter()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session, asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(self._call_on(session, photograph()))

    def end(self) -> None:
        self._ended = True

    async def more(self, count: int) -> None:
        """Wait until so many more have been classified."""
        goal = sum(self.answers[label] for label in LABELS) + count
        async with asyncio.timeout(120):
            while sum(self.answers[label] for label in LABELS) < goal:  # noqa: ASYNC110 - a counter of many tasks
                await asyncio.sleep(0.02)

    async def _call_on(self, session: aiohttp.ClientSession, picture: bytes) -> None:
        while not self._ended:
            try:
                async with session.post(self._where(), data=picture) as answer:
                    document = await answer.json(content_type=None)
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)
            except aiohttp.ClientError:
                self.answers["broken off"] += 1
            else:
                self.answers[document["label"] if answer.status == 200 else document["error"]["code"]] += 1


# Gateways


async def begin(gateways: Gateways, name: str, sample_s: float) -> Callers:
    """Deploy the function by this gateway, with one pod, and wait until it serves. Who will call it, through healthy gateways."""
    document = {
        "service": FUNCTION,
        "image": "body:1",
        "labels": {"com.openfaas.scale.max": "1"},
        "annotations": hurried(sample_s),
    }
    gateway, rng = gateways.processes[name], random.Random(7)
    answer = await asyncio.to_thread(gateway.call, "POST", "/system/functions", document)
    assert answer.status == 202, answer.data
    await gateways.eventually(lambda: gateway.status(FUNCTION).get("availableReplicas") == 1, "its pod never served")

    def where() -> str:
        port = rng.choice(list(gateways.sent_to.values()) or [1])
        return f"http://127.0.0.1:{port}/function/{FUNCTION}"

    return Callers(where)


def decisions(gateways: Gateways, name: str) -> list[dict[str, Any]]:
    """The decisions, the newest first."""
    return list(gateways.processes[name].call("GET", f"/gnomon/functions/{FUNCTION}/decisions").json())


def helped(gateways: Gateways, name: str) -> float:
    """How many hand-overs Shadows have answered, in batches that this gateway has sent."""
    found = HAND_OVERS.search(gateways.processes[name].call("GET", "/metrics").data.decode())
    return float(found[1]) if found else 0.0


async def helped_more(gateways: Gateways, name: str, why: str) -> None:
    """Wait until twenty more have been answered."""
    before = await asyncio.to_thread(helped, gateways, name)
    await gateways.eventually(lambda: helped(gateways, name) >= before + 20, why)


async def pair_of(gateways: Gateways, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A Body and its Shadow, as this gateway, or whoever leads, tells of both while they work together."""
    found: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def look() -> bool:
        answer = gateways.processes[name].call("GET", f"/gnomon/functions/{FUNCTION}")
        seen = answer.json() if answer.status == 200 else {"bodies": [], "shadows": []}
        ready = {shadow["id"]: shadow for shadow in seen["shadows"] if shadow["state"] == "ready"}
        found.extend((body, ready[body["shadow"]]) for body in seen["bodies"] if body["shadow"] in ready)
        return bool(found)

    await gateways.eventually(look, "no Body works with a Shadow")
    return found[0]


# Nodes


def shadow_rows(node: Node) -> set[str]:
    """The Shadows on the node that work for a Body."""
    return {row["id"] for row in node.state()["shadows"] if row["paired"] and row["state"] == "ready"}


def was_ended(gateways: Gateways, leader: str, shadow: str) -> bool:
    """True if this leader has decided to end a Shadow: it knows the pair."""
    actions = [action for decision in decisions(gateways, leader) for action in decision["actions"]]
    return {"action": "DestroyShadow", "id": shadow} in actions


def gave_up(home: Node, shadow: str) -> bool:
    """True if a Body of this node has given its Shadow up, by what its node's coordinator has written."""
    return re.search(rf"Shadow {re.escape(shadow)} has ended: \d+ misses in a row", home.agent.said) is not None

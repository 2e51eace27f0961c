"""Callers of functions that several gateways share, and the load balancer before the gateways.

Every request has a token of its own. The handler writes down each token that it executes, so that what was executed twice shows;
callers note each answer. Whoever sends connects anew for each request, to a replica that is healthy, and tries another one only
where there was no connection: as a load balancer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
from collections import Counter
from pathlib import Path

import aiohttp

HANDLER = """
import os, time
LEDGER = os.open({ledger!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def handle(event, context):
    os.write(LEDGER, event.body + b"\\n")
    time.sleep(0.004)
    return event.body
"""
FUNCTIONS = ("resnet", "bert", "echo", "ocr")
CALLERS = 6
OK, BROKEN = 200, 0
_NUMBERS = itertools.count()
"""Each token is given once, also where callers come one after the other."""


class Balanced:
    """Gateways behind a load balancer, and what their functions have executed."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        self.ledger.touch()
        self.ports: dict[str, int] = {}
        self.sent_to: dict[str, int] = {}
        """The healthy replicas, to which a load balancer sends."""

    def executed(self) -> Counter[bytes]:
        return Counter(self.ledger.read_bytes().splitlines())

    async def balance(self) -> None:
        """Look at everyone's health, twenty times a second."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.5)) as session:
            while True:
                for name, port in list(self.ports.items()):
                    healthy = False
                    with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                        async with session.get(f"http://127.0.0.1:{port}/healthz") as answer:
                            healthy = answer.status == OK
                    if healthy:
                        self.sent_to[name] = port
                    else:
                        self.sent_to.pop(name, None)
                await asyncio.sleep(0.05)


class Callers:
    """Clients that send one request after another, and the answers that they got, by token."""

    def __init__(self, gateways: Balanced) -> None:
        self._gateways = gateways
        self._rng = random.Random(7)
        self._ended = False
        self.sent: dict[bytes, float] = {}
        self.answers: dict[bytes, tuple[int, str]] = {}
        self.doubled: list[bytes] = []
        self.served: dict[str, list[tuple[float, float]]] = {name: [] for name in FUNCTIONS}
        """When requests were sent, and answered, by function."""

    async def run(self) -> None:
        connector = aiohttp.TCPConnector(force_close=True, limit=0)
        async with (
            aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as session,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CALLERS):
                group.create_task(self._call_on(session))

    def end(self) -> None:
        self._ended = True

    async def some(self, count: int) -> None:
        """Wait until so many more have been answered."""
        goal = len(self.answers) + count
        async with asyncio.timeout(80):
            while len(self.answers) < goal:  # noqa: ASYNC110 - a counter of many tasks
                await asyncio.sleep(0.01)

    async def _call_on(self, session: aiohttp.ClientSession) -> None:
        while not self._ended:
            token = b"%d" % next(_NUMBERS)
            self.sent[token] = asyncio.get_running_loop().time()
            function = self._rng.choice(FUNCTIONS)
            answer = await self._call(session, token, function)
            if token in self.answers:
                self.doubled.append(token)
            self.answers[token] = answer
            if answer[0] == OK:
                self.served[function].append((self.sent[token], asyncio.get_running_loop().time()))

    async def _call(self, session: aiohttp.ClientSession, token: bytes, function: str) -> tuple[int, str]:
        while True:
            port = self._rng.choice(list(self._gateways.sent_to.values()) or [1])
            try:
                async with session.post(f"http://127.0.0.1:{port}/function/{function}", data=token) as answer:
                    body = await answer.read()
            except aiohttp.ClientConnectorError:
                await asyncio.sleep(0.01)
                continue
            except aiohttp.ClientError:
                return BROKEN, "broken off"
            if answer.status == OK:
                assert body == token
                return OK, ""
            return answer.status, json.loads(body)["error"]["code"]

    def failed(self) -> dict[bytes, tuple[int, str]]:
        return {token: answer for token, answer in self.answers.items() if answer[0] != OK}

    def again_s(self, since_s: float) -> float:
        """How long after this moment it took until every function had answered a request that was sent after it."""
        found = [
            min((ended_s for sent_s, ended_s in times if sent_s >= since_s), default=float("inf"))
            for times in self.served.values()
        ]
        return max(found) - since_s

    def check_once(self) -> None:
        """Every request has one answer; nothing was executed twice, or not at all and answered."""
        executed = self._gateways.executed()
        assert not self.doubled
        assert self.answers.keys() == self.sent.keys()
        assert [token for token, times in executed.items() if times > 1] == []
        assert [token for token, (status, _) in self.answers.items() if status == OK and token not in executed] == []

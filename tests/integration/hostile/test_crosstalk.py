"""Nobody gets what belongs to somebody else: several functions at once, clients that leave, members that spoil a batch."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.integration.hostile.conftest import Attacked
from tests.waiting import eventually

REQUESTS = 5000
CLIENTS = 24
FUNCTIONS = ("cross-one", "cross-two", "cross-three")


@dataclass
class Client:
    """A client of its own connection, which asks one thing after the other and breaks some of them off."""

    port: int
    chance: random.Random
    seen: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    async def run(self, tokens: range) -> None:
        reader, writer = await self._connect()
        for number in tokens:
            kind = self.chance.choices(["ask", "leave", "poison"], [88, 9, 3])[0]
            await self._send(writer, number, kind)
            if kind == "leave":
                await asyncio.sleep(self.chance.random() * 0.004)
                writer.transport.abort()
                self.seen["left"] += 1
                reader, writer = await self._connect()
            else:
                await self._check(reader, number, kind)
        writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    def _body(self, number: int) -> bytes:
        return f"{number};".encode() * (number % 97 + 1)

    async def _send(self, writer: asyncio.StreamWriter, number: int, kind: str) -> None:
        function = FUNCTIONS[number % len(FUNCTIONS)]
        path = "/poison" if kind == "poison" else f"/{number}"
        body = self._body(number)
        head = (
            f"POST /function/{function}{path}?n={number} HTTP/1.1\r\nHost: a\r\nX-Token: {number}\r\nX-Call-Id: call-{number}\r\n"
        )
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    async def _check(self, reader: asyncio.StreamReader, number: int, kind: str) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])}
        body = await reader.readexactly(int(headers["content-length"]))
        status = int(head.split()[1])
        self.seen[f"{kind} {status}"] += 1
        found = (headers["x-call-id"], headers.get("x-token"), headers.get("x-path"), headers.get("x-query"), body)
        expected = (f"call-{number}", str(number), f"/{number}", f"n={number}", self._body(number))
        if found[0] != expected[0] or (status == 200 and found != expected):
            self.wrong.append(f"{expected} got {found}")


@pytest.fixture(scope="module")
def functions(gateway: Attacked, build_archive: Callable[..., bytes]) -> None:
    code = (Path(__file__).parent / "handlers" / "batching.py").read_text()
    gateway.build(build_archive(code, image="hostile/batching:1"))
    for name in FUNCTIONS:
        annotations = {"gnomon/max-batch": "8", "gnomon/autoscaler": "fixed"}
        gateway.deploy(name, image="hostile/batching:1", annotations=annotations, labels={"com.openfaas.scale.min": "2"})
    eventually(lambda: all(gateway.status(name)["availableReplicas"] == 2 for name in FUNCTIONS), "they never began")


def test_five_thousand_answers_and_each_to_its_own_request(gateway: Attacked, functions: None) -> None:
    port = int(gateway.url.rpartition(":")[2])
    clients = [Client(port, random.Random(seed)) for seed in range(CLIENTS)]

    async def run() -> None:
        await asyncio.gather(*(client.run(range(seed, REQUESTS, CLIENTS)) for seed, client in enumerate(clients)))

    asyncio.run(run())
    wrong = [mistake for client in clients for mistake in client.wrong]
    seen = sum((client.seen for client in clients), Counter())
    assert wrong == []
    assert seen.total() == REQUESTS
    assert set(seen) == {"ask 200", "poison 500", "left"}
    assert seen["ask 200"] > 4000
    batches, members = (sum(gateway.metric(f"gnomon_batch_size_{kind}", name) for name in FUNCTIONS) for kind in ("count", "sum"))
    assert members > 1.2 * batches, "they were not batched, so that this shows nothing"

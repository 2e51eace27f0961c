"""Three gateway processes share functions whose instances are real: one is killed, frozen, or all are replaced, under load.

Every request has a token of its own. The handler writes down each token that it executes, so that what was executed twice shows;
callers note each answer. Whoever sends connects anew for each request, to a replica that is healthy, and tries another one only
where there was no connection: as a load balancer does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gnomon_core.clock import WallClock
from gnomon_core.ownership import OwnershipMap
from gnomon_gateway.ownership.assigner import Assigner
from gnomon_gateway.ownership.boards import FileBoard
from gnomon_gateway.ownership.peers import Peers
from gnomon_gateway.ownership.rendezvous import owner
from gnomon_gateway.ownership.secret import read_peer_secret
from tests.integration.faults.conftest import freeze, go_on

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
PATIENCE_S = 1.5
OK, BROKEN = 200, 0


class Gateways:
    """The processes, the instances of their functions, and the leader, which is this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.touch()
        handler = folder / "function"
        handler.mkdir()
        (handler / "handler.py").write_text(HANDLER.format(ledger=str(self.ledger)))
        self._instances = begin("instances_process", str(handler), "t0ken", str(2 * len(FUNCTIONS)))
        addresses: list[str] = json.loads(first_line(self._instances))
        self.board = FileBoard(folder / "board")
        (folder / "secret").write_text("between these processes only\n")
        document = {
            "board": str(folder / "board"),
            "secret": str(folder / "secret"),
            "token": "t0ken",
            "deadline_s": 30.0,
            "functions": {name: addresses[2 * number : 2 * number + 2] for number, name in enumerate(FUNCTIONS)},
        }
        (folder / "settings.json").write_text(json.dumps(document))
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.ports: dict[str, int] = {}
        self.sent_to: dict[str, int] = {}
        """Those that a load balancer sends to: the ones that are healthy."""
        self._peers = Peers(read_peer_secret(folder / "secret"))
        assigner = Assigner(self.board, self._peers, WallClock(), leads=lambda: True, patience_s=PATIENCE_S, look_s=0.1)
        self._tasks = [asyncio.create_task(assigner.run()), asyncio.create_task(self._balance())]

    async def start(self, *names: str) -> None:
        """Begin these, and wait until they listen."""
        for name in names:
            log = self.folder / f"{name}.log"
            self.processes[name] = begin("gateway_process", str(self.folder / "settings.json"), name, log=log)
        for name in names:
            self.ports[name] = int(await asyncio.to_thread(first_line, self.processes[name]))

    async def shared_by(self, *names: str) -> OwnershipMap:
        """Wait until exactly these own, and the load balancer knows those that are there."""
        async with asyncio.timeout(60):
            while True:
                newest = await self.board.read()
                if newest is not None and {one.id for one in newest.owners} == set(names) and set(names) <= set(self.sent_to):
                    return newest
                await asyncio.sleep(0.02)

    def executed(self) -> Counter[bytes]:
        return Counter(self.ledger.read_bytes().splitlines())

    async def _balance(self) -> None:
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

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in (*self.processes.values(), self._instances):
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(process.wait)
            assert process.stdout is not None
            process.stdout.close()
        self._peers.close()


def begin(module: str, *arguments: str, log: Path | None = None) -> subprocess.Popen[bytes]:
    """Run one of the modules beside this one."""
    command = [sys.executable, "-m", f"tests.integration.ownership.{module}", *arguments]
    with (log or Path(os.devnull)).open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, cwd=Path(__file__).parents[3])


def first_line(process: subprocess.Popen[bytes]) -> bytes:
    """What it says when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args!r} has ended"
    return line


class Callers:
    """Clients that send one request after another, and the answers that they got, by token."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._chance = random.Random(7)
        self._numbers = itertools.count()
        self._ended = False
        self.sent: dict[bytes, float] = {}
        self.answers: dict[bytes, tuple[int, str]] = {}
        self.doubled: list[bytes] = []

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
            token = b"%d" % next(self._numbers)
            self.sent[token] = asyncio.get_running_loop().time()
            answer = await self._call(session, token)
            if token in self.answers:
                self.doubled.append(token)
            self.answers[token] = answer

    async def _call(self, session: aiohttp.ClientSession, token: bytes) -> tuple[int, str]:
        function = self._chance.choice(FUNCTIONS)
        while True:
            port = self._chance.choice(list(self._gateways.sent_to.values()) or [1])
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

    def check_once(self) -> None:
        """Every request has one answer; nothing was executed twice, or not at all and answered."""
        executed = self._gateways.executed()
        assert not self.doubled
        assert self.answers.keys() == self.sent.keys()
        assert [token for token, times in executed.items() if times > 1] == []
        assert [token for token, (status, _) in self.answers.items() if status == OK and token not in executed] == []


@pytest.fixture
async def gateways(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Gateways]:
    """Three of them, or those that the test names."""
    gateways, names = Gateways(tmp_path), getattr(request, "param", ("a", "b", "c"))
    try:
        await gateways.start(*names)
        await gateways.shared_by(*names)
        yield gateways
    finally:
        await gateways.stop()


def most_wanted(shared: OwnershipMap) -> str:
    """The replica that owns most functions."""
    owners = [owner(f"{name}.openfaas-fn", shared.owners) for name in FUNCTIONS]
    return Counter(found.id for found in owners if found is not None).most_common(1)[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("gateways", [("a", "b"), ("a", "b", "c")], indirect=True, ids=["of two", "of three"])
async def test_one_is_killed(gateways: Gateways) -> None:
    names = set(gateways.processes)
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(200)
    victim = most_wanted(await gateways.shared_by(*names))
    os.kill(gateways.processes[victim].pid, signal.SIGKILL)
    await asyncio.to_thread(gateways.processes[victim].wait)
    ended_s = asyncio.get_running_loop().time()
    await gateways.shared_by(*(names - {victim}))
    await callers.some(300)
    callers.end()
    await running
    callers.check_once()
    # What it held: at its listener, which takes connections until the kernel has ended it, or forwarded to it.
    # Others may have had a request on its way to it when it ended: one for each caller.
    late = [
        (callers.sent[token] - ended_s, *answer) for token, answer in callers.failed().items() if callers.sent[token] > ended_s
    ]
    assert len(late) <= CALLERS, late
    assert list(callers.failed().values()).count((502, "replica_lost")) <= CALLERS
    assert set(callers.failed().values()) <= {(BROKEN, "broken off"), (502, "replica_lost")}


@pytest.mark.slow
async def test_one_is_frozen_taken_for_gone_and_back(gateways: Gateways) -> None:
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(200)
    victim = most_wanted(await gateways.shared_by("a", "b", "c"))
    pid = gateways.processes[victim].pid
    freeze(pid)
    try:
        # Callers whose request it holds wait for it. The others go on.
        await gateways.shared_by(*({"a", "b", "c"} - {victim}))
        before = len(callers.answers)
        async with asyncio.timeout(20):
            while len(callers.answers) < before + 20:
                if len(callers.sent) - len(callers.answers) >= CALLERS:
                    break  # it holds one of every caller
                await asyncio.sleep(0.01)
    finally:
        go_on(pid)
    await gateways.shared_by("a", "b", "c")
    await callers.some(300)
    callers.end()
    await running
    callers.check_once()
    assert len(callers.failed()) <= CALLERS
    assert set(callers.failed().values()) <= {(502, "replica_lost")}


@pytest.mark.slow
async def test_all_are_replaced_one_after_the_other(gateways: Gateways) -> None:
    callers = Callers(gateways)
    running = asyncio.create_task(callers.run())
    await callers.some(100)
    there = ["a", "b", "c"]
    for old, new in (("a", "d"), ("b", "e"), ("c", "f")):
        await gateways.start(new)
        there = [name for name in there if name != old] + [new]
        await gateways.shared_by(*there, old)
        process = gateways.processes[old]
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0, (gateways.folder / f"{old}.log").read_text()
        await gateways.shared_by(*there)
        await callers.some(100)
    callers.end()
    await running
    callers.check_once()
    assert callers.failed() == {}

"""Three gateway processes share functions whose instances are real: one is killed, frozen, or all are replaced, under load."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.ownership import OwnershipMap
from gnomon_gateway.replicas.assigner import Assigner
from gnomon_gateway.replicas.assignment import owner
from gnomon_gateway.replicas.peers import Peers, read_peer_secret
from tests.integration.faults.conftest import freeze, go_on
from tests.integration.ownership.callers import BROKEN, CALLERS, FUNCTIONS, HANDLER, Balanced, Callers
from tests.ownership_boards import FileBoard

SILENCE_S = 1.5


class Gateways(Balanced):
    """The processes, the instances of their functions, and the leader, which is this process."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "ledger")
        self.folder = folder
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
        self._peers = Peers(read_peer_secret(folder / "secret"))
        assigner = Assigner(self.board, self._peers, WallClock(), leads=lambda: True, silence_s=SILENCE_S, poll_s=0.1)
        self._tasks = [asyncio.create_task(assigner.run()), asyncio.create_task(self.balance())]

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
                if newest is not None and {owner.id for owner in newest.owners} == set(names) and set(names) <= set(self.sent_to):
                    return newest
                await asyncio.sleep(0.02)

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
    """The line that a process prints when it serves."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, f"{process.args!r} has ended"
    return line


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
async def test_killed_gateway_loses_only_what_it_executed(gateways: Gateways) -> None:
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
async def test_frozen_gateway_returns_without_double_execution(gateways: Gateways) -> None:
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

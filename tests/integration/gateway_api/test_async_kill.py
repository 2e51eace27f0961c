"""A gateway that is killed loses no call that it accepted: each is executed, and called back, at least once."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from pathlib import Path
from random import Random

from aiohttp import web

CHILD = Path(__file__).with_name("async_child.py")


async def run(folder: Path, port: int, count: int, kill_after_s: float | None) -> list[str]:
    """What the process said before it ended or was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(CHILD), str(folder), str(port), str(count), stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    said = bytearray()
    if kill_after_s is not None:
        said += await process.stdout.readline()
        await asyncio.sleep(kill_after_s)
        process.send_signal(signal.SIGKILL)
    said += await process.stdout.read()
    await process.wait()
    return said[: said.rfind(b"\n") + 1].decode().splitlines()


async def test_every_accepted_call_is_executed_and_called_back_in_spite_of_sigkill(tmp_path: Path) -> None:
    called_back: Counter[str] = Counter()

    async def handle(request: web.Request) -> web.Response:
        called_back[request.headers["X-Call-Id"]] += 1
        assert await request.read() == request.headers["X-Call-Id"].encode() * 100
        return web.Response()

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    chance, accepted = Random(3), set[str]()
    for _ in range(4):
        said = await run(tmp_path, port, 60, chance.uniform(0.0, 0.05))
        accepted |= {line.split()[1] for line in said}
    assert (await run(tmp_path, port, 0, None))[-1] == "empty"
    await runner.cleanup()

    ran = Counter(line.split()[1] for line in (tmp_path / "journal").read_text().splitlines())
    assert accepted <= ran.keys()
    assert {call_id for call_id in accepted if int(call_id.rpartition("-")[2]) % 2} <= called_back.keys()
    # Only what ran when the process was killed may run again: not every call, and none more often than there were kills.
    assert max(ran.values()) <= 5
    assert sum(number > 1 for number in ran.values()) < len(ran)

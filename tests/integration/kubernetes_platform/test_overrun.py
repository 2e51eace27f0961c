"""A batch that takes longer than its requests allow: its instance is a process that computes, or one that is frozen."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest

from gnomon_core.wire import Frame, Kind, Member
from gnomon_platforms.kubernetes import channel
from gnomon_platforms.kubernetes.channel import HttpChannel
from gnomon_platforms.testing import answers, send
from gnomon_runtime.serve import APPLICATION, SETTINGS
from tests.integration.runtime.conftest import free_port
from tests.waiting import until

TOKEN = "of-the-gateway"
HANDLER = """
import pathlib

def handle(event, context):
    if event.path != "/compute":
        return event.body
    folder = pathlib.Path(event.body.decode())
    (folder / "begun").touch()
    while not (folder / "released").exists():
        sum(range(10_000))
    return "computed"
"""


class Instance:
    """A handler as its image runs it, which computes until it is released."""

    def __init__(self, folder: Path) -> None:
        self._folder, port = folder, free_port()
        self.address = f"http://127.0.0.1:{port}"
        (folder / "function").mkdir()
        (folder / "function" / "handler.py").write_text(HANDLER)
        environment = {"PATH": os.environ["PATH"], "GNOMON_PORT": str(port), "GNOMON_BATCH_TOKEN": TOKEN}
        command = [sys.executable, "-m", "gunicorn", "--config", SETTINGS, APPLICATION, "--bind", f"127.0.0.1:{port}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT)
        self._stopped = False

    def frame(self, path: str = "/compute") -> Frame:
        """A batch without a deadline of its own: how long it may take is the channel's to say."""
        return Frame(Kind.BATCH, 1, 1, 0.0, members=[Member(0, 1, f"POST\n{path}\n\n".encode(), str(self._folder).encode())])

    def computes(self) -> bool:
        assert self._process.poll() is None, (self._folder / "log").read_text()
        return (self._folder / "begun").exists()

    def release(self) -> None:
        (self._folder / "released").touch()

    def freeze(self) -> None:
        """Stop all of its processes, as when its node is suspended."""
        self._stopped = True
        self._signal(signal.SIGSTOP)

    def end(self) -> None:
        self.release()
        if self._stopped:
            self._signal(signal.SIGCONT)
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def _signal(self, number: int) -> None:
        pid = self._process.pid
        workers = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for process_id in (pid, *map(int, workers)):
            os.kill(process_id, number)


@dataclass
class Stage:
    instance: Instance
    channel: HttpChannel
    lost: list[str]
    asked: list[int]
    """The statuses of its answers beside the batch."""


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path)
    yield made
    made.end()


@pytest.fixture
async def stage(instance: Instance, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(channel, "GRACE_S", 0.02)
    async with aiohttp.ClientSession() as session:
        lost: list[str] = []
        opened = HttpChannel(session, instance.address, TOKEN, 0.01, lost.append)
        made = Stage(instance, opened, lost, [])
        ask = opened._health_check

        async def noted(timeout_s: float) -> int:
            made.asked.append(await ask(timeout_s))
            return made.asked[-1]

        while not await opened.probe(20.0):
            instance.computes()
            await asyncio.sleep(0.05)
        monkeypatch.setattr(opened, "_health_check", noted)
        yield made


async def test_an_instance_that_computes_is_waited_for_as_long_as_it_answers_beside_its_batch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "ANSWER_S", 60.0)
    answer = send(stage.channel, stage.instance.frame())
    await until(lambda: stage.instance.computes() and len(stage.asked) >= 5)
    assert not answer.done()
    stage.instance.release()
    assert answers(await answer) == [(200, b"computed")]
    assert set(stage.asked) == {200}
    assert stage.lost == []
    assert not stage.channel.busy
    asked = len(stage.asked)
    await asyncio.sleep(10 * channel.GRACE_S)
    assert len(stage.asked) == asked, "nobody asks any more"
    assert answers(await send(stage.channel, stage.instance.frame("/")))[0][0] == 200


async def test_an_instance_that_is_frozen_while_it_computes_is_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "ANSWER_S", 0.5)
    answer = send(stage.channel, stage.instance.frame())
    await until(stage.instance.computes)
    stage.instance.freeze()
    assert await answer is None
    assert stage.asked[-1] == 0
    assert stage.lost == ["it did not answer in time"]
    assert not stage.channel.unread, "it may have run"
    assert not await stage.channel.probe(0.5)

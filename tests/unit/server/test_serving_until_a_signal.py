"""What every command that serves does from its start to its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from gnomon_server.process import serve_until_signal


class Told:
    """A service that says what becomes of it; one that stands by is never started."""

    def __init__(self, *, stands_by: bool = False) -> None:
        self.steps: list[str] = []
        self._stands_by = stands_by

    async def start(self) -> None:
        if self._stands_by:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        self.steps.append("started")

    async def stop(self) -> None:
        self.steps.append("stopped")


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """A second signal ends a process at once; this one is the tests'."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_it_serves_until_it_is_told_to_end(number: signal.Signals, capsys: pytest.CaptureFixture[str]) -> None:
    service = Told()

    async def meanwhile(told: Told, ended: asyncio.Task[bool]) -> None:
        told.steps.append("serves")
        os.kill(os.getpid(), number)
        await ended

    await serve_until_signal(lambda: service, lambda _: "It serves.", meanwhile)
    assert service.steps == ["started", "serves", "stopped"]
    assert capsys.readouterr().out == "It serves. Ctrl-C stops it.\n"


async def test_it_ends_when_what_it_was_begun_for_has_been_done() -> None:
    service = Told()

    async def meanwhile(told: Told, ended: asyncio.Task[bool]) -> None:
        assert not ended.done()
        told.steps.append("done")

    await serve_until_signal(lambda: service, lambda _: "It serves.", meanwhile)
    assert service.steps == ["started", "done", "stopped"]


async def test_who_stands_by_ends_as_well_and_has_not_served(capsys: pytest.CaptureFixture[str]) -> None:
    service = Told(stands_by=True)
    await serve_until_signal(lambda: service, lambda _: "It serves.")
    assert service.steps == ["stopped"]
    assert capsys.readouterr().out == ""

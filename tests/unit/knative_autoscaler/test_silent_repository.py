"""A repository in S3 that takes connections and answers nothing: it is given up, holds few threads, and nobody waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gnomon_core.clock import WallClock
from gnomon_core.errors import GnomonError
from gnomon_core.profiles import REREAD_S, ModelProfile
from gnomon_core.settings import Settings, read_settings
from gnomon_platforms.knative.autoscaler.revision import READERS, Measured
from gnomon_profiler import s3
from gnomon_profiler.s3 import S3Repository
from tests.unit.autoscaler.asyfunc_stage import PROFILE
from tests.waiting import until

REVISIONS = 40
"""More than the event loop's own threads, on whichever machine."""


class Silent:
    """A server that reads whatever comes, and never answers."""

    def __init__(self) -> None:
        self.taken = self.held = self.most = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken, self.held = self.taken + 1, self.held + 1
        self.most = max(self.most, self.held)
        self.writers.append(writer)
        try:
            await reader.read()
        finally:
            self.held -= 1
            writer.close()


@pytest.fixture
async def silent(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Silent]:
    """Where boto3 finds S3. What waits for it is refused when the test is over."""
    made = Silent()
    server = await asyncio.start_server(made.hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    settings = {"ENDPOINT_URL": f"http://127.0.0.1:{port}", "ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b"}
    for name, value in {**settings, "DEFAULT_REGION": "us-east-1", "MAX_ATTEMPTS": "2"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    yield made
    server.close()
    for writer in made.writers:
        writer.transport.abort()


class Clock(WallClock):
    """Stands still until it is moved."""

    time_s = 100.0

    def now_s(self) -> float:
        return self.time_s


async def test_it_is_given_up_after_as_many_attempts_as_an_operator_says(
    silent: Silent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_TIMEOUT_S", 0.1)
    repository = S3Repository("models", "", tmp_path)
    with pytest.raises(GnomonError) as refused:
        await asyncio.to_thread(repository.get, "m@1")
    assert (refused.value.code, silent.taken) == ("repository_unreachable", 2)


async def test_few_threads_wait_for_it_and_what_was_known_holds(silent: Silent, tmp_path: Path) -> None:
    repository, clock, away = S3Repository("models", "", tmp_path), Clock(), False

    def read(settings: Settings) -> ModelProfile | None:
        if away:
            repository.get_blocks(settings.model or "", ())
        return PROFILE

    settings = read_settings(None, {"gnomon/model": "m@1"})
    revisions = [Measured(read, clock, lambda: None) for _ in range(REVISIONS)]
    for one in revisions:
        one.follow(settings)
    await until(lambda: all(one.known for one in revisions))
    away, clock.time_s = True, clock.time_s + REREAD_S
    for one in revisions:
        one.look()
    await until(lambda: silent.held == READERS)
    async with asyncio.timeout(60):
        # Whatever else is done beside the event loop goes on, and is behind what would have been begun by now.
        await asyncio.to_thread(lambda: None)
    assert silent.most == READERS
    assert all(one.known and one.profile is PROFILE for one in revisions)
    for one in revisions:
        one.close()

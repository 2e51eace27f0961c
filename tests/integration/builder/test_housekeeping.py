"""Unused builds are removed after an hour and never before; builds in use are never removed."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from gnomon_platforms.local.builder import EnvironmentBuilder, Housekeeping
from tests.integration.serve.conftest import Serving
from tests.waiting import eventually

MakeArchive = Callable[..., Path]
HOUR_S = 3600.0


@pytest.fixture
def built(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path / "built"


def grow_old(built: Path, by_s: float = HOUR_S + 60) -> None:
    """Let everything that was built so far look so much longer unused."""
    for path in (*built.glob("contents/*/content.json"), *built.glob("environments/*.json")):
        used_s = path.stat().st_mtime - by_s
        os.utime(path, (used_s, used_s))


def environments(built: Path) -> int:
    return len(list(built.glob("environments/*.json")))


def contents(built: Path) -> int:
    return len(list(built.glob("contents/*")))


def named(built: Path, image: str) -> bool:
    """To resolve it would be to use it."""
    return f'"{image}:latest"' in (built / "images.json").read_text()


async def build(builder: EnvironmentBuilder, archive: Path) -> str:
    return (await builder.build(archive, lambda _: None)).content_id


async def test_an_image_goes_an_hour_after_its_function(built: Path, build_archive_file: MakeArchive) -> None:
    builder, images = EnvironmentBuilder(built), {"used"}
    house = Housekeeping(builder, lambda: images, set)
    await build(builder, build_archive_file("x = 1\n", image="used"))
    grow_old(built)
    assert await house.collect() == [], "it is in use, however old it is"
    images.clear()
    grow_old(built)
    assert await house.collect() == [], "its function has gone only now"
    grow_old(built, HOUR_S / 2)
    assert await house.collect() == []
    assert builder.resolve("used") is not None, "this is a use as well"
    grow_old(built)
    removed = await house.collect()
    assert "used:latest" in removed
    assert builder.resolve("used") is None
    assert (environments(built), contents(built)) == (0, 0)


async def test_image_in_use_is_kept_after_its_tag_moved(built: Path, build_archive_file: MakeArchive) -> None:
    builder, running = EnvironmentBuilder(built), set[str]()
    house = Housekeeping(builder, lambda: ["used"], lambda: running)
    old = await build(builder, build_archive_file("x = 1\n", "idna==3.10\n", image="used"))
    running.add(old)
    await build(builder, build_archive_file("x = 2\n", image="used"))
    grow_old(built)
    assert await house.collect() == []
    running.clear()
    await house.collect()
    grow_old(built)
    removed = await house.collect()
    assert removed[0] == old
    assert (len(removed), environments(built)) == (2, 1)
    assert builder.resolve("used") is not None


async def test_a_build_of_the_same_begins_its_hour_again(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    archive = build_archive_file("x = 1\n", image="used")
    await build(builder, archive)
    grow_old(built)
    await build(builder, archive)
    assert await builder.collect([]) == []


async def test_housekeeping_runs_at_start_and_on_changes(built: Path, build_archive_file: MakeArchive) -> None:
    builder = EnvironmentBuilder(built)
    house = Housekeeping(builder, list, set, settle_s=0.01)
    await build(builder, build_archive_file("x = 1\n", image="first"))
    grow_old(built)
    work = asyncio.create_task(house.run())
    async with asyncio.timeout(60):
        while named(built, "first"):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
        await build(builder, build_archive_file("x = 2\n", image="second"))
        grow_old(built)
        house.trigger()
        while named(built, "second"):  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.01)
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work


class Building(Serving):
    """A gateway that builds."""

    def build(self, archive: bytes) -> None:
        secret = (self.state / "payload-secret").read_bytes()
        signature = hmac.new(secret, archive, hashlib.sha256).hexdigest()
        assert self.call("POST", "/build", archive, X_Build_Signature=f"sha256={signature}").status == 200


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Building]:
    gateway = Building(tmp_path / "state")
    gateway.start()
    yield gateway
    gateway.stop()
    gateway.client.clear()


def test_a_gateway_keeps_house(serving: Building, build_archive: Callable[..., bytes]) -> None:
    code = "def handle(event, context):\n    return {}\n"
    built = serving.state / "built"
    serving.build(build_archive(f"N = 1\n{code}", image="used"))
    serving.build(build_archive(f"N = 2\n{code}", image="unused"))
    assert serving.deploy("user", image="used").status == 202
    grow_old(built)
    assert serving.deploy("other").status == 202
    eventually(lambda: not named(built, "unused"), "the unused one stays")
    serving.build(build_archive(f"N = 3\n{code}", image="unused"))
    grow_old(built)
    serving.stop()
    serving.start()
    eventually(lambda: not named(built, "unused"), "the unused one stays after a restart")
    assert serving.call("POST", "/function/user").status == 200

"""The contract of every `OwnershipBoard`."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.ownership import OwnershipMap, Replica
from tests.ownership_boards import FileBoard, MemoryBoard

FIRST = OwnershipMap(1, (Replica("a", "http://10.0.0.1:8082", 1),))
Board = MemoryBoard | FileBoard


@pytest.fixture(params=["memory", "file"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Board:
    return MemoryBoard() if request.param == "memory" else FileBoard(tmp_path, look_s=0.005)


async def test_before_the_first_map_there_is_none(board: Board) -> None:
    assert await board.read() is None
    assert list(board.addresses()) == []


async def test_each_map_follows_the_one_before_it(board: Board) -> None:
    assert await board.publish(FIRST)
    assert not await board.publish(FIRST)
    assert not await board.publish(replace(FIRST, epoch=3))
    second = OwnershipMap(2, (Replica("b", "http://10.0.0.2:8082", 2),), FIRST.owners)
    assert await board.publish(second)
    assert await board.read() == second


async def test_one_of_many_concurrent_publishers_succeeds(board: Board) -> None:
    maps = [replace(FIRST, owners=(Replica(f"r{number}", "http://10.0.0.1:8082", 1),)) for number in range(8)]
    assert await board.publish(FIRST)
    successors = [replace(published_map, epoch=2) for published_map in maps]
    published = await asyncio.gather(*(board.publish(successor) for successor in successors))
    assert published.count(True) == 1
    assert await board.read() == successors[published.index(True)]


async def test_a_board_that_was_cleared_takes_what_its_readers_know(board: Board) -> None:
    assert await board.publish(replace(FIRST, epoch=41))
    assert not await board.publish(FIRST)
    assert await board.publish(replace(FIRST, epoch=42))


async def test_watcher_gets_the_newest_map_and_every_later_one(board: Board) -> None:
    assert await board.publish(FIRST)
    seen: list[int] = []
    arrived = asyncio.Event()

    def changed(new: OwnershipMap) -> None:
        seen.append(new.epoch)
        arrived.set()

    async def next_one() -> int:
        async with asyncio.timeout(60):
            await arrived.wait()
        arrived.clear()
        return seen[-1]

    stop = board.watch(changed)
    assert await next_one() == 1
    assert await board.publish(replace(FIRST, epoch=2))
    assert await next_one() == 2
    stop()
    assert await board.publish(replace(FIRST, epoch=3))
    await asyncio.sleep(0)
    assert seen == [1, 2]


async def test_two_processes_with_one_folder_see_the_same(tmp_path: Path) -> None:
    first, second = FileBoard(tmp_path), FileBoard(tmp_path)
    assert await first.publish(FIRST)
    assert await second.read() == FIRST
    first.announce("a", "http://10.0.0.1:8082")
    assert set(second.addresses()) == {"http://10.0.0.1:8082"}
    first.withdraw("a")
    first.withdraw("a")
    assert not second.addresses()


async def test_a_map_that_cannot_be_read_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "map.json").write_text("half a m")
    with pytest.raises(GnomonError) as caught:
        await FileBoard(tmp_path).read()
    assert (caught.value.status, caught.value.hint) == (503, "Remove it.")

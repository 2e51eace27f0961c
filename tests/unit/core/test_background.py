"""Work that nobody waits for."""

from __future__ import annotations

import asyncio

import pytest

from gnomon_core.background import Background
from gnomon_core.errors import GnomonError

REFUSAL = GnomonError(503, "no_capacity", "There is no room.", "Add a node.")


async def fails(error: Exception) -> None:
    raise error


@pytest.mark.parametrize("ended", [False, True])
async def test_what_fails_is_told_also_where_somebody_waits(caplog: pytest.LogCaptureFixture, *, ended: bool) -> None:
    background = Background()
    background.begin(fails(ZeroDivisionError("a mistake of ours")))
    if not ended:
        await background.settled()
    else:
        await asyncio.sleep(0)
        await background.end()
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], ZeroDivisionError)


async def test_a_refusal_is_told_in_its_own_words(caplog: pytest.LogCaptureFixture) -> None:
    background = Background()
    background.begin(fails(REFUSAL))
    await background.settled()
    assert [(one.levelname, one.getMessage(), one.exc_info) for one in caplog.records] == [("WARNING", str(REFUSAL), None)]


async def test_it_has_settled_when_what_was_begun_meanwhile_has_ended_too() -> None:
    background, done = Background(), list[str]()

    async def second() -> None:
        await asyncio.sleep(0)
        done.append("second")

    async def first() -> None:
        background.begin(second())
        done.append("first")

    background.begin(first())
    await background.settled()
    assert done == ["first", "second"]


async def test_what_is_ended_has_put_its_things_in_order(caplog: pytest.LogCaptureFixture) -> None:
    background, begun, done = Background(), asyncio.Event(), list[str]()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            done.append("in order")

    background.begin(work())
    await begun.wait()
    await background.end()
    assert done == ["in order"]
    assert not caplog.records


async def test_who_began_it_may_have_its_result() -> None:
    async def counts() -> int:
        return 3

    assert await Background().begin(counts()) == 3

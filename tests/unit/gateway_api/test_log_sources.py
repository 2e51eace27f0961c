"""Lines from the gateway's own book and from where a platform keeps what instances write, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_gateway.logs import LogBook, Logs

KEY = FunctionKey("fn")
ALL = LogQuery(KEY)


class Kept:
    """A platform's reader: what it holds, and what comes."""

    def __init__(self, *lines: LogLine) -> None:
        self.held = lines
        self.coming: asyncio.Queue[LogLine | None] = asyncio.Queue()
        self.closed = False
        self.refusal: GnomonError | None = None

    async def lines(self, query: LogQuery) -> Sequence[LogLine]:
        assert query.function == KEY
        return self.held

    def follow(self, query: LogQuery) -> Kept:
        if self.refusal is not None:
            raise self.refusal
        assert query.function == KEY
        return self

    async def next_line(self) -> LogLine | None:
        return await self.coming.get()

    def close(self) -> None:
        self.closed = True
        self.coming.put_nowait(None)


def at(second: float, text: str) -> LogLine:
    return LogLine(KEY, "pod-1", second, text)


def book() -> LogBook:
    times = iter((2.0, 4.0, 6.0))
    return LogBook(lambda: next(times))


async def test_lines_of_both_are_one_list_by_time_and_the_tail_is_of_it() -> None:
    own = book()
    own.append(KEY, "", "two")
    own.append(KEY, "", "four")
    logs = Logs(own, Kept(at(1.0, "one"), at(3.0, "three"), at(5.0, "five")))
    assert [line.text for line in await logs.lines(ALL)] == ["one", "two", "three", "four", "five"]
    assert [line.text for line in await logs.lines(LogQuery(KEY, tail=2))] == ["four", "five"]
    assert [line.text for line in await Logs(own).lines(ALL)] == ["two", "four"]


async def test_who_follows_hears_both_until_the_function_is_removed() -> None:
    own, kept = book(), Kept()
    follower = Logs(own, kept).follow(ALL)
    own.append(KEY, "", "ours")
    kept.coming.put_nowait(at(9.0, "theirs"))
    heard = [await follower.next_line(), await follower.next_line()]
    assert {line.text for line in heard if line is not None} == {"ours", "theirs"}
    own.forget(KEY)
    assert await follower.next_line() is None
    follower.close()
    assert kept.closed


async def test_closing_ends_who_waits_and_everything_behind() -> None:
    own, kept = book(), Kept()
    follower = Logs(own, kept).follow(ALL)
    waiting = asyncio.create_task(follower.next_line())
    await asyncio.sleep(0)
    follower.close()
    follower.close()
    assert await waiting is None
    assert await follower.next_line() is None
    assert kept.closed
    assert own._followers == {}


async def test_a_platform_that_refuses_leaves_no_follower_behind() -> None:
    own, kept = book(), Kept()
    kept.refusal = GnomonError(429, "too_many_followers", "Enough.")
    with pytest.raises(GnomonError):
        Logs(own, kept).follow(ALL)
    assert own._followers == {}

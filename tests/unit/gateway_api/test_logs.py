"""Logs of functions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gnomon_core.errors import GnomonError
from gnomon_core.functions import FunctionKey
from gnomon_core.interfaces import LogLine, LogQuery
from gnomon_gateway.functions import logs
from gnomon_gateway.functions.logs import LogBook, Logs

FN = FunctionKey("fn")


class Times:
    now = 100.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def texts(book: LogBook, **query: object) -> list[str]:
    return [line.text for line in book.lines(LogQuery(FN, **query))]  # type: ignore[arg-type]


def test_lines_come_back_in_order_by_function_instance_time_and_number() -> None:
    book = LogBook(Times())
    for number in range(4):
        book.append(FN, f"i{number % 2}", f"line {number}")
    book.append(FunctionKey("fn", "other"), "i0", "elsewhere")
    assert texts(book) == ["line 0", "line 1", "line 2", "line 3"]
    assert texts(book, instance="i1") == ["line 1", "line 3"]
    assert texts(book, since=103.0) == ["line 2", "line 3"]
    assert texts(book, tail=1) == ["line 3"]
    assert texts(book, instance="i0", tail=1) == ["line 2"]
    assert book.lines(LogQuery(FunctionKey("unknown"))) == []


def test_a_book_keeps_its_newest_lines_within_its_bounds() -> None:
    book = LogBook(Times())
    for number in range(logs.MAX_LINES + 5):
        book.append(FN, "i", str(number))
    kept = texts(book)
    assert kept[-1] == str(logs.MAX_LINES + 4)
    assert sum(len(text) + logs.LINE_OVERHEAD_BYTES for text in kept) <= logs.MAX_BYTES


def test_a_huge_line_is_cut() -> None:
    book = LogBook(Times())
    book.append(FN, "i", "x" * 10**7)
    (text,) = texts(book)
    assert len(text) == logs.MAX_LINE_LENGTH + 1
    assert text.endswith("…")


async def test_a_follower_gets_what_there_was_and_then_each_new_line() -> None:
    book = LogBook(Times())
    book.append(FN, "i", "before")
    follower = book.follow(LogQuery(FN))
    first = await follower.next_line()
    waiting = asyncio.create_task(follower.next_line())
    await asyncio.sleep(0)
    assert not waiting.done()
    book.append(FN, "i", "after")
    second = await waiting
    assert [line and line.text for line in (first, second)] == ["before", "after"]


async def test_a_follower_of_one_instance_hears_of_no_other() -> None:
    book = LogBook(Times())
    follower = book.follow(LogQuery(FN, instance="a"))
    book.append(FN, "b", "not this")
    book.append(FN, "a", "this")
    line = await follower.next_line()
    assert line is not None
    assert line.text == "this"


async def test_a_slow_follower_loses_its_oldest_lines_and_is_told() -> None:
    book = LogBook(Times())
    follower = book.follow(LogQuery(FN))
    for number in range(logs.FOLLOWER_LINES + 3):
        book.append(FN, "i", str(number))
    notice, first = await follower.next_line(), await follower.next_line()
    assert notice is not None
    assert first is not None
    assert "3 lines were left out" in notice.text
    assert first.text == "3"


async def test_removing_the_function_ends_its_followers_and_drops_its_lines() -> None:
    book = LogBook(Times())
    follower = book.follow(LogQuery(FN))
    book.append(FN, "i", "last words")
    book.forget(FN)
    line = await follower.next_line()
    assert line is not None
    assert line.text == "last words"
    assert await follower.next_line() is None
    assert texts(book) == []


async def test_closing_wakes_a_follower_that_waits() -> None:
    book = LogBook(Times())
    waiting = asyncio.create_task(book.follow(LogQuery(FN)).next_line())
    await asyncio.sleep(0)
    book.close()
    assert await waiting is None


async def test_followers_are_bounded_and_a_closed_one_makes_room() -> None:
    book = LogBook(Times())
    followers = [book.follow(LogQuery(FN)) for _ in range(logs.MAX_FOLLOWERS)]
    with pytest.raises(GnomonError) as refused:
        book.follow(LogQuery(FN))
    assert refused.value.status == 429
    followers[0].close()
    followers[0].close()
    book.follow(LogQuery(FN)).close()


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


async def test_followed_log_has_both_sources_until_removal() -> None:
    own, kept = book(), Kept()
    follower = Logs(own, kept).follow(ALL)
    own.append(KEY, "", "ours")
    kept.coming.put_nowait(at(9.0, "theirs"))
    lines = [await follower.next_line(), await follower.next_line()]
    assert {line.text for line in lines if line is not None} == {"ours", "theirs"}
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
